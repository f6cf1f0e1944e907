// SPDX-License-Identifier: Apache-2.0
//! Send, receive and reply, as QNX has them; with the feature `messages`, of `libfarcall-messages`.
//!
//! Who sends waits until the message has been answered. The most urgent is received first.
//!
//! ```
//! use farcall::messages::{Channel, Received};
//!
//! let channel = Channel::new()?; // with Channel::attach() others connect to it by a name
//! let connection = channel.connect()?;
//! let client = std::thread::spawn(move || {
//!     let mut reply = [0; 100];
//!     let replied = connection.send(b"ping", &mut reply)?;
//!     farcall::Result::Ok(reply[..replied.size].to_vec())
//! });
//! if let Received::Message(message) = channel.receive()? {
//!     assert_eq!(message.data(), b"ping");
//!     message.reply(0, b"pong")?;
//! }
//! assert_eq!(client.join().unwrap()?, b"pong");
//! # Ok::<(), farcall::Error>(())
//! ```
//!
//! A forked child has its parent's connections, and none of its channels: those are
//! [`Error::Busy`] there.

use std::ffi::CString;
use std::io;
use std::os::raw::c_int;

use farcall_sys::message as sys;

use crate::error::{Error, Result};
use crate::wait::Timeout;

mod channel;
mod connection;
mod received;

pub use channel::{Channel, ChannelOptions};
pub use connection::{Connection, Replied, Sending};
pub use received::{Message, OneWay, Origin, Pulse, Received};

fn last() -> Error {
    Error::from_io(&io::Error::last_os_error())
}

fn number(result: c_int) -> Result<c_int> {
    if result < 0 {
        Err(last())
    } else {
        Ok(result)
    }
}

/// For the next call of this thread.
fn set(timeout: Timeout) {
    // SAFETY: it may be called anywhere.
    unsafe { sys::farcall_timeout(timeout.nanoseconds()) };
}

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Os(libc::EINVAL))
}

/// Of one that a channel is used for: numbers are refused only to forked children.
fn used(error: Error) -> Error {
    if error == Error::Os(libc::EBADF) {
        Error::Busy
    } else {
        error
    }
}
