/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Synchronous messages between threads: what programs and stplr.ko say to each other.
 *
 * Channels and connections are file descriptors from /dev/stplr. All calls are ioctls; they return 0, or
 * -1 with errno. 32-bit programs can use them on a 64-bit kernel. An older interface, of handles on
 * /dev/stplr-N, is in stplr_handles.h.
 */
#ifndef STPLR_H
#define STPLR_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define STPLR_IOCTL 'i'

/*
 * A server makes a channel, clients get connections to it; both are file descriptors, close-on-exec,
 * that may be inherited and passed on. Whoever has the descriptor may use it.
 *
 * Structures may grow at their end. Their size is part of the command's number (_IOC_SIZE), and a kernel
 * takes any size from that of the first version on, STPLR_..._SIZE_VER0 (less: EINVAL). What a program
 * leaves out is as if it were 0. What a kernel does not know has to be 0 (E2BIG), and stays so.
 *
 * Buffers: with a count of 0, address and length are one buffer; else address is an array of count
 * struct stplr_part and length is not looked at. Either way they are one run of bytes; boundaries
 * of buffers on the two sides have nothing to do with each other. A client may have its memory
 * pinned once and for all, see STPLR_REGISTER; then count is STPLR_REGION + number, and address and
 * length are bytes in that region.
 *
 * timeout_ns: how long to wait; negative is for ever, 0 not at all. ETIMEDOUT at its end.
 * STPLR_ARMED is for ever, too. A signal handler that clears the lower 32 bits of it makes it STPLR_DISARMED,
 * which is not at all, with EINTR for ETIMEDOUT: be it before the kernel has read it, or before a call that was
 * interrupted is restarted. Of another timeout the kernel alone ends the wait, at the signals that it sees.
 * Fields called "out" are written when the call succeeds; reserved ones must be 0 (EINVAL).
 * Limits: what a user's channels, connections, messages and pulses take in the kernel is bounded
 * (EDQUOT). Replies on their way count for the client, whose call fails then.
 */
#define STPLR_MSGS_MAX 1024 /* buffers of a message (EINVAL) */
#define STPLR_BYTES_MAX 0x7ffff000 /* bytes of all of them (EMSGSIZE) */
#define STPLR_NAME_MAX 64
#define STPLR_REGION 0x80000000u
#define STPLR_DISARMED ((__s64)(1ULL << 63))
#define STPLR_ARMED (STPLR_DISARMED + 1)

/*
 * Interrupted clients whose message was received stay blocked until the server answers; the server
 * gets a pulse STPLR_PULSE_UNBLOCK with the message's id. (SIGKILL ends the wait all the same.)
 */
#define STPLR_CHANNEL_UNBLOCK 1u
/* When the last descriptor of a connection is closed: STPLR_PULSE_DISCONNECT with its label. */
#define STPLR_CHANNEL_DISCONNECT 2u
/*
 * A thread that has received runs at least with the priority of that client until it has answered,
 * and all threads that receive here at least with that of the most urgent message in the queue.
 * What anybody sets of their scheduling meanwhile is undone; children start with what is their parent's own,
 * those of a real-time thread with SCHED_OTHER.
 */
#define STPLR_CHANNEL_INHERIT 4u

/*
 * Codes of pulses from the kernel; those of programs are not negative. DISCONNECT has the priority of a thread of
 * nice 0, which is 20; DEATH that of the thread that asked for it, and at least that; UNBLOCK that of the message.
 */
#define STPLR_PULSE_DISCONNECT (-1)
#define STPLR_PULSE_UNBLOCK (-2)
#define STPLR_PULSE_DEATH (-3)

struct stplr_buffer {
	__u64 address;
	__u32 length;
	__u32 count;
};

struct stplr_part {
	__u64 address;
	__u32 length;
	__u32 reserved;
};

struct stplr_channel_create {
	__u32 flags;
	__u32 mode; /* who may connect by name: the write bits of chmod(2); no name: 0 */
	char name[STPLR_NAME_MAX]; /* ends in 0; empty for none */
	/*
	 * How many microseconds at most threads that wait here spin before they sleep, at most the
	 * module's spin_us_max; 0: what the module's spin_us says.
	 */
	__u32 spin_us;
	__u32 reserved;
};

struct stplr_connect {
	char name[STPLR_NAME_MAX];
};

/*
 * Labels whose upper 16 bits are those of this one are the kernel's, which gives each once, to who connects by
 * name; a server may choose any other (EINVAL).
 */
#define STPLR_LABELS 0x7fff000000000000ULL

struct stplr_channel_connect {
	__u64 label; /* told to the server with each message of the connection */
};

#define STPLR_SEND_ONE_WAY 1u /* wait until it has been received, not for a reply */
#define STPLR_FILES_MAX 16 /* descriptors in a message (EINVAL) */

