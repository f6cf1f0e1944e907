/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.Publisher and Subscriber: messages from one to many. */
#include <errno.h>

#include "extension.h"

static PyTypeObject *publisher_type, *subscriber_type;

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
static int poll_end(void* handle) {
  farcall_subscriber_poll_end(handle);
  return 0;
}
static void free_subscriber(void* handle) { farcall_subscriber_close(handle); }
static int send_poll_descriptor(const void* handle) {
  return farcall_publisher_poll_descriptor(handle);
}
static int send_poll_begin(void* handle) { return farcall_publisher_poll_begin(handle); }
static int send_poll_end(void* handle) {
  farcall_publisher_poll_end(handle);
  return 0;
}

static const struct send_functions sending = {
    send_one, {send_poll_descriptor, send_poll_begin, send_poll_end}};
static const struct receive_functions receiving = {receive,
                                                   {poll_descriptor, poll_begin, poll_end}};

static const char* const policies[] = {"block", "overwrite", "drop_reader", NULL};
static const char* const starts[] = {"newest", "oldest", NULL};

/* ---- publishers ---- */

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
      (values[4] && !as_choice(values[4], "wait", wait_names, &options.wait)) ||
      !as_size(values[5], &readers))
    return NULL;
  options.readers = readers < 1000 ? (unsigned)readers : 1000;
  const char* const name = values[1] == Py_None ? NULL : as_name(values[1]);
  if (!name && PyErr_Occurred()) return NULL;
  farcall_publisher* handle;
  const int error = farcall_publisher_create(name, &options, &handle);
  if (error != 0) return raise_error(error);
  struct end* const end = make_end(type, handle, free_publisher, options.wait);
  if (!end) return NULL;
  if (enter(&end->life)) leave(&end->life); /* it is this process's from the beginning */
  if (make_sender(&end->sender, &end->life, &sending, options.wait)) return (PyObject*)end;
  Py_DECREF(end);
  return NULL;
}

/* Beside who sends, and may wait for readers as long as they like: any thread may. */
static PyObject* publisher_invite(PyObject* self, PyObject* unused) {
  (void)unused;
  struct life* const life = &as_end(self)->life;
  if (!enter(life)) return NULL;
  const int result = farcall_publisher_invite(life->handle);
  leave(life);
  return result < 0 ? raise_error(result) : PyLong_FromLong(result);
}

static PyObject* publisher_readers(PyObject* self, void* unused) {
  (void)unused;
  struct life* const life = &as_end(self)->life;
  if (!enter(life)) return NULL;
  const unsigned readers = farcall_publisher_readers(life->handle);
  leave(life);
  return PyLong_FromUnsignedLong(readers);
}
static PyObject* publisher_longest(PyObject* self, void* unused) {
  (void)unused;
  struct life* const life = &as_end(self)->life;
  if (!enter(life)) return NULL;
  const size_t longest = farcall_publisher_longest(life->handle);
  leave(life);
  return PyLong_FromSize_t(longest);
}
/* ---- subscribers ---- */

static PyObject* make_subscriber(PyTypeObject* type, farcall_subscriber* handle, int wait) {
  struct end* const end = make_end(type, handle, free_subscriber, wait);
  if (!end) return NULL;
  if (enter(&end->life)) leave(&end->life);
  if (make_receiver(&end->receiver, &end->life, &receiving, wait)) return (PyObject*)end;
  Py_DECREF(end);
  return NULL;
}

static bool take_subscriber(PyObject* const* values, PyTypeObject** type,
                            struct farcall_subscriber_options* options) {
  *options = (struct farcall_subscriber_options){.size = sizeof *options};
  return take_base(values[0], subscriber_type, type) &&
         (!values[2] || as_choice(values[2], "start", starts, &options->start)) &&
         (!values[3] || as_choice(values[3], "wait", wait_names, &options->wait));
}

static int open_published(const char* name, const void* options, int64_t timeout, void** handle) {
  return farcall_subscriber_open(name, options, timeout, (farcall_subscriber**)handle);
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
  void* handle = NULL;
  if (open_named(open_published, values[1], &options, as_timeout(values[4]), &handle) != 0)
    return NULL;
  return make_subscriber(type, handle, options.wait);
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

static PyObject* subscriber_missed(PyObject* self, void* unused) {
  (void)unused;
  return PyLong_FromUnsignedLongLong(as_end(self)->receiver.missed_in_all);
}
static PyObject* subscriber_just_missed(PyObject* self, void* unused) {
  (void)unused;
  return PyLong_FromUnsignedLongLong(as_end(self)->receiver.missed);
}

/* ---- the types ---- */

static PyMethodDef publisher_methods[] = {
    {"send", FAST(method_send), "send(data, timeout=None): sends one message to all readers."},
    SENDING_METHODS,
    {"_invite", publisher_invite, METH_NOARGS,
     "A descriptor that makes who has it a reader. It is the caller's."},
    {"close", method_close, METH_NOARGS, "Readers end once they have read what is there."},
    {0}};
static PyGetSetDef publisher_attributes[] = {
    {"readers", publisher_readers, NULL, "How many readers there are.", NULL},
    {"longest", publisher_longest, NULL, "How long a message can be.", NULL},
    CLOSED_ATTRIBUTE,
    {0}};
static PyType_Slot publisher_slots[] = {{Py_tp_dealloc, end_free},
                                        {Py_tp_methods, publisher_methods},
                                        {Py_tp_getset, publisher_attributes},
                                        {Py_tp_doc, "Sends to many."},
                                        {0, NULL}};

static PyMethodDef subscriber_methods[] = {
    RECEIVING_METHODS, {"close", method_close, METH_NOARGS, "This is no reader any more."}, {0}};
static PyGetSetDef subscriber_attributes[] = {
    {"missed", subscriber_missed, NULL,
     "How many messages were overwritten before they could be received.", NULL},
    {"just_missed", subscriber_just_missed, NULL, "How many of them just before the last message.",
     NULL},
    CLOSED_ATTRIBUTE,
    {0}};
static PyType_Slot subscriber_slots[] = {{Py_tp_dealloc, end_free},
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
  PyType_Spec publisher = {"farcall._farcall.Publisher", sizeof(struct end), 0, kFlags,
                           publisher_slots};
  PyType_Spec subscriber = {"farcall._farcall.Subscriber", sizeof(struct end), 0, kFlags,
                            subscriber_slots};
  return add_type(module, &publisher, &publisher_type) &&
         add_type(module, &subscriber, &subscriber_type);
}
