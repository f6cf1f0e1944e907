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
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use farcall_sys::message as sys;

use crate::error::{Error, Result};
use crate::wait::Timeout;

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

/// Of one that sends: what a server of this crate has dropped is answered with ECONNABORTED.
fn sent(result: c_int, size: usize) -> Result<c_int> {
    number(result).map_err(|error| match error {
        Error::Dropped => Error::CallFailed,
        Error::Os(libc::EMSGSIZE) => Error::TooLong { size },
        error => error,
    })
}

/// Of one that a channel is used for: numbers are refused only to forked children.
fn used(error: Error) -> Error {
    if error == Error::Os(libc::EBADF) {
        Error::Busy
    } else {
        error
    }
}

/// Who has sent something, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The process, where it can be seen from here.
    pub process: Option<u32>,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Of the sender, or of the pulse.
    pub priority: i32,
    /// Through which it came: a number that this process uses once.
    pub connection: i64,
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
        Ok(Connection { number: number(unsafe { sys::farcall_name_open(name.as_ptr()) })? })
    }

    /// Sends, and waits for the reply; of that, what there is room for comes.
    ///
    /// [`Error::Gone`] where the server is gone, or goes before it has answered; [`Error::CallFailed`]
    /// where it has dropped the message; or whatever it has answered with. After [`Error::Interrupted`]
    /// it may have been received.
    pub fn send(&self, message: &[u8], reply: &mut [u8]) -> Result<Replied> {
        self.sent(message, reply, Timeout::NEVER)
    }

    /// The same, for so long: then [`Error::TimedOut`].
    pub fn send_timeout(
        &self,
        message: &[u8],
        reply: &mut [u8],
        timeout: Duration,
    ) -> Result<Replied> {
        self.sent(message, reply, Timeout::after(timeout))
    }

    fn sent(&self, message: &[u8], reply: &mut [u8], timeout: Timeout) -> Result<Replied> {
        let piece = sys::iovec { iov_base: message.as_ptr() as *mut _, iov_len: message.len() };
        let room = sys::iovec { iov_base: reply.as_mut_ptr().cast(), iov_len: reply.len() };
        let mut sending = sys::farcall_message {
            send: &piece,
            send_count: 1,
            reply_count: 1,
            reply: &room,
            descriptors: std::ptr::null(),
            descriptor_count: 0,
            flags: 0,
            replied: 0,
        };
        set(timeout);
        // SAFETY: all that it is called with is there, and only the room is written to.
        let status = unsafe { sys::farcall_send_message(self.number, &mut sending) };
        Ok(Replied { status: sent(status, message.len())?, size: sending.replied.min(reply.len()) })
    }

    /// Waits until it has been received, and for no reply.
    pub fn send_one_way(&self, message: &[u8]) -> Result<()> {
        set(Timeout::NEVER);
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
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { sys::farcall_disconnect(self.number) };
    }
}

/// Where messages and pulses are received, by any number of threads. Dropped, it ends its clients' waits
/// with [`Error::Gone`].
#[derive(Debug)]
pub struct Channel {
    number: c_int,
}

/// Bytes that most messages find enough; to which those of one way are cut.
const USUAL: usize = 16384;

impl Channel {
    /// One without a name.
    pub fn new() -> Result<Channel> {
        // SAFETY: it takes flags.
        let made = unsafe { sys::farcall_channel_create(sys::FARCALL_DISCONNECT) };
        Ok(Channel { number: number(made)? })
    }

    /// One to which this user's processes connect by its name. EADDRINUSE where there is one.
    pub fn attach(name: &str) -> Result<Channel> {
        let name = c_name(name)?;
        // SAFETY: the name is there.
        let made =
            unsafe { sys::farcall_name_attach(name.as_ptr(), sys::FARCALL_DISCONNECT, 0o600) };
        Ok(Channel { number: number(made)? })
    }

    /// A connection of this process, and of those that it forks.
    pub fn connect(&self) -> Result<Connection> {
        // SAFETY: it takes a number.
        let made = unsafe { sys::farcall_connect(self.number) };
        Ok(Connection { number: number(made).map_err(used)? })
    }

    /// Waits for the most urgent, of equals the oldest.
    pub fn receive(&self) -> Result<Received> {
        self.received(Timeout::NEVER)
    }

    /// The same, for so long: then [`Error::TimedOut`].
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Received> {
        self.received(Timeout::after(timeout))
    }

    /// What is there: else [`Error::WouldBlock`].
    pub fn try_receive(&self) -> Result<Received> {
        self.received(Timeout::AT_ONCE).map_err(|error| match error {
            Error::TimedOut => Error::WouldBlock,
            error => error,
        })
    }

