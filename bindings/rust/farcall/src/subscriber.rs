// SPDX-License-Identifier: Apache-2.0
//! A reader of a broadcast.

use std::os::raw::c_int;
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use farcall_sys as sys;

use crate::buffer::Receive;
use crate::error::{Error, Result};
use crate::pipe::c_string;
use crate::polling::{Pollable, Polling};
use crate::transfer::receives;
use crate::wait::{Timeout, WaitMode};

/// Where a reader begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Start {
    /// With what is written after it has come.
    #[default]
    Newest,
    /// With the oldest message that is still there; where readers that are
    /// slow are dropped, with what is written after it has come if that one is written over
    /// before it has begun.
    Oldest,
}

/// How to become a [`Subscriber`].
#[derive(Clone, Debug, Default)]
pub struct SubscriberOptions {
    start: Start,
    wait: WaitMode,
    most: usize,
    timeout: Option<Duration>,
}

impl SubscriberOptions {
    /// What is usual.
    pub fn new() -> SubscriberOptions {
        SubscriberOptions::default()
    }

    /// Where to begin.
    pub fn start(&mut self, start: Start) -> &mut SubscriberOptions {
        self.start = start;
        self
    }

    /// How to wait for messages.
    pub fn wait(&mut self, mode: WaitMode) -> &mut SubscriberOptions {
        self.wait = mode;
        self
    }

    /// The largest capacity of a publisher that is taken from it, 1 GiB if it is not said.
    pub fn most(&mut self, bytes: usize) -> &mut SubscriberOptions {
        self.most = bytes;
        self
    }

    /// How long [`open()`](Self::open) waits for somebody to publish, and to answer; for ever, if it
    /// is not said.
    pub fn timeout(&mut self, timeout: Duration) -> &mut SubscriberOptions {
        self.timeout = Some(timeout);
        self
    }

    /// See [`Subscriber::open()`].
    pub fn open(&self, name: &str) -> Result<Subscriber> {
        let name = c_string(name)?;
        let timeout = Timeout::of(self.timeout).nanoseconds();
        // SAFETY: what it is called with is there.
        self.made(|options, subscriber| unsafe {
            sys::farcall_subscriber_open(name.as_ptr(), options, timeout, subscriber)
        })
    }

    /// See [`Subscriber::adopt()`].
    pub fn adopt(&self, invitation: OwnedFd) -> Result<Subscriber> {
        // SAFETY: it is open, and this function's own.
        let subscriber = self.made(|options, subscriber| unsafe {
            sys::farcall_subscriber_adopt(invitation.as_raw_fd(), options, subscriber)
        })?;
        let _ = invitation.into_raw_fd(); // the subscriber's from now on
        Ok(subscriber)
    }

    fn made(
        &self,
        make: impl FnOnce(
            *const sys::farcall_subscriber_options,
            *mut *mut sys::farcall_subscriber,
        ) -> c_int,
    ) -> Result<Subscriber> {
        let options = sys::farcall_subscriber_options {
            size: std::mem::size_of::<sys::farcall_subscriber_options>(),
            start: match self.start {
                Start::Newest => sys::FARCALL_NEWEST,
                Start::Oldest => sys::FARCALL_OLDEST,
            },
            wait: self.wait.number(),
            most: self.most,
        };
        let mut raw = ptr::null_mut();
        Error::check(make(&options, &mut raw))?;
        let raw = NonNull::new(raw).expect("the library has made a subscriber");
        // SAFETY: it is one, and nobody else's.
        let descriptor = unsafe { sys::farcall_subscriber_poll_descriptor(raw.as_ptr()) };
        Ok(Subscriber { raw, descriptor, polling: false, just_missed: 0, missed: 0 })
    }
}

/// A reader of a broadcast. See [`Publisher`](crate::Publisher).
///
/// It may come and go at any time. In a forked child it is [`Error::Busy`].
#[derive(Debug)]
pub struct Subscriber {
    raw: NonNull<sys::farcall_subscriber>,
    descriptor: RawFd, // stays the same
    polling: bool,
    just_missed: u64,
    missed: u64,
}

// SAFETY: the library lets a subscriber go from thread to thread.
unsafe impl Send for Subscriber {}
// SAFETY: who has a reference sees numbers that are kept here; all that calls the library takes
// `&mut self`.
unsafe impl Sync for Subscriber {}

impl Subscriber {
    /// Becomes a reader of what is published by this user under `name`, as soon as somebody does that.
    ///
    /// EUSERS where there are too many readers.
    pub fn open(name: &str) -> Result<Subscriber> {
        SubscriberOptions::new().open(name)
    }

    /// Becomes the reader that [`Publisher::invite()`](crate::Publisher::invite) has invited.
    ///
    /// Where it fails the descriptor is closed. [`Error::Broken`] for what is no invitation.
    ///
    /// ```
    /// use farcall::{PublisherOptions, Subscriber};
    ///
    /// let mut publisher = PublisherOptions::new().create_unnamed()?;
    /// let mut reader = Subscriber::adopt(publisher.invite()?)?;
    /// publisher.send(b"hello")?;
    /// assert_eq!(reader.recv()?, b"hello");
    /// # Ok::<(), farcall::Error>(())
    /// ```
    pub fn adopt(invitation: OwnedFd) -> Result<Subscriber> {
        SubscriberOptions::new().adopt(invitation)
    }

    /// How many messages have been overwritten between the last one received and the one before.
    pub fn just_missed(&self) -> u64 {
        self.just_missed
    }

    /// How many messages have been overwritten before the last one received, in all.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Begins to wait for a message. `None`: there is something to do at once.
    pub fn poll(&mut self) -> Result<Option<Polling<'_, Subscriber>>> {
        Polling::begin(self)
    }
}

receives!(Subscriber);

// SAFETY: the library writes as many bytes as it returns, and there is room for those.
unsafe impl Receive for Subscriber {
    unsafe fn receive(&mut self, bytes: *mut u8, room: usize, timeout: Timeout) -> Result<usize> {
        self.end_poll();
        let (mut needed, mut missed) = (0, 0);
        // SAFETY: it is alive, this thread alone uses it, and the caller says how much room there is.
        let result = unsafe {
            sys::farcall_subscriber_receive(
                self.raw.as_ptr(),
                bytes.cast(),
                room,
                &mut needed,
                &mut missed,
                timeout.nanoseconds(),
            )
        };
        let size = Error::check_received(result, needed)?;
        self.just_missed = missed;
        self.missed = self.missed.saturating_add(missed);
        Ok(size)
    }
}

impl Pollable for Subscriber {
    fn begin_poll(&mut self) -> Result<bool> {
        self.end_poll();
        // SAFETY: it is alive, and this thread alone uses it.
        let begun = unsafe { sys::farcall_subscriber_poll_begin(self.raw.as_ptr()) };
        self.polling = Error::check(begun)? == 1;
        Ok(self.polling)
    }

    fn end_poll(&mut self) {
        if std::mem::take(&mut self.polling) {
            // SAFETY: it is alive, and this thread alone uses it.
            unsafe { sys::farcall_subscriber_poll_end(self.raw.as_ptr()) }
        }
    }
}

impl AsRawFd for Subscriber {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor
    }
}

impl AsFd for Subscriber {
    /// Becomes readable when there may be a message, while [`Subscriber::poll()`] says that it is waited
    /// for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the subscriber, in the process that uses it. In a child that was forked since
        // the number is closed, and may be that of another file later.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.end_poll();
        // SAFETY: it is alive, and this is the last use of it. Also a forked child may close it.
        unsafe { sys::farcall_subscriber_close(self.raw.as_ptr()) }
    }
}
