/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sources of the module farcall._farcall share.
 *
 * An object of the module stands for one handle of the C interface. Python's threads may use it as
 * they like, with or without a GIL; the C interface wants one thread at a time per direction. So:
 *
 *   life       how many are inside, and whether it has been closed: the last one out frees the
 *              handle
 *   receiver   one direction
 *   sender     the other
 *
 * A use is: enter (counted; refused once closed, and in a forked child), lock, call, unlock, leave.
 */
#ifndef FARCALL_PYTHON_EXTENSION_H
#define FARCALL_PYTHON_EXTENSION_H

#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* of which there is no limited API before 3.15 */
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <farcall/farcall.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

/* From here on a copy is worth letting other threads run. */
enum { kLongCopy = 64 * 1024 };

/* ---- arguments.c ---- */

/* The arguments of a METH_FASTCALL | METH_KEYWORDS function by name; what was not given stays. */
bool take_arguments(PyObject* const* args, Py_ssize_t count, PyObject* keywords,
                    const char* const* names, PyObject** values, int needed);
/* Seconds, or None, as the C interface has it: nanoseconds, or FARCALL_FOREVER. -2 with an
 * exception. */
int64_t as_timeout(PyObject* seconds);
bool as_size(PyObject* number, size_t* size);
/* NULL with an exception set. The text's. */
const char* as_name(PyObject* text);
bool take_descriptors(PyObject* sequence, int* descriptors, int count);
PyObject* give_descriptors(const int* descriptors, int count);
bool as_choice(PyObject* text, const char* what, const char* const* choices, int* choice);

/* ---- errors.c ---- */

extern PyObject *protocol_error, *message_too_long;
bool add_errors(PyObject* module);
/* Raise what a negative errno of a receiving, or of any other function says. Return NULL. */
PyObject* raise_receiving(int64_t error, size_t needed);
PyObject* raise_error(int64_t error);
/* Of what cannot be passed to another process any more. */
PyObject* raise_used(void);
/* The same for a call, and for what has to do with a path (bytes). */
PyObject* raise_calling(int64_t error);
PyObject* raise_at_path(int64_t error, PyObject* path);

/* ---- waiting.c ---- */

/* Nanoseconds that a wait is left to the library for: as long as its first sleep lasts, and a
 * signal that has escaped it may be late. */
static const int64_t kSlice = 20000000;

/* A timeout that has begun to run. */
struct deadline {
  int64_t at; /* CLOCK_MONOTONIC, nanoseconds; INT64_MAX: never; 0: do not wait */
};
struct deadline begin_timeout(int64_t timeout);
/* Nanoseconds, at most `most`; 0: it has passed. */
int64_t time_left(struct deadline deadline, int64_t most);
/* An exception of Python's is set: beside the negative errnos. */
enum { kRaised = -100000 };
/* Whether an operation of the library has only not been done yet. */
bool would_wait(int64_t result);
/* What can be polled: a direction of a farcall_pipe, a publisher, a subscriber. */
struct poll_functions {
  int (*descriptor)(const void* handle);
  int (*begin)(void* handle);
  int (*end)(void* handle); /* 1: the descriptor is about to become readable for nothing; else 0 */
};
/* Sleeps until a descriptor is readable, a signal has been handled, or the time is over. 0,
 * kRaised. */
int64_t sleep_polling(int descriptor, struct deadline deadline);
/* Sleeps until there may be something, a signal has been handled, or the time is over. 0, kRaised.
 */
int64_t sleep_on(const struct poll_functions* poll, void* handle, struct deadline deadline);
/* Takes a lock. 0, -EAGAIN, -ETIMEDOUT, kRaised. */
int64_t take_lock(PyThread_type_lock lock, struct deadline deadline);
/* In between, handlers that Python has installed end waits of the library, too. */
void note_signals(void);
void stop_noting(void);
/* Handlers tell that one, too: an async-signal-safe function of a library that stays. */
typedef void (*note_function)(void);
void note_there_as_well(note_function note);
/* In a forked child. */
void forget_noting(void);

/* ---- life.c ---- */

