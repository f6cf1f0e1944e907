/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The first interface of stplr.ko, that of version 0.0.7, kept byte for byte: it addresses a thread by
 * its ids through a handle that each thread takes. New programs use channels, see stplr.h.
 *
 * These structures hold pointers, as they always did, so 32-bit programs get ENOTTY on a 64-bit
 * kernel. A kernel may be built without this interface; then there is no /dev/stplr-N.
 */
#ifndef STPLR_HANDLES_H
#define STPLR_HANDLES_H

#include "stplr.h"

#define STPLR_VERSION_MAJOR 0
#define STPLR_VERSION_MINOR 0
#define STPLR_VERSION_MICRO 7

/*
 * On /dev/stplr-N. A process opens a node once (again: EBUSY). A thread takes a
 * handle and only that thread uses it (another: EBADR). A pid, tid or handle that is not known
 * here is ENODEV, and so is a peer that goes away while somebody waits for it; oneself is EDEADLK.
 * Nobody waits for a reply of a thread in whose pid namespace the caller has no number (ENODEV). What
 * opens and handles take in the kernel is bounded as below (EDQUOT).
 *
 * Buffers pair up by index: buffer i of the sender fills buffer i of the receiver with the smaller
 * of the two lengths, and that count comes back in buflen on both sides; a buffer without a
 * partner gets 0. The array of a message that is sent may be in read-only memory; then the counts
 * do not come back. At most STPLR_MSGS_MAX buffers (EINVAL) of together STPLR_BYTES_MAX bytes
 * (EMSGSIZE).
 */
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

#endif /* STPLR_HANDLES_H */
