// SPDX-License-Identifier: Apache-2.0
//! Says which version of the library this is linked with.

use std::ffi::CStr;

fn main() {
    // SAFETY: it is a string that is never freed.
    let version = unsafe { CStr::from_ptr(farcall_sys::farcall_version()) };
    println!("{}", version.to_str().expect("a version"));
}
