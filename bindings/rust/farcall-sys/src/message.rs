// SPDX-License-Identifier: Apache-2.0
//! The C interface of messages as `farcall/message.h` has it, whose comments are the contract.
//!
//! Functions return -1 and set errno on failure. Any thread may call them.

use std::os::raw::{c_char, c_int, c_uint, c_void};

/// Bytes in a name.
pub const FARCALL_NAME_MAX: usize = 48;
/// Most descriptors in a message.
pub const FARCALL_DESCRIPTORS: usize = 16;
/// Most bytes in a message, or in the room for a reply.
pub const FARCALL_MESSAGE_MAX: usize = 0x3fffffff;

/// Clients stay blocked until they are answered.
pub const FARCALL_UNBLOCK: c_uint = 1;
/// A pulse tells that nobody holds a connection any more.
pub const FARCALL_DISCONNECT: c_uint = 2;
/// Who receives inherits priorities.
pub const FARCALL_INHERIT: c_uint = 4;

/// Nobody holds that connection any more.
pub const FARCALL_PULSE_DISCONNECT: c_int = -1;
/// The client of that message wants to leave.
pub const FARCALL_PULSE_UNBLOCK: c_int = -2;
/// A connection's server is gone.
pub const FARCALL_PULSE_DEATH: c_int = -3;

/// Of a message that nobody waits for an answer to.
pub const FARCALL_ONE_WAY: i64 = 1;
/// Signals do not end the wait for the reply.
pub const FARCALL_KEEP_WAITING: c_uint = 1;

/// About what was received.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_info {
    /// Through which it came.
    pub connection: i64,
    /// Of the sender; 0: it cannot be seen from here.
    pub pid: c_int,
    /// Of the sender; 0: it has no such thread.
    pub tid: c_int,
    /// Of the sender.
    pub uid: c_uint,
    /// Of the sender.
    pub gid: c_uint,
    /// Of the sender, or of the pulse.
    pub priority: c_int,
    /// Of a pulse.
    pub code: c_int,
    /// Of a pulse.
    pub value: i64,
    /// Bytes that were sent.
    pub length: usize,
    /// Bytes of those in the buffers.
    pub received: usize,
    /// For the reply.
    pub room: usize,
    /// How many came along.
    pub descriptor_count: c_uint,
    /// The receiver's.
    pub descriptors: [c_int; FARCALL_DESCRIPTORS],
}

/// A message with all that it can have.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct farcall_message {
    /// What is sent.
    pub send: *const iovec,
    /// Pieces.
    pub send_count: c_int,
    /// Pieces.
    pub reply_count: c_int,
    /// Room for the reply.
    pub reply: *const iovec,
    /// They stay the sender's.
    pub descriptors: *const c_int,
    /// How many.
    pub descriptor_count: c_uint,
    /// 0, or `FARCALL_KEEP_WAITING`.
    pub flags: c_uint,
    /// Bytes, up to the last that was written.
    pub replied: usize,
}

/// A piece of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct iovec {
    /// Where it begins.
    pub iov_base: *mut c_void,
    /// Bytes.
    pub iov_len: usize,
}

extern "C" {
    /// A channel without a name.
    pub fn farcall_channel_create(flags: c_uint) -> c_int;
    /// One with a name.
    pub fn farcall_name_attach(name: *const c_char, flags: c_uint, mode: c_uint) -> c_int;
    /// Closes it.
    pub fn farcall_channel_destroy(channel: c_int) -> c_int;
    /// For poll(2).
    pub fn farcall_channel_descriptor(channel: c_int) -> c_int;

    /// Connects to the channel of a name.
    pub fn farcall_name_open(name: *const c_char) -> c_int;
    /// Connects to one of this process.
    pub fn farcall_connect(channel: c_int) -> c_int;
    /// Closes a connection.
    pub fn farcall_disconnect(connection: c_int) -> c_int;
    /// What may be passed on.
    pub fn farcall_connection_descriptor(connection: c_int) -> c_int;
    /// Makes a connection of that.
    pub fn farcall_adopt(descriptor: c_int) -> c_int;

    /// Sends and waits for the reply.
    pub fn farcall_send(
        connection: c_int,
        message: *const c_void,
        length: usize,
        reply: *mut c_void,
        room: usize,
    ) -> c_int;
    /// The same, of pieces.
    pub fn farcall_sendv(
        connection: c_int,
        message: *const iovec,
        count: c_int,
        reply: *const iovec,
        reply_count: c_int,
    ) -> c_int;
    /// The same, with all there is.
    pub fn farcall_send_message(connection: c_int, message: *mut farcall_message) -> c_int;
    /// Waits for no reply.
    pub fn farcall_send_one_way(connection: c_int, message: *const c_void, length: usize) -> c_int;

    /// Receives the most urgent of what waits, or waits.
    pub fn farcall_receive(
        channel: c_int,
        buffer: *mut c_void,
        length: usize,
        info: *mut farcall_info,
    ) -> i64;
    /// The same, in pieces.
    pub fn farcall_receivev(
        channel: c_int,
        buffers: *const iovec,
        count: c_int,
        info: *mut farcall_info,
    ) -> i64;

    /// Answers.
    pub fn farcall_reply(id: i64, status: c_int, reply: *const c_void, length: usize) -> c_int;
    /// The same, of pieces.
    pub fn farcall_replyv(id: i64, status: c_int, reply: *const iovec, count: c_int) -> c_int;
    /// Answers with an errno.
    pub fn farcall_error(id: i64, error: c_int) -> c_int;
    /// Answers one and receives the next.
    pub fn farcall_reply_receive(
        id: i64,
        status: c_int,
        reply: *const c_void,
        length: usize,
        channel: c_int,
        buffer: *mut c_void,
        size: usize,
        info: *mut farcall_info,
    ) -> i64;

    /// Of what a client has sent.
    pub fn farcall_read(id: i64, offset: usize, to: *mut c_void, length: usize) -> isize;
    /// The same, in pieces.
    pub fn farcall_readv(id: i64, offset: usize, to: *const iovec, count: c_int) -> isize;
    /// To a client's room for the reply.
    pub fn farcall_write(id: i64, offset: usize, from: *const c_void, length: usize) -> isize;
    /// The same, of pieces.
    pub fn farcall_writev(id: i64, offset: usize, from: *const iovec, count: c_int) -> isize;

    /// Closes the descriptors that came along, by a thread that serves nobody.
    pub fn farcall_drop_descriptors(info: *mut farcall_info) -> c_int;

    /// Queues a pulse.
    pub fn farcall_pulse(connection: c_int, priority: c_int, code: c_int, value: i64) -> c_int;
    /// Asks for a pulse when the server is gone.
    pub fn farcall_watch_death(connection: c_int, channel: c_int, value: i64) -> c_int;

    /// Of this thread's next call that waits.
    pub fn farcall_timeout(nanoseconds: i64) -> c_int;
    /// For handlers of signals, where the library was loaded by dlopen(3).
    pub fn farcall_caught_signal();
    /// Of this thread's messages.
    pub fn farcall_priority() -> c_int;
    /// After its scheduling has changed.
    pub fn farcall_priority_changed() -> c_int;

    /// All channels with a name.
    pub fn farcall_channel_names(buffer: *mut c_char, size: usize) -> isize;
    /// What one tells of itself.
    pub fn farcall_channel_status(
        full_name: *const c_char,
        buffer: *mut c_char,
        size: usize,
    ) -> isize;
    /// What channels are made of.
    pub fn farcall_engine() -> *const c_char;
}
