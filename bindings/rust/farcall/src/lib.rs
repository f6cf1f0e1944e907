// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![warn(missing_debug_implementations)]

use std::ffi::CStr;

mod buffer;
mod call;
mod error;
pub mod exec;
mod halves;
#[cfg(feature = "messages")]
pub mod messages;
mod pipe;
mod polling;
mod publisher;
mod stream;
mod subscriber;
#[cfg(feature = "tokio")]
pub mod tokio;
mod transfer;
mod wait;

pub use buffer::Buffer;
pub use call::{Call, Caller, Client, Reply, Server, ServerOptions};
pub use error::{Error, Result};
pub use halves::{Receiver, Sender};
pub use pipe::{Pipe, PipeOptions};
pub use polling::Polling;
pub use publisher::{Policy, Publisher, PublisherOptions};
pub use stream::{Reader, Stream, Writer};
pub use subscriber::{Start, Subscriber, SubscriberOptions};
pub use transfer::Messages;
pub use wait::WaitMode;

/// The version of the library behind this crate.
///
/// ```
/// assert!(farcall::version().starts_with("0.1."));
/// ```
pub fn version() -> &'static str {
    // SAFETY: it is a string that is never freed.
    let version = unsafe { CStr::from_ptr(farcall_sys::farcall_version()) };
    version.to_str().unwrap_or("")
}

/// For handlers of signals, before anything else: what their thread waits for in this crate ends with
/// [`Error::Interrupted`].
///
/// Without it a wait may go on, since a handler of which the library knows nothing may run just before the
/// thread falls asleep. It may be called in a handler. A signal that was caught before a call began does
/// not end it: where such a handler only sets a flag, look at the flag again after a timeout.
///
/// ```
/// extern "C" fn caught(_: libc::c_int) {
///     farcall::note_signal();
/// }
/// unsafe { libc::signal(libc::SIGALRM, caught as extern "C" fn(_) as libc::sighandler_t) };
///
/// let (mut here, _there) = farcall::Pipe::pair()?;
/// # let waits = std::sync::atomic::AtomicBool::new(true);
/// # let thread = unsafe { libc::pthread_self() };
/// # std::thread::scope(|scope| {
/// #     scope.spawn(|| while waits.load(std::sync::atomic::Ordering::SeqCst) {
/// #         unsafe { libc::pthread_kill(thread, libc::SIGALRM) };
/// #         std::thread::sleep(std::time::Duration::from_millis(1));
/// #     });
/// assert_eq!(here.recv(), Err(farcall::Error::Interrupted)); // when the alarm comes
/// #     waits.store(false, std::sync::atomic::Ordering::SeqCst);
/// # });
/// # Ok::<(), farcall::Error>(())
/// ```
pub fn note_signal() {
    // SAFETY: it may be called anywhere.
    unsafe { farcall_sys::farcall_note_signal() }
}
