// SPDX-License-Identifier: Apache-2.0
//! Waiting with poll(2) and the like.

use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, RawFd};

use crate::error::Result;

/// What can be waited for by a descriptor.
pub trait Pollable {
    /// False: there is something to do at once. A poll that has begun goes on until end_poll().
    fn begin_poll(&mut self) -> Result<bool>;
    /// Nothing where none has begun. What is used next calls it, too: a guard may have been forgotten.
    fn end_poll(&mut self);
}

/// As long as it lives, its descriptor becomes readable when there may be something to do.
///
/// Nothing else can be done with what is polled meanwhile. Drop it, then try: `try_recv()` and
/// `try_send()` may still find nothing.
///
/// ```
/// use std::os::unix::io::AsRawFd;
/// use farcall::Pipe;
///
/// let (mut here, mut there) = Pipe::pair()?;
/// let (_, receiver) = here.halves();
/// if let Some(polling) = receiver.poll()? {
///     there.send(b"hello")?;
///     let mut poll = libc::pollfd { fd: polling.as_raw_fd(), events: libc::POLLIN, revents: 0 };
///     assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
/// }
/// assert_eq!(receiver.try_recv()?, b"hello");
/// # Ok::<(), farcall::Error>(())
/// ```
#[derive(Debug)]
pub struct Polling<'a, T: Pollable> {
    what: &'a mut T,
}

impl<'a, T: Pollable> Polling<'a, T> {
    pub(crate) fn begin(what: &'a mut T) -> Result<Option<Self>> {
        Ok(if what.begin_poll()? { Some(Polling { what }) } else { None })
    }
}

impl<T: Pollable> Drop for Polling<'_, T> {
    fn drop(&mut self) {
        self.what.end_poll();
    }
}

impl<T: Pollable + AsRawFd> AsRawFd for Polling<'_, T> {
    fn as_raw_fd(&self) -> RawFd {
        self.what.as_raw_fd()
    }
}

impl<T: Pollable + AsFd> AsFd for Polling<'_, T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.what.as_fd()
    }
}
