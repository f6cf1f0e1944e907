// SPDX-License-Identifier: Apache-2.0
//! Pipes: messages both ways, and how to make an end of them or of a stream.

use std::ffi::CString;
use std::os::raw::c_int;
use std::os::unix::io::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use farcall_sys as sys;

use crate::buffer::Receive;
use crate::error::{Error, Result};
use crate::halves::{descriptors_of, Handle, Receiver, Sender};
use crate::stream::Stream;
use crate::transfer::{receives, sends_long};
use crate::wait::{Timeout, WaitMode};

/// How to make a pipe: of messages, a [`Pipe`], or of bytes, a [`Stream`].
///
/// ```
/// use farcall::{PipeOptions, WaitMode};
///
/// let (mut here, mut there) = PipeOptions::new().capacity(1 << 20).wait(WaitMode::Block).pair()?;
/// here.send(b"hello")?;
/// assert_eq!(there.recv()?, b"hello");
/// # Ok::<(), farcall::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PipeOptions {
    capacity: usize,
    wait: WaitMode,
    timeout: Option<Duration>,
}

impl PipeOptions {
    /// What is usual: 256 KiB each way.
    pub fn new() -> PipeOptions {
        PipeOptions::default()
    }

    /// Bytes each way, rounded up to a power of two. Where the other side has made the pipe, it is the
    /// most that is taken from it, 1 GiB if it is not said. At most 16 GiB.
    pub fn capacity(&mut self, bytes: usize) -> &mut PipeOptions {
        self.capacity = bytes;
        self
    }

    /// How this side waits; with [`pair()`](Self::pair), how both do.
    pub fn wait(&mut self, mode: WaitMode) -> &mut PipeOptions {
        self.wait = mode;
        self
    }

    /// How long [`serve()`](Self::serve) and [`open()`](Self::open) wait for each other; for ever, if it
    /// is not said.
    pub fn timeout(&mut self, timeout: Duration) -> &mut PipeOptions {
        self.timeout = Some(timeout);
        self
    }

    /// See [`Pipe::pair()`].
    pub fn pair(&self) -> Result<(Pipe, Pipe)> {
        self.pair_of()
    }

    /// See [`Stream::pair()`].
    pub fn stream_pair(&self) -> Result<(Stream, Stream)> {
        self.pair_of()
    }

    /// See [`Pipe::serve()`].
    pub fn serve(&self, name: &str) -> Result<Pipe> {
        self.serve_an_end(name)
    }

    /// See [`Stream::serve()`].
    pub fn serve_stream(&self, name: &str) -> Result<Stream> {
        self.serve_an_end(name)
    }

    /// See [`Pipe::open()`].
    pub fn open(&self, name: &str) -> Result<Pipe> {
        self.open_an_end(name)
    }

    /// See [`Stream::open()`].
    pub fn open_stream(&self, name: &str) -> Result<Stream> {
        self.open_an_end(name)
    }

    /// See [`Pipe::adopt()`].
    pub fn adopt(&self, descriptors: impl IntoIterator<Item = OwnedFd>) -> Result<Pipe> {
        self.adopt_an_end(descriptors.into_iter().collect())
    }

    /// See [`Stream::adopt()`].
    pub fn adopt_stream(&self, descriptors: impl IntoIterator<Item = OwnedFd>) -> Result<Stream> {
        self.adopt_an_end(descriptors.into_iter().collect())
    }

    fn pair_of<E: End>(&self) -> Result<(E, E)> {
        let (mut one, mut other) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the options and the places for the ends are there.
        let result = unsafe { sys::farcall_pipe_create(&self.raw(E::KIND), &mut one, &mut other) };
        Error::check(result)?;
        // SAFETY: the library has just made them.
        unsafe { Ok((end_of(one), end_of(other))) }
    }

    fn serve_an_end<E: End>(&self, name: &str) -> Result<E> {
        let name = c_string(name)?;
        // SAFETY: what it is called with is there.
        self.made(|options, end| unsafe {
            sys::farcall_pipe_serve(name.as_ptr(), options, self.nanoseconds(), end)
        })
    }

    fn open_an_end<E: End>(&self, name: &str) -> Result<E> {
        let name = c_string(name)?;
        // SAFETY: what it is called with is there.
        self.made(|options, end| unsafe {
            sys::farcall_pipe_open(name.as_ptr(), options, self.nanoseconds(), end)
        })
    }

    fn adopt_an_end<E: End>(&self, descriptors: Vec<OwnedFd>) -> Result<E> {
        if descriptors.len() != sys::FARCALL_PIPE_DESCRIPTORS {
            return Err(Error::Os(libc::EINVAL));
        }
        let numbers: Vec<c_int> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: there are as many as it reads, open and this function's own.
        let end = self.made(|options, end| unsafe {
            sys::farcall_pipe_adopt(numbers.as_ptr(), options, end)
        })?;
        for descriptor in descriptors {
            let _ = descriptor.into_raw_fd(); // the end's from now on
        }
        Ok(end)
    }

    fn made<E: End>(
        &self,
        make: impl FnOnce(*const sys::farcall_pipe_options, *mut *mut sys::farcall_pipe) -> c_int,
    ) -> Result<E> {
        let mut end = ptr::null_mut();
        Error::check(make(&self.raw(E::KIND), &mut end))?;
        // SAFETY: the library has just made it.
        Ok(unsafe { end_of(end) })
    }

    fn raw(&self, kind: c_int) -> sys::farcall_pipe_options {
        sys::farcall_pipe_options {
            size: std::mem::size_of::<sys::farcall_pipe_options>(),
            capacity: self.capacity,
            wait: self.wait.number(),
            kind,
        }
    }

