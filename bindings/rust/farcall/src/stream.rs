// SPDX-License-Identifier: Apache-2.0
//! Pipes of bytes, for what reads and writes those.

use std::io::{self, Read, Write};
use std::os::raw::c_int;
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use farcall_sys as sys;

use crate::error::Result;
use crate::halves::{descriptors_of, Receiver, Sender};
use crate::pipe::{End, PipeOptions};
use crate::polling::{Pollable, Polling};
use crate::wait::Timeout;

/// An end of a pipe of bytes: a stream both ways between two processes, or two threads.
///
/// It is to a [`Pipe`](crate::Pipe) what a TCP connection is to packets. What is written is read in order,
/// and where one write ended is not to be seen. It goes to other processes as a pipe does, and both sides
/// say what it is: a stream is not opened as a pipe, nor the other way round
/// ([`Error::OtherKind`](crate::Error::OtherKind)).
///
/// [`PipeOptions`] says how to make one otherwise. Nothing is kept back: put a
/// [`BufWriter`](std::io::BufWriter) around it where writes are small, and a
/// [`BufReader`](std::io::BufReader) to read lines.
///
/// Dropping an end closes it: the other one reads what has been written, then nothing more.
///
/// ```
/// use std::io::{BufRead, BufReader, Write};
/// use farcall::Stream;
///
/// let (mut here, there) = Stream::pair()?;
/// write!(here, "{} and {}\nthree", 1, 2)?;
/// here.finish()?;
/// let lines = BufReader::new(there).lines().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(lines, ["1 and 2", "three"]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Stream {
    writer: Writer,
    reader: Reader,
}

/// The half of a [`Stream`] that writes.
///
/// [`write()`](Write::write) waits until all is written. It returns fewer where a signal has been caught or the
/// other end has gone, after some had been written.
///
/// Of an end that has been [split](Stream::split) it tells the other end that nothing follows when it is
/// dropped.
#[derive(Debug)]
pub struct Writer {
    sender: Sender,
}

/// The half of a [`Stream`] that reads.
///
/// [`read()`](Read::read) waits for at least one byte, and takes what is there. 0 is the end: the other one has
/// finished or closed, and all has been read.
#[derive(Debug)]
pub struct Reader {
    receiver: Receiver,
}

impl Stream {
    /// Makes both ends.
    pub fn pair() -> Result<(Stream, Stream)> {
        PipeOptions::new().stream_pair()
    }

    /// Serves one end to the first process of this user that opens `name`.
    pub fn serve(name: &str) -> Result<Stream> {
        PipeOptions::new().serve_stream(name)
    }

    /// Opens the other, as soon as somebody serves it.
    pub fn open(name: &str) -> Result<Stream> {
        PipeOptions::new().open_stream(name)
    }

    /// Makes an end of its descriptors; see [`Pipe::adopt()`](crate::Pipe::adopt).
    pub fn adopt(descriptors: impl IntoIterator<Item = OwnedFd>) -> Result<Stream> {
        PipeOptions::new().adopt_stream(descriptors)
    }

    /// What this end consists of, for another process, which [adopts](Stream::adopt) it; see
    /// [`Pipe::into_descriptors()`](crate::Pipe::into_descriptors).
    pub fn into_descriptors(self) -> Result<[OwnedFd; 4]> {
        descriptors_of(self.writer.sender, self.reader.receiver)
    }

    /// Tells the other end that nothing follows; reading goes on. A second time does nothing.
    pub fn finish(&mut self) -> Result<()> {
        self.writer.finish()
    }

    /// See [`Writer::write_timeout()`].
    pub fn write_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<usize> {
        self.writer.write_timeout(bytes, timeout)
    }

    /// See [`Writer::try_write()`].
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.writer.try_write(bytes)
    }

    /// See [`Reader::read_timeout()`].
    pub fn read_timeout(&mut self, buffer: &mut [u8], timeout: Duration) -> Result<usize> {
        self.reader.read_timeout(buffer, timeout)
    }

    /// See [`Reader::try_read()`].
    pub fn try_read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.reader.try_read(buffer)
    }

    /// Both halves, to be used at once for as long as the end is borrowed.
    pub fn halves(&mut self) -> (&mut Writer, &mut Reader) {
        (&mut self.writer, &mut self.reader)
    }

    /// Both halves, each to go its own way. The end is closed when both are dropped, and nothing follows
    /// as soon as the writer is.
    pub fn split(mut self) -> (Writer, Reader) {
        self.writer.sender.finishes = true;
        (self.writer, self.reader)
    }
}

