// SPDX-License-Identifier: Apache-2.0
//! Where messages are sent.

use std::os::raw::c_int;
use std::os::unix::io::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use farcall_sys::message as sys;

use super::{c_name, last, number, set, used, Channel};
use crate::error::{Error, Result};
use crate::wait::Timeout;

/// Of one that sends: what a server of this crate has dropped is answered with ECONNABORTED.
fn sent(result: c_int, size: usize) -> Result<c_int> {
    number(result).map_err(|error| match error {
        Error::Dropped => Error::CallFailed,
        Error::Os(libc::EMSGSIZE) => Error::TooLong { size },
        error => error,
    })
}

/// A reply that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replied {
    /// What the server has chosen: 0 or more.
    pub status: i32,
    /// Bytes of the room, up to the last that was written.
    pub size: usize,
}

/// Where messages are sent. Any number of threads may send at once, and so may forked children.
#[derive(Debug)]
pub struct Connection {
    number: c_int,
}

impl Connection {
    /// To the channel of that name: this user's, or root's, or that of any, as `UID/name`. ENOENT where
    /// there is none.
    pub fn open(name: &str) -> Result<Connection> {
        let name = c_name(name)?;
        set(Timeout::NEVER);
        // SAFETY: the name is there.
        Connection::of(unsafe { sys::farcall_name_open(name.as_ptr()) })
    }

    pub(super) fn of(made: c_int) -> Result<Connection> {
        Ok(Connection { number: number(made)? })
    }

    /// Makes a connection of what [`Connection::descriptor()`] of any process is, inherited or received.
    /// What is none is closed: EINVAL.
    pub fn adopt(descriptor: OwnedFd) -> Result<Connection> {
        let descriptor = descriptor.into_raw_fd();
        // SAFETY: it is given away.
        let made = Connection::of(unsafe { sys::farcall_adopt(descriptor) });
        if matches!(made, Err(Error::Os(libc::EINVAL))) {
            // SAFETY: it has stayed here, where it is no connection.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
        made
    }

    /// What makes a connection where it is passed on, to be sent along with a message as well.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: it takes a number.
        let descriptor = number(unsafe { sys::farcall_connection_descriptor(self.number) })?;
        // SAFETY: the connection has it until it is dropped.
        Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Sends, and waits for the reply; of that, what there is room for comes.
    ///
    /// [`Error::Gone`] where the server is gone, or goes before it has answered; [`Error::CallFailed`]
    /// where it has dropped the message; or whatever it has answered with. After [`Error::Interrupted`]
    /// it may have been received.
    pub fn send(&self, message: &[u8], reply: &mut [u8]) -> Result<Replied> {
        self.sending(message).send(reply)
    }

    /// The same, for so long: then [`Error::TimedOut`]. A channel with
    /// [`unblock()`](super::ChannelOptions::unblock) has it wait until it is answered.
    pub fn send_timeout(
        &self,
        message: &[u8],
        reply: &mut [u8],
        timeout: Duration,
    ) -> Result<Replied> {
        self.sending(message).timeout(timeout).send(reply)
    }

    /// A message with whatever else goes along.
    pub fn sending<'a>(&'a self, message: &'a [u8]) -> Sending<'a> {
        Sending {
            connection: self,
            message,
            descriptors: &[],
            timeout: Timeout::NEVER,
            keep_waiting: false,
        }
    }

    /// Waits until it has been received, and for no reply.
    pub fn send_one_way(&self, message: &[u8]) -> Result<()> {
        self.sent_one_way(message, Timeout::NEVER)
    }

    /// The same, for so long: then [`Error::TimedOut`].
    pub fn send_one_way_timeout(&self, message: &[u8], timeout: Duration) -> Result<()> {
        self.sent_one_way(message, Timeout::after(timeout))
    }

    fn sent_one_way(&self, message: &[u8], timeout: Timeout) -> Result<()> {
        set(timeout);
        // SAFETY: the bytes are there.
        let result = unsafe {
            sys::farcall_send_one_way(self.number, message.as_ptr().cast(), message.len())
        };
        sent(result, message.len()).map(drop)
    }

    /// Queues a pulse, and does not wait. The code is 0 or more; a priority of 0 is the thread's own, and
    /// that is the most. [`Error::WouldBlock`] where too many wait.
    pub fn pulse(&self, priority: i32, code: i32, value: i64) -> Result<()> {
        // SAFETY: it takes numbers.
        number(unsafe { sys::farcall_pulse(self.number, priority, code, value) }).map(drop)
    }

    /// Has `channel` get a pulse [`Pulse::DEATH`](super::Pulse::DEATH) with that value when the server
    /// is gone. Once for each connection: then EBUSY, [`Error::Busy`].
    pub fn watch_death(&self, channel: &Channel, value: i64) -> Result<()> {
        // SAFETY: it takes numbers.
        let result = unsafe { sys::farcall_watch_death(self.number, channel.number(), value) };
        if result < 0 {
            return Err(used(last()));
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { sys::farcall_disconnect(self.number) };
    }
}

/// A message with all that it can have: [`Connection::sending()`].
///
/// ```
/// use std::os::unix::io::AsFd;
/// # use farcall::messages::{Channel, Received};
/// # let channel = Channel::new()?;
/// # let connection = channel.connect()?;
/// # let server = std::thread::spawn(move || match channel.receive()? {
/// #     Received::Message(mut message) => {
/// #         assert_eq!(message.take_descriptors().len(), 1);
/// #         message.reply(0, b"")
/// #     }
/// #     other => panic!("{other:?}"),
/// # });
/// let file = std::fs::File::open("/dev/null")?;
/// connection.sending(b"this file").descriptors(&[file.as_fd()]).send(&mut [])?;
/// # server.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is sent until send()"]
pub struct Sending<'a> {
    connection: &'a Connection,
    message: &'a [u8],
    descriptors: &'a [BorrowedFd<'a>],
    timeout: Timeout,
    keep_waiting: bool,
}

