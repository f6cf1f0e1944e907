// SPDX-License-Identifier: Apache-2.0
//! The ways to send and to receive that all have in common.

use crate::buffer::{Fill, Receive};
use crate::error::{Error, Result};
use crate::wait::Timeout;

/// The messages that come, each as a `Vec`, until nothing follows.
///
/// After an error other than [`Error::Interrupted`] there are no more.
#[derive(Debug)]
pub struct Messages<'a, T> {
    pub(crate) from: &'a mut T,
    pub(crate) ended: bool,
}

impl<T: Receive> Iterator for Messages<'_, T> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let message = received(self.from, Timeout::NEVER);
        self.ended = !matches!(message, Ok(_) | Err(Error::Interrupted));
        match message {
            Err(Error::Finished) => None,
            message => Some(message),
        }
    }
}

impl<T: Receive> std::iter::FusedIterator for Messages<'_, T> {}

/// send() and its kin, for a type that has `transmit(&[u8], Timeout)`.
macro_rules! sends {
    ($type:ty, $long:literal) => {
        impl $type {
            /// Sends one message, of any size from 0 on, and waits until there is room for it.
            ///
            #[doc = $long]
            pub fn send(&mut self, message: &[u8]) -> $crate::Result<()> {
                self.transmit(message, $crate::wait::Timeout::NEVER)
            }

            /// Sends one, unless there is no room in time: [`Error::TimedOut`](crate::Error::TimedOut).
            ///
            #[doc = $long]
            pub fn send_timeout(
                &mut self,
                message: &[u8],
                timeout: std::time::Duration,
            ) -> $crate::Result<()> {
                self.transmit(message, $crate::wait::Timeout::after(timeout))
            }

            /// Sends one, if there is room: else [`Error::WouldBlock`](crate::Error::WouldBlock).
            ///
            #[doc = $long]
            pub fn try_send(&mut self, message: &[u8]) -> $crate::Result<()> {
                self.transmit(message, $crate::wait::Timeout::AT_ONCE)
            }
        }
    };
}
pub(crate) use sends;

/// The same, for an end of a pipe.
macro_rules! sends_long {
    ($type:ty) => {
        $crate::transfer::sends!(
            $type,
            "Of a message longer than a quarter of the capacity a part may have gone where this ends with\n\
             [`WouldBlock`](crate::Error::WouldBlock), [`TimedOut`](crate::Error::TimedOut) or\n\
             [`Interrupted`](crate::Error::Interrupted). Then the same message has to be sent again, to go\n\
             on: messages never mix, and any other one is refused, with EINVAL. As a rule nothing of that one\n\
             goes. Where bytes were changed in the memory of a message that had been sent again already, that\n\
             may be told only before its end: then nothing can be sent any more, and none of both arrives."
        );
    };
}
pub(crate) use sends_long;

/// recv() and its kin, for a type that is Receive.
macro_rules! receives {
    ($type:ty) => {
        impl $type {
            /// Waits for a message.
            pub fn recv(&mut self) -> $crate::Result<Vec<u8>> {
                $crate::transfer::received(self, $crate::wait::Timeout::NEVER)
            }

            /// Waits for one so long: else [`Error::TimedOut`](crate::Error::TimedOut).
            pub fn recv_timeout(
                &mut self,
                timeout: std::time::Duration,
            ) -> $crate::Result<Vec<u8>> {
                $crate::transfer::received(self, $crate::wait::Timeout::after(timeout))
            }

            /// One that is there: else [`Error::WouldBlock`](crate::Error::WouldBlock).
            pub fn try_recv(&mut self) -> $crate::Result<Vec<u8>> {
                $crate::transfer::received(self, $crate::wait::Timeout::AT_ONCE)
            }

            /// Waits for a message, receives it into memory that is there, and returns its size.
            ///
            /// See [`Buffer`](crate::Buffer): what does not fit is still there afterwards, and a `Vec`
            /// grows.
            pub fn recv_into<B>(&mut self, buffer: &mut B) -> $crate::Result<usize>
            where
                B: $crate::Buffer + ?Sized,
            {
                $crate::buffer::Fill::fill_from(buffer, self, $crate::wait::Timeout::NEVER)
            }

            /// The same, for so long.
            pub fn recv_into_timeout<B>(
                &mut self,
                buffer: &mut B,
                timeout: std::time::Duration,
            ) -> $crate::Result<usize>
            where
                B: $crate::Buffer + ?Sized,
            {
                $crate::buffer::Fill::fill_from(buffer, self, $crate::wait::Timeout::after(timeout))
            }

            /// The same, without waiting.
            pub fn try_recv_into<B>(&mut self, buffer: &mut B) -> $crate::Result<usize>
            where
                B: $crate::Buffer + ?Sized,
            {
                $crate::buffer::Fill::fill_from(buffer, self, $crate::wait::Timeout::AT_ONCE)
            }

            /// All messages that come, until nothing follows.
            pub fn messages(&mut self) -> $crate::Messages<'_, Self> {
                $crate::Messages { from: self, ended: false }
            }
        }
    };
}
pub(crate) use receives;

/// Room that most messages find enough, so that few are asked for twice.
const USUAL: usize = 256;

pub(crate) fn received<R: Receive>(from: &mut R, timeout: Timeout) -> Result<Vec<u8>> {
    let mut message = Vec::with_capacity(USUAL);
    message.fill_from(from, timeout)?;
    Ok(message)
}
