// SPDX-License-Identifier: Apache-2.0
//! What a message can be received into.

use std::mem::MaybeUninit;

use crate::error::{Error, Result};
use crate::wait::Timeout;

/// Memory that a message can be received into.
///
/// - A slice or an array has its first bytes overwritten; of a longer message the call says
///   [`Error::TooLong`], and it is still there. Memory need not be initialised.
/// - A `Vec` holds the message afterwards and nothing else, and grows as it must. After an error it is
///   empty.
pub trait Buffer: sealed::Fill {}

pub(crate) mod sealed {
    use super::*;

    /// What a message comes from: a call of the C interface.
    ///
    /// # Safety
    ///
    /// Of what receive() returns the first bytes have been written, and there was room for so many.
    pub unsafe trait Receive {
        /// # Safety
        ///
        /// There is so much room, to be written to.
        unsafe fn receive(
            &mut self,
            bytes: *mut u8,
            room: usize,
            timeout: Timeout,
        ) -> Result<usize>;
    }

    pub trait Fill {
        fn fill_from<R: Receive>(&mut self, from: &mut R, timeout: Timeout) -> Result<usize>;
    }
}
pub(crate) use sealed::{Fill, Receive};

impl Fill for [u8] {
    fn fill_from<R: Receive>(&mut self, from: &mut R, timeout: Timeout) -> Result<usize> {
        // SAFETY: it is as long as it is.
        unsafe { from.receive(self.as_mut_ptr(), self.len(), timeout) }
    }
}

impl Fill for [MaybeUninit<u8>] {
    fn fill_from<R: Receive>(&mut self, from: &mut R, timeout: Timeout) -> Result<usize> {
        // SAFETY: it is as long as it is.
        unsafe { from.receive(self.as_mut_ptr().cast(), self.len(), timeout) }
    }
}

impl<const N: usize> Fill for [u8; N] {
    fn fill_from<R: Receive>(&mut self, from: &mut R, timeout: Timeout) -> Result<usize> {
        self.as_mut_slice().fill_from(from, timeout)
    }
}

impl<const N: usize> Fill for [MaybeUninit<u8>; N] {
    fn fill_from<R: Receive>(&mut self, from: &mut R, timeout: Timeout) -> Result<usize> {
        self.as_mut_slice().fill_from(from, timeout)
    }
}

impl Fill for Vec<u8> {
    fn fill_from<R: Receive>(&mut self, from: &mut R, timeout: Timeout) -> Result<usize> {
        self.clear();
        let began = timeout.begin();
        let mut left = timeout;
        loop {
            // SAFETY: a vector has room for its capacity.
            match unsafe { from.receive(self.as_mut_ptr(), self.capacity(), left) } {
                Ok(size) => {
                    // SAFETY: so many bytes have been written, and there was room for them.
                    unsafe { self.set_len(size) };
                    return Ok(size);
                }
                // Longer each time: what a broadcast holds may be another message by now. At least twice as
                // long, so that whoever says so of it again and again soon asks for too much.
                Err(Error::TooLong { size }) if size > self.capacity() => {
                    self.try_reserve(size).map_err(|_| Error::Os(libc::ENOMEM))?;
                    left = timeout.since(began);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Buffer for [u8] {}
impl Buffer for [MaybeUninit<u8>] {}
impl<const N: usize> Buffer for [u8; N] {}
impl<const N: usize> Buffer for [MaybeUninit<u8>; N] {}
impl Buffer for Vec<u8> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that is another, longer one each time somebody looks.
    struct Growing(Vec<usize>);

    // SAFETY: it writes as many as it says, if there is room.
    unsafe impl Receive for Growing {
        unsafe fn receive(&mut self, bytes: *mut u8, room: usize, _: Timeout) -> Result<usize> {
            let size = self.0.remove(0);
            if size > room {
                return Err(Error::TooLong { size });
            }
            // SAFETY: there is room for them.
            unsafe { bytes.write_bytes(7, size) };
            Ok(size)
        }
    }

    #[test]
    fn a_vector_grows_until_the_message_fits() {
        let mut vector = vec![1, 2, 3];
        assert_eq!(
            vector.fill_from(&mut Growing(vec![10, 100, 1000, 900]), Timeout::NEVER),
            Ok(900)
        );
        assert_eq!(vector, [7; 900]);
        assert_eq!(
            vector.fill_from(&mut Growing(vec![usize::MAX]), Timeout::NEVER),
            Err(Error::Os(libc::ENOMEM))
        );
        assert!(vector.is_empty());
        assert_eq!(vector.fill_from(&mut Growing(vec![0]), Timeout::NEVER), Ok(0));
    }

    /// A message that is always a little longer than there is room, and how often it has been asked for.
    struct Creeping(u32);

    // SAFETY: it writes nothing.
    unsafe impl Receive for Creeping {
        unsafe fn receive(&mut self, _: *mut u8, room: usize, _: Timeout) -> Result<usize> {
            self.0 += 1;
            assert!(self.0 < 100, "it goes on and on");
            Err(Error::TooLong { size: room + 1 })
        }
    }

    #[test]
    fn a_vector_does_not_follow_a_length_that_creeps_on() {
        let mut vector = Vec::new();
        assert_eq!(
            vector.fill_from(&mut Creeping(0), Timeout::NEVER),
            Err(Error::Os(libc::ENOMEM))
        );
    }

    #[test]
    fn a_slice_does_not_grow() {
        let mut array = [0u8; 4];
        assert_eq!(
            array.fill_from(&mut Growing(vec![5]), Timeout::NEVER),
            Err(Error::TooLong { size: 5 })
        );
        assert_eq!(array.fill_from(&mut Growing(vec![3]), Timeout::NEVER), Ok(3));
        assert_eq!(array, [7, 7, 7, 0]);
        let mut unwritten = [MaybeUninit::<u8>::uninit(); 4];
        assert_eq!(unwritten.fill_from(&mut Growing(vec![4]), Timeout::NEVER), Ok(4));
        // SAFETY: all 4 have been written.
        assert_eq!(unwritten.map(|byte| unsafe { byte.assume_init() }), [7; 4]);
    }
}