    fn nanoseconds(&self) -> i64 {
        Timeout::of(self.timeout).nanoseconds()
    }
}

/// An end of one kind.
pub(crate) trait End {
    const KIND: c_int;
    /// Both are of the same handle, and there are no others.
    fn of_halves(sender: Sender, receiver: Receiver) -> Self;
}

/// Takes an end that the library has made.
///
/// # Safety
///
/// It has, of this kind, and nobody else has it.
unsafe fn end_of<E: End>(raw: *mut sys::farcall_pipe) -> E {
    // SAFETY: the caller says so.
    let handle = Arc::new(unsafe { Handle::new(raw) });
    E::of_halves(Sender::new(Arc::clone(&handle)), Receiver::new(handle))
}

/// A name that C can read: none with a zero in it.
pub(crate) fn c_string(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Os(libc::EINVAL))
}

/// An end of a pipe: messages both ways between two processes, or two threads.
///
/// A message arrives whole, and may have any size; a [`Stream`] is for bytes. Until it is used an end may be passed on: to a child
/// ([`into_descriptors()`](Pipe::into_descriptors)), or over a fork. The first use makes it this
/// process's; in a process that this one forks it is [`Error::Busy`] then. Close (drop) the end that you
/// passed on over a fork: what keeps it open hides from you that the other process has gone.
///
/// Dropping an end closes it: the other one receives what has been sent, then [`Error::Finished`].
///
/// ```
/// use farcall::Pipe;
///
/// let (mut here, mut there) = Pipe::pair()?;
/// let child = std::thread::spawn(move || {
///     let (sender, receiver) = there.halves();
///     for message in receiver.messages() {
///         sender.send(&message?.to_ascii_uppercase())?;
///     }
///     Ok::<(), farcall::Error>(())
/// });
/// here.send(b"hello")?;
/// here.finish()?;
/// assert_eq!(here.recv()?, b"HELLO");
/// child.join().unwrap()?;
/// # Ok::<(), farcall::Error>(())
/// ```
///
/// One thread may send while another receives, by [`halves()`](Pipe::halves) or
/// [`split()`](Pipe::split). Two threads do not send at once: `send()` takes `&mut self`.
///
/// ```compile_fail
/// let (mut here, _there) = farcall::Pipe::pair().unwrap();
/// let (sender, _) = here.halves();
/// here.send(b"while somebody else has the sender").unwrap();
/// sender.send(b"hello").unwrap();
/// ```
#[derive(Debug)]
pub struct Pipe {
    sender: Sender,
    receiver: Receiver,
}

impl Pipe {
    /// Makes both ends.
    pub fn pair() -> Result<(Pipe, Pipe)> {
        PipeOptions::new().pair()
    }

    /// Serves one end to the first process of this user that opens `name`.
    pub fn serve(name: &str) -> Result<Pipe> {
        PipeOptions::new().serve(name)
    }

    /// Opens the other, as soon as somebody serves it.
    pub fn open(name: &str) -> Result<Pipe> {
        PipeOptions::new().open(name)
    }

    /// Makes an end of its descriptors: those of [`into_descriptors()`](Pipe::into_descriptors), in that
    /// order, which have come here by whatever way.
    ///
    /// Where it fails they are closed. [`Error::Broken`] for what is no end of a pipe.
    pub fn adopt(descriptors: impl IntoIterator<Item = OwnedFd>) -> Result<Pipe> {
        PipeOptions::new().adopt(descriptors)
    }

    /// What this end consists of, for another process, which [adopts](Pipe::adopt) it.
    ///
    /// [`exec::give()`](crate::exec::give) passes it to a program that is executed; a Unix socket
    /// passes it to any other. [`Error::Busy`] if the end has been used, or has a half of another one.
    ///
    /// ```
    /// use farcall::Pipe;
    ///
    /// let (mut here, there) = Pipe::pair()?;
    /// let mut there = Pipe::adopt(there.into_descriptors()?)?;
    /// here.send(b"hello")?;
    /// assert_eq!(there.recv()?, b"hello");
    /// # Ok::<(), farcall::Error>(())
    /// ```
    pub fn into_descriptors(self) -> Result<[OwnedFd; 4]> {
        descriptors_of(self.sender, self.receiver)
    }

    fn transmit(&mut self, message: &[u8], timeout: Timeout) -> Result<()> {
        self.sender.transmit(message, timeout)
    }

    /// Tells the other end that nothing follows; receiving goes on. A second time does nothing.
    pub fn finish(&mut self) -> Result<()> {
        self.sender.finish()
    }

    /// Both halves, to be used at once for as long as the end is borrowed.
    pub fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.sender, &mut self.receiver)
    }

    /// Both halves, each to go its own way. The end is closed when both are dropped, and nothing follows
    /// as soon as the sender is.
    pub fn split(mut self) -> (Sender, Receiver) {
        self.sender.finishes = true;
        (self.sender, self.receiver)
    }
}

impl End for Pipe {
    const KIND: c_int = sys::FARCALL_PIPE_MESSAGES;

    fn of_halves(sender: Sender, receiver: Receiver) -> Pipe {
        Pipe { sender, receiver }
    }
}

sends_long!(Pipe);
receives!(Pipe);

// SAFETY: its receiver is.
unsafe impl Receive for Pipe {
    unsafe fn receive(&mut self, bytes: *mut u8, room: usize, timeout: Timeout) -> Result<usize> {
        // SAFETY: the caller says so.
        unsafe { self.receiver.receive(bytes, room, timeout) }
    }
}
