/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.PipeEnd: both directions of one end of a pipe. */
#include <errno.h>

#include "extension.h"

typedef struct {
  PyObject_HEAD struct life life;
  struct receiver receiver;
  struct sender sender;
  size_t capacity;
  int wait;
  atomic_bool passed; /* its descriptors have been given to another process */
} PipeEnd;

static PyTypeObject* pipe_end_type;

static PipeEnd* as_end(PyObject* self) { return (PipeEnd*)self; }

/* ---- how the C interface sees it ---- */

static int64_t receive(void* handle, void* bytes, size_t room, size_t* needed, uint64_t* missed,
                       int64_t timeout) {
  (void)missed;
  return farcall_pipe_receive(handle, bytes, room, needed, timeout);
}
static int send_one(void* handle, const void* bytes, size_t size, int64_t timeout) {
  return farcall_pipe_send(handle, bytes, size, timeout);
}
static int poll_descriptor(const void* handle) { return farcall_pipe_poll_descriptor(handle); }
static int poll_begin(void* handle) { return farcall_pipe_poll_begin(handle); }
static void poll_end(void* handle) { farcall_pipe_poll_end(handle); }
static void free_end(void* handle) { farcall_pipe_close(handle); }

static int send_poll_descriptor(const void* handle) {
  return farcall_pipe_send_poll_descriptor(handle);
}
static int send_poll_begin(void* handle) { return farcall_pipe_send_poll_begin(handle); }
static void send_poll_end(void* handle) { farcall_pipe_send_poll_end(handle); }

static const struct receive_functions receiving = {receive,
                                                   {poll_descriptor, poll_begin, poll_end}};
static const struct send_functions sending = {
    send_one, {send_poll_descriptor, send_poll_begin, send_poll_end}};

/* ---- made and freed ---- */

/* An object of `type` that owns the handle; where it fails, nobody does any more. `capacity`: as it
 * was asked for; 0: as it is. */
static PyObject* make_end(PyTypeObject* type, farcall_pipe* handle, size_t capacity, int wait) {
  PipeEnd* const end = as_end(PyType_GenericAlloc(type, 0));
  if (!end) {
    farcall_pipe_close(handle);
    return NULL;
  }
  end->life.handle = handle;
  end->life.free = free_end;
  end->wait = wait;
  end->capacity = capacity ? capacity : farcall_pipe_capacity(handle);
  if (make_receiver(&end->receiver, &end->life, &receiving, wait) &&
      make_sender(&end->sender, &end->life, &sending, wait))
    return (PyObject*)end;
  Py_DECREF(end);
  return NULL;
}

static void pipe_end_free(PyObject* self) {
  PipeEnd* const end = as_end(self);
  free_receiver(&end->receiver);
  free_sender(&end->sender);
  close_life(&end->life);
  free_object(self);
}

static bool take_type(PyObject* object, PyTypeObject** type) {
  if (PyType_Check(object) && PyType_IsSubtype((PyTypeObject*)object, pipe_end_type)) {
    *type = (PyTypeObject*)object;
    return true;
  }
  PyErr_SetString(PyExc_TypeError, "the first argument is a subclass of PipeEnd");
  return false;
}

static const char* const waits[] = {"adaptive", "spin", "block", NULL};

/* capacity, wait */
static bool take_options(PyObject* const* values, struct farcall_pipe_options* options) {
  *options = (struct farcall_pipe_options){.size = sizeof *options};
  return as_size(values[0], &options->capacity) &&
         (!values[1] || as_choice(values[1], "wait", waits, &options->wait));
}

static PyObject* create_pipe(PyObject* module, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "capacity", "wait", NULL};
  PyObject* values[3] = {0};
  PyTypeObject* type;
  struct farcall_pipe_options options;
  if (!take_arguments(args, count, keywords, names, values, 1) || !take_type(values[0], &type) ||
      !take_options(values + 1, &options))
    return NULL;
  farcall_pipe* handles[2];
  const int error = farcall_pipe_create(&options, &handles[0], &handles[1]);
  if (error != 0) return raise_error(error);
  PyObject* const one = make_end(type, handles[0], options.capacity, options.wait);
  PyObject* const other = make_end(type, handles[1], options.capacity, options.wait);
  PyObject* const both = one && other ? PyTuple_Pack(2, one, other) : NULL;
  Py_XDECREF(one);
  Py_XDECREF(other);
  return both;
}

