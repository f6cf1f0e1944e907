// SPDX-License-Identifier: Apache-2.0
//! The C interface of farcall as `farcall/farcall.h` has it, whose comments are the contract.
//!
//! The crate `farcall` has all of it behind safe types.
//!
//! Functions that can fail return a negative errno. A handle is used by one thread at a time unless
//! the header says otherwise.
#![allow(non_camel_case_types)]
#![deny(missing_docs)]
// Its comments are the contract; the test `header` compares all that follows with it.
#![allow(clippy::missing_safety_doc)]

use std::os::raw::{c_char, c_int, c_uint, c_void};

#[cfg(feature = "messages")]
pub mod message;

/// A timeout that waits for ever.
pub const FARCALL_FOREVER: i64 = -1;

/// Spins as long as that has paid lately, then sleeps.
pub const FARCALL_WAIT_ADAPTIVE: c_int = 0;
/// Never sleeps.
pub const FARCALL_WAIT_SPIN: c_int = 1;
/// Sleeps at once.
pub const FARCALL_WAIT_BLOCK: c_int = 2;

/// A pipe of messages, each received as it was sent.
pub const FARCALL_PIPE_MESSAGES: c_int = 0;
/// A pipe of bytes, in a stream without boundaries.
pub const FARCALL_PIPE_BYTES: c_int = 1;

/// How many descriptors an end of a pipe consists of.
pub const FARCALL_PIPE_DESCRIPTORS: usize = 4;

/// The writer waits for a slow reader.
pub const FARCALL_BLOCK: c_int = 0;
/// A slow reader misses messages, and learns how many.
pub const FARCALL_OVERWRITE: c_int = 1;
/// A slow reader is no reader any more.
pub const FARCALL_DROP_READER: c_int = 2;

/// A reader begins with what is written after it has come.
pub const FARCALL_NEWEST: c_int = 0;
/// A reader begins with the oldest message that is still there; where readers that are
/// slow are dropped, with what is written after it has come if that one is written over
/// before it has begun.
pub const FARCALL_OLDEST: c_int = 1;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _nobody_makes_one: [u8; 0],
            // Neither Send nor Sync nor Unpin: what may be done with it is not for this crate to say.
            _marker: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
        }
    )*};
}
handles! {
    /// An end of a pipe.
    farcall_pipe;
    /// The writer of a broadcast.
    farcall_publisher;
    /// A reader of a broadcast.
    farcall_subscriber;
    /// A door, and the threads that serve it.
    farcall_server;
    /// What a door is called through.
    farcall_client;
    /// A call in progress.
    farcall_call;
    /// What a procedure writes its reply to.
    farcall_call_reply;
}

/// Options of a pipe; all zero but for `size` for what is usual.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_pipe_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// Bytes each way.
    pub capacity: usize,
    /// `FARCALL_WAIT_...`
    pub wait: c_int,
    /// `FARCALL_PIPE_MESSAGES` or `FARCALL_PIPE_BYTES`.
    pub kind: c_int,
}

/// Options of a publisher.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_publisher_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// Bytes.
    pub capacity: usize,
    /// `FARCALL_BLOCK`, `FARCALL_OVERWRITE` or `FARCALL_DROP_READER`.
    pub policy: c_int,
    /// `FARCALL_WAIT_...`
    pub wait: c_int,
    /// At most.
    pub readers: c_uint,
    /// 0.
    pub reserved: c_int,
}

/// Options of a subscriber.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_subscriber_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// `FARCALL_NEWEST` or `FARCALL_OLDEST`.
    pub start: c_int,
    /// `FARCALL_WAIT_...`
    pub wait: c_int,
    /// The largest capacity of a publisher that is taken from it; 0: 1 GiB.
    pub most: usize,
}

/// What a server calls, in threads of the library, several at once.
pub type farcall_procedure = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        request: *const c_void,
        size: usize,
        reply: *mut farcall_call_reply,
    ) -> c_int,
>;

/// Who calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_caller {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// 0: it cannot be seen from here.
    pub pid: c_int,
    /// Effective.
    pub uid: c_uint,
    /// Effective.
    pub gid: c_uint,
}

/// Options of a server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_server_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// Request in bytes.
    pub longest: usize,
    /// Of the file.
    pub mode: c_uint,
    /// Called with the context when no procedure has it any more.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// Options of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_call_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// In nanoseconds; 0 is up at once.
    pub timeout: i64,
    /// Asked whether to give the call up.
    pub give_up: Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>,
    /// What it is called with.
    pub context: *mut c_void,
    /// Nanoseconds after the beginning.
    pub ask_after: i64,
}

