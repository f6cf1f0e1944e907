/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.PipeEnd: both directions of one end of a pipe. */
#include <errno.h>

#include "extension.h"

typedef struct {
  struct end end;
  size_t capacity;
} PipeEnd;

static PyTypeObject* pipe_end_type;

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
static int poll_end(void* handle) { return farcall_pipe_poll_end(handle); }
static void free_end(void* handle) { farcall_pipe_close(handle); }

static int send_poll_descriptor(const void* handle) {
  return farcall_pipe_send_poll_descriptor(handle);
}
static int send_poll_begin(void* handle) { return farcall_pipe_send_poll_begin(handle); }
static int send_poll_end(void* handle) {
  farcall_pipe_send_poll_end(handle);
  return 0;
}

static const struct receive_functions receiving = {receive,
                                                   {poll_descriptor, poll_begin, poll_end}};
static const struct send_functions sending = {
    send_one, {send_poll_descriptor, send_poll_begin, send_poll_end}};

/* ---- made and freed ---- */

/* As make_end(). `capacity`: as it was asked for; 0: as it is. */
static PyObject* make_pipe_end(PyTypeObject* type, farcall_pipe* handle, size_t capacity,
                               int wait) {
  struct end* const end = make_end(type, handle, free_end, wait);
  if (!end) return NULL;
  ((PipeEnd*)end)->capacity = capacity ? capacity : farcall_pipe_capacity(handle);
  if (make_receiver(&end->receiver, &end->life, &receiving, wait) &&
      make_sender(&end->sender, &end->life, &sending, wait))
    return (PyObject*)end;
  Py_DECREF(end);
  return NULL;
}

/* capacity, wait */
static bool take_options(PyObject* const* values, struct farcall_pipe_options* options) {
  *options = (struct farcall_pipe_options){.size = sizeof *options};
  return as_size(values[0], &options->capacity) &&
         (!values[1] || as_choice(values[1], "wait", wait_names, &options->wait));
}

static PyObject* create_pipe(PyObject* module, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "capacity", "wait", NULL};
  PyObject* values[3] = {0};
  PyTypeObject* type;
  struct farcall_pipe_options options;
  if (!take_arguments(args, count, keywords, names, values, 1) ||
      !take_base(values[0], pipe_end_type, &type) || !take_options(values + 1, &options))
    return NULL;
  farcall_pipe* handles[2];
  const int error = farcall_pipe_create(&options, &handles[0], &handles[1]);
  if (error != 0) return raise_error(error);
  PyObject* const one = make_pipe_end(type, handles[0], options.capacity, options.wait);
  PyObject* const other = make_pipe_end(type, handles[1], options.capacity, options.wait);
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
  if (!take_arguments(args, count, keywords, names, values, 2) ||
      !take_base(values[0], pipe_end_type, &type) || !take_options(values + 2, &options) ||
      !take_descriptors(values[1], descriptors, FARCALL_PIPE_DESCRIPTORS))
    return NULL;
  farcall_pipe* handle;
  const int error = farcall_pipe_adopt(descriptors, &options, &handle);
  return error == 0 ? make_pipe_end(type, handle, options.capacity, options.wait)
                    : raise_error(error);
}

/* ---- by name ---- */

static int serve_named(const char* name, const void* options, int64_t timeout, void** handle) {
  return farcall_pipe_serve(name, options, timeout, (farcall_pipe**)handle);
}
static int open_served(const char* name, const void* options, int64_t timeout, void** handle) {
  return farcall_pipe_open(name, options, timeout, (farcall_pipe**)handle);
}

static PyObject* open_by_name(PyObject* const* args, Py_ssize_t count, PyObject* keywords,
                              opening* open) {
  static const char* const names[] = {"type", "name", "capacity", "wait", "timeout", NULL};
  PyObject* values[5] = {0};
  PyTypeObject* type;
  struct farcall_pipe_options options;
  if (!take_arguments(args, count, keywords, names, values, 2) ||
      !take_base(values[0], pipe_end_type, &type) || !take_options(values + 2, &options))
    return NULL;
  void* handle = NULL;
  if (open_named(open, values[1], &options, as_timeout(values[4]), &handle) != 0) return NULL;
  return make_pipe_end(type, handle, open == serve_named ? options.capacity : 0, options.wait);
}

static PyObject* serve_pipe(PyObject* module, PyObject* const* args, Py_ssize_t count,
                            PyObject* keywords) {
  (void)module;
  return open_by_name(args, count, keywords, serve_named);
}
static PyObject* open_pipe(PyObject* module, PyObject* const* args, Py_ssize_t count,
                           PyObject* keywords) {
  (void)module;
  return open_by_name(args, count, keywords, open_served);
}

/* ---- methods ---- */

static PyObject* pipe_end_finish(PyObject* self, PyObject* unused) {
  (void)unused;
  struct end* const end = as_end(self);
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
static bool lock_both(struct end* end) {
  if (PyThread_acquire_lock_timed(end->sender.lock, 0, 0) != PY_LOCK_ACQUIRED) return false;
  if (PyThread_acquire_lock_timed(end->receiver.lock, 0, 0) == PY_LOCK_ACQUIRED) return true;
  PyThread_release_lock(end->sender.lock);
  return false;
}

static int pass_locked(struct end* end, int* descriptors) {
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
  struct end* const end = as_end(self);
  int descriptors[FARCALL_PIPE_DESCRIPTORS];
  if (!enter_unused(&end->life)) return NULL;
  const bool here = is_here(end);
  const int error = here ? pass_locked(end, descriptors) : 0;
  leave(&end->life);
  if (!here) return NULL;
  if (error != 0) return error == -EBUSY ? raise_used() : raise_error(error);
  return give_descriptors(descriptors, FARCALL_PIPE_DESCRIPTORS);
}

static PyObject* pipe_end_wait(PyObject* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(wait_names[as_end(self)->wait]);
}

static PyObject* pipe_end_capacity(PyObject* self, void* unused) {
  (void)unused;
  return PyLong_FromSize_t(((PipeEnd*)self)->capacity);
}

static PyMethodDef methods[] = {
    {"send", FAST(method_send),
     "send(data, timeout=None): sends one message of a bytes-like object."},
    {"poll", FAST(method_poll),
     "poll(timeout=0.0) -> bool: whether there is something to receive, or the end, within the "
     "time."},
    SENDING_METHODS,
    RECEIVING_METHODS,
    {"finish", pipe_end_finish, METH_NOARGS,
     "Tells the other end that nothing follows; it can still send."},
    {"_pass", pipe_end_pass, METH_NOARGS,
     "The descriptors, for another process to adopt their duplicates."},
    {"close", method_close, METH_NOARGS,
     "Closes the end. A thread that is using it at this moment finishes what it does."},
    {0}};

static PyGetSetDef attributes[] = {
    CLOSED_ATTRIBUTE,
    {"wait", pipe_end_wait, NULL, "How it waits: adaptive, spin or block.", NULL},
    {"capacity", pipe_end_capacity, NULL, "Bytes each way.", NULL},
    {0}};

static PyType_Slot slots[] = {{Py_tp_dealloc, end_free},
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
