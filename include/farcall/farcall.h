/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface of farcall, on which other languages rest: libfarcall-c, farcall-c for
 * pkg-config.
 *
 * Functions that can fail return a negative errno, leave errno alone, and let no exception out. A
 * handle is used by one thread at a time unless its function says otherwise; different handles by
 * different threads. No handle may be used in a forked child (-EBUSY), except to be closed there;
 * the ends of a pipe that have not been used yet may be used on either side.
 *
 * `timeout` is in nanoseconds: 0 does not wait (-EAGAIN), a negative one waits for ever; else
 * -ETIMEDOUT. A signal whose handler calls farcall_note_signal() ends a wait with -EINTR, also
 * where it came just before; one whose handler does not may. No function is a point of
 * cancellation.
 */
#ifndef FARCALL_FARCALL_H
#define FARCALL_FARCALL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FARCALL_FOREVER INT64_C(-1)
/* NOLINTBEGIN(modernize-use-using,readability-identifier-naming): it is C */
/* "0.1.0". */
const char* farcall_version(void);
/* For signal handlers, first of all: what the calling thread waits for ends with -EINTR. */
void farcall_note_signal(void);

/* How a side waits. */
enum {
  FARCALL_WAIT_ADAPTIVE = 0, /* spins as long as that has paid lately, then sleeps */
  FARCALL_WAIT_SPIN = 1,     /* never sleeps */
  FARCALL_WAIT_BLOCK = 2     /* sleeps at once */
};

/* ---- pipes: messages, or bytes, both ways between two processes, or two threads ---- */

typedef struct farcall_pipe farcall_pipe;

/* What a pipe carries; both sides say it. */
enum {
  FARCALL_PIPE_MESSAGES = 0, /* each received as it was sent: send and receive */
  FARCALL_PIPE_BYTES = 1     /* a stream without boundaries: write and read */
};

/* Options may grow: `size` is sizeof of what the caller knows; all else zero for what is usual,
 * except times, of which zero is a time. */
struct farcall_pipe_options {
  size_t size;
  /* Bytes each way, rounded up to a power of two; 0: 256 KiB. Where the other side has made the
   * pipe (open, adopt): the most that is taken from it; 0: 1 GiB. At most 16 GiB. */
  size_t capacity;
  int wait; /* FARCALL_WAIT_... */
  int kind; /* FARCALL_PIPE_... */
};

/* Makes both ends. `options` may be NULL, as everywhere. -EINVAL, -ENOMEM, -EMFILE, -ENFILE. */
int farcall_pipe_create(const struct farcall_pipe_options* options, farcall_pipe** one,
                        farcall_pipe** other);
/* Serves one end to the first process of this user that opens `name`. -EADDRINUSE,
 * -EINVAL, -ETIMEDOUT. */
int farcall_pipe_serve(const char* name, const struct farcall_pipe_options* options,
                       int64_t timeout, farcall_pipe** end);
/* Opens the other. -ECONNREFUSED where nobody serves it in time, -EPERM where another user does,
 * -EPROTO where it is something else that is served, -EPROTOTYPE where it is a pipe of the other
 * kind, which is then still served. */
int farcall_pipe_open(const char* name, const struct farcall_pipe_options* options, int64_t timeout,
                      farcall_pipe** end);
/*
 * The descriptors an end consists of, in order, for another process, which adopts its duplicates:
 * the memory that the end writes and a socket to its reader, the memory that it reads and a socket
 * to its writer. They stay the end's, and close-on-exec. -EBUSY if the end has been used.
 */
#define FARCALL_PIPE_DESCRIPTORS 4
int farcall_pipe_descriptors(const farcall_pipe* end, int descriptors[FARCALL_PIPE_DESCRIPTORS]);
/* Makes an end of them; they are the end's from now on, and close-on-exec (where it fails they stay
 * the caller's, and open). -EBADF for what is no open descriptor, -EPROTO for what is no end of a
 * pipe, or parts of several, -EPROTOTYPE for an end of the other kind. */
int farcall_pipe_adopt(const int descriptors[FARCALL_PIPE_DESCRIPTORS],
                       const struct farcall_pipe_options* options, farcall_pipe** end);
/* Bytes that it holds each way: what the side that has made it has asked for, rounded up. */
size_t farcall_pipe_capacity(const farcall_pipe* end);
/* Tells the other end that nothing follows (idempotent). One thread may send and finish while
 * another receives and polls; the poll of the sending side is the sender's. */
