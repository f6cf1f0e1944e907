/* SPDX-License-Identifier: Apache-2.0 */
/* What a pipe's end, a publisher and a subscriber have in common: they open, send and receive. */
#include <errno.h>

#include "extension.h"

const char* const wait_names[] = {"adaptive", "spin", "block", NULL};

bool take_base(PyObject* object, PyTypeObject* base, PyTypeObject** type) {
  *type = (PyTypeObject*)object;
  if (PyType_Check(object) && PyType_IsSubtype(*type, base)) return true;
  PyErr_SetString(PyExc_TypeError, "the first argument is a subclass");
  return false;
}

struct end* make_end(PyTypeObject* type, void* handle, void (*free)(void* handle), int wait) {
  struct end* const end = as_end(PyType_GenericAlloc(type, 0));
  if (!end) {
    free(handle);
    return NULL;
  }
  end->life.handle = handle;
  end->life.free = free;
  end->wait = wait;
  return end;
}

void end_free(PyObject* self) {
  struct end* const end = as_end(self);
  free_receiver(&end->receiver);
  free_sender(&end->sender);
  close_life(&end->life);
  free_object(self);
}

int open_named(opening* open, PyObject* text, const void* options, int64_t timeout, void** handle) {
  const char* const name = timeout == -2 ? NULL : as_name(text);
  if (!name) return kRaised;
  const struct deadline deadline = begin_timeout(timeout);
  int error;
  do {
    note_signals();
    error = -EINTR;
    if (PyErr_CheckSignals() == 0) { /* those that came before were not noted */
      PyThreadState* const thread = PyEval_SaveThread();
      error =
          open(name, options,
               deadline.at == INT64_MAX ? FARCALL_FOREVER : time_left(deadline, INT64_MAX), handle);
      PyEval_RestoreThread(thread);
    }
    stop_noting();
  } while (error == -EINTR && !PyErr_Occurred() && PyErr_CheckSignals() == 0);
  if (error == 0) return 0;
  if (!PyErr_Occurred()) raise_error(error);
  return kRaised;
}

bool is_here(struct end* end) {
  if (!atomic_load(&end->passed)) return true;
  PyErr_SetString(PyExc_RuntimeError,
                  "this end has been passed to another process, and can only be closed");
  return false;
}

/* ---- methods ---- */

/* Of `names` the last one is the timeout, after a value if there are two. */
static bool take_value_and_timeout(struct end* end, PyObject* const* args, Py_ssize_t count,
                                   PyObject* keywords, const char* const* names, PyObject** value,
                                   int64_t* timeout) {
  PyObject* values[2] = {0};
  const int needed = value ? 1 : 0;
  if (!take_arguments(args, count, keywords, names, values, needed)) return false;
  if (value) *value = values[0];
  *timeout = as_timeout(values[needed]);
  return *timeout != -2 && is_here(end);
}

PyObject* method_send(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const char* const names[] = {"data", "timeout", NULL};
  PyObject* data;
  int64_t timeout;
  if (!take_value_and_timeout(as_end(self), args, count, keywords, names, &data, &timeout))
    return NULL;
  return send_bytes(&as_end(self)->sender, data, timeout, false);
}
PyObject* method_try_send(PyObject* self, PyObject* data) {
  return is_here(as_end(self)) ? send_bytes(&as_end(self)->sender, data, 0, true) : NULL;
}
PyObject* method_send_in_turn(PyObject* self, PyObject* data) {
  return is_here(as_end(self)) ? send_in_turn(&as_end(self)->sender, data) : NULL;
}
PyObject* method_end_send_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_sending_turn(&as_end(self)->sender);
}
PyObject* method_send_poll_begin(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? begin_send_poll(&as_end(self)->sender) : NULL;
}
PyObject* method_send_poll_end(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_send_poll(&as_end(self)->sender);
}
PyObject* method_send_fileno(PyObject* self, PyObject* unused) {
  (void)unused;
  struct end* const end = as_end(self);
  return poll_descriptor_of(&end->life, end->sender.functions->poll.descriptor);
}

PyObject* method_recv(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const char* const names[] = {"timeout", NULL};
  int64_t timeout;
  if (!take_value_and_timeout(as_end(self), args, count, keywords, names, NULL, &timeout))
    return NULL;
  return receive_bytes(&as_end(self)->receiver, timeout);
}
PyObject* method_try_recv(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? try_receive_bytes(&as_end(self)->receiver) : NULL;
}
PyObject* method_recv_in_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? receive_in_turn(&as_end(self)->receiver) : NULL;
}
PyObject* method_end_recv_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_receiving_turn(&as_end(self)->receiver);
}
PyObject* method_recv_into(PyObject* self, PyObject* const* args, Py_ssize_t count,
                           PyObject* keywords) {
  static const char* const names[] = {"buffer", "timeout", NULL};
  PyObject* buffer;
  int64_t timeout;
  if (!take_value_and_timeout(as_end(self), args, count, keywords, names, &buffer, &timeout))
    return NULL;
  return receive_into(&as_end(self)->receiver, buffer, timeout);
}
PyObject* method_poll(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const char* const names[] = {"timeout", NULL};
  int64_t timeout = 0;
  const bool given = count || keywords;
  if (given ? !take_value_and_timeout(as_end(self), args, count, keywords, names, NULL, &timeout)
            : !is_here(as_end(self)))
    return NULL;
  return wait_to_receive(&as_end(self)->receiver, timeout);
}
PyObject* method_poll_begin(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? begin_poll(&as_end(self)->receiver) : NULL;
}
PyObject* method_poll_end(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_poll_and_tell(&as_end(self)->receiver);
}
PyObject* method_fileno(PyObject* self, PyObject* unused) {
  (void)unused;
  struct end* const end = as_end(self);
  return poll_descriptor_of(&end->life, end->receiver.functions->poll.descriptor);
}

PyObject* method_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(&as_end(self)->life);
  Py_RETURN_NONE;
}
PyObject* method_closed(PyObject* self, void* unused) {
  (void)unused;
  return PyBool_FromLong(is_closed(&as_end(self)->life));
}