/// Where a reply goes, and where it is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_answer {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// Room for the reply; then, the reply.
    pub bytes: *mut c_void,
    /// How much there is.
    pub room: usize,
    /// Of the reply.
    pub length: usize,
    /// The library's.
    pub memory: *mut c_void,
    /// The library's.
    pub memory_size: usize,
}

extern "C" {
    /// The version of the library.
    pub fn farcall_version() -> *const c_char;
    /// For signal handlers, first of all.
    pub fn farcall_note_signal();

    /// Makes both ends.
    pub fn farcall_pipe_create(
        options: *const farcall_pipe_options,
        one: *mut *mut farcall_pipe,
        other: *mut *mut farcall_pipe,
    ) -> c_int;
    /// Serves one end.
    pub fn farcall_pipe_serve(
        name: *const c_char,
        options: *const farcall_pipe_options,
        timeout: i64,
        end: *mut *mut farcall_pipe,
    ) -> c_int;
    /// Opens the other.
    pub fn farcall_pipe_open(
        name: *const c_char,
        options: *const farcall_pipe_options,
        timeout: i64,
        end: *mut *mut farcall_pipe,
    ) -> c_int;
    /// What an unused end consists of.
    pub fn farcall_pipe_descriptors(end: *const farcall_pipe, descriptors: *mut c_int) -> c_int;
    /// Makes an end of that.
    pub fn farcall_pipe_adopt(
        descriptors: *const c_int,
        options: *const farcall_pipe_options,
        end: *mut *mut farcall_pipe,
    ) -> c_int;
    /// Bytes that fit into it each way.
    pub fn farcall_pipe_capacity(end: *const farcall_pipe) -> usize;
    /// Nothing follows.
    pub fn farcall_pipe_finish(end: *mut farcall_pipe) -> c_int;
    /// The same, but leaves an unused end to others that have it.
    pub fn farcall_pipe_close_sending(end: *mut farcall_pipe);
    /// Frees the end.
    pub fn farcall_pipe_close(end: *mut farcall_pipe);
    /// Sends one message.
    pub fn farcall_pipe_send(
        end: *mut farcall_pipe,
        bytes: *const c_void,
        size: usize,
        timeout: i64,
    ) -> c_int;
    /// Receives one.
    pub fn farcall_pipe_receive(
        end: *mut farcall_pipe,
        bytes: *mut c_void,
        room: usize,
        needed: *mut usize,
        timeout: i64,
    ) -> i64;
    /// Writes to a pipe of bytes.
    pub fn farcall_pipe_write(
        end: *mut farcall_pipe,
        bytes: *const c_void,
        size: usize,
        timeout: i64,
    ) -> i64;
    /// Reads from one.
    pub fn farcall_pipe_read(
        end: *mut farcall_pipe,
        bytes: *mut c_void,
        room: usize,
        timeout: i64,
    ) -> i64;
    /// Becomes readable when there may be something to receive.
    pub fn farcall_pipe_poll_descriptor(end: *const farcall_pipe) -> c_int;
    /// 0 if there is something to do at once, else 1.
    pub fn farcall_pipe_poll_begin(end: *mut farcall_pipe) -> c_int;
    /// Before the next operation.
    pub fn farcall_pipe_poll_end(end: *mut farcall_pipe) -> c_int;
    /// Becomes readable when there may be room to send.
    pub fn farcall_pipe_send_poll_descriptor(end: *const farcall_pipe) -> c_int;
    /// 0 if there is something to do at once, else 1.
    pub fn farcall_pipe_send_poll_begin(end: *mut farcall_pipe) -> c_int;
    /// Before the next operation.
    pub fn farcall_pipe_send_poll_end(end: *mut farcall_pipe);

    /// Makes the writer of a broadcast.
    pub fn farcall_publisher_create(
        name: *const c_char,
        options: *const farcall_publisher_options,
        publisher: *mut *mut farcall_publisher,
    ) -> c_int;
    /// A descriptor that makes its holder a reader.
    pub fn farcall_publisher_invite(publisher: *mut farcall_publisher) -> c_int;
    /// Frees it; readers end once they have read what is there.
    pub fn farcall_publisher_close(publisher: *mut farcall_publisher);
    /// Sends one message to all.
    pub fn farcall_publisher_send(
        publisher: *mut farcall_publisher,
        bytes: *const c_void,
        size: usize,
        timeout: i64,
    ) -> c_int;
    /// The size of the longest message.
    pub fn farcall_publisher_longest(publisher: *const farcall_publisher) -> usize;
    /// How many readers there are.
    pub fn farcall_publisher_readers(publisher: *const farcall_publisher) -> c_uint;
    /// Becomes readable when there may be room to send.
    pub fn farcall_publisher_poll_descriptor(publisher: *const farcall_publisher) -> c_int;
    /// 0 if there is something to do at once, else 1.
    pub fn farcall_publisher_poll_begin(publisher: *mut farcall_publisher) -> c_int;
    /// Before the next operation.
    pub fn farcall_publisher_poll_end(publisher: *mut farcall_publisher);

    /// Becomes a reader of what is published under a name.
    pub fn farcall_subscriber_open(
        name: *const c_char,
        options: *const farcall_subscriber_options,
        timeout: i64,
        subscriber: *mut *mut farcall_subscriber,
    ) -> c_int;
    /// Becomes one by an invitation.
    pub fn farcall_subscriber_adopt(
        descriptor: c_int,
        options: *const farcall_subscriber_options,
        subscriber: *mut *mut farcall_subscriber,
    ) -> c_int;
    /// Frees it.
    pub fn farcall_subscriber_close(subscriber: *mut farcall_subscriber);
    /// Receives one message.
    pub fn farcall_subscriber_receive(
        subscriber: *mut farcall_subscriber,
        bytes: *mut c_void,
        room: usize,
        needed: *mut usize,
        missed: *mut u64,
        timeout: i64,
    ) -> i64;
    /// Becomes readable when there may be something to receive.
    pub fn farcall_subscriber_poll_descriptor(subscriber: *const farcall_subscriber) -> c_int;
    /// 0 if there is something to do at once, else 1.
    pub fn farcall_subscriber_poll_begin(subscriber: *mut farcall_subscriber) -> c_int;
    /// Before the next operation.
    pub fn farcall_subscriber_poll_end(subscriber: *mut farcall_subscriber);

    /// Appends to a reply.
    pub fn farcall_reply_write(
        reply: *mut farcall_call_reply,
        bytes: *const c_void,
        size: usize,
    ) -> c_int;
    /// Who has made the call that this thread serves.
    pub fn farcall_caller_get(caller: *mut farcall_caller) -> c_int;
    /// Serves at a path.
    pub fn farcall_server_create(
        path: *const c_char,
        procedure: farcall_procedure,
        context: *mut c_void,
        options: *const farcall_server_options,
        server: *mut *mut farcall_server,
    ) -> c_int;
    /// Takes no more calls.
    pub fn farcall_server_close(server: *mut farcall_server);
    /// Opens a door.
    pub fn farcall_client_open(
        path: *const c_char,
        timeout: i64,
        client: *mut *mut farcall_client,
    ) -> c_int;
    /// Frees it.
    pub fn farcall_client_close(client: *mut farcall_client);
    /// Calls.
    pub fn farcall_client_call(
        client: *mut farcall_client,
        request: *const c_void,
        size: usize,
        answer: *mut farcall_answer,
        options: *const farcall_call_options,
    ) -> c_int;
    /// Frees what the library has put into an answer.
    pub fn farcall_answer_free(answer: *mut farcall_answer);

    /// Begins a call, and does not wait for the server.
    pub fn farcall_client_begin(
        client: *mut farcall_client,
        request: *const c_void,
        size: usize,
        options: *const farcall_call_options,
        call: *mut *mut farcall_call,
    ) -> c_int;
    /// Becomes readable when there may be something to take.
    pub fn farcall_call_poll_descriptor(call: *const farcall_call) -> c_int;
    /// 0 if there is something to take at once, else 1.
    pub fn farcall_call_poll_begin(call: *mut farcall_call) -> c_int;
    /// Before the next operation.
    pub fn farcall_call_poll_end(call: *mut farcall_call);
    /// Takes the answer.
    pub fn farcall_call_take(
        call: *mut farcall_call,
        answer: *mut farcall_answer,
        timeout: i64,
    ) -> c_int;
    /// Frees a call; one in progress is given up.
    pub fn farcall_call_close(call: *mut farcall_call);
}
