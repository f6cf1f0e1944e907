/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.Publisher and Subscriber: messages from one to many. */
#include <errno.h>

#include "extension.h"

typedef struct {
  PyObject_HEAD struct life life;
  struct sender sender;
} Publisher;

typedef struct {
  PyObject_HEAD struct life life;
  struct receiver receiver;
} Subscriber;

static PyTypeObject *publisher_type, *subscriber_type;

static Publisher* as_publisher(PyObject* self) { return (Publisher*)self; }
static Subscriber* as_subscriber(PyObject* self) { return (Subscriber*)self; }

/* ---- how the C interface sees them ---- */

static int send_one(void* handle, const void* bytes, size_t size, int64_t timeout) {
  return farcall_publisher_send(handle, bytes, size, timeout);
}
static void free_publisher(void* handle) { farcall_publisher_close(handle); }
static int64_t receive(void* handle, void* bytes, size_t room, size_t* needed, uint64_t* missed,
                       int64_t timeout) {
  return farcall_subscriber_receive(handle, bytes, room, needed, missed, timeout);
}
static int poll_descriptor(const void* handle) {
  return farcall_subscriber_poll_descriptor(handle);
}
static int poll_begin(void* handle) { return farcall_subscriber_poll_begin(handle); }
static void poll_end(void* handle) { farcall_subscriber_poll_end(handle); }
static void free_subscriber(void* handle) { farcall_subscriber_close(handle); }
static int send_poll_descriptor(const void* handle) {
  return farcall_publisher_poll_descriptor(handle);
}
static int send_poll_begin(void* handle) { return farcall_publisher_poll_begin(handle); }
static void send_poll_end(void* handle) { farcall_publisher_poll_end(handle); }

static const struct send_functions sending = {
    send_one, {send_poll_descriptor, send_poll_begin, send_poll_end}};
static const struct receive_functions receiving = {receive,
                                                   {poll_descriptor, poll_begin, poll_end}};

static const char* const waits[] = {"adaptive", "spin", "block", NULL};
static const char* const policies[] = {"block", "overwrite", "drop_reader", NULL};
static const char* const starts[] = {"newest", "oldest", NULL};

/* ---- publishers ---- */

static bool take_base(PyObject* object, PyTypeObject* base, PyTypeObject** type) {
  *type = (PyTypeObject*)object;
  if (PyType_Check(object) && PyType_IsSubtype(*type, base)) return true;
  PyErr_SetString(PyExc_TypeError, "the first argument is a subclass");
  return false;
}

static PyObject* create_publisher(PyObject* module, PyObject* const* args, Py_ssize_t count,
                                  PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "name",    "capacity", "policy",
                                      "wait", "readers", NULL};
  PyObject* values[6] = {0};
  PyTypeObject* type;
  struct farcall_publisher_options options = {.size = sizeof options, .policy = FARCALL_OVERWRITE};
  size_t readers = 0;
  if (!take_arguments(args, count, keywords, names, values, 2) ||
      !take_base(values[0], publisher_type, &type) || !as_size(values[2], &options.capacity) ||
      (values[3] && !as_choice(values[3], "policy", policies, &options.policy)) ||
      (values[4] && !as_choice(values[4], "wait", waits, &options.wait)) ||
      !as_size(values[5], &readers))
    return NULL;
  options.readers = readers < 1000 ? (unsigned)readers : 1000;
  const char* const name = values[1] == Py_None ? NULL : as_name(values[1]);
  if (!name && PyErr_Occurred()) return NULL;
  farcall_publisher* handle;
  const int error = farcall_publisher_create(name, &options, &handle);
  if (error != 0) return raise_error(error);
  Publisher* const self = as_publisher(PyType_GenericAlloc(type, 0));
  if (!self) {
    farcall_publisher_close(handle);
    return NULL;
  }
  self->life.handle = handle;
  self->life.free = free_publisher;
  if (enter(&self->life)) leave(&self->life); /* it is this process's from the beginning */
  if (make_sender(&self->sender, &self->life, &sending, options.wait)) return (PyObject*)self;
  Py_DECREF(self);
  return NULL;
}

static void publisher_free(PyObject* self) {
  free_sender(&as_publisher(self)->sender);
  close_life(&as_publisher(self)->life);
  free_object(self);
}