impl<'a> Sending<'a> {
    /// At most 16, of which the receiver gets duplicates. Replies have none.
    pub fn descriptors(mut self, descriptors: &'a [BorrowedFd<'a>]) -> Sending<'a> {
        self.descriptors = descriptors;
        self
    }

    /// See [`Connection::send_timeout()`].
    pub fn timeout(mut self, timeout: Duration) -> Sending<'a> {
        self.timeout = Timeout::after(timeout);
        self
    }

    /// Signals do not end the wait for the reply.
    pub fn keep_waiting(mut self) -> Sending<'a> {
        self.keep_waiting = true;
        self
    }

    /// See [`Connection::send()`].
    pub fn send(self, reply: &mut [u8]) -> Result<Replied> {
        let size = self.message.len();
        let piece = sys::iovec { iov_base: self.message.as_ptr() as *mut _, iov_len: size };
        let room = sys::iovec { iov_base: reply.as_mut_ptr().cast(), iov_len: reply.len() };
        let mut sending = sys::farcall_message {
            send: &piece,
            send_count: 1,
            reply_count: 1,
            reply: &room,
            // What is borrowed is as in C; the library copies none of it.
            descriptors: self.descriptors.as_ptr().cast(),
            descriptor_count: self.descriptors.len().try_into().unwrap_or(u32::MAX),
            flags: if self.keep_waiting { sys::FARCALL_KEEP_WAITING } else { 0 },
            replied: 0,
        };
        set(self.timeout);
        // SAFETY: all that it is called with is there, and only the room is written to.
        let status = unsafe { sys::farcall_send_message(self.connection.number, &mut sending) };
        Ok(Replied { status: sent(status, size)?, size: sending.replied.min(reply.len()) })
    }
}