struct life {
  void* handle;
  void (*free)(void* handle);
  atomic_uint state; /* how many use it; kClosed */
  atomic_uint owner; /* the process that used it first, or of a shared one last; 0: none yet */
  bool shared;       /* forked children may use it, too */
};
bool prepare_lives(void);
/* False with an exception where it has been closed, or used by the process that forked this one. */
bool enter(struct life* life);
/* The same for what is no use, and so leaves it to whatever process uses it first. */
bool enter_unused(struct life* life);
void leave(struct life* life);
void close_life(struct life* life);
bool is_closed(const struct life* life);
/* Whether a process that forked this one has used it: all but to close it is then forbidden. */
bool is_inherited(const struct life* life);
PyObject* poll_descriptor_of(struct life* life, int (*descriptor)(const void* handle));

/* ---- foreign_thread.c ---- */

/* Takes the GIL for a thread of the library's. False where the interpreter is ending. */
bool enter_python(PyGILState_STATE* state);
void leave_python(PyGILState_STATE state);
/* From now on nobody enters. How many are in Python still. */
unsigned end_foreign_threads(void);
bool prepare_foreign_threads(void);

/* What a coroutine does in a row, messages and KiB, before others have their turn: it takes far
 * longer than a turn of the loop, and not so long that anybody notices.
 */
enum { kInARow = 4096 };

/* ---- receiver.c ---- */

struct receive_functions {
  int64_t (*receive)(void* handle, void* bytes, size_t room, size_t* needed, uint64_t* missed,
                     int64_t timeout);
  struct poll_functions poll;
};
struct receiver {
  struct life* life;
  const struct receive_functions* functions;
  PyThread_type_lock lock;
  atomic_bool polling; /* the lock is held until poll_end() */
  int wait;
  bool empty;      /* an empty message has been taken, but not given to anybody */
  size_t in_a_row; /* received by receive_in_turn() */
  uint64_t missed, missed_in_all;
};
bool make_receiver(struct receiver* receiver, struct life* life,
                   const struct receive_functions* functions, int wait);
/* Before its life is closed: a poll that nobody has ended would keep the handle. */
void free_receiver(struct receiver* receiver);
PyObject* receive_bytes(struct receiver* receiver, int64_t timeout);
/* As receive_bytes(), but None where it would have to wait. */
PyObject* try_receive_bytes(struct receiver* receiver);
/* As that, but None also after kInARow, until the end of the turn: others have theirs. */
PyObject* receive_in_turn(struct receiver* receiver);
/* Whether there was None for that reason. */
PyObject* end_receiving_turn(struct receiver* receiver);
PyObject* receive_into(struct receiver* receiver, PyObject* target, int64_t timeout);
/* Whether there is something to receive, or an end, within the time. */
PyObject* wait_to_receive(struct receiver* receiver, int64_t timeout);
PyObject* begin_poll(struct receiver* receiver);
void end_poll(struct receiver* receiver);
PyObject* end_poll_and_tell(struct receiver* receiver);

/* ---- sender.c ---- */

struct send_functions {
  int (*send)(void* handle, const void* bytes, size_t size, int64_t timeout);
  struct poll_functions poll;
};
struct sender {
  struct life* life;
  const struct send_functions* functions;
  PyThread_type_lock lock;
  atomic_bool polling; /* the lock is held until end_send_poll() */
  int wait;
  size_t in_a_row; /* sent without waiting */
};
bool make_sender(struct sender* sender, struct life* life, const struct send_functions* functions,
                 int wait);
/* Before its life is closed, as free_receiver(). */
void free_sender(struct sender* sender);
/* None; with `only_try` a bool instead of an exception where it would have to wait. */
PyObject* send_bytes(struct sender* sender, PyObject* bytes, int64_t timeout, bool only_try);
/* A bool; false also after kInARow, until the end of the turn: others have theirs. */
PyObject* send_in_turn(struct sender* sender, PyObject* bytes);
/* Whether it was false for that reason. */
PyObject* end_sending_turn(struct sender* sender);
PyObject* begin_send_poll(struct sender* sender);
PyObject* end_send_poll(struct sender* sender);

/* ---- end.c ---- */

/* An end of a stream of messages, a pipe's or a broadcast's, which has but one of the directions.
 */
struct end {
  PyObject_HEAD struct life life;
  struct receiver receiver;
  struct sender sender;
  int wait;
  atomic_bool passed; /* its descriptors have been given to another process */
};
static inline struct end* as_end(PyObject* self) { return (struct end*)self; }

extern const char* const wait_names[];
/* Whether `object` is a subclass of `base`, which is what a constructor makes; or an exception. */
bool take_base(PyObject* object, PyTypeObject* base, PyTypeObject** type);
/* An object of `type` that owns the handle, but has no direction yet; where it fails the handle has
 * been freed. */
