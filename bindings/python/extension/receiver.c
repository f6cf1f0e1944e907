/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: of a pipe and of a broadcast.
 *
 * A first look is taken with the GIL held, as most answers are there or come at once. Then the GIL
 * goes, and the library waits in its own way, which costs least. A signal ends that, but for one
 * that comes just before the thread sleeps; so it is for a short while, and then the thread sleeps
 * in a way that no signal escapes.
 */
#include <errno.h>
#include <string.h>

#include "extension.h"

enum { kScratch = 4096, kAttempts = 100 };

bool make_receiver(struct receiver* receiver, struct life* life,
                   const struct receive_functions* functions, int wait) {
  receiver->life = life;
  receiver->functions = functions;
  receiver->wait = wait;
  receiver->lock = PyThread_allocate_lock();
  if (!receiver->lock) PyErr_NoMemory();
  return receiver->lock != NULL;
}

void free_receiver(struct receiver* receiver) {
  end_poll(receiver);
  if (receiver->lock) PyThread_free_lock(receiver->lock);
}

/* ---- one at a time ---- */

static int64_t lock(struct receiver* receiver, struct deadline deadline) {
  if (PyThread_acquire_lock_timed(receiver->lock, 0, 0) == PY_LOCK_ACQUIRED) return 0;
  if (atomic_load(&receiver->polling)) {
    PyErr_SetString(PyExc_RuntimeError, "somebody waits to receive here already");
    return kRaised;
  }
  return take_lock(receiver->lock, deadline);
}

/* 0, or what stands in the way; then it has been left again. */
static int64_t begin(struct receiver* receiver, struct deadline deadline) {
  if (!enter(receiver->life)) return kRaised;
  const int64_t result = lock(receiver, deadline);
  if (result != 0) leave(receiver->life);
  return result;
}

static void end(struct receiver* receiver) {
  PyThread_release_lock(receiver->lock);
  leave(receiver->life);
}

/* ---- waiting ---- */

struct room {
  void* bytes;
  size_t size;
  size_t needed;
};

static int64_t call(struct receiver* receiver, struct room* room, int64_t timeout) {
  uint64_t missed = 0;
  const int64_t size = receiver->functions->receive(receiver->life->handle, room->bytes, room->size,
                                                    &room->needed, &missed, timeout);
  if (size >= 0) {
    receiver->missed = missed;
    receiver->missed_in_all += missed;
  }
  return size;
}

/* The same for others to run beside. */
static int64_t call_released(struct receiver* receiver, struct room* room, int64_t timeout) {
  PyThreadState* const thread = PyEval_SaveThread();
  const int64_t size = call(receiver, room, timeout);
  PyEval_RestoreThread(thread);
  return size;
}

static int64_t receive(struct receiver* receiver, struct room* room, struct deadline deadline) {
  int64_t size =
      room->size > kLongCopy ? call_released(receiver, room, 0) : call(receiver, room, 0);
  if (!would_wait(size) || deadline.at == 0) return size;
  for (;;) {
    const int64_t left = time_left(deadline, kSlice);
    if (left == 0) return -ETIMEDOUT;
    size = call_released(receiver, room, left);
    if (!would_wait(size)) return size;
    if (receiver->wait == FARCALL_WAIT_SPIN) {
      if (PyErr_CheckSignals() < 0) return kRaised;
      continue;
    }
    const int64_t slept = sleep_on(&receiver->functions->poll, receiver->life->handle, deadline);
    if (slept != 0) return slept;
    size = call_released(receiver, room, 0);
    if (!would_wait(size)) return size;
  }
}

/* A message for which there was no room. Of a broadcast it may be overwritten meanwhile, and
 * another be next. */
static PyObject* receive_long(struct receiver* receiver, size_t needed, struct deadline deadline,
                              int64_t* error) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    PyObject* const memory = needed > PY_SSIZE_T_MAX
                                 ? PyErr_NoMemory()
                                 : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)needed);
    *error = kRaised;
    if (!memory) return NULL;
    struct room room = {PyBytes_AsString(memory), needed, 0};
    *error = receive(receiver, &room, deadline);
    if (*error == (int64_t)needed) return memory;
    PyObject* const message =
        *error >= 0 ? PyBytes_FromStringAndSize(room.bytes, (Py_ssize_t)*error) : NULL;
    Py_DECREF(memory);
    if (*error != -EMSGSIZE) return message;
    needed = room.needed;
  }
  return NULL;
}

