// SPDX-License-Identifier: Apache-2.0
//! Where messages are received.

use std::mem::MaybeUninit;
use std::os::raw::{c_int, c_uint};
use std::os::unix::io::{AsRawFd, RawFd};
use std::time::Duration;

use farcall_sys::message as sys;

use super::{c_name, last, number, received, set, used, Connection, Received};
use crate::error::{Error, Result};
use crate::wait::Timeout;

/// What a channel is to do.
///
/// ```
/// use farcall::messages::ChannelOptions;
/// use farcall::Error;
///
/// let channel = ChannelOptions::new().unblock(true).create()?;
/// assert_eq!(channel.try_receive().unwrap_err(), Error::WouldBlock);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    unblock: bool,
    disconnect: bool,
    inherit: bool,
    mode: u32,
}

impl Default for ChannelOptions {
    fn default() -> ChannelOptions {
        ChannelOptions { unblock: false, disconnect: true, inherit: false, mode: 0o600 }
    }
}

impl ChannelOptions {
    /// What is usual: the ends of connections are told, and only this user connects.
    pub fn new() -> ChannelOptions {
        ChannelOptions::default()
    }

    /// Clients that are interrupted, or whose time is up, after their message was received stay until they
    /// are answered, and the channel gets [`Received::Unblock`]. They leave at once, if it is not said.
    pub fn unblock(&mut self, wanted: bool) -> &mut ChannelOptions {
        self.unblock = wanted;
        self
    }

    /// The channel gets a pulse [`Pulse::DISCONNECT`](super::Pulse::DISCONNECT) when nobody holds a
    /// connection any more. It does, if it is not said.
    pub fn disconnect(&mut self, wanted: bool) -> &mut ChannelOptions {
        self.disconnect = wanted;
        self
    }

    /// A thread that has received runs at least with that client's priority until it has answered, where
    /// it is permitted to.
    pub fn inherit(&mut self, wanted: bool) -> &mut ChannelOptions {
        self.inherit = wanted;
        self
    }

    /// Of the name: whom its write bits let may connect. 0600, if it is not said.
    pub fn mode(&mut self, mode: u32) -> &mut ChannelOptions {
        self.mode = mode;
        self
    }

    fn flags(&self) -> c_uint {
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        flag(self.unblock, sys::FARCALL_UNBLOCK)
            | flag(self.disconnect, sys::FARCALL_DISCONNECT)
            | flag(self.inherit, sys::FARCALL_INHERIT)
    }

    /// See [`Channel::new()`].
    pub fn create(&self) -> Result<Channel> {
        // SAFETY: it takes flags.
        let made = unsafe { sys::farcall_channel_create(self.flags()) };
        Ok(Channel { number: number(made)? })
    }

    /// See [`Channel::attach()`].
    pub fn attach(&self, name: &str) -> Result<Channel> {
        let name = c_name(name)?;
        // SAFETY: the name is there.
        let made = unsafe { sys::farcall_name_attach(name.as_ptr(), self.flags(), self.mode) };
        Ok(Channel { number: number(made)? })
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
        ChannelOptions::new().create()
    }

    /// One to which this user's processes connect by its name. EADDRINUSE where there is one.
    pub fn attach(name: &str) -> Result<Channel> {
        ChannelOptions::new().attach(name)
    }

    /// A connection of this process, and of those that it forks.
    pub fn connect(&self) -> Result<Connection> {
        // SAFETY: it takes a number.
        Connection::of(unsafe { sys::farcall_connect(self.number) }).map_err(used)
    }

    pub(super) fn number(&self) -> c_int {
        self.number
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

    /// Passes over clients that leave before their messages are read whole, however many they are.
    fn received(&self, timeout: Timeout) -> Result<Received> {
        let began = timeout.begin();
        let mut left = timeout;
        loop {
            match self.received_once(left) {
                Err(Error::Gone) => left = timeout.since(began),
                done => return done,
            }
            if left.is_over() {
                return Err(Error::TimedOut);
            }
        }
    }

    fn received_once(&self, timeout: Timeout) -> Result<Received> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); USUAL];
        // SAFETY: numbers may all be 0.
        let mut info: sys::farcall_info = unsafe { std::mem::zeroed() };
        set(timeout);
        // SAFETY: there is so much room, and room for what is told.
        let id = unsafe {
            sys::farcall_receive(self.number, buffer.as_mut_ptr().cast(), USUAL, &mut info)
        };
        if id < 0 {
            return Err(used(last()));
        }
        // SAFETY: so many have been written.
        let bytes =
            unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), info.received) };
        // SAFETY: it has just been received, so its descriptors are nobody else's.
        unsafe { received::of(id, bytes, &info) }
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
