// SPDX-License-Identifier: Apache-2.0
//! Tasks of tokio that wait for messages or bytes, and for room; with the feature `tokio`.
//!
//! There is no thread behind it: a task that finds nothing lets others run for a few turns, as long as
//! that has paid lately, and then sleeps on the descriptor that the library lends for that.
//!
//! ```
//! use farcall::tokio::Pipe;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! # runtime.block_on(async {
//! let (here, there) = farcall::Pipe::pair()?;
//! let (mut here, mut there) = (Pipe::new(here)?, Pipe::new(there)?);
//! let echo = tokio::spawn(async move {
//!     while let Ok(message) = there.recv().await {
//!         there.send(&message).await?;
//!     }
//!     Ok::<(), farcall::Error>(())
//! });
//! here.send(b"hello").await?;
//! assert_eq!(here.recv().await?, b"hello");
//! drop(here);
//! echo.await.unwrap()
//! # })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Timeouts are those of tokio. What is given up while it receives loses nothing, and so does what sends a
//! message of up to a quarter of the capacity; of a longer one a part may have gone, and that message has
//! to be sent again, to go on; another one is refused, as by [`crate::Pipe::try_send()`].
//!
//! A [`Stream`] is read and written by what tokio has for bytes: `AsyncRead`, `AsyncWrite`.
//!
//! A [`crate::Publisher`] waits for nobody but with [`Policy::Block`](crate::Policy::Block); with any
//! other it may be used as it is.

use std::future::Future;
use std::os::unix::io::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::Interest;

use crate::error::{Error, Result};
use crate::polling::Pollable;
use crate::wait::Timeout;
use crate::Buffer;

mod call;
#[cfg(feature = "messages")]
mod channel;
mod stream;

pub use call::Client;
#[cfg(feature = "messages")]
pub use channel::Channel;
pub use stream::{Reader, Stream, Writer};

/// What a runtime waits for.
#[derive(Debug)]
struct Watched<T: Pollable + AsRawFd> {
    what: AsyncFd<T>,
    turns: u32,  // that the next wait takes before it sleeps
    streak: u32, // of what was done at once
}

/// An answer from another processor is there sooner than the kernel can wake this one.
const MOST_TURNS: u32 = 32;
/// So much is done at once before other tasks are let run.
const MOST_AT_ONCE: u32 = 128;

/// Has the runtime watch its descriptor. It is used first, and so this process's: that of an end that nobody
/// has used is open in forked children, too, and one that dropped it would take it out of the runtime.
fn watch<T: Pollable + AsRawFd>(mut what: T) -> Result<AsyncFd<T>> {
    if what.begin_poll()? {
        what.end_poll();
    }
    // Room to send, too, is told by what can be read.
    AsyncFd::with_interest(what, Interest::READABLE).map_err(|error| Error::from_io(&error))
}

impl<T: Pollable + AsRawFd> Watched<T> {
    fn new(what: T) -> Result<Watched<T>> {
        let what = watch(what)?;
        Ok(Watched { what, turns: MOST_TURNS / 2, streak: 0 })
    }

    /// Tries until there is something to do.
    async fn until<R>(&mut self, mut attempt: impl FnMut(&mut T) -> Result<R>) -> Result<R> {
        if self.streak == MOST_AT_ONCE {
            self.streak = 0;
            Turn(false).await;
        }
        for turn in 0..=self.turns {
            match attempt(self.what.get_mut()) {
                Err(Error::WouldBlock) => Turn(false).await,
                done => {
                    if turn > 0 {
                        self.turns = MOST_TURNS.min(self.turns * 2);
                    }
                    self.streak = if turn > 0 { 0 } else { self.streak + 1 };
                    return done;
                }
            }
        }
        self.turns = (self.turns / 2).max(1);
        self.streak = 0;
        loop {
            self.sleep().await?;
            match attempt(self.what.get_mut()) {
                Err(Error::WouldBlock) => {}
                done => return done,
            }
        }
    }

    /// Until there may be something to do.
    async fn sleep(&mut self) -> Result<()> {
        if !self.what.get_mut().begin_poll()? {
            return Ok(());
        }
        let polled = Polled(&mut self.what);
        // A doorbell that comes after this is one more event of the descriptor, and clear_ready() leaves
        // that alone: so nothing is missed though the ones before are only taken out when `polled` goes.
        polled.0.readable().await.map_err(|error| Error::from_io(&error))?.clear_ready();
        Ok(())
    }
}

/// Ends a poll also where the task is given up.
struct Polled<'a, T: Pollable + AsRawFd>(&'a mut AsyncFd<T>);

impl<T: Pollable + AsRawFd> Drop for Polled<'_, T> {
    fn drop(&mut self) {
        self.0.get_mut().end_poll();
    }
}

/// Lets other tasks run once.
struct Turn(bool);

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

