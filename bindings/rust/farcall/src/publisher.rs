// SPDX-License-Identifier: Apache-2.0
//! The writer of a broadcast.

use std::os::raw::{c_int, c_uint};
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use farcall_sys as sys;

use crate::error::{Error, Result};
use crate::pipe::c_string;
use crate::polling::{Pollable, Polling};
use crate::transfer::sends;
use crate::wait::{Timeout, WaitMode};

/// What happens when a reader is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The writer waits for it.
    #[default]
    Block,
    /// It misses messages, and learns how many.
    Overwrite,
    /// It is no reader any more: [`Error::Dropped`].
    DropReader,
}

impl Policy {
    fn number(self) -> c_int {
        match self {
            Policy::Block => sys::FARCALL_BLOCK,
            Policy::Overwrite => sys::FARCALL_OVERWRITE,
            Policy::DropReader => sys::FARCALL_DROP_READER,
        }
    }
}

/// How to make a [`Publisher`].
#[derive(Clone, Debug, Default)]
pub struct PublisherOptions {
    capacity: usize,
    policy: Policy,
    wait: WaitMode,
    readers: c_uint,
}

impl PublisherOptions {
    /// What is usual: 1 MiB, up to 64 readers, which are waited for.
    pub fn new() -> PublisherOptions {
        PublisherOptions::default()
    }

    /// Bytes, rounded up to a power of two.
    pub fn capacity(&mut self, bytes: usize) -> &mut PublisherOptions {
        self.capacity = bytes;
        self
    }

    /// What happens when a reader is slow.
    pub fn policy(&mut self, policy: Policy) -> &mut PublisherOptions {
        self.policy = policy;
        self
    }

    /// How the writer waits for readers, with [`Policy::Block`].
    pub fn wait(&mut self, mode: WaitMode) -> &mut PublisherOptions {
        self.wait = mode;
        self
    }

    /// How many readers there may be at once, at most 64.
    pub fn readers(&mut self, most: u32) -> &mut PublisherOptions {
        self.readers = most;
        self
    }

    /// Makes one that subscribers of this user find by its name.
    pub fn create(&self, name: &str) -> Result<Publisher> {
        let name = c_string(name)?;
        // SAFETY: it is a string of C.
        unsafe { self.made(name.as_ptr()) }
    }

    /// Makes one that has no name, and [invited](Publisher::invite) subscribers alone.
    pub fn create_unnamed(&self) -> Result<Publisher> {
        // SAFETY: none is permitted.
        unsafe { self.made(ptr::null()) }
    }

    /// # Safety
    ///
    /// `name` is a string of C, or null.
    unsafe fn made(&self, name: *const std::os::raw::c_char) -> Result<Publisher> {
        let options = sys::farcall_publisher_options {
            size: std::mem::size_of::<sys::farcall_publisher_options>(),
            capacity: self.capacity,
            policy: self.policy.number(),
            wait: self.wait.number(),
            readers: self.readers,
            reserved: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the name, the options and the place for the publisher are there.
        Error::check(unsafe { sys::farcall_publisher_create(name, &options, &mut raw) })?;
        let raw = NonNull::new(raw).expect("the library has made a publisher");
        // SAFETY: it is one, and nobody else's.
        let (longest, descriptor) = unsafe {
            (
                sys::farcall_publisher_longest(raw.as_ptr()),
                sys::farcall_publisher_poll_descriptor(raw.as_ptr()),
            )
        };
        Ok(Publisher { raw, longest, descriptor, polling: false })
    }
}

/// The writer of a broadcast: messages to up to 64 readers in other processes, each at its own pace.
///
/// Dropping it ends its readers once they have read what is there. In a forked child it is
/// [`Error::Busy`], and dropping it ends nothing.
///
/// ```
/// use farcall::{Error, Policy, PublisherOptions, Subscriber};
///
/// let mut steps = PublisherOptions::new().policy(Policy::Overwrite).create("farcall-rust-steps")?;
/// let mut reader = Subscriber::open("farcall-rust-steps")?; // in any process of this user
/// steps.send(b"first")?;
/// drop(steps);
/// assert_eq!(reader.recv()?, b"first");
/// assert_eq!(reader.missed(), 0);
/// assert_eq!(reader.recv(), Err(Error::Finished));
/// # Ok::<(), farcall::Error>(())
/// ```
///
/// Sending waits for nothing but for readers with [`Policy::Block`].
#[derive(Debug)]
pub struct Publisher {
    raw: NonNull<sys::farcall_publisher>,
    longest: usize,
    descriptor: RawFd,
    polling: bool,
}

// SAFETY: the library lets a publisher go from thread to thread.
unsafe impl Send for Publisher {}
// SAFETY: who has a reference can invite and count readers, which the library lets any thread do at any
// time, and see what does not change. All else takes `&mut self`.
unsafe impl Sync for Publisher {}

impl Publisher {
    /// Makes one, as [`PublisherOptions::create()`] does with what is usual.
    pub fn create(name: &str) -> Result<Publisher> {
        PublisherOptions::new().create(name)
    }