static PyObject* publisher_send(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                PyObject* keywords) {
  static const char* const names[] = {"data", "timeout", NULL};
  PyObject* values[2] = {0};
  if (!take_arguments(args, count, keywords, names, values, 1)) return NULL;
  const int64_t timeout = as_timeout(values[1]);
  return timeout == -2 ? NULL : send_bytes(&as_publisher(self)->sender, values[0], timeout, false);
}
static PyObject* publisher_try_send(PyObject* self, PyObject* data) {
  return send_bytes(&as_publisher(self)->sender, data, 0, true);
}

static PyObject* publisher_send_in_turn(PyObject* self, PyObject* data) {
  return send_in_turn(&as_publisher(self)->sender, data);
}
static PyObject* publisher_end_send_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_sending_turn(&as_publisher(self)->sender);
}
static PyObject* publisher_send_poll_begin(PyObject* self, PyObject* unused) {
  (void)unused;
  return begin_send_poll(&as_publisher(self)->sender);
}
static PyObject* publisher_send_poll_end(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_send_poll(&as_publisher(self)->sender);
}
static PyObject* publisher_send_fileno(PyObject* self, PyObject* unused) {
  (void)unused;
  return poll_descriptor_of(&as_publisher(self)->life, send_poll_descriptor);
}

/* Beside who sends, and may wait for readers as long as they like: any thread may. */
static PyObject* publisher_invite(PyObject* self, PyObject* unused) {
  (void)unused;
  struct life* const life = &as_publisher(self)->life;
  if (!enter(life)) return NULL;
  const int result = farcall_publisher_invite(life->handle);
  leave(life);
  return result < 0 ? raise_error(result) : PyLong_FromLong(result);
}

static PyObject* publisher_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(&as_publisher(self)->life);
  Py_RETURN_NONE;
}

static PyObject* publisher_readers(PyObject* self, void* unused) {
  (void)unused;
  struct life* const life = &as_publisher(self)->life;
  if (!enter(life)) return NULL;
  const unsigned readers = farcall_publisher_readers(life->handle);
  leave(life);
  return PyLong_FromUnsignedLong(readers);
}
static PyObject* publisher_longest(PyObject* self, void* unused) {
  (void)unused;
  struct life* const life = &as_publisher(self)->life;
  if (!enter(life)) return NULL;
  const size_t longest = farcall_publisher_longest(life->handle);
  leave(life);
  return PyLong_FromSize_t(longest);
}
static PyObject* publisher_closed(PyObject* self, void* unused) {
  (void)unused;
  return PyBool_FromLong(is_closed(&as_publisher(self)->life));
}

/* ---- subscribers ---- */

static PyObject* make_subscriber(PyTypeObject* type, farcall_subscriber* handle, int wait) {
  Subscriber* const self = as_subscriber(PyType_GenericAlloc(type, 0));
  if (!self) {
    farcall_subscriber_close(handle);
    return NULL;
  }
  self->life.handle = handle;
  self->life.free = free_subscriber;
  if (enter(&self->life)) leave(&self->life);
  if (make_receiver(&self->receiver, &self->life, &receiving, wait)) return (PyObject*)self;
  Py_DECREF(self);
  return NULL;
}

static bool take_subscriber(PyObject* const* values, PyTypeObject** type,
                            struct farcall_subscriber_options* options) {
  *options = (struct farcall_subscriber_options){.size = sizeof *options};
  return take_base(values[0], subscriber_type, type) &&
         (!values[2] || as_choice(values[2], "start", starts, &options->start)) &&
         (!values[3] || as_choice(values[3], "wait", waits, &options->wait));
}

static PyObject* open_subscriber(PyObject* module, PyObject* const* args, Py_ssize_t count,
                                 PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "name", "start", "wait", "timeout", NULL};
  PyObject* values[5] = {0};
  PyTypeObject* type;
  struct farcall_subscriber_options options;
  if (!take_arguments(args, count, keywords, names, values, 2) ||
      !take_subscriber(values, &type, &options))
    return NULL;
  const int64_t timeout = as_timeout(values[4]);
  const char* const name = timeout == -2 ? NULL : as_name(values[1]);
  if (!name) return NULL;
  const struct deadline deadline = begin_timeout(timeout);
  farcall_subscriber* handle = NULL;
  int error;
  do {
    note_signals();
    error = -EINTR;
    if (PyErr_CheckSignals() == 0) { /* those that came before were not noted */
      PyThreadState* const thread = PyEval_SaveThread();
      const int64_t left =
          deadline.at == INT64_MAX ? FARCALL_FOREVER : time_left(deadline, INT64_MAX);
      error = farcall_subscriber_open(name, &options, left, &handle);
      PyEval_RestoreThread(thread);
    }
    stop_noting();
  } while (error == -EINTR && !PyErr_Occurred() && PyErr_CheckSignals() == 0);
  if (error == 0) return make_subscriber(type, handle, options.wait);
  return PyErr_Occurred() ? NULL : raise_error(error);
}

