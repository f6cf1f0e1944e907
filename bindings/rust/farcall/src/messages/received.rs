// SPDX-License-Identifier: Apache-2.0
//! What is received, and how it is answered.

use std::os::unix::io::{FromRawFd, IntoRawFd, OwnedFd};

use farcall_sys::message as sys;

use super::{last, number};
use crate::error::{Error, Result};

/// Who has sent something, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The process, where it can be seen from here.
    pub process: Option<u32>,
    /// The thread, if it is one of that process; over shared memory as the sender says.
    pub thread: Option<u32>,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Of the sender, or of the pulse.
    pub priority: i32,
    /// Through which it came: a number that this process uses once.
    pub connection: i64,
}

/// What has been received.
#[derive(Debug)]
#[non_exhaustive]
pub enum Received {
    /// Somebody waits for the answer.
    Message(Message),
    /// Nobody does.
    OneWay(OneWay),
    /// A few bytes that nobody has waited with.
    Pulse(Pulse),
    /// Who has sent the message with that [`id`](Message::id) wants to leave, and waits for its answer:
    /// told once, by channels with [`unblock()`](super::ChannelOptions::unblock).
    Unblock(i64),
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
    /// The server is gone that [`watch_death()`](super::Connection::watch_death) was asked of, with that
    /// value.
    pub const DEATH: i32 = sys::FARCALL_PULSE_DEATH;
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
    descriptors: Descriptors,
}

impl OneWay {
    /// What came along, the first time.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors.owned)
    }
}

/// What came along, and whom it is charged to. What nobody takes is closed by a thread that serves nobody,
/// since the last close may last as long as the sender likes.
#[derive(Debug)]
struct Descriptors {
    owned: Vec<OwnedFd>,
    user: u32,
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        if self.owned.is_empty() {
            return;
        }
        // SAFETY: numbers may all be 0.
        let mut info: sys::farcall_info = unsafe { std::mem::zeroed() };
        info.uid = self.user;
        for (number, descriptor) in info.descriptors.iter_mut().zip(self.owned.drain(..)) {
            *number = descriptor.into_raw_fd();
            info.descriptor_count += 1;
        }
        // SAFETY: they are nobody else's.
        unsafe { sys::farcall_drop_descriptors(&mut info) };
    }
}

/// A message whose sender waits until it is answered, once, by any thread. Dropped, it is answered with
/// ECONNABORTED: there, [`Error::CallFailed`].
#[derive(Debug)]
pub struct Message {
    id: i64,
    data: Vec<u8>,
    room: usize,
    origin: Origin,
    descriptors: Descriptors,
}

/// Of what farcall_receive() has returned, put into a buffer and told.
///
/// # Safety
/// Nobody else has the descriptors.
pub(super) unsafe fn of(id: i64, bytes: &[u8], info: &sys::farcall_info) -> Result<Received> {
    let count = (info.descriptor_count as usize).min(sys::FARCALL_DESCRIPTORS);
    // SAFETY: they are owned once.
    let owned = |descriptor: &i32| unsafe { OwnedFd::from_raw_fd(*descriptor) };
    let owned = info.descriptors[..count].iter().map(owned).collect();
    let descriptors = Descriptors { owned, user: info.uid };
    let seen = |id: i32| u32::try_from(id).ok().filter(|id| *id != 0);
    let origin = Origin {
        process: seen(info.pid),
        thread: seen(info.tid),
        user: info.uid,
        group: info.gid,
        priority: info.priority,
        connection: info.connection,
    };
    match id {
        0 if info.code == sys::FARCALL_PULSE_UNBLOCK => Ok(Received::Unblock(info.value)),
        0 => Ok(Received::Pulse(Pulse { code: info.code, value: info.value, origin })),
        sys::FARCALL_ONE_WAY => {
            let data = bytes.to_vec();
            Ok(Received::OneWay(OneWay { data, length: info.length, origin, descriptors }))
        }
        _ => {
            let (data, room) = (Vec::new(), info.room);
            let mut message = Message { id, data, room, origin, descriptors };
            message.fill(bytes, info.length)?;
            Ok(Received::Message(message))
        }
    }
}

impl Message {
    /// With the bytes that are there, and the rest of `length`.
    fn fill(&mut self, bytes: &[u8], length: usize) -> Result<()> {
        self.data.try_reserve_exact(length).map_err(|_| Error::Os(libc::ENOMEM))?;
        self.data.extend_from_slice(bytes);
        if bytes.len() < length {
            let rest = &mut self.data.spare_capacity_mut()[..length - bytes.len()];
            // SAFETY: there is so much room.
            let got = unsafe {
                sys::farcall_read(self.id, bytes.len(), rest.as_mut_ptr().cast(), rest.len())
            };
            let got = usize::try_from(got).map_err(|_| last())?;
            // SAFETY: so many have been written.
            unsafe { self.data.set_len(bytes.len() + got) };
        }
        Ok(())
    }

    /// By which [`Received::Unblock`] tells of it. It is used once.
    pub fn id(&self) -> i64 {
        self.id
    }

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

    /// What came along, the first time. What is not taken is closed, by a thread that serves nobody.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors.owned)
    }

    /// Reads what was sent, from `offset` on.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<usize> {
        // SAFETY: there is so much room.
        let got = unsafe { sys::farcall_read(self.id, offset, to.as_mut_ptr().cast(), to.len()) };
        usize::try_from(got).map_err(|_| last())
    }

    /// Writes to the sender's room for the reply, from `offset` on, what it finds when it is answered; the
    /// data of the reply itself goes over it, at the beginning. Returns how many bytes there was room for.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<usize> {
        // SAFETY: the bytes are there.
        let put = unsafe { sys::farcall_write(self.id, offset, from.as_ptr().cast(), from.len()) };
        usize::try_from(put).map_err(|_| last())
    }

    /// Answers, with a status of 0 or more. [`Error::Gone`] where nobody waits any more,
    /// which is known a moment later.
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