struct stplr_send {
	struct stplr_buffer send;
	struct stplr_buffer reply; /* room for the reply */
	__s64 timeout_ns;
	__u64 files; /* address of __s32 descriptors that go along */
	__u32 file_count;
	__u32 flags;
	/* out, but for messages that want no reply: */
	__s64 status; /* what the server chose */
	__u64 replied; /* bytes, up to the last that was written */
};

struct stplr_receive {
	struct stplr_buffer buffer;
	__s64 timeout_ns;
	__u64 files; /* address of room for __s32 descriptors */
	__u32 file_room;
	__u32 reserved;
	__u64 wanted_id; /* to answer by, if the caller chooses: none that it owes an answer by; or 0 */
	/* All out from here on. */
	__u64 id; /* to answer by; 0: a pulse, or nothing to answer */
	__u64 label; /* of the connection */
	__u64 length; /* of the message, of which as much is received as there is room */
	__u64 room; /* for the reply */
	__u32 pulse; /* 1: a pulse; only code, value and priority say something */
	__s32 code;
	__s64 value; /* of a message: how many descriptors were sent, of which some may not be received */
	__s32 priority;
	__u32 file_count; /* descriptors received: as many as there was room for */
	__s32 pid; /* of the sender, as the kernel knows it; 0: not in this pid namespace */
	__s32 tid;
	__u32 uid; /* its real ones, whatever it acts as */
	__u32 gid;
};

struct stplr_reply {
	__u64 id;
	__s64 status;
	struct stplr_buffer buffer; /* at most the client's room of it is written */
	__s32 error; /* 0, or the errno, below 512, that the client's call fails with */
	__u32 reserved;
	__u64 reserved_too[2]; /* for what is to come, for this one does not grow: */
};

struct stplr_reply_receive {
	struct stplr_reply reply; /* id 0: nothing to answer */
	struct stplr_receive receive;
};

struct stplr_access {
	__u64 id;
	__u64 offset;
	struct stplr_buffer buffer;
};

struct stplr_pulse {
	__s32 code; /* 0 and up */
	__s32 priority; /* 0: that of the sender, and at most that (EINVAL) */
	__s64 value;
};

struct stplr_death {
	__s32 channel; /* descriptor of the channel that is told */
	__u32 reserved;
	__s64 value;
};

struct stplr_register {
	__u64 address;
	__u64 length;
};

#define STPLR_KIND_CONTROL 1u /* /dev/stplr */
#define STPLR_KIND_CHANNEL 2u
#define STPLR_KIND_CONNECTION 3u

#define STPLR_INTERFACE 4u /* what this header describes */

struct stplr_info {
	__u32 kind; /* STPLR_KIND_... */
	__u32 interface; /* STPLR_INTERFACE of the kernel */
	__u32 flags; /* of the channel */
	__u32 spin_us; /* of the channel, as it is now */
	__u64 number; /* of the channel, the same in whatever process */
	__u64 label; /* of the connection */
};

#define STPLR_CHANNEL_CREATE_SIZE_VER0 80
#define STPLR_CONNECT_SIZE_VER0 64
#define STPLR_CHANNEL_CONNECT_SIZE_VER0 8
#define STPLR_SEND_SIZE_VER0 72
#define STPLR_RECEIVE_SIZE_VER0 120
#define STPLR_REPLY_SIZE_VER0 56
#define STPLR_REPLY_RECEIVE_SIZE_VER0 176
#define STPLR_ACCESS_SIZE_VER0 32
#define STPLR_PULSE_SIZE_VER0 16
#define STPLR_DEATH_SIZE_VER0 16
#define STPLR_REGISTER_SIZE_VER0 16
#define STPLR_INFO_SIZE_VER0 32

/*
 * On /dev/stplr. Both return a descriptor. EADDRINUSE; ENOENT, EACCES, EAGAIN. Names are those of the
 * caller's IPC namespace. One that begins with the number of a user and a slash is that user's to take, and
 * root's; "~" and a slash is for the caller's own number, which is not what getuid() says in a user namespace
 * (ENAMETOOLONG); any other is for who has CAP_DAC_OVERRIDE there (EACCES).
 */
#define STPLR_CHANNEL_CREATE _IOW(STPLR_IOCTL, 64, struct stplr_channel_create)
#define STPLR_CONNECT _IOW(STPLR_IOCTL, 65, struct stplr_connect)

/* On a channel: a connection to it, to be given away. Returns a descriptor. */
#define STPLR_CHANNEL_CONNECT _IOW(STPLR_IOCTL, 66, struct stplr_channel_connect)

/*
 * On a connection. Fails with the server's error, ESRCH when the channel or the process that
 * received the message is gone, ETIMEDOUT, EFAULT, EBADF (of files), EACCES, EPERM (a security module keeps
 * one of them from the receiver), EMSGSIZE, EDQUOT, EAGAIN (see PULSE), ENOMEM, ENOBUFS (see WRITE), EINTR (restarted where nobody
 * has received the message, the handler says so, and there is no timeout). After an EINTR that followed a
 * stop, a freezer or a tracer, servers see a client that waits until its next call of the module, or its end.
 */