static PyObject* adopt_subscriber(PyObject* module, PyObject* const* args, Py_ssize_t count,
                                  PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "descriptor", "start", "wait", NULL};
  PyObject* values[4] = {0};
  PyTypeObject* type;
  struct farcall_subscriber_options options;
  if (!take_arguments(args, count, keywords, names, values, 2) ||
      !take_subscriber(values, &type, &options))
    return NULL;
  const long descriptor = PyLong_AsLong(values[1]);
  if (descriptor == -1 && PyErr_Occurred()) return NULL;
  farcall_subscriber* handle;
  const int error = farcall_subscriber_adopt((int)descriptor, &options, &handle);
  return error == 0 ? make_subscriber(type, handle, options.wait) : raise_error(error);
}

static void subscriber_free(PyObject* self) {
  free_receiver(&as_subscriber(self)->receiver);
  close_life(&as_subscriber(self)->life);
  free_object(self);
}

static PyObject* subscriber_recv(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                 PyObject* keywords) {
  static const char* const names[] = {"timeout", NULL};
  PyObject* values[1] = {0};
  if (!take_arguments(args, count, keywords, names, values, 0)) return NULL;
  const int64_t timeout = as_timeout(values[0]);
  return timeout == -2 ? NULL : receive_bytes(&as_subscriber(self)->receiver, timeout);
}
static PyObject* subscriber_try_recv(PyObject* self, PyObject* unused) {
  (void)unused;
  return try_receive_bytes(&as_subscriber(self)->receiver);
}
static PyObject* subscriber_recv_in_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return receive_in_turn(&as_subscriber(self)->receiver);
}
static PyObject* subscriber_end_recv_turn(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_receiving_turn(&as_subscriber(self)->receiver);
}
static PyObject* subscriber_recv_into(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                      PyObject* keywords) {
  static const char* const names[] = {"buffer", "timeout", NULL};
  PyObject* values[2] = {0};
  if (!take_arguments(args, count, keywords, names, values, 1)) return NULL;
  const int64_t timeout = as_timeout(values[1]);
  return timeout == -2 ? NULL : receive_into(&as_subscriber(self)->receiver, values[0], timeout);
}
static PyObject* subscriber_poll_begin(PyObject* self, PyObject* unused) {
  (void)unused;
  return begin_poll(&as_subscriber(self)->receiver);
}
static PyObject* subscriber_poll_end(PyObject* self, PyObject* unused) {
  (void)unused;
  return end_poll(&as_subscriber(self)->receiver);
}
static PyObject* subscriber_fileno(PyObject* self, PyObject* unused) {
  (void)unused;
  return poll_descriptor_of(&as_subscriber(self)->life, poll_descriptor);
}
static PyObject* subscriber_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(&as_subscriber(self)->life);
  Py_RETURN_NONE;
}
static PyObject* subscriber_closed(PyObject* self, void* unused) {
  (void)unused;
  return PyBool_FromLong(is_closed(&as_subscriber(self)->life));
}
static PyObject* subscriber_missed(PyObject* self, void* unused) {
  (void)unused;
  return PyLong_FromUnsignedLongLong(as_subscriber(self)->receiver.missed_in_all);
}
static PyObject* subscriber_just_missed(PyObject* self, void* unused) {
  (void)unused;
  return PyLong_FromUnsignedLongLong(as_subscriber(self)->receiver.missed);
}