macro_rules! receives {
    ($type:ty, $watched:ident $(. $of:ident)?) => {
        impl $type {
            /// Waits for a message.
            pub async fn recv(&mut self) -> Result<Vec<u8>> {
                self.$watched$(.$of)?.until(|from| {
                    $crate::transfer::received(from, Timeout::AT_ONCE)
                }).await
            }

            /// Waits for one, receives it into memory that is there, and returns its size.
            pub async fn recv_into<B: Buffer + ?Sized>(&mut self, buffer: &mut B) -> Result<usize> {
                self.$watched$(.$of)?.until(|from| buffer.fill_from(from, Timeout::AT_ONCE)).await
            }
        }
    };
}

macro_rules! sends {
    ($type:ty, $watched:ident $(. $of:ident)?) => {
        impl $type {
            /// Sends one message, and waits until there is room for it.
            pub async fn send(&mut self, message: &[u8]) -> Result<()> {
                self.$watched$(.$of)?.until(|to| to.try_send(message)).await
            }
        }
    };
}

macro_rules! finishes {
    ($type:ty, $watched:ident $(. $of:ident)?) => {
        impl $type {
            /// Tells the other end that nothing follows.
            pub fn finish(&mut self) -> Result<()> {
                self.$watched$(.$of)?.what.get_mut().finish()
            }
        }
    };
}

/// The half of a [`Pipe`] that sends. See [`crate::Sender`].
#[derive(Debug)]
pub struct Sender {
    watched: Watched<crate::Sender>,
}

/// The half of a [`Pipe`] that receives. See [`crate::Receiver`].
#[derive(Debug)]
pub struct Receiver {
    watched: Watched<crate::Receiver>,
}

/// An end of a pipe. See [`crate::Pipe`].
#[derive(Debug)]
pub struct Pipe {
    sender: Sender,
    receiver: Receiver,
}

/// The writer of a broadcast. See [`crate::Publisher`].
///
/// ```
/// use farcall::tokio::{Publisher, Subscriber};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let publisher = farcall::PublisherOptions::new().create_unnamed()?;
/// let mut reader = Subscriber::new(farcall::Subscriber::adopt(publisher.invite()?)?)?;
/// let mut publisher = Publisher::new(publisher)?;
/// publisher.send(b"hello").await?; // waits for slow readers, and other tasks run
/// assert_eq!(reader.recv().await?, b"hello");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Publisher {
    watched: Watched<crate::Publisher>,
}

/// A reader of a broadcast. See [`crate::Subscriber`].
#[derive(Debug)]
pub struct Subscriber {
    watched: Watched<crate::Subscriber>,
}

impl Sender {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    ///
    /// The end is this process's from now on: [`Error::Busy`] where it is another's.
    pub fn new(sender: crate::Sender) -> Result<Sender> {
        Ok(Sender { watched: Watched::new(sender)? })
    }

    /// What it is outside of the runtime.
    pub fn into_inner(self) -> crate::Sender {
        self.watched.what.into_inner()
    }
}

impl Receiver {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    ///
    /// The end is this process's from now on: [`Error::Busy`] where it is another's.
    pub fn new(receiver: crate::Receiver) -> Result<Receiver> {
        Ok(Receiver { watched: Watched::new(receiver)? })
    }

    /// What it is outside of the runtime.
    pub fn into_inner(self) -> crate::Receiver {
        self.watched.what.into_inner()
    }
}

impl Pipe {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    ///
    /// The end is this process's from now on: [`Error::Busy`] where it is another's.
    pub fn new(pipe: crate::Pipe) -> Result<Pipe> {
        let (sender, receiver) = pipe.split();
        Ok(Pipe { sender: Sender::new(sender)?, receiver: Receiver::new(receiver)? })
    }

    /// Both halves, to be used at once for as long as the end is borrowed.
    pub fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.sender, &mut self.receiver)
    }

    /// Both halves, each to go its own way.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

impl Publisher {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    pub fn new(publisher: crate::Publisher) -> Result<Publisher> {
        Ok(Publisher { watched: Watched::new(publisher)? })
    }

    /// The publisher, to invite readers or to count them.
    pub fn get_ref(&self) -> &crate::Publisher {
        self.watched.what.get_ref()
    }

    /// What it is outside of the runtime.
    pub fn into_inner(self) -> crate::Publisher {
        self.watched.what.into_inner()
    }
}

impl Subscriber {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    pub fn new(subscriber: crate::Subscriber) -> Result<Subscriber> {
        Ok(Subscriber { watched: Watched::new(subscriber)? })
    }

    /// See [`crate::Subscriber::just_missed()`].
    pub fn just_missed(&self) -> u64 {
        self.watched.what.get_ref().just_missed()
    }

    /// See [`crate::Subscriber::missed()`].
    pub fn missed(&self) -> u64 {
        self.watched.what.get_ref().missed()
    }

    /// What it is outside of the runtime.
    pub fn into_inner(self) -> crate::Subscriber {
        self.watched.what.into_inner()
    }
}

sends!(Sender, watched);
sends!(Pipe, sender.watched);
sends!(Publisher, watched);
finishes!(Sender, watched);
finishes!(Pipe, sender.watched);
receives!(Receiver, watched);
receives!(Pipe, receiver.watched);
receives!(Subscriber, watched);
