/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: of a pipe and of a broadcast. */
#include <errno.h>

#include "extension.h"

bool make_sender(struct sender* sender, struct life* life, const struct send_functions* functions,
                 int wait) {
  sender->life = life;
  sender->functions = functions;
  sender->wait = wait;
  sender->lock = PyThread_allocate_lock();
  if (!sender->lock) PyErr_NoMemory();
  return sender->lock != NULL;
}

void free_sender(struct sender* sender) {
  Py_XDECREF(end_send_poll(sender));
  if (sender->lock) PyThread_free_lock(sender->lock);
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

PyObject* send_bytes(struct sender* sender, PyObject* bytes, int64_t timeout, bool only_try) {
  const struct deadline deadline = begin_timeout(timeout);
  Py_buffer message;
  if (PyObject_GetBuffer(bytes, &message, PyBUF_SIMPLE) < 0) return NULL;
  int64_t result = begin(sender, deadline);
  if (result == 0) {
    result = send_within(sender, &message, deadline);
    end(sender);
  }
  const size_t size = (size_t)message.len;
  PyBuffer_Release(&message);
  if (only_try) sender->in_a_row = result == 0 ? sender->in_a_row + 1 + size / 1024 : 0;
  if (only_try && (result == 0 || result == -EAGAIN)) return PyBool_FromLong(result == 0);
  if (result == -EINVAL) { /* of a long one a part has gone: the rest has to follow */
    PyErr_SetString(PyExc_RuntimeError,
                    "a long message has been sent in part: send the same one again first");
    return NULL;
  }
  if (result < 0) return raise_error(result);
  Py_RETURN_NONE;
}

PyObject* send_in_turn(struct sender* sender, PyObject* bytes) {
  if (sender->in_a_row >= kInARow) Py_RETURN_FALSE;
  return send_bytes(sender, bytes, 0, true);
}

PyObject* end_sending_turn(struct sender* sender) {
  const bool over = sender->in_a_row >= kInARow;
  sender->in_a_row = 0;
  return PyBool_FromLong(over);
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