int farcall_pipe_finish(farcall_pipe* end);
/* Tells it so as far as farcall_pipe_close() would, for who is done with sending and goes on to
 * receive: an end that nobody has used yet stays another process's to use if one has it. Where this
 * process uses it after all, the other end is told then. Nothing is sent here any more. NULL is
 * nothing. */
void farcall_pipe_close_sending(farcall_pipe* end);
/*
 * Frees the end. The other end receives what has been sent, and then that nothing follows; unless
 * another process may still use this end, because this one has asked for its descriptors, or
 * because it was inherited: one that another process has used since fork(2), or that nobody has
 * used yet. Then only this process's copy goes, and the other end learns (-ECONNRESET) when no
 * process has one any more. NULL is nothing.
 */
void farcall_pipe_close(farcall_pipe* end);

/* Sends one message, also of 0 bytes. -EPIPE where the other end has gone (one that has died is
 * noticed within 20 ms, whether there is room or not), or this one has finished; -EOPNOTSUPP in a
 * pipe of bytes. A message longer than a quarter of the capacity less 8 bytes may end with -EAGAIN,
 * -ETIMEDOUT or -EINTR when a part of it has gone: the same one must then be sent again, to go on.
 * -EINVAL for any other message then: as a rule nothing of that one goes. One that was changed in
 * the memory where it is, while it was sent again and again, may be told apart only before its end:
 * then nothing can be sent any more, and none of both is received. */
int farcall_pipe_send(farcall_pipe* end, const void* bytes, size_t size, int64_t timeout);
/*
 * Receives one, of at most `room` bytes. Returns its size. -EPIPE where the other end has finished
 * and all has been received; -ECONNRESET where it has died, or gone in the middle of a message;
 * -EPROTO where it breaks the ring; -EMSGSIZE where the message is longer: it is then still there,
 * and *needed (may be NULL) says how long. After other errors the next call may have another
 * buffer.
 */
int64_t farcall_pipe_receive(farcall_pipe* end, void* bytes, size_t room, size_t* needed,
                             int64_t timeout);
/*
 * Writes to a pipe of bytes (-EOPNOTSUPP in one of messages), as write(2) does: waits until all
 * have been written, and returns how many. Fewer than `size` where a part had been written when
 * time was up, a signal came, or the other end went: what is left may be written next, or not. An
 * error only where none has been: -EAGAIN, -ETIMEDOUT, -EINTR, -EPIPE as with farcall_pipe_send().
 */
int64_t farcall_pipe_write(farcall_pipe* end, const void* bytes, size_t size, int64_t timeout);
/*
 * Reads from one, as read(2) does: waits for at least one byte, takes what is there, at most `room`
 * bytes, and returns how many. 0 where the other end has finished and all has been read (or where
 * there is no room); -ECONNRESET where it has died, after all that it had written; -EPROTO where it
 * breaks the ring.
 */
int64_t farcall_pipe_read(farcall_pipe* end, void* bytes, size_t room, int64_t timeout);
/*
 * To wait with poll(2) and the like for something to receive or to read. farcall_pipe_poll_begin()
 * returns 0 if there is something to do at once, else 1: then the descriptor becomes readable when
 * there may be. Call farcall_pipe_poll_end() before the next operation. It returns 1 if the other
 * end is about to make the descriptor readable still, for what may have been received by then, else
 * 0: for who would take the next poll's word for it that there is something. Such a one polls the
 * descriptor first, not for ever, and then ends that too.
 */
int farcall_pipe_poll_descriptor(const farcall_pipe* end);
int farcall_pipe_poll_begin(farcall_pipe* end);
int farcall_pipe_poll_end(farcall_pipe* end);
/* The same for room to send: for a message of a quarter of the capacity, or for a byte. */
int farcall_pipe_send_poll_descriptor(const farcall_pipe* end);
int farcall_pipe_send_poll_begin(farcall_pipe* end);
void farcall_pipe_send_poll_end(farcall_pipe* end);

/* ---- broadcast: messages from one writer to up to 64 readers, each at its own pace ---- */

typedef struct farcall_publisher farcall_publisher;
typedef struct farcall_subscriber farcall_subscriber;

/* What happens when a reader is slow. */
enum {
  FARCALL_BLOCK = 0,      /* the writer waits for it */
  FARCALL_OVERWRITE = 1,  /* it misses messages, and learns how many */
  FARCALL_DROP_READER = 2 /* it is no reader any more: -ECONNABORTED */
};
/* Where a reader begins. */
enum { FARCALL_NEWEST = 0, FARCALL_OLDEST = 1 };

