// SPDX-License-Identifier: Apache-2.0
//! The two halves of an end: what sends and what receives, each used by one thread at a time.

use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use farcall_sys as sys;

use crate::buffer::Receive;
use crate::error::{Error, Result};
use crate::polling::{Pollable, Polling};
use crate::transfer::{receives, sends_long};
use crate::wait::Timeout;

/// An end as the library has it, and the numbers of its descriptors, which stay the same.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: NonNull<sys::farcall_pipe>,
    receive_descriptor: RawFd,
    send_descriptor: RawFd,
}

// SAFETY: the library lets an end go from thread to thread, and be closed by any of them.
unsafe impl Send for Handle {}
// SAFETY: who has a reference gets at the pointer alone, by raw(). Those who call the library with it
// are `Sender` and `Receiver`. There is one of each of a handle, and their methods that call the library take
// `&mut self`; the library lets one thread send, finish and poll for room while another receives and polls.
// A `Pipe` or a `Stream` has a sender and a receiver, which need not be of one handle: safe code may swap those of
// two ends. So what is neither sending nor receiving, descriptors_of(), takes both of them by value, and sees that
// they are of the same handle: then nobody else has any. The close comes after all that: when the last of the
// `Arc`'s owners has gone, whose counting orders it after what the others did.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes what the library has made.
    ///
    /// # Safety
    ///
    /// The library has made it, and nobody else has it.
    pub(crate) unsafe fn new(raw: *mut sys::farcall_pipe) -> Handle {
        let raw = NonNull::new(raw).expect("the library has made an end");
        // SAFETY: it is an end, and nobody else's.
        let (receive_descriptor, send_descriptor) = unsafe {
            (
                sys::farcall_pipe_poll_descriptor(raw.as_ptr()),
                sys::farcall_pipe_send_poll_descriptor(raw.as_ptr()),
            )
        };
        Handle { raw, receive_descriptor, send_descriptor }
    }

    pub(crate) fn raw(&self) -> *mut sys::farcall_pipe {
        self.raw.as_ptr()
    }

    /// Duplicates of what the end consists of. Nobody else may use it meanwhile.
    fn descriptors(&self) -> Result<[OwnedFd; 4]> {
        let mut numbers = [-1; sys::FARCALL_PIPE_DESCRIPTORS];
        // SAFETY: the end is alive, and there is room for so many.
        let result = unsafe { sys::farcall_pipe_descriptors(self.raw(), numbers.as_mut_ptr()) };
        Error::check(result)?;
        let [a, b, c, d] = numbers.map(|number| {
            // SAFETY: they are open as long as the end, which is until the caller is done with it.
            unsafe { BorrowedFd::borrow_raw(number) }
                .try_clone_to_owned()
                .map_err(|error| Error::from_io(&error))
        });
        Ok([a?, b?, c?, d?])
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it is an end, and this is the last use of it. Also a forked child may close it.
        unsafe { sys::farcall_pipe_close(self.raw()) }
    }
}

/// Duplicates of what an end consists of, by both its halves; [`Error::Busy`] for halves of two ends.
pub(crate) fn descriptors_of(sender: Sender, receiver: Receiver) -> Result<[OwnedFd; 4]> {
    if !Arc::ptr_eq(&sender.handle, &receiver.handle) {
        return Err(Error::Busy); // each may be in use by who has the other half
    }
    receiver.handle.descriptors()
}

/// The half of a [`Pipe`](crate::Pipe) that sends.
///
/// Of an end that has been [split](crate::Pipe::split) it tells the other end that nothing follows when
/// it is dropped. One that nobody has used yet is left to a forked process that has it, too; the other end
/// is told when this process uses what is left of it.
#[derive(Debug)]
pub struct Sender {
    pub(crate) handle: Arc<Handle>,
    polling: bool,
    pub(crate) finishes: bool,
}

impl Sender {
    pub(crate) fn new(handle: Arc<Handle>) -> Sender {
        Sender { handle, polling: false, finishes: false }
    }

    pub(crate) fn transmit(&mut self, message: &[u8], timeout: Timeout) -> Result<()> {
        self.end_poll();
        // SAFETY: the end is alive, this thread alone sends, and the bytes are there.
        let result = unsafe {
            sys::farcall_pipe_send(
                self.handle.raw(),
                message.as_ptr().cast(),
                message.len(),
                timeout.nanoseconds(),
            )
        };
        Error::check_sent(result, message.len())
    }

    /// Writes to a pipe of bytes, and returns how many have been written.
    pub(crate) fn write(&mut self, bytes: &[u8], timeout: Timeout) -> Result<usize> {
        self.end_poll();
        // SAFETY: the end is alive, this thread alone sends, and the bytes are there.
        let result = unsafe {
            sys::farcall_pipe_write(
                self.handle.raw(),
                bytes.as_ptr().cast(),
                bytes.len(),
                timeout.nanoseconds(),
            )
        };
        Error::check_written(result)
    }