/* `capacity`: that of the pipe; a larger one is refused. */
static PyObject* adopt_pipe(PyObject* module, PyObject* const* args, Py_ssize_t count,
                            PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "descriptors", "capacity", "wait", NULL};
  PyObject* values[4] = {0};
  PyTypeObject* type;
  struct farcall_pipe_options options;
  int descriptors[FARCALL_PIPE_DESCRIPTORS];
  if (!take_arguments(args, count, keywords, names, values, 2) || !take_type(values[0], &type) ||
      !take_options(values + 2, &options) ||
      !take_descriptors(values[1], descriptors, FARCALL_PIPE_DESCRIPTORS))
    return NULL;
  farcall_pipe* handle;
  const int error = farcall_pipe_adopt(descriptors, &options, &handle);
  return error == 0 ? make_end(type, handle, options.capacity, options.wait) : raise_error(error);
}

/* ---- by name ---- */

typedef int opening(const char* name, const struct farcall_pipe_options* options, int64_t timeout,
                    farcall_pipe** end);

static PyObject* open_by_name(PyObject* const* args, Py_ssize_t count, PyObject* keywords,
                              opening* open_end) {
  static const char* const names[] = {"type", "name", "capacity", "wait", "timeout", NULL};
  PyObject* values[5] = {0};
  PyTypeObject* type;
  struct farcall_pipe_options options;
  if (!take_arguments(args, count, keywords, names, values, 2) || !take_type(values[0], &type) ||
      !take_options(values + 2, &options))
    return NULL;
  const int64_t timeout = as_timeout(values[4]);
  const char* const name = timeout == -2 ? NULL : as_name(values[1]);
  if (!name) return NULL;
  const struct deadline deadline = begin_timeout(timeout);
  farcall_pipe* handle = NULL;
  int error;
  do {
    note_signals();
    error = -EINTR;
    if (PyErr_CheckSignals() == 0) { /* those that came before were not noted */
      PyThreadState* const thread = PyEval_SaveThread();
      error = open_end(name, &options,
                       deadline.at == INT64_MAX ? FARCALL_FOREVER : time_left(deadline, INT64_MAX),
                       &handle);
      PyEval_RestoreThread(thread);
    }
    stop_noting();
  } while (error == -EINTR && !PyErr_Occurred() && PyErr_CheckSignals() == 0);
  if (error == 0)
    return make_end(type, handle, open_end == farcall_pipe_serve ? options.capacity : 0,
                    options.wait);
  return PyErr_Occurred() ? NULL : raise_error(error);
}

static PyObject* serve_pipe(PyObject* module, PyObject* const* args, Py_ssize_t count,
                            PyObject* keywords) {
  (void)module;
  return open_by_name(args, count, keywords, farcall_pipe_serve);
}
static PyObject* open_pipe(PyObject* module, PyObject* const* args, Py_ssize_t count,
                           PyObject* keywords) {
  (void)module;
  return open_by_name(args, count, keywords, farcall_pipe_open);
}

/* ---- methods ---- */

/* Refuses an end whose descriptors somebody else has adopted. */
static bool is_here(PipeEnd* end) {
  if (!atomic_load(&end->passed)) return true;
  PyErr_SetString(PyExc_RuntimeError,
                  "this end has been passed to another process, and can only be closed");
  return false;
}

static bool take_value_and_timeout(PyObject* const* args, Py_ssize_t count, PyObject* keywords,
                                   const char* const* names, PyObject** value, int64_t* timeout) {
  PyObject* values[2] = {0};
  const int needed = value ? 1 : 0;
  if (!take_arguments(args, count, keywords, names, values, needed)) return false;
  if (value) *value = values[0];
  *timeout = as_timeout(values[needed]);
  return *timeout != -2;
}