    /// A descriptor that makes its holder a reader: [`Subscriber::adopt()`](crate::Subscriber::adopt).
    ///
    /// It counts as one from now on, which is waited for where readers are. It is passed on like the
    /// descriptors of a pipe.
    pub fn invite(&self) -> Result<OwnedFd> {
        // SAFETY: the publisher is alive, and any thread may invite.
        let descriptor = Error::check(unsafe { sys::farcall_publisher_invite(self.raw.as_ptr()) })?;
        // SAFETY: it is open, and the caller's.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// How many readers there are.
    pub fn readers(&self) -> usize {
        // SAFETY: the publisher is alive, and any thread may ask.
        unsafe { sys::farcall_publisher_readers(self.raw.as_ptr()) as usize }
    }

    /// The size of the longest message: a little less than a quarter of the capacity.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Begins to wait for room to send what was refused last, or where nothing was the longest message.
    /// `None`: there is, as always but with [`Policy::Block`].
    pub fn poll(&mut self) -> Result<Option<Polling<'_, Publisher>>> {
        Polling::begin(self)
    }

    fn transmit(&mut self, message: &[u8], timeout: Timeout) -> Result<()> {
        self.end_poll();
        // SAFETY: the publisher is alive, this thread alone sends, and the bytes are there.
        let result = unsafe {
            sys::farcall_publisher_send(
                self.raw.as_ptr(),
                message.as_ptr().cast(),
                message.len(),
                timeout.nanoseconds(),
            )
        };
        Error::check_sent(result, message.len())
    }
}

sends!(
    Publisher,
    "One that is longer than [`longest()`](Self::longest) is [`TooLong`](crate::Error::TooLong)."
);

impl Pollable for Publisher {
    fn begin_poll(&mut self) -> Result<bool> {
        self.end_poll();
        // SAFETY: it is alive, and this thread alone uses it so.
        let begun = unsafe { sys::farcall_publisher_poll_begin(self.raw.as_ptr()) };
        self.polling = Error::check(begun)? == 1;
        Ok(self.polling)
    }

    fn end_poll(&mut self) {
        if std::mem::take(&mut self.polling) {
            // SAFETY: it is alive, and this thread alone uses it so.
            unsafe { sys::farcall_publisher_poll_end(self.raw.as_ptr()) }
        }
    }
}

impl AsRawFd for Publisher {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor
    }
}

impl AsFd for Publisher {
    /// Becomes readable when there may be room, while [`Publisher::poll()`] says that it is waited for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the publisher, in the process that uses it. In a child that was forked since
        // the number is closed, and may be that of another file later.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.end_poll();
        // SAFETY: it is alive, and this is the last use of it. Also a forked child may close it.
        unsafe { sys::farcall_publisher_close(self.raw.as_ptr()) }
    }
}