struct end* make_end(PyTypeObject* type, void* handle, void (*free)(void* handle), int wait);
void end_free(PyObject* self);
/* Opens by name, while Python's handlers of signals run. 0 or kRaised; timeout -2: there is an
 * exception already. */
typedef int opening(const char* name, const void* options, int64_t timeout, void** handle);
int open_named(opening* open, PyObject* name, const void* options, int64_t timeout, void** handle);
/* Refuses an end whose descriptors somebody else has adopted. */
bool is_here(struct end* end);

typedef PyObject* with_keywords(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                PyObject* keywords);
typedef PyObject* with_one(PyObject* self, PyObject* argument);
with_keywords method_send, method_recv, method_recv_into, method_poll;
with_one method_try_send, method_send_in_turn, method_end_send_turn, method_send_poll_begin,
    method_send_poll_end, method_send_fileno, method_try_recv, method_recv_in_turn,
    method_end_recv_turn, method_poll_begin, method_poll_end, method_fileno, method_close;
PyObject* method_closed(PyObject* self, void* unused);

/* Of what sends and of what receives: but send() and close(), which each documents itself. */
#define SENDING_METHODS                                                                            \
  {"try_send", method_try_send, METH_O, "Sends without waiting; returns whether there was room."}, \
      {"send_poll_begin", method_send_poll_begin, METH_NOARGS,                                     \
       "Before send_fileno() is polled: whether to wait at all for room for what was refused. If " \
       "so, call send_poll_end() before anything is sent."},                                       \
      {"send_poll_end", method_send_poll_end, METH_NOARGS,                                         \
       "After send_fileno() has been polled."},                                                    \
      {"send_fileno", method_send_fileno, METH_NOARGS,                                             \
       "The descriptor that becomes readable, after send_poll_begin(), when there may be room."},  \
      {"_send_in_turn", method_send_in_turn, METH_O,                                               \
       "As try_send(), but False also where others are to have their turn."},                      \
  {                                                                                                \
    "_end_send_turn", method_end_send_turn, METH_NOARGS, "Whether it was False for that reason."   \
  }
#define RECEIVING_METHODS                                                                          \
  {"recv", FAST(method_recv), "recv(timeout=None) -> bytes: receives one message."},               \
      {"try_recv", method_try_recv, METH_NOARGS,                                                   \
       "Receives without waiting; None if there is nothing yet."},                                 \
      {"recv_into", FAST(method_recv_into),                                                        \
       "recv_into(buffer, timeout=None) -> int: receives one message into writable memory; "       \
       "returns its size."},                                                                       \
      {"poll_begin", method_poll_begin, METH_NOARGS,                                               \
       "Before fileno() is polled: whether to wait at all. If so, call poll_end() before "         \
       "anything is received."},                                                                   \
      {"poll_end", method_poll_end, METH_NOARGS,                                                   \
       "After fileno() has been polled: whether it is about to become readable for nothing."},     \
      {"fileno", method_fileno, METH_NOARGS,                                                       \
       "The descriptor that becomes readable, after poll_begin(), when there may be something to " \
       "receive."},                                                                                \
      {"_recv_in_turn", method_recv_in_turn, METH_NOARGS,                                          \
       "As try_recv(), but None also where others are to have their turn."},                       \
  {                                                                                                \
    "_end_recv_turn", method_end_recv_turn, METH_NOARGS, "Whether there was None for that reason." \
  }
#define CLOSED_ATTRIBUTE \
  { "closed", method_closed, NULL, "Whether close() has been called.", NULL }

/* ---- async_call.c ---- */

bool add_async_call(PyObject* module);
/* Of a client, with the arguments of its begin(). */
PyObject* begin_call(struct life* client, PyObject* const* args, Py_ssize_t count,
                     PyObject* keywords);

/* ---- the types ---- */

/* Adds a type of `module` by its specification. */
bool add_type(PyObject* module, PyType_Spec* spec, PyTypeObject** type);
/* What tp_dealloc ends with. */
void free_object(PyObject* self);
bool add_pipe(PyObject* module);
bool add_broadcast(PyObject* module);
bool add_queue(PyObject* module);
bool add_call(PyObject* module);

extern PyMethodDef pipe_functions[], broadcast_functions[], queue_functions[], call_functions[],
    waiting_functions[];

#endif