static PyObject* receive_message(struct receiver* receiver, struct deadline deadline,
                                 int64_t* error) {
  if (receiver->empty) {
    receiver->empty = false;
    return PyBytes_FromStringAndSize(NULL, 0);
  }
  char scratch[kScratch];
  struct room room = {scratch, sizeof scratch, 0};
  *error = receive(receiver, &room, deadline);
  if (*error >= 0) return PyBytes_FromStringAndSize(scratch, (Py_ssize_t)*error);
  return *error == -EMSGSIZE ? receive_long(receiver, room.needed, deadline, error) : NULL;
}

/* ---- what Python calls ---- */

static PyObject* receive_or(struct receiver* receiver, int64_t timeout, PyObject* instead) {
  const struct deadline deadline = begin_timeout(timeout);
  int64_t error = begin(receiver, deadline);
  PyObject* message = NULL;
  if (error == 0) {
    message = receive_message(receiver, deadline, &error);
    end(receiver);
  }
  if (message || error >= 0) return message;
  if (error == -EAGAIN && instead) return Py_NewRef(instead);
  return raise_receiving(error, 0);
}

PyObject* receive_bytes(struct receiver* receiver, int64_t timeout) {
  return receive_or(receiver, timeout, NULL);
}

PyObject* try_receive_bytes(struct receiver* receiver) { return receive_or(receiver, 0, Py_None); }

PyObject* receive_in_turn(struct receiver* receiver) {
  if (receiver->in_a_row >= kInARow) Py_RETURN_NONE;
  PyObject* const message = try_receive_bytes(receiver);
  if (message && message != Py_None)
    receiver->in_a_row += 1 + (size_t)PyBytes_Size(message) / 1024;
  else
    receiver->in_a_row = 0;
  return message;
}

PyObject* end_receiving_turn(struct receiver* receiver) {
  const bool over = receiver->in_a_row >= kInARow;
  receiver->in_a_row = 0;
  return PyBool_FromLong(over);
}

PyObject* receive_into(struct receiver* receiver, PyObject* target, int64_t timeout) {
  const struct deadline deadline = begin_timeout(timeout);
  Py_buffer buffer;
  if (PyObject_GetBuffer(target, &buffer, PyBUF_WRITABLE) < 0) return NULL;
  struct room room = {buffer.buf, (size_t)buffer.len, 0};
  int64_t size = begin(receiver, deadline);
  if (size == 0) {
    if (!receiver->empty) size = receive(receiver, &room, deadline);
    receiver->empty = false;
    end(receiver);
  }
  PyBuffer_Release(&buffer);
  return size < 0 ? raise_receiving(size, room.needed) : PyLong_FromLongLong(size);
}

PyObject* wait_to_receive(struct receiver* receiver, int64_t timeout) {
  const struct deadline deadline = begin_timeout(timeout);
  int64_t result = begin(receiver, deadline);
  if (result == 0) {
    /* Without room nothing but an empty message can be taken: that is put down. */
    char nowhere;
    struct room room = {&nowhere, 0, 0};
    if (!receiver->empty) {
      result = receive(receiver, &room, deadline);
      receiver->empty = result == 0;
    }
    end(receiver);
  }
  if (result == kRaised) return NULL;
  return PyBool_FromLong(!would_wait(result));
}

/* ---- for the loops of others ---- */

PyObject* begin_poll(struct receiver* receiver) {
  const int64_t result = begin(receiver, (struct deadline){0});
  if (result == -EAGAIN)
    PyErr_SetString(PyExc_RuntimeError, "somebody waits to receive here already");
  if (result != 0) return NULL;
  if (receiver->empty) { /* which the library knows nothing of any more */
    end(receiver);
    Py_RETURN_FALSE;
  }
  const struct poll_functions* const poll = &receiver->functions->poll;
  if (poll->begin(receiver->life->handle) == 1) {
    atomic_store(&receiver->polling, true); /* until end_poll() */
    Py_RETURN_TRUE;
  }
  poll->end(receiver->life->handle);
  end(receiver);
  Py_RETURN_FALSE;
}

void end_poll(struct receiver* receiver) {
  if (!atomic_exchange(&receiver->polling, false) || is_inherited(receiver->life)) return;
  receiver->functions->poll.end(receiver->life->handle);
  end(receiver);
}

/* Also where the wait was one of a call that is over: that has left it as well. */
PyObject* end_poll_and_tell(struct receiver* receiver) {
  end_poll(receiver);
  if (is_closed(receiver->life) || is_inherited(receiver->life) ||
      PyThread_acquire_lock_timed(receiver->lock, 0, 0) != PY_LOCK_ACQUIRED)
    Py_RETURN_FALSE;
  bool late = false;
  if (enter(receiver->life)) {
    late = receiver->functions->poll.end(receiver->life->handle) == 1;
    leave(receiver->life);
  } else {
    PyErr_Clear();
  }
  PyThread_release_lock(receiver->lock);
  return PyBool_FromLong(late);
}
