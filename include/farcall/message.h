/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send / Receive / Reply: messages between threads, through channels and connections, as QNX has
 * them. The same calls work over shared memory and, where it can be used, over stplr.ko.
 *
 *   client   send ──> SEND-blocked ──> REPLY-blocked ──> returns with the status
 *                          │                 │  ^
 *   server   receive ──────┘    read, write ─┘  └── reply, or error
 *
 * Channels and connections are small numbers of this process; a number that was closed is refused
 * from then on (EBADF), also when others are opened later. What is received has an id by which it
 * is answered, once, by any thread of the process.
 *
 * What sends or receives is a point of cancellation, when it begins and while it waits, and nothing
 * else is.
 *
 * All return -1 and set errno on failure. Every call has a page in section 3 of the manual;
 * farcall-messages(7) is the overview.
 */
#ifndef FARCALL_MESSAGE_H
#define FARCALL_MESSAGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FARCALL_NAME_MAX 48            /* bytes in a name, without the 0 at its end */
#define FARCALL_DESCRIPTORS 16         /* most descriptors in a message */
#define FARCALL_MESSAGE_MAX 0x3fffffff /* most bytes in a message, or in the room for a reply */

/* Clients that are interrupted or whose time is up after their message was received stay blocked
 * until they are answered; the channel gets a pulse FARCALL_PULSE_UNBLOCK with the message's id.
 * Over shared memory a client of another user's server, unless that is root, stays for one second.
 */
#define FARCALL_UNBLOCK 1u
/* When nobody holds a connection any more: a pulse FARCALL_PULSE_DISCONNECT with its number. */
#define FARCALL_DISCONNECT 2u
/* A thread that has received runs at least with the priority of that client until that is answered,
 * by whatever thread, or it receives again, as far as the process is permitted to raise it. */
#define FARCALL_INHERIT 4u

/* Codes of pulses that no program sends; those of programs are 0 and up. */
#define FARCALL_PULSE_DISCONNECT (-1)
#define FARCALL_PULSE_UNBLOCK (-2)
#define FARCALL_PULSE_DEATH (-3)

/* What farcall_receive() returns for a message that nobody waits for an answer to. */
#define FARCALL_ONE_WAY INT64_C(1)

struct farcall_info {
  int64_t connection; /* through which it came: a number that the server's process uses once */
  pid_t pid;          /* of the sender, as the kernel knows it; 0: cannot be seen from here */
  pid_t tid;          /* over shared memory as the sender says; 0: it has no such thread */
  uid_t uid; /* and gid: (uid_t)-1 of a pulse that nobody has sent, and of all over the module */
  gid_t gid;
  int priority;    /* of the sender, or of the pulse; farcall-messages(7) says whose word */
  int code;        /* of a pulse */
  int64_t value;   /* of a pulse */
  size_t length;   /* bytes that were sent */
  size_t received; /* of those: bytes in the buffers */
  size_t room;     /* for the reply */
  unsigned descriptor_count;
  int descriptors[FARCALL_DESCRIPTORS]; /* the receiver's, close-on-exec */
};

/* Signals do not end the wait for the reply. */
#define FARCALL_KEEP_WAITING 1u

/* A message with all that it can have. */
struct farcall_message {
  const struct iovec* send;
  int send_count;
  int reply_count;
  const struct iovec* reply;
  const int* descriptors; /* they stay the sender's */
  unsigned descriptor_count;
  unsigned flags; /* 0, or FARCALL_KEEP_WAITING */
  size_t replied; /* out: bytes, up to the last that was written */
};

/* Channels: where messages are received. flags are FARCALL_UNBLOCK, ... */
int farcall_channel_create(unsigned flags);
/* One with a name, by which others may connect whom the write bits of mode let. */
int farcall_name_attach(const char* name, unsigned flags, mode_t mode);
int farcall_channel_destroy(int channel);
/* For poll(2), epoll(7) and select(2): readable when there may be something to receive. The
 * channel's own, not to be read or closed. */
int farcall_channel_descriptor(int channel);

/* Connections: where messages are sent. */
int farcall_name_open(const char* name);
int farcall_connect(int channel); /* to a channel of this process */
int farcall_disconnect(int connection);
/* What may be inherited or passed on, and becomes a connection again by farcall_adopt(), which
 * takes the descriptor over. */
