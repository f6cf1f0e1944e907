// SPDX-License-Identifier: Apache-2.0
//! Descriptors for programs that are executed.
//!
//! One process gives them, as the numbers in a variable of the environment; the other takes them.
//!
//! ```no_run
//! use farcall::{exec, Pipe};
//! use std::process::Command;
//!
//! let (mut here, there) = Pipe::pair()?;
//! let mut command = Command::new("child");
//! exec::give(&mut command, "PIPE", there.into_descriptors()?);
//! let mut child = command.spawn()?;
//! drop(command); // and with it this process's part of the descriptors
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! ```no_run
//! use farcall::{exec, Pipe};
//!
//! // SAFETY: they are taken once, and nobody else has them.
//! let end = Pipe::adopt(unsafe { exec::take("PIPE")? })?;
//! # Ok::<(), farcall::Error>(())
//! ```

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::error::{Error, Result};

/// Has a program that is executed inherit `descriptors`, whose numbers it finds in `variable`.
///
/// They stay open here until `command` is dropped. Drop it once it has been spawned: until then nobody
/// is told that the child has gone.
pub fn give(
    command: &mut Command,
    variable: impl AsRef<OsStr>,
    descriptors: impl IntoIterator<Item = OwnedFd>,
) {
    let descriptors: Vec<OwnedFd> = descriptors.into_iter().collect();
    let numbers: Vec<String> = descriptors.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    command.env(variable, numbers.join(","));
    // SAFETY: it makes system calls alone; no memory is allocated, and no lock taken.
    unsafe {
        command.pre_exec(move || {
            for descriptor in &descriptors {
                set_flags(descriptor.as_raw_fd(), 0)?;
            }
            Ok(())
        });
    }
}

/// Takes what [`give()`] has given to this program, in that order; close-on-exec from now on.
///
/// EBADF where there is no such variable, or what it says is no open descriptor.
///
/// # Safety
///
/// The variable comes from [`give()`], or from who does the same; nothing else in this process owns these
/// descriptors; and they are taken once.
pub unsafe fn take(variable: impl AsRef<OsStr>) -> Result<Vec<OwnedFd>> {
    let numbers = env::var(variable).map_err(|_| Error::Os(libc::EBADF))?;
    let numbers = numbers
        .split(',')
        .map(|number| number.parse().map_err(|_| Error::Os(libc::EBADF)))
        .collect::<Result<Vec<RawFd>>>()?;
    for number in &numbers {
        set_flags(*number, libc::FD_CLOEXEC).map_err(|error| Error::from_io(&error))?;
    }
    // SAFETY: they are open, and the caller says that they are nobody else's.
    Ok(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}

fn set_flags(descriptor: RawFd, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: it has no memory of ours.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