struct farcall_publisher_options {
  size_t size;
  size_t capacity; /* bytes, rounded up to a power of two; 0: 1 MiB */
  int policy;
  int wait;
  unsigned readers; /* at most; 0: 64 */
  int reserved;     /* 0 */
};
struct farcall_subscriber_options {
  size_t size;
  int start;
  int wait;
  size_t most; /* the largest capacity of a publisher that is taken from it; 0: 1 GiB */
};

/* `name`: for readers of this user; NULL: by descriptor only. -EADDRINUSE, -EINVAL, -ENOMEM,
 * -EMFILE. */
int farcall_publisher_create(const char* name, const struct farcall_publisher_options* options,
                             farcall_publisher** publisher);
/* A descriptor that makes its holder a reader, close-on-exec. The caller's. It counts as a reader
 * from now on. Any thread. -EUSERS, -EMFILE. */
int farcall_publisher_invite(farcall_publisher* publisher);
/* Readers end once they have read what is there. NULL is nothing. In a forked child nothing ends.
 */
void farcall_publisher_close(farcall_publisher* publisher);
/* -EMSGSIZE for more than farcall_publisher_longest(). Nothing is waited for but by FARCALL_BLOCK.
 */
int farcall_publisher_send(farcall_publisher* publisher, const void* bytes, size_t size,
                           int64_t timeout);
size_t farcall_publisher_longest(const farcall_publisher* publisher);
/* How many readers there are. Any thread. */
unsigned farcall_publisher_readers(const farcall_publisher* publisher);
/* To wait with poll(2) and the like, as with pipes, for room to send: for the message that was
 * refused last (-EAGAIN and the like), or where none was for the longest. The descriptor becomes
 * readable. There is always room but by FARCALL_BLOCK. */
int farcall_publisher_poll_descriptor(const farcall_publisher* publisher);
int farcall_publisher_poll_begin(farcall_publisher* publisher);
void farcall_publisher_poll_end(farcall_publisher* publisher);

/* The publisher's process answers, which takes it a moment: with a timeout of 0 expect -EAGAIN.
 * -ECONNREFUSED where nobody publishes it in time, also where who did has gone or has no descriptor
 * left, -ETIMEDOUT where who does has not answered (it may be stopped), -EUSERS where there are too
 * many readers, -EPERM, -EPROTO where it has more memory than `most`, or is no publisher (of a pipe
 * that is told after a second). */
int farcall_subscriber_open(const char* name, const struct farcall_subscriber_options* options,
                            int64_t timeout, farcall_subscriber** subscriber);
/* From farcall_publisher_invite(); the descriptor is the subscriber's (where it fails, the
 * caller's). -EPROTO for what is no invitation. */
int farcall_subscriber_adopt(int descriptor, const struct farcall_subscriber_options* options,
                             farcall_subscriber** subscriber);
void farcall_subscriber_close(farcall_subscriber* subscriber);
/*
 * Receives one message, as farcall_pipe_receive(). *missed (may be NULL), set where one is
 * received: how many before it have been overwritten since the last one. -ECONNABORTED: dropped.
 */
int64_t farcall_subscriber_receive(farcall_subscriber* subscriber, void* bytes, size_t room,
                                   size_t* needed, uint64_t* missed, int64_t timeout);
int farcall_subscriber_poll_descriptor(const farcall_subscriber* subscriber);
int farcall_subscriber_poll_begin(farcall_subscriber* subscriber);
void farcall_subscriber_poll_end(farcall_subscriber* subscriber);

/* ---- calls: a procedure of another process, by the path of a door ---- */

typedef struct farcall_server farcall_server;
typedef struct farcall_client farcall_client;
typedef struct farcall_call_reply farcall_call_reply;

/*
 * Called by threads of the library, several at once, and after farcall_server_close() still for
 * the calls in progress. 0: the reply is what has been written, or empty; else the call ends at the
 * client with -ECONNABORTED. `request` is the server's own copy, until the procedure returns.
 */
typedef int (*farcall_procedure)(void* context, const void* request, size_t size,
                                 farcall_call_reply* reply);
/* Appends to the reply. -ENOMEM. */
int farcall_reply_write(farcall_call_reply* reply, const void* bytes, size_t size);

/* Who calls, as the kernel knows it. */
struct farcall_caller {
  size_t size;
  pid_t pid; /* 0: cannot be seen from here */
  uid_t uid; /* effective */
  gid_t gid;
};
/* Of the call that the calling thread serves. -EINVAL where it serves none, or whose client has
 * gone. */
int farcall_caller_get(struct farcall_caller* caller);