static PyObject* pipe_end_send(PyObject* self, PyObject* const* args, Py_ssize_t count,
                               PyObject* keywords) {
  static const char* const names[] = {"data", "timeout", NULL};
  PyObject* data;
  int64_t timeout;
  if (!take_value_and_timeout(args, count, keywords, names, &data, &timeout) ||
      !is_here(as_end(self)))
    return NULL;
  return send_bytes(&as_end(self)->sender, data, timeout, false);
}
static PyObject* pipe_end_try_send(PyObject* self, PyObject* data) {
  return is_here(as_end(self)) ? send_bytes(&as_end(self)->sender, data, 0, true) : NULL;
}
static PyObject* pipe_end_send_in_turn(PyObject* self, PyObject* data) {
  return is_here(as_end(self)) ? send_in_turn(&as_end(self)->sender, data) : NULL;
}
static PyObject* pipe_end_end_send_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_sending_turn(&as_end(self)->sender);
}
static PyObject* pipe_end_recv(PyObject* self, PyObject* const* args, Py_ssize_t count,
                               PyObject* keywords) {
  static const char* const names[] = {"timeout", NULL};
  int64_t timeout;
  if (!take_value_and_timeout(args, count, keywords, names, NULL, &timeout) ||
      !is_here(as_end(self)))
    return NULL;
  return receive_bytes(&as_end(self)->receiver, timeout);
}
static PyObject* pipe_end_try_recv(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? try_receive_bytes(&as_end(self)->receiver) : NULL;
}
static PyObject* pipe_end_recv_in_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? receive_in_turn(&as_end(self)->receiver) : NULL;
}
static PyObject* pipe_end_end_recv_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_receiving_turn(&as_end(self)->receiver);
}
static PyObject* pipe_end_recv_into(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                    PyObject* keywords) {
  static const char* const names[] = {"buffer", "timeout", NULL};
  PyObject* buffer;
  int64_t timeout;
  if (!take_value_and_timeout(args, count, keywords, names, &buffer, &timeout) ||
      !is_here(as_end(self)))
    return NULL;
  return receive_into(&as_end(self)->receiver, buffer, timeout);
}
static PyObject* pipe_end_poll(PyObject* self, PyObject* const* args, Py_ssize_t count,
                               PyObject* keywords) {
  static const char* const names[] = {"timeout", NULL};
  int64_t timeout = 0;
  if ((count || keywords) && !take_value_and_timeout(args, count, keywords, names, NULL, &timeout))
    return NULL;
  return is_here(as_end(self)) ? wait_to_receive(&as_end(self)->receiver, timeout) : NULL;
}
static PyObject* pipe_end_poll_begin(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? begin_poll(&as_end(self)->receiver) : NULL;
}
static PyObject* pipe_end_poll_end(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_poll(&as_end(self)->receiver);
}

static PyObject* pipe_end_send_poll_begin(PyObject* self, PyObject* unused) {
  (void)unused;
  return is_here(as_end(self)) ? begin_send_poll(&as_end(self)->sender) : NULL;
}
static PyObject* pipe_end_send_poll_end(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_send_poll(&as_end(self)->sender);
}

static PyObject* pipe_end_fileno(PyObject* self, PyObject* unused) {
  (void)unused;
  return poll_descriptor_of(&as_end(self)->life, poll_descriptor);
}
static PyObject* pipe_end_send_fileno(PyObject* self, PyObject* unused) {
  (void)unused;
  return poll_descriptor_of(&as_end(self)->life, send_poll_descriptor);
}

static PyObject* pipe_end_finish(PyObject* self, PyObject* unused) {
  (void)unused;
  PipeEnd* const end = as_end(self);
  if (!is_here(end) || !enter(&end->life)) return NULL;
  /* Whoever sleeps in asend() may be of the same loop as the caller: waiting would never end. */
  if (atomic_load(&end->sender.polling)) {
    leave(&end->life);
    PyErr_SetString(PyExc_RuntimeError, "somebody waits to send here");
    return NULL;
  }
  int64_t error = take_lock(end->sender.lock, begin_timeout(FARCALL_FOREVER));
  if (error == 0) {
    error = farcall_pipe_finish(end->life.handle);
    PyThread_release_lock(end->sender.lock);
  }
  leave(&end->life);
  if (error != 0) return raise_error(error);
  Py_RETURN_NONE;
}

/* Keeps out whoever would use either direction; false where somebody does. */
static bool lock_both(PipeEnd* end) {
  if (PyThread_acquire_lock_timed(end->sender.lock, 0, 0) != PY_LOCK_ACQUIRED) return false;
  if (PyThread_acquire_lock_timed(end->receiver.lock, 0, 0) == PY_LOCK_ACQUIRED) return true;
  PyThread_release_lock(end->sender.lock);
  return false;
}

static int pass_locked(PipeEnd* end, int* descriptors) {
  if (!lock_both(end)) return -EBUSY;
  const int error = atomic_load(&end->life.owner)
                        ? -EBUSY
                        : farcall_pipe_descriptors(end->life.handle, descriptors);
  if (error == 0) atomic_store(&end->passed, true);
  PyThread_release_lock(end->receiver.lock);
  PyThread_release_lock(end->sender.lock);
  return error;
}

/* For another process: from then on this end is of no use here. */
static PyObject* pipe_end_pass(PyObject* self, PyObject* unused) {
  (void)unused;
  PipeEnd* const end = as_end(self);
  int descriptors[FARCALL_PIPE_DESCRIPTORS];
  if (!enter_unused(&end->life)) return NULL;
  const bool here = is_here(end);
  const int error = here ? pass_locked(end, descriptors) : 0;
  leave(&end->life);
  if (!here) return NULL;
  if (error != 0) return error == -EBUSY ? raise_used() : raise_error(error);
  return give_descriptors(descriptors, FARCALL_PIPE_DESCRIPTORS);
}

