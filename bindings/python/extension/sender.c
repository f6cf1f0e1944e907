/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: of a pipe and of a broadcast. */
#include <errno.h>
#include <string.h>

#include "extension.h"

bool make_sender(struct sender* sender, struct life* life, const struct send_functions* functions,
                 int wait, size_t longest) {
  sender->life = life;
  sender->functions = functions;
  sender->wait = wait;
  sender->longest = longest;
  sender->lock = PyThread_allocate_lock();
  if (!sender->lock) PyErr_NoMemory();
  return sender->lock != NULL;
}

void free_sender(struct sender* sender) {
  Py_XDECREF(end_send_poll(sender));
  if (sender->lock) PyThread_free_lock(sender->lock);
  Py_CLEAR(sender->pending);
}

static int64_t begin(struct sender* sender, struct deadline deadline) {
  if (!enter(sender->life)) return kRaised;
  int64_t result = kRaised;
  if (PyThread_acquire_lock_timed(sender->lock, 0, 0) == PY_LOCK_ACQUIRED)
    result = 0;
  else if (atomic_load(&sender->polling))
    PyErr_SetString(PyExc_RuntimeError, "somebody waits to send here already");
  else
    result = take_lock(sender->lock, deadline);
  if (result != 0) leave(sender->life);
  return result;
}

static void end(struct sender* sender) {
  PyThread_release_lock(sender->lock);
  leave(sender->life);
}

static int64_t call_released(struct sender* sender, const Py_buffer* message, int64_t timeout) {
  PyThreadState* const thread = PyEval_SaveThread();
  const int64_t result =
      sender->functions->send(sender->life->handle, message->buf, (size_t)message->len, timeout);
  PyEval_RestoreThread(thread);
  return result;
}

static int64_t send_within(struct sender* sender, const Py_buffer* message,
                           struct deadline deadline) {
  int64_t result =
      message->len > kLongCopy
          ? call_released(sender, message, 0)
          : sender->functions->send(sender->life->handle, message->buf, (size_t)message->len, 0);
  if (deadline.at == 0) return result;
  while (would_wait(result)) {
    const int64_t left = time_left(deadline, kSlice);
    if (left == 0) return -ETIMEDOUT;
    result = call_released(sender, message, left);
    if (!would_wait(result)) break;
    if (sender->wait != FARCALL_WAIT_SPIN) {
      const int64_t slept = sleep_on(&sender->functions->poll, sender->life->handle, deadline);
      if (slept != 0) return slept;
      result = call_released(sender, message, 0);
    } else if (PyErr_CheckSignals() < 0) {
      return kRaised;
    }
  }
  return result;
}

/* Of a long message a part may have gone: the rest has to follow, and nothing else may. */
static int64_t send_or_go_on(struct sender* sender, const Py_buffer* message,
                             struct deadline deadline) {
  PyObject* const pending = sender->pending;
  if (pending && (PyBytes_Size(pending) != message->len ||
                  memcmp(PyBytes_AsString(pending), message->buf, (size_t)message->len) != 0)) {
    PyErr_SetString(PyExc_RuntimeError,
                    "a long message has been sent in part: send the same one again first");
    return kRaised;
  }
  const int64_t result = send_within(sender, message, deadline);
  if (!would_wait(result) && result != kRaised) {
    Py_CLEAR(sender->pending);
  } else if (!pending && (size_t)message->len > sender->longest) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    sender->pending = PyBytes_FromStringAndSize(message->buf, message->len);
    if (sender->pending) {
      PyErr_Restore(type, value, traceback);
      return result;
    }
    /* Without memory to tell whether it is the same one, nothing can be sent any more. */
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    close_life(sender->life);
    return kRaised;
  }
  return result;
}

PyObject* send_bytes(struct sender* sender, PyObject* bytes, int64_t timeout, bool only_try) {
  const struct deadline deadline = begin_timeout(timeout);
  Py_buffer message;
  if (PyObject_GetBuffer(bytes, &message, PyBUF_SIMPLE) < 0) return NULL;
  int64_t result = begin(sender, deadline);
  if (result == 0) {
    result = send_or_go_on(sender, &message, deadline);
    end(sender);
  }
  PyBuffer_Release(&message);
  if (only_try && (result == 0 || result == -EAGAIN)) return PyBool_FromLong(result == 0);
  if (result < 0) return raise_error(result);
  Py_RETURN_NONE;
}

PyObject* begin_send_poll(struct sender* sender) {
  const int64_t result = begin(sender, (struct deadline){0});
  if (result == -EAGAIN) PyErr_SetString(PyExc_RuntimeError, "somebody sends here already");
  if (result != 0) return NULL;
  const struct poll_functions* const poll = &sender->functions->poll;
  if (poll->begin(sender->life->handle) == 1) {
    atomic_store(&sender->polling, true); /* until end_send_poll() */
    Py_RETURN_TRUE;
  }
  poll->end(sender->life->handle);
  end(sender);
  Py_RETURN_FALSE;
}

PyObject* end_send_poll(struct sender* sender) {
  if (atomic_exchange(&sender->polling, false) && !is_inherited(sender->life)) {
    sender->functions->poll.end(sender->life->handle);
    end(sender);
  }
  Py_RETURN_NONE;
}
