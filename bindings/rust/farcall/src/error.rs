// SPDX-License-Identifier: Apache-2.0
//! What went wrong, by the errno of the C interface.

use std::fmt;
use std::io;
use std::os::raw::c_int;

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why something was not done.
///
/// Each has the errno of the C interface, and becomes a [`std::io::Error`] with it, so that `?` works in
/// functions that return one.
///
/// ```
/// use farcall::{Error, Pipe};
///
/// let (mut here, there) = Pipe::pair()?;
/// assert_eq!(here.try_recv(), Err(Error::WouldBlock));
/// drop(there);
/// assert_eq!(here.recv(), Err(Error::Finished));
/// let error: std::io::Error = here.send(b"?").unwrap_err().into();
/// assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
/// # Ok::<(), farcall::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// Nothing could be done at once. EAGAIN.
    WouldBlock,
    /// Nothing could be done in time. ETIMEDOUT.
    TimedOut,
    /// A signal has been caught whose handler called [`note_signal()`](crate::note_signal), or
    /// another one. EINTR.
    Interrupted,
    /// Nothing follows: the other end has finished or closed, and all has been received. EPIPE.
    Finished,
    /// What is sent would be received by nobody, or this end has finished. EPIPE.
    NobodyReceives,
    /// The process of the other end has died, or gone in the middle of a message. ECONNRESET.
    PeerDied,
    /// This reader was too slow, and is none any more. ECONNABORTED.
    Dropped,
    /// The server of a call has seen the request, and has failed or died. ECONNABORTED.
    CallFailed,
    /// The message is longer than the room for it. Where it is received it is still there. EMSGSIZE.
    TooLong {
        /// The size of the message.
        size: usize,
    },
    /// The other side has written into the shared memory what cannot be; or something else is served
    /// there, or these descriptors are something else. EPROTO.
    Broken,
    /// Another process uses this end, or has forked this one. EBUSY.
    Busy,
    /// What is opened or adopted is a pipe of the other kind: of messages and not of bytes, or the other
    /// way round. EPROTOTYPE.
    OtherKind,
    /// The server of a message has closed the channel or died; or nobody waits for the answer any more.
    /// ESRCH.
    Gone,
    /// Anything else, by its errno.
    Os(i32),
}

impl Error {
    /// The number that Linux knows it by.
    pub fn errno(self) -> i32 {
        match self {
            Error::WouldBlock => libc::EAGAIN,
            Error::TimedOut => libc::ETIMEDOUT,
            Error::Interrupted => libc::EINTR,
            Error::Finished | Error::NobodyReceives => libc::EPIPE,
            Error::PeerDied => libc::ECONNRESET,
            Error::Dropped | Error::CallFailed => libc::ECONNABORTED,
            Error::TooLong { .. } => libc::EMSGSIZE,
            Error::Broken => libc::EPROTO,
            Error::Busy => libc::EBUSY,
            Error::OtherKind => libc::EPROTOTYPE,
            Error::Gone => libc::ESRCH,
            Error::Os(errno) => errno,
        }
    }

    /// What the standard library would call it.
    pub fn kind(self) -> io::ErrorKind {
        io::Error::from(self).kind()
    }

    fn of(errno: i32) -> Error {
        match errno {
            libc::EAGAIN => Error::WouldBlock,
            libc::ETIMEDOUT => Error::TimedOut,
            libc::EINTR => Error::Interrupted,
            libc::ECONNRESET => Error::PeerDied,
            libc::ECONNABORTED => Error::Dropped,
            libc::EPROTO => Error::Broken,
            libc::EBUSY => Error::Busy,
            libc::EPROTOTYPE => Error::OtherKind,
            libc::ESRCH => Error::Gone,
            errno => Error::Os(errno),
        }
    }

    /// Of a function that returns a number, or a negative errno.
    pub(crate) fn check(result: c_int) -> Result<c_int> {
        if result < 0 {
            return Err(Error::of(-result));
        }
        Ok(result)
    }