static PyObject* pipe_end_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(&as_end(self)->life);
  Py_RETURN_NONE;
}

static PyObject* pipe_end_closed(PyObject* self, void* unused) {
  (void)unused;
  return PyBool_FromLong(is_closed(&as_end(self)->life));
}
static PyObject* pipe_end_wait(PyObject* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(waits[as_end(self)->wait]);
}

static PyObject* pipe_end_capacity(PyObject* self, void* unused) {
  (void)unused;
  return PyLong_FromSize_t(as_end(self)->capacity);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"send", FAST(pipe_end_send),
     "send(data, timeout=None): sends one message of a bytes-like object."},
    {"try_send", pipe_end_try_send, METH_O,
     "Sends without waiting; returns whether there was room."},
    {"recv", FAST(pipe_end_recv), "recv(timeout=None) -> bytes: receives one message."},
    {"try_recv", pipe_end_try_recv, METH_NOARGS,
     "Receives without waiting; None if there is nothing yet."},
    {"recv_into", FAST(pipe_end_recv_into),
     "recv_into(buffer, timeout=None) -> int: receives one message into writable memory; returns "
     "its size."},
    {"poll", FAST(pipe_end_poll),
     "poll(timeout=0.0) -> bool: whether there is something to receive, or the end, within the "
     "time."},
    {"poll_begin", pipe_end_poll_begin, METH_NOARGS,
     "Before fileno() is polled: whether to wait at all. If so, call poll_end() before anything is "
     "received."},
    {"poll_end", pipe_end_poll_end, METH_NOARGS, "After fileno() has been polled."},
    {"fileno", pipe_end_fileno, METH_NOARGS,
     "The descriptor that becomes readable, after poll_begin(), when there may be something to "
     "receive."},
    {"send_poll_begin", pipe_end_send_poll_begin, METH_NOARGS,
     "Before send_fileno() is polled: whether to wait at all. If so, call send_poll_end() before "
     "anything is sent."},
    {"send_poll_end", pipe_end_send_poll_end, METH_NOARGS, "After send_fileno() has been polled."},
    {"send_fileno", pipe_end_send_fileno, METH_NOARGS,
     "The descriptor that becomes readable, after send_poll_begin(), when there may be room to "
     "send."},
    {"finish", pipe_end_finish, METH_NOARGS,
     "Tells the other end that nothing follows; it can still send."},
    {"_send_in_turn", pipe_end_send_in_turn, METH_O,
     "As try_send(), but False also where others are to have their turn."},
    {"_end_send_turn", pipe_end_end_send_turn, METH_NOARGS,
     "Whether it was False for that reason."},
    {"_recv_in_turn", pipe_end_recv_in_turn, METH_NOARGS,
     "As try_recv(), but None also where others are to have their turn."},
    {"_end_recv_turn", pipe_end_end_recv_turn, METH_NOARGS,
     "Whether there was None for that reason."},
    {"_pass", pipe_end_pass, METH_NOARGS,
     "The descriptors, for another process to adopt their duplicates."},
    {"close", pipe_end_close, METH_NOARGS,
     "Closes the end. A thread that is using it at this moment finishes what it does."},
    {0}};

static PyGetSetDef attributes[] = {
    {"closed", pipe_end_closed, NULL, "Whether close() has been called.", NULL},
    {"wait", pipe_end_wait, NULL, "How it waits: adaptive, spin or block.", NULL},
    {"capacity", pipe_end_capacity, NULL, "Bytes each way.", NULL},
    {0}};

static PyType_Slot slots[] = {{Py_tp_dealloc, pipe_end_free},
                              {Py_tp_methods, methods},
                              {Py_tp_getset, attributes},
                              {Py_tp_doc, "One end of a pipe."},
                              {0, NULL}};

static PyType_Spec spec = {
    .name = "farcall._farcall.PipeEnd",
    .basicsize = sizeof(PipeEnd),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

PyMethodDef pipe_functions[] = {
    {"create_pipe", FAST(create_pipe),
     "create_pipe(type, capacity=0, wait='adaptive') -> (end, end)"},
    {"adopt_pipe", FAST(adopt_pipe), "adopt_pipe(type, descriptors, wait='adaptive') -> end"},
    {"serve_pipe", FAST(serve_pipe),
     "serve_pipe(type, name, capacity=0, wait='adaptive', timeout=None) -> end"},
    {"open_pipe", FAST(open_pipe),
     "open_pipe(type, name, capacity=0, wait='adaptive', timeout=None) -> end"},
    {0}};

bool add_pipe(PyObject* module) { return add_type(module, &spec, &pipe_end_type); }