impl End for Stream {
    const KIND: c_int = sys::FARCALL_PIPE_BYTES;

    fn of_halves(sender: Sender, receiver: Receiver) -> Stream {
        Stream { writer: Writer { sender }, reader: Reader { receiver } }
    }
}

impl Writer {
    /// Writes all, or as many as there is room for in time: at least one, else
    /// [`Error::TimedOut`](crate::Error::TimedOut).
    ///
    /// ```
    /// use std::time::Duration;
    /// use farcall::{Error, PipeOptions};
    ///
    /// let (here, _there) = PipeOptions::new().capacity(4096).stream_pair()?;
    /// let (mut writer, _) = here.split();
    /// assert_eq!(writer.write_timeout(&[0; 10_000], Duration::from_millis(10)), Ok(4096));
    /// assert_eq!(writer.write_timeout(b"more", Duration::from_millis(10)), Err(Error::TimedOut));
    /// # Ok::<(), farcall::Error>(())
    /// ```
    pub fn write_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<usize> {
        self.sender.write(bytes, Timeout::after(timeout))
    }

    /// Writes as many as there is room for: at least one, else
    /// [`Error::WouldBlock`](crate::Error::WouldBlock).
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.sender.write(bytes, Timeout::AT_ONCE)
    }

    /// Tells the other end that nothing follows. It reads what has been written, then the end. A second time
    /// does nothing.
    pub fn finish(&mut self) -> Result<()> {
        self.sender.finish()
    }

    /// Begins to wait for room. `None`: there is something to do at once.
    pub fn poll(&mut self) -> Result<Option<Polling<'_, Writer>>> {
        Polling::begin(self)
    }
}

impl Reader {
    /// Reads what comes in time: at least one byte, or the end, else
    /// [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn read_timeout(&mut self, buffer: &mut [u8], timeout: Duration) -> Result<usize> {
        self.read_into(buffer, Timeout::after(timeout))
    }

    /// Reads what is there, or the end, else [`Error::WouldBlock`](crate::Error::WouldBlock).
    pub fn try_read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.read_into(buffer, Timeout::AT_ONCE)
    }

    /// Begins to wait for something to read. `None`: there is something to do at once.
    pub fn poll(&mut self) -> Result<Option<Polling<'_, Reader>>> {
        Polling::begin(self)
    }

    fn read_into(&mut self, buffer: &mut [u8], timeout: Timeout) -> Result<usize> {
        // SAFETY: it is as long as it is.
        unsafe { self.receiver.read(buffer.as_mut_ptr(), buffer.len(), timeout) }
    }

    /// Reads what is there into memory that need not be initialised.
    ///
    /// # Safety
    ///
    /// There is so much room, to be written to.
    #[cfg(feature = "tokio")]
    pub(crate) unsafe fn try_read_to(&mut self, bytes: *mut u8, room: usize) -> Result<usize> {
        // SAFETY: the caller says so.
        unsafe { self.receiver.read(bytes, room, Timeout::AT_ONCE) }
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.sender.write(bytes, Timeout::NEVER)?)
    }

    /// Nothing is kept back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_into(buffer, Timeout::NEVER)?)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

macro_rules! polls {
    ($type:ty, $half:ident, $when:literal) => {
        impl Pollable for $type {
            fn begin_poll(&mut self) -> Result<bool> {
                self.$half.begin_poll()
            }

            fn end_poll(&mut self) {
                self.$half.end_poll();
            }
        }

        impl AsRawFd for $type {
            fn as_raw_fd(&self) -> RawFd {
                self.$half.as_raw_fd()
            }
        }

        impl AsFd for $type {
            #[doc = $when]
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.$half.as_fd()
            }
        }
    };
}
polls!(Writer, sender, "Becomes readable when there may be room, while `poll()` waits for it.");
polls!(
    Reader,
    receiver,
    "Becomes readable when there may be bytes, while `poll()` waits for them."
);