int farcall_connection_descriptor(int connection);
int farcall_adopt(int descriptor);

/* Sends and waits for the reply. Returns the status that the server chose (0 or more). */
int farcall_send(int connection, const void* message, size_t length, void* reply, size_t room);
int farcall_sendv(int connection, const struct iovec* message, int count, const struct iovec* reply,
                  int reply_count);
int farcall_send_message(int connection, struct farcall_message* message);
/* Waits until the message has been received, and for no reply. */
int farcall_send_one_way(int connection, const void* message, size_t length);

/* Receives the most urgent of what waits, or waits. Returns the id of a message, FARCALL_ONE_WAY,
 * or 0 for a pulse. info may be NULL; then descriptors that came along are closed. */
int64_t farcall_receive(int channel, void* buffer, size_t length, struct farcall_info* info);
int64_t farcall_receivev(int channel, const struct iovec* buffers, int count,
                         struct farcall_info* info);

/* Closes the descriptors that came along, by a thread that serves nobody: the last close of what a
 * stranger has sent takes as long as it likes. descriptor_count is 0 afterwards. */
int farcall_drop_descriptors(struct farcall_info* info);

/* Answers: with a status of 0 or more, and data. */
int farcall_reply(int64_t id, int status, const void* reply, size_t length);
int farcall_replyv(int64_t id, int status, const struct iovec* reply, int count);
/* Answers: the client's call fails with that errno. */
int farcall_error(int64_t id, int error);
/* Answers one and receives the next: the quickest way to serve. id 0: nothing to answer. */
int64_t farcall_reply_receive(int64_t id, int status, const void* reply, size_t length, int channel,
                              void* buffer, size_t size, struct farcall_info* info);

/* The memory of a client that waits for its reply: what it sent, and its room for the reply. Return
 * how many bytes there were. */
ssize_t farcall_read(int64_t id, size_t offset, void* to, size_t length);
ssize_t farcall_readv(int64_t id, size_t offset, const struct iovec* to, int count);
ssize_t farcall_write(int64_t id, size_t offset, const void* from, size_t length);
ssize_t farcall_writev(int64_t id, size_t offset, const struct iovec* from, int count);

/* Queues a pulse; never waits. priority 0: that of the sender, and at most that. */
int farcall_pulse(int connection, int priority, int code, int64_t value);
/* Asks for a pulse FARCALL_PULSE_DEATH with that value at a channel of this process, when the
 * connection's server is gone. Once for each connection (EBUSY). */
int farcall_watch_death(int connection, int channel, int64_t value);

/* Bounds the next call of the calling thread that sends, receives or opens a name, and no other,
 * whether that call waits or not; its time over, it fails with ETIMEDOUT. 0: it does not wait at
 * all; negative: takes back what was said before. A signal that is caught after this ends that call
 * as one that is caught while it waits. */
int farcall_timeout(int64_t nanoseconds);
/* For handlers of signals in a program that loads the library by dlopen(3), before anything else: a
 * call of this thread that waits ends with EINTR, also where it does not sleep yet. Where the
 * library is there from the beginning it knows of all handlers by itself. Async-signal-safe. */
void farcall_caught_signal(void);

/* The priority of the calling thread's messages: 20 minus its nice value; 40 plus a real-time
 * priority. */
int farcall_priority(void);
/* To be called after the thread's scheduling has changed. */
int farcall_priority_changed(void);

/* All channels with a name in this network namespace, except those of the module: their full names,
 * one a line. Returns how many bytes that are, of which as many as there is room for are in buffer.
 */
ssize_t farcall_channel_names(char* buffer, size_t size);
/* What the channel of that full name tells of itself, to its own user and root: see
 * farcall-messages(7). Returns as farcall_channel_names(). */
ssize_t farcall_channel_status(const char* full_name, char* buffer, size_t size);

/* "shared" or "kernel": what channels are made of from now on, and which names are looked up first.
 * Chosen by FARCALL_ENGINE in the environment: auto (the default), shared, kernel. */
const char* farcall_engine(void);

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_MESSAGE_H */