    /// Tells the other end that nothing follows. It receives what has been sent, then
    /// [`Error::Finished`](crate::Error::Finished). A second time does nothing.
    pub fn finish(&mut self) -> Result<()> {
        self.end_poll();
        // SAFETY: the end is alive, and this thread alone sends.
        Error::check(unsafe { sys::farcall_pipe_finish(self.handle.raw()) }).map(drop)
    }

    /// Begins to wait for room to send, for a message of a quarter of the capacity. `None`: there is
    /// something to do at once.
    pub fn poll(&mut self) -> Result<Option<Polling<'_, Sender>>> {
        Polling::begin(self)
    }
}

sends_long!(Sender);

impl Drop for Sender {
    fn drop(&mut self) {
        self.end_poll();
        if self.finishes {
            // SAFETY: the end is alive, and this thread alone sends. Also a forked child may do so.
            unsafe { sys::farcall_pipe_close_sending(self.handle.raw()) }
        }
    }
}

impl Pollable for Sender {
    fn begin_poll(&mut self) -> Result<bool> {
        self.end_poll();
        // SAFETY: the end is alive, and this thread alone sends.
        let begun = unsafe { sys::farcall_pipe_send_poll_begin(self.handle.raw()) };
        self.polling = Error::check(begun)? == 1;
        Ok(self.polling)
    }

    fn end_poll(&mut self) {
        if std::mem::take(&mut self.polling) {
            // SAFETY: the end is alive, and this thread alone sends.
            unsafe { sys::farcall_pipe_send_poll_end(self.handle.raw()) }
        }
    }
}

impl AsRawFd for Sender {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.send_descriptor
    }
}

impl AsFd for Sender {
    /// Becomes readable when there may be room, while [`Sender::poll()`] says that it is waited for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the end, in the process that uses that. In a child that was forked since
        // the first use the number is closed, as the library closes it there, and may be that of another file later.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

/// The half of a [`Pipe`](crate::Pipe) that receives.
#[derive(Debug)]
pub struct Receiver {
    pub(crate) handle: Arc<Handle>,
    polling: bool,
}

impl Receiver {
    pub(crate) fn new(handle: Arc<Handle>) -> Receiver {
        Receiver { handle, polling: false }
    }

    /// Reads from a pipe of bytes, and returns how many; 0 at the end.
    ///
    /// # Safety
    ///
    /// There is so much room, to be written to.
    pub(crate) unsafe fn read(
        &mut self,
        bytes: *mut u8,
        room: usize,
        timeout: Timeout,
    ) -> Result<usize> {
        self.end_poll();
        // SAFETY: the end is alive, this thread alone receives, and the caller says how much room there is.
        let result = unsafe {
            sys::farcall_pipe_read(self.handle.raw(), bytes.cast(), room, timeout.nanoseconds())
        };
        Error::check_read(result)
    }

    /// Begins to wait for a message. `None`: there is something to do at once.
    pub fn poll(&mut self) -> Result<Option<Polling<'_, Receiver>>> {
        Polling::begin(self)
    }
}

receives!(Receiver);

// SAFETY: the library writes as many bytes as it returns, and there is room for those.
unsafe impl Receive for Receiver {
    unsafe fn receive(&mut self, bytes: *mut u8, room: usize, timeout: Timeout) -> Result<usize> {
        self.end_poll();
        let mut needed = 0;
        // SAFETY: the end is alive, this thread alone receives, and the caller says how much room there is.
        let result = unsafe {
            sys::farcall_pipe_receive(
                self.handle.raw(),
                bytes.cast(),
                room,
                &mut needed,
                timeout.nanoseconds(),
            )
        };
        Error::check_received(result, needed)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.end_poll();
    }
}

impl Pollable for Receiver {
    fn begin_poll(&mut self) -> Result<bool> {
        self.end_poll();
        // SAFETY: the end is alive, and this thread alone receives.
        let begun = unsafe { sys::farcall_pipe_poll_begin(self.handle.raw()) };
        self.polling = Error::check(begun)? == 1;
        Ok(self.polling)
    }

    fn end_poll(&mut self) {
        if std::mem::take(&mut self.polling) {
            // SAFETY: the end is alive, and this thread alone receives.
            unsafe { sys::farcall_pipe_poll_end(self.handle.raw()) };
        }
    }
}

impl AsRawFd for Receiver {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.receive_descriptor
    }
}

impl AsFd for Receiver {
    /// Becomes readable when there may be a message, while [`Receiver::poll()`] says that it is waited
    /// for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the end, in the process that uses that. In a child that was forked since
        // the first use the number is closed, as the library closes it there, and may be that of another file later.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}
