// SPDX-License-Identifier: Apache-2.0
//! Streams of bytes, by the traits that tokio has for them.

use std::io;
use std::os::unix::io::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{watch, MOST_AT_ONCE, MOST_TURNS};
use crate::error::{Error, Result};
use crate::polling::Pollable;

/// What a task waits for that comes back to where it was.
#[derive(Debug)]
struct Half<T: Pollable + AsRawFd> {
    what: AsyncFd<T>,
    turns: u32,   // that a wait takes before it sleeps
    turned: u32,  // in this wait
    slept: bool,  // in this wait
    asleep: bool, // a poll has begun
    streak: u32,  // of what was done at once
}

impl<T: Pollable + AsRawFd> Half<T> {
    fn new(what: T) -> Result<Half<T>> {
        let what = watch(what)?;
        Ok(Half { what, turns: MOST_TURNS / 2, turned: 0, slept: false, asleep: false, streak: 0 })
    }

    /// Tries until there is something to do.
    fn poll_until<R>(
        &mut self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&mut T) -> Result<R>,
    ) -> Poll<io::Result<R>> {
        if !self.asleep && self.streak == MOST_AT_ONCE {
            self.streak = 0;
            return again(context);
        }
        loop {
            if self.asleep {
                match self.what.poll_read_ready(context) {
                    Poll::Pending => return Poll::Pending,
                    // A doorbell that comes after this is one more event of the descriptor; the ones
                    // before are only taken out when the poll ends.
                    Poll::Ready(ready) => ready?.clear_ready(),
                }
                self.wake();
            }
            match attempt(self.what.get_mut()) {
                Err(Error::WouldBlock) => self.streak = 0,
                done => {
                    if self.turned > 0 && !self.slept {
                        self.turns = MOST_TURNS.min(self.turns * 2); // they have paid
                    }
                    self.turned = 0;
                    self.slept = false;
                    self.streak += 1;
                    return Poll::Ready(done.map_err(io::Error::from));
                }
            }
            if !self.slept && self.turned < self.turns {
                self.turned += 1;
                return again(context);
            }
            if !std::mem::replace(&mut self.slept, true) {
                self.turns = (self.turns / 2).max(1);
            }
            self.asleep = self.what.get_mut().begin_poll()?;
            if !self.asleep {
                return again(context);
            }
        }
    }

    /// Before anything else is done with it.
    fn wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.what.get_mut().end_poll();
        }
    }

    fn awake(&mut self) -> &mut T {
        self.wake();
        self.what.get_mut()
    }

    fn into_inner(mut self) -> T {
        self.wake();
        self.what.into_inner()
    }
}

/// Lets other tasks run once.
fn again<R>(context: &mut Context<'_>) -> Poll<R> {
    context.waker().wake_by_ref();
    Poll::Pending
}

/// The half of a [`Stream`] that writes. See [`crate::Writer`].
#[derive(Debug)]
pub struct Writer {
    half: Half<crate::Writer>,
}

/// The half of a [`Stream`] that reads. See [`crate::Reader`].
#[derive(Debug)]
pub struct Reader {
    half: Half<crate::Reader>,
}

/// An end of a pipe of bytes. See [`crate::Stream`].
///
/// ```
/// use farcall::tokio::Stream;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let (here, there) = farcall::Stream::pair()?;
/// let (mut here, mut there) = (Stream::new(here)?, Stream::new(there)?);
/// let echo = tokio::spawn(async move {
///     let (writer, reader) = there.halves();
///     tokio::io::copy(reader, writer).await
/// });
/// here.write_all(b"hello").await?;
/// here.shutdown().await?; // nothing follows
/// let mut answer = String::new();
/// here.read_to_string(&mut answer).await?;
/// assert_eq!(answer, "hello");
/// echo.await.unwrap()
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Stream {
    writer: Writer,
    reader: Reader,
}

impl Writer {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    ///
    /// The end is this process's from now on: [`Error::Busy`] where it is another's.
    pub fn new(writer: crate::Writer) -> Result<Writer> {
        Ok(Writer { half: Half::new(writer)? })
    }

    /// What it is outside of the runtime.
    pub fn into_inner(self) -> crate::Writer {
        self.half.into_inner()
    }
}

impl Reader {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    ///
    /// The end is this process's from now on: [`Error::Busy`] where it is another's.
    pub fn new(reader: crate::Reader) -> Result<Reader> {
        Ok(Reader { half: Half::new(reader)? })
    }

    /// What it is outside of the runtime.
    pub fn into_inner(self) -> crate::Reader {
        self.half.into_inner()
    }
}

impl Stream {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    ///
    /// The end is this process's from now on: [`Error::Busy`] where it is another's.
    pub fn new(stream: crate::Stream) -> Result<Stream> {
        let (writer, reader) = stream.split();
        Ok(Stream { writer: Writer::new(writer)?, reader: Reader::new(reader)? })
    }

    /// Both halves, to be used at once for as long as the end is borrowed.
    pub fn halves(&mut self) -> (&mut Writer, &mut Reader) {
        (&mut self.writer, &mut self.reader)
    }

    /// Both halves, each to go its own way.
    pub fn split(self) -> (Writer, Reader) {
        (self.writer, self.reader)
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.half.poll_until(context, |reader| {
            // SAFETY: nothing that is initialised becomes anything else.
            let room = unsafe { buffer.unfilled_mut() };
            // SAFETY: it is as long as it is.
            let bytes = unsafe { reader.try_read_to(room.as_mut_ptr().cast(), room.len()) }?;
            // SAFETY: so many have just been written.
            unsafe { buffer.assume_init(bytes) };
            buffer.advance(bytes);
            Ok(())
        })
    }
}

impl AsyncWrite for Writer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.half.poll_until(context, |writer| writer.try_write(bytes))
    }

    /// Nothing is kept back.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Tells the other end that nothing follows.
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.half.awake().finish().map_err(io::Error::from))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}
