// SPDX-License-Identifier: Apache-2.0
//! Bytes instead of messages, for what reads and writes those.

use std::io::{self, BufRead, Read, Write};

use crate::buffer::Fill;
use crate::error::Error;
use crate::halves::{Receiver, Sender};
use crate::wait::Timeout;

/// The bytes of the messages that come, one behind the other; where one ends is not to be seen.
///
/// The end is where nothing follows. What is not read of a message is kept for the next read. Empty
/// messages are passed over. It is buffered, by a message at a time.
///
/// ```
/// use std::io::{BufRead, Write};
/// use farcall::Pipe;
///
/// let (here, there) = Pipe::pair()?;
/// let (mut writer, reader) = (here.split().0.into_writer(), there.split().1.into_reader());
/// write!(writer, "{} and {}\nthree", 1, 2)?;
/// drop(writer);
/// let lines = reader.lines().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(lines, ["1 and 2", "three"]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    receiver: Receiver,
    message: Vec<u8>,
    read: usize, // of it
}

impl Reader {
    pub(crate) fn new(receiver: Receiver) -> Reader {
        Reader { receiver, message: Vec::new(), read: 0 }
    }

    /// The receiver again, and what has not been read of its last message.
    pub fn into_inner(mut self) -> (Receiver, Vec<u8>) {
        self.message.drain(..self.read);
        (self.receiver, self.message)
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.read == self.message.len() {
            self.read = 0;
            match self.message.fill_from(&mut self.receiver, Timeout::NEVER) {
                Ok(_) => {}
                Err(Error::Finished) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(&self.message[self.read..])
    }

    fn consume(&mut self, bytes: usize) {
        self.read = self.message.len().min(self.read + bytes);
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut available = self.fill_buf()?;
        let bytes = available.read(buffer)?;
        self.consume(bytes);
        Ok(bytes)
    }
}

/// What is written, in messages of at most [`Writer::LONGEST`] bytes.
///
/// Nothing is kept back: each write is a message at once, and `flush()` has nothing to do. Put a
/// `BufWriter` around it where many small writes make one message. Dropping it tells the other end that
/// nothing follows.
#[derive(Debug)]
pub struct Writer {
    sender: Sender,
}

impl Writer {
    /// The most that one write takes. It is sent whole or not at all, also when a signal is caught: the
    /// smallest capacity is 4 KiB, and only of messages of more than a quarter a part may go.
    pub const LONGEST: usize = 1024;

    pub(crate) fn new(sender: Sender) -> Writer {
        Writer { sender }
    }

    /// The sender again.
    pub fn into_inner(self) -> Sender {
        self.sender
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let message = &bytes[..bytes.len().min(Writer::LONGEST)];
        if !message.is_empty() {
            self.sender.send(message)?;
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