/* ---- the types ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef publisher_methods[] = {
    {"send", FAST(publisher_send), "send(data, timeout=None): sends one message to all readers."},
    {"try_send", publisher_try_send, METH_O,
     "Sends without waiting; returns whether there was room."},
    {"send_poll_begin", publisher_send_poll_begin, METH_NOARGS,
     "Before send_fileno() is polled: whether to wait at all for room for what was refused. If so, "
     "call send_poll_end() before anything is sent."},
    {"send_poll_end", publisher_send_poll_end, METH_NOARGS, "After send_fileno() has been polled."},
    {"send_fileno", publisher_send_fileno, METH_NOARGS,
     "The descriptor that becomes readable, after send_poll_begin(), when there may be room."},
    {"_send_in_turn", publisher_send_in_turn, METH_O,
     "As try_send(), but False also where others are to have their turn."},
    {"_end_send_turn", publisher_end_send_turn, METH_NOARGS,
     "Whether it was False for that reason."},
    {"_invite", publisher_invite, METH_NOARGS,
     "A descriptor that makes who has it a reader. It is the caller's."},
    {"close", publisher_close, METH_NOARGS, "Readers end once they have read what is there."},
    {0}};
static PyGetSetDef publisher_attributes[] = {
    {"readers", publisher_readers, NULL, "How many readers there are.", NULL},
    {"longest", publisher_longest, NULL, "How long a message can be.", NULL},
    {"closed", publisher_closed, NULL, "Whether close() has been called.", NULL},
    {0}};
static PyType_Slot publisher_slots[] = {{Py_tp_dealloc, publisher_free},
                                        {Py_tp_methods, publisher_methods},
                                        {Py_tp_getset, publisher_attributes},
                                        {Py_tp_doc, "Sends to many."},
                                        {0, NULL}};

static PyMethodDef subscriber_methods[] = {
    {"recv", FAST(subscriber_recv), "recv(timeout=None) -> bytes: receives one message."},
    {"try_recv", subscriber_try_recv, METH_NOARGS,
     "Receives without waiting; None if there is nothing yet."},
    {"recv_into", FAST(subscriber_recv_into),
     "recv_into(buffer, timeout=None) -> int: receives one message into writable memory; returns "
     "its size."},
    {"poll_begin", subscriber_poll_begin, METH_NOARGS,
     "Before fileno() is polled: whether to wait at all. If so, call poll_end() before anything is "
     "received."},
    {"poll_end", subscriber_poll_end, METH_NOARGS, "After fileno() has been polled."},
    {"fileno", subscriber_fileno, METH_NOARGS,
     "The descriptor that becomes readable, after poll_begin(), when there may be something to "
     "receive."},
    {"_recv_in_turn", subscriber_recv_in_turn, METH_NOARGS,
     "As try_recv(), but None also where others are to have their turn."},
    {"_end_recv_turn", subscriber_end_recv_turn, METH_NOARGS,
     "Whether there was None for that reason."},
    {"close", subscriber_close, METH_NOARGS, "This is no reader any more."},
    {0}};
static PyGetSetDef subscriber_attributes[] = {
    {"missed", subscriber_missed, NULL,
     "How many messages were overwritten before they could be received.", NULL},
    {"just_missed", subscriber_just_missed, NULL, "How many of them just before the last message.",
     NULL},
    {"closed", subscriber_closed, NULL, "Whether close() has been called.", NULL},
    {0}};
static PyType_Slot subscriber_slots[] = {{Py_tp_dealloc, subscriber_free},
                                         {Py_tp_methods, subscriber_methods},
                                         {Py_tp_getset, subscriber_attributes},
                                         {Py_tp_doc, "Receives from one, among many."},
                                         {0, NULL}};

static const unsigned kFlags =
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION;

PyMethodDef broadcast_functions[] = {
    {"create_publisher", FAST(create_publisher),
     "create_publisher(type, name, capacity=0, policy='overwrite', wait='adaptive', readers=0)"},
    {"open_subscriber", FAST(open_subscriber),
     "open_subscriber(type, name, start='newest', wait='adaptive', timeout=None)"},
    {"adopt_subscriber", FAST(adopt_subscriber),
     "adopt_subscriber(type, descriptor, start='newest', wait='adaptive')"},
    {0}};

bool add_broadcast(PyObject* module) {
  PyType_Spec publisher = {"farcall._farcall.Publisher", sizeof(Publisher), 0, kFlags,
                           publisher_slots};
  PyType_Spec subscriber = {"farcall._farcall.Subscriber", sizeof(Subscriber), 0, kFlags,
                            subscriber_slots};
  return add_type(module, &publisher, &publisher_type) &&
         add_type(module, &subscriber, &subscriber_type);
}
