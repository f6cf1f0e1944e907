/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Synchronous messages between threads: what programs and stplr.ko say to each other.
 *
 * Two interfaces share one engine. The first, of version 0.0.7, addresses a thread by its ids
 * through a handle that each thread takes. It is kept byte for byte. The second, further down,
 * has channels and connections, which are file descriptors.
 *
 * All calls are ioctls. They return 0, or -1 with errno. A 32-bit program on a 64-bit kernel is
 * refused: ENOTTY.
 */
#ifndef STPLR_H
#define STPLR_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define STPLR_VERSION_MAJOR 0
#define STPLR_VERSION_MINOR 0
#define STPLR_VERSION_MICRO 7

/*
 * First interface, on /dev/stplr-N. A process opens a node once (again: EBUSY). A thread takes a
 * handle and only that thread uses it (another: EBADR). A pid, tid or handle that is not known
 * here is ENODEV, and so is a peer that goes away while somebody waits for it.
 *
 * Buffers pair up by index: buffer i of the sender fills buffer i of the receiver with the smaller
 * of the two lengths, and that count comes back in buflen on both sides; a buffer without a
 * partner gets 0. The array of a message that is sent may be in read-only memory; then the counts
 * do not come back. At most STPLR_MSGS_MAX buffers (EINVAL) of together STPLR_BYTES_MAX bytes
 * (EMSGSIZE).
 */
#define STPLR_MSGS_MAX 1024
#define STPLR_BYTES_MAX 0x7ffff000

struct stplr_msg {
	void *msgbuf;
	__u32 buflen;
};

struct stplr_msgs {
	const struct stplr_msg *msgs;
	__u32 count;
};

struct stplr_version {
	__s32 major;
	__s32 minor;
	__s32 micro;
};

struct stplr_handle {
	__u64 uuid;
};

struct stplr_msg_send {
	struct stplr_handle handle;
	__s32 pid; /* to whom */
	__s32 tid;
	struct stplr_msgs smsgs;
};

struct stplr_msg_send_receive {
	struct stplr_handle handle;
	__s32 pid; /* to whom */
	__s32 tid;
	struct stplr_msgs smsgs;
	struct stplr_msgs rmsgs;
};

struct stplr_msg_receive {
	struct stplr_handle handle;
	__s32 pid; /* out: from whom */
	__s32 tid;
	int reply_required; /* out: whether the sender waits for a reply */
	struct stplr_msgs rmsgs;
};

struct stplr_msg_reply {
	struct stplr_handle handle;
	__s32 pid; /* whose message is answered */
	__s32 tid;
	struct stplr_msgs rmsgs;
};

#define STPLR_IOCTL 'i'

/* The version of the first interface. */
#define STPLR_VERSION _IOR(STPLR_IOCTL, 42, struct stplr_version)

/* Take a handle for this thread (EBUSY: it has one), and give it back. */
#define STPLR_HANDLE_GET _IOR(STPLR_IOCTL, 43, struct stplr_handle)
#define STPLR_HANDLE_PUT _IOW(STPLR_IOCTL, 44, struct stplr_handle)

/*
 * Send, and wait until the message has been received. A signal ends the wait: EINTR, or the call
 * is restarted where the handler has SA_RESTART, and then nobody has received the message.
 */
#define STPLR_MSG_SEND _IOWR(STPLR_IOCTL, 45, struct stplr_msg_send)

/*
 * Send, and wait for the reply. Once the message has been received, a signal ends the wait with
 * EINTR, whatever SA_RESTART says, for the message must not be sent twice.
 */
#define STPLR_MSG_SEND_RECEIVE _IOWR(STPLR_IOCTL, 46, struct stplr_msg_send_receive)

/* Receive the oldest message, or wait for one. */
#define STPLR_MSG_RECEIVE _IOWR(STPLR_IOCTL, 47, struct stplr_msg_receive)

/*
 * Answer a message that was received through this handle. Never waits for the client. ENODEV:
 * that client does not wait for a reply of this handle (any more).
 */
#define STPLR_MSG_REPLY _IOWR(STPLR_IOCTL, 48, struct stplr_msg_reply)

#endif /* STPLR_H */