#define STPLR_SEND _IOWR(STPLR_IOCTL, 67, struct stplr_send)

/*
 * On a channel: the message or pulse of the highest priority, of those the oldest. With O_NONBLOCK it is
 * EAGAIN at once where there is none, whatever the timeout; clients wait for their servers all the same. Senders whose
 * memory cannot be read get EFAULT and are passed over: but when the time is up, no more than some of them, and
 * then it is EAGAIN or ETIMEDOUT though others are queued, of which poll and its like tell anew. EMFILE: the message
 * stays, and is the next one still, which file_room 0 receives without its files. ETIMEDOUT, EINTR, EFAULT, EMSGSIZE,
 * ESRCH (closed), EDQUOT and ENOMEM (there is no room to remember who receives).
 */
#define STPLR_RECEIVE _IOWR(STPLR_IOCTL, 68, struct stplr_receive)

/*
 * On a channel: answers a message that this process received there. Never waits for the client.
 * Returns the number of bytes. ESRCH: no client waits for that answer (any more), as far as the module
 * knows (see SEND). EFAULT: the client waits on, and of several buffers those before the one that cannot
 * be read may be in its room already, of which it is not told.
 */
#define STPLR_REPLY _IOW(STPLR_IOCTL, 69, struct stplr_reply)

/*
 * Both in one call. A client that is gone is passed over; any other failure to reply fails the call
 * before anything is received, and arguments of receive that are not valid before anything is answered.
 */
#define STPLR_REPLY_RECEIVE _IOWR(STPLR_IOCTL, 70, struct stplr_reply_receive)

/*
 * On a channel: what a client sent, from an offset on, and what it will find in its room for the
 * reply. Returns the number of bytes, less than asked at the end of the client's buffers. ESRCH as
 * above. READ: EAGAIN when the client's memory is not at hand and must be asked for again. WRITE: ENOBUFS
 * when pieces that the client is to copy would take more than twice its room and 64 KiB. If the reply is
 * one too many, it is the client's call that fails so.
 */
#define STPLR_READ _IOW(STPLR_IOCTL, 71, struct stplr_access)
#define STPLR_WRITE _IOW(STPLR_IOCTL, 72, struct stplr_access)

/*
 * On a connection: never waits. EAGAIN when 256 of this connection, or 16384 of the user, are queued
 * there. Those that are kept ready for the end of a connection or an interrupted client, where the channel
 * wants them, are among the latter from the beginning; with one too many, connecting and sending fail.
 */
#define STPLR_PULSE _IOW(STPLR_IOCTL, 73, struct stplr_pulse)

/*
 * On a connection: when its channel is closed, tell a channel of the caller by a pulse
 * STPLR_PULSE_DEATH; at once where it is. Once for each of 1024 such channels (EBUSY, EAGAIN).
 */
#define STPLR_DEATH _IOW(STPLR_IOCTL, 74, struct stplr_death)

/*
 * On a connection: pins memory of the calling process, which it can write, for messages and replies
 * of that process there. Returns the region's number, to be used in struct stplr_buffer. It ends
 * with STPLR_UNREGISTER (argument: the number; ENOENT), the process, exec, or the connection. EFAULT: no
 * such memory, or that of a file (other than of tmpfs) or of a userfaultfd; ENOMEM: RLIMIT_MEMLOCK;
 * EDQUOT; ENOSPC: 16 regions are there; EINVAL: no bytes or too many (1 GiB). Memory that is unmapped
 * or remapped meanwhile stays registered as it was; but messages and replies of up to 256 bytes go by
 * the addresses.
 */
#define STPLR_REGISTER _IOW(STPLR_IOCTL, 75, struct stplr_register)
#define STPLR_UNREGISTER _IO(STPLR_IOCTL, 76)

/*
 * On a channel: it is closed, though its descriptor stays open. Clients and who receives get ESRCH, now
 * and from now on; its name is free.
 */
#define STPLR_SHUTDOWN _IO(STPLR_IOCTL, 77)

/* On a channel: queues a pulse there, as STPLR_PULSE does on a connection. EAGAIN: the same bounds. */
#define STPLR_POST _IOW(STPLR_IOCTL, 78, struct stplr_pulse)

/* On any of these descriptors: what it is. Others fail with ENOTTY. */
#define STPLR_INFO _IOR(STPLR_IOCTL, 79, struct stplr_info)

/* poll: a channel is readable when there is something to receive; a connection hangs up (POLLHUP)
 * when its channel is closed.
 */

/* Programs of version 0.0.7 include this header alone. */
#ifndef __KERNEL__
#include "stplr_handles.h"
#endif

#endif /* STPLR_H */