    /// Of one that sends a message of `size` bytes.
    pub(crate) fn check_sent(result: c_int, size: usize) -> Result<()> {
        match -result {
            0 => Ok(()),
            libc::EPIPE => Err(Error::NobodyReceives),
            libc::EMSGSIZE => Err(Error::TooLong { size }),
            errno => Err(Error::of(errno)),
        }
    }

    /// Of one that calls with a request of `size` bytes.
    pub(crate) fn check_called(result: c_int, size: usize) -> Result<()> {
        match -result {
            libc::ECONNABORTED => Err(Error::CallFailed),
            _ => Error::check_sent(result, size),
        }
    }

    /// Of one that receives a message, and has said how long it is where there is no room for it.
    pub(crate) fn check_received(result: i64, needed: usize) -> Result<usize> {
        if result >= 0 {
            return Ok(result as usize); // at most the room of a buffer
        }
        match -result as i32 {
            libc::EPIPE => Err(Error::Finished),
            libc::EMSGSIZE => Err(Error::TooLong { size: needed }),
            errno => Err(Error::of(errno)),
        }
    }

    /// Of one that writes bytes.
    pub(crate) fn check_written(result: i64) -> Result<usize> {
        match usize::try_from(result) {
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(match -result as i32 {
                libc::EPIPE => Error::NobodyReceives,
                errno => Error::of(errno),
            }),
        }
    }

    /// Of one that reads bytes.
    pub(crate) fn check_read(result: i64) -> Result<usize> {
        usize::try_from(result).map_err(|_| Error::of(-result as i32))
    }

    pub(crate) fn from_io(error: &io::Error) -> Error {
        Error::of(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::WouldBlock => f.write_str("nothing could be done at once"),
            Error::TimedOut => f.write_str("nothing could be done in time"),
            Error::Interrupted => f.write_str("a signal was caught"),
            Error::Finished => f.write_str("nothing follows"),
            Error::NobodyReceives => {
                f.write_str("nobody receives any more, or this end has finished")
            }
            Error::PeerDied => f.write_str("the process of the other end has died"),
            Error::Dropped => f.write_str("this reader was too slow, and is none any more"),
            Error::CallFailed => f.write_str("the server has failed or died"),
            Error::TooLong { size } => write!(f, "the message is too long: {size} bytes"),
            Error::Broken => f.write_str("the other side does not keep to the protocol"),
            Error::Busy => f.write_str("another process uses this"),
            Error::OtherKind => f.write_str("the pipe is of the other kind: messages or bytes"),
            Error::Gone => f.write_str("the other side has gone"),
            Error::Os(errno) => io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::from_raw_os_error(error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_survives_the_way_there_and_back() {
        for errno in 1..200 {
            let error = Error::check(-errno).unwrap_err();
            assert_eq!(error.errno(), errno);
            assert_eq!(io::Error::from(error).raw_os_error(), Some(errno));
            assert!(!error.to_string().is_empty());
            assert_eq!(Error::check_received(-i64::from(errno), 5).unwrap_err().errno(), errno);
            assert_eq!(Error::check_sent(-errno, 5).unwrap_err().errno(), errno);
            assert_eq!(Error::check_called(-errno, 5).unwrap_err().errno(), errno);
            assert_eq!(Error::check_read(-i64::from(errno)).unwrap_err().errno(), errno);
            assert_eq!(Error::check_written(-i64::from(errno)).unwrap_err().errno(), errno);
        }
    }

    #[test]
    fn one_errno_is_two_things_where_it_is_sent_and_received() {
        assert_eq!(Error::check_received(-i64::from(libc::EPIPE), 0), Err(Error::Finished));
        assert_eq!(Error::check_sent(-libc::EPIPE, 0), Err(Error::NobodyReceives));
        assert_eq!(Error::check_written(-i64::from(libc::EPIPE)), Err(Error::NobodyReceives));
        assert_eq!((Error::check_written(7), Error::check_read(0)), (Ok(7), Ok(0)));
        let long = Err(Error::TooLong { size: 7 });
        assert_eq!(Error::check_received(-i64::from(libc::EMSGSIZE), 7), long);
        assert_eq!(Error::check_received(7, 0), Ok(7));
    }
}