    fn received(&self, timeout: Timeout) -> Result<Received> {
        let mut data: Vec<u8> = Vec::with_capacity(USUAL);
        // SAFETY: numbers may all be 0.
        let mut info: sys::farcall_info = unsafe { std::mem::zeroed() };
        set(timeout);
        // SAFETY: there is so much room, and room for what is told.
        let id = unsafe {
            sys::farcall_receive(self.number, data.as_mut_ptr().cast(), data.capacity(), &mut info)
        };
        if id < 0 {
            return Err(used(last()));
        }
        let count = (info.descriptor_count as usize).min(sys::FARCALL_DESCRIPTORS);
        // SAFETY: they are the receiver's, and owned once.
        let descriptors = info.descriptors[..count]
            .iter()
            .map(|descriptor| unsafe { OwnedFd::from_raw_fd(*descriptor) })
            .collect();
        let origin = Origin {
            process: u32::try_from(info.pid).ok().filter(|process| *process != 0),
            user: info.uid,
            group: info.gid,
            priority: info.priority,
            connection: info.connection,
        };
        if id == 0 {
            return Ok(Received::Pulse(Pulse { code: info.code, value: info.value, origin }));
        }
        // SAFETY: so many have been written, and there was room for them.
        unsafe { data.set_len(info.received) };
        if id == sys::FARCALL_ONE_WAY {
            return Ok(Received::OneWay(OneWay { data, length: info.length, origin, descriptors }));
        }
        let mut message = Message { id, data: Vec::new(), room: info.room, origin, descriptors };
        if info.received < info.length {
            let missing = info.length - info.received;
            data.try_reserve_exact(missing).map_err(|_| Error::Os(libc::ENOMEM))?;
            data.resize(info.length, 0);
            let got = message.read(info.received, &mut data[info.received..])?;
            data.truncate(info.received + got);
        }
        message.data = data;
        Ok(Received::Message(message))
    }
}

/// For poll(2) and the like, until it is dropped: readable when there may be something to receive, by
/// [`Channel::try_receive()`]. -1 in a forked child.
impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: it takes a number.
        unsafe { sys::farcall_channel_descriptor(self.number) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more; a child that has none is refused.
        unsafe { sys::farcall_channel_destroy(self.number) };
    }
}

/// What has been received.
#[derive(Debug)]
pub enum Received {
    /// Somebody waits for the answer.
    Message(Message),
    /// Nobody does.
    OneWay(OneWay),
    /// A few bytes that nobody has waited with.
    Pulse(Pulse),
}

/// A pulse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// 0 or more, of programs; below, the system's.
    pub code: i32,
    /// What came with it.
    pub value: i64,
    /// Who has sent it.
    pub origin: Origin,
}

impl Pulse {
    /// Nobody holds the connection any more whose number the value is.
    pub const DISCONNECT: i32 = sys::FARCALL_PULSE_DISCONNECT;
}

/// A message that wants no answer.
#[derive(Debug)]
pub struct OneWay {
    /// What was sent, up to 16384 bytes of it.
    pub data: Vec<u8>,
    /// Bytes that were sent.
    pub length: usize,
    /// Who has sent it.
    pub origin: Origin,
    /// What came along.
    pub descriptors: Vec<OwnedFd>,
}

/// A message whose sender waits until it is answered, once, by any thread. Dropped, it is answered with
/// ECONNABORTED: there, [`Error::CallFailed`].
#[derive(Debug)]
pub struct Message {
    id: i64,
    data: Vec<u8>,
    room: usize,
    origin: Origin,
    descriptors: Vec<OwnedFd>,
}

impl Message {
    /// What was sent, whole.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Bytes that the sender has for the reply.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Who has sent it.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What came along.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Reads what was sent, from `offset` on.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<usize> {
        // SAFETY: there is so much room.
        let got = unsafe { sys::farcall_read(self.id, offset, to.as_mut_ptr().cast(), to.len()) };
        usize::try_from(got).map_err(|_| last())
    }

    /// Answers, with a status of 0 or more. [`Error::Gone`] where nobody waits any more.
    pub fn reply(self, status: i32, data: &[u8]) -> Result<()> {
        // SAFETY: the bytes are there.
        let result =
            unsafe { sys::farcall_reply(self.id, status, data.as_ptr().cast(), data.len()) };
        // What was refused is answered as it is dropped; an id that was answered is refused.
        number(result).map(drop)
    }

    /// Answers: the sender's call fails with that.
    pub fn error(self, error: Error) -> Result<()> {
        // SAFETY: it takes numbers.
        number(unsafe { sys::farcall_error(self.id, error.errno()) }).map(drop)
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: it takes numbers; ids are not used twice, and a child's are others.
        unsafe { sys::farcall_error(self.id, libc::ECONNABORTED) };
    }
}