struct farcall_server_options {
  size_t size;
  size_t longest; /* request in bytes; 0: no bound but that of door(7) */
  mode_t mode;    /* of the file: who may read it may call; 0: 0600 */
  /* Called with the context when no procedure has it any more. */
  void (*release)(void* context);
};
/* Serves at `path`, as a door: the file is made, and removed in the end, unless it is there.
 * -EADDRINUSE where a door is attached to it already, -EPERM where it is somebody else's, -EINVAL
 * where it is no regular file, and what open(2) says. */
int farcall_server_create(const char* path, farcall_procedure procedure, void* context,
                          const struct farcall_server_options* options, farcall_server** server);
/* No call is taken from now on. NULL is nothing. In a forked child nothing ends. */
void farcall_server_close(farcall_server* server);

/* Any door can be called. Waits until there is one; with a timeout of 0 it has to be there. A
 * server is asked for its door all the same, and has a few seconds to answer where the timeout does
 * not end before; then -ETIMEDOUT. -ENOENT where there is no such file, -ECONNREFUSED where no door
 * is attached to it, -EACCES, -EUSERS where the server has too many clients. */
int farcall_client_open(const char* path, int64_t timeout, farcall_client** client);
void farcall_client_close(farcall_client* client);

struct farcall_call_options {
  size_t size;
  int64_t timeout; /* a negative one waits for ever; 0 is up at once */
  /* Asked when a signal comes, and once `ask_after` nanoseconds after the beginning (0: not then):
   * whether to give the call up, which ends with -EINTR. NULL: each signal does that. */
  int (*give_up)(void* context);
  void* context;
  int64_t ask_after;
};
/* In: where a reply of at most `room` bytes goes. Out: where it is, with its size; elsewhere where
 * it is longer, until farcall_answer_free(). */
struct farcall_answer {
  size_t size; /* of this structure */
  void* bytes;
  size_t room;
  size_t length; /* of the reply */
  void* memory;  /* the library's */
  size_t memory_size;
};
/*
 * Calls. Any thread, several at once, and in forked children. `options` may be NULL: for ever.
 *   -EPIPE         nobody serves it any more, and the request has not been seen
 *   -ECONNABORTED  the server has seen the request, and has failed or died
 *   -EINTR         given up; the server may have seen it. So with -ETIMEDOUT.
 *   -EMSGSIZE      the request is longer than the server takes
 *   -EUSERS        the server has too many clients, or does not take them in
 * Doors of the kernel know no timeout (-EOPNOTSUPP).
 */
int farcall_client_call(farcall_client* client, const void* request, size_t size,
                        struct farcall_answer* answer, const struct farcall_call_options* options);
void farcall_answer_free(struct farcall_answer* answer);

/*
 * Calls that nobody waits in: many at once, by one thread, which polls. Each has two descriptors
 * while it is in progress, and leaves them to the next call of its client.
 */
typedef struct farcall_call farcall_call;
/*
 * Begins one, and does not wait for the server: the request is sent, or kept until the server has
 * let the call in, which farcall_call_take() then sees to. It waits where the server's socket is
 * full, for at most 0.1 s. Any thread. Of `options` only the timeout is looked at: the time of the
 * whole call; the others are to be 0 (-EINVAL). The request may be changed afterwards, and the
 * client closed. Errors as farcall_client_call(), but
 *   -EOPNOTSUPP  a door of the kernel: it cannot be polled
 */
int farcall_client_begin(farcall_client* client, const void* request, size_t size,
                         const struct farcall_call_options* options, farcall_call** call);
/*
 * To wait with poll(2) and the like until there is something to take: an answer, an error, or the
 * next step. As with pipes; the descriptor is the same as long as the call is in progress, then
 * -EINVAL. That its time is up is not told by it: poll for no longer than that.
 */
int farcall_call_poll_descriptor(const farcall_call* call);
int farcall_call_poll_begin(farcall_call* call);
void farcall_call_poll_end(farcall_call* call);
/*
 * Takes the answer. `timeout`: how long to wait for it; -EAGAIN when that is over, 0 or not, and
 * -EINTR when a signal comes: the call is in progress still. All else ends it: 0, -ETIMEDOUT (its
 * own time is up), and the errors of farcall_client_begin() and farcall_client_call(). Then only
 * farcall_call_close() may follow (-EINVAL).
 */
int farcall_call_take(farcall_call* call, struct farcall_answer* answer, int64_t timeout);
/* Frees it. A call in progress is given up: the server is told, as of a client that has gone, and
 * its answer is dropped. In a forked child the parent's call goes on. NULL is nothing. */
void farcall_call_close(farcall_call* call);
/* NOLINTEND(modernize-use-using,readability-identifier-naming) */
#ifdef __cplusplus
}
#endif

#endif
