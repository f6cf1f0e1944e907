/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.Call: a call in progress, for coroutines. */
#include <errno.h>

#include "extension.h"

typedef struct {
  PyObject_HEAD struct life life;
  atomic_flag in_use; /* by one thread at a time */
} Call;

static PyTypeObject* call_type;

static Call* as_call(PyObject* self) { return (Call*)self; }

static void free_call(void* handle) { farcall_call_close(handle); }

static bool begin_use(Call* call) {
  if (!enter(&call->life)) return false;
  if (!atomic_flag_test_and_set(&call->in_use)) return true;
  leave(&call->life);
  PyErr_SetString(PyExc_RuntimeError, "another thread uses this call");
  return false;
}

static void end_use(Call* call) {
  atomic_flag_clear(&call->in_use);
  leave(&call->life);
}

PyObject* begin_call(struct life* client, PyObject* const* args, Py_ssize_t count,
                     PyObject* keywords) {
  static const char* const names[] = {"data", "timeout", NULL};
  PyObject* values[2] = {0};
  if (!take_arguments(args, count, keywords, names, values, 1)) return NULL;
  const struct farcall_call_options options = {.size = sizeof options,
                                               .timeout = as_timeout(values[1])};
  Py_buffer data;
  if (options.timeout == -2 || PyObject_GetBuffer(values[0], &data, PyBUF_SIMPLE) < 0) return NULL;
  Call* const call = as_call(PyType_GenericAlloc(call_type, 0));
  if (!call || !enter(client)) {
    PyBuffer_Release(&data);
    Py_XDECREF((PyObject*)call);
    return NULL;
  }
  call->life.free = free_call;
  (void)enter(&call->life); /* so that it is this process's from the beginning */
  farcall_call* handle = NULL;
  PyThreadState* const thread = PyEval_SaveThread();
  const int error =
      farcall_client_begin(client->handle, data.buf, (size_t)data.len, &options, &handle);
  PyEval_RestoreThread(thread);
  leave(client);
  PyBuffer_Release(&data);
  call->life.handle = handle;
  leave(&call->life);
  if (error == 0) return (PyObject*)call;
  Py_DECREF((PyObject*)call);
  return raise_calling(error);
}

static PyObject* call_try_take(PyObject* self, PyObject* unused) {
  (void)unused;
  enum { kRoom = 4096 };
  Call* const call = as_call(self);
  if (!begin_use(call)) return NULL;
  char room[kRoom];
  struct farcall_answer answer = {.size = sizeof answer, .bytes = room, .room = sizeof room};
  const int error = farcall_call_take(call->life.handle, &answer, 0);
  end_use(call);
  if (error == -EAGAIN || error == -EINTR) Py_RETURN_NONE;
  if (error != 0) return raise_calling(error);
  PyObject* const reply = PyBytes_FromStringAndSize(answer.bytes, (Py_ssize_t)answer.length);
  farcall_answer_free(&answer);
  return reply;
}

static PyObject* call_poll_begin(PyObject* self, PyObject* unused) {
  (void)unused;
  Call* const call = as_call(self);
  if (!begin_use(call)) return NULL;
  const int error = farcall_call_poll_begin(call->life.handle);
  end_use(call);
  return error < 0 ? raise_calling(error) : PyBool_FromLong(error);
}

static PyObject* call_poll_end(PyObject* self, PyObject* unused) {
  (void)unused;
  Call* const call = as_call(self);
  if (is_closed(&call->life) || is_inherited(&call->life)) Py_RETURN_NONE;
  if (!begin_use(call)) return NULL;
  farcall_call_poll_end(call->life.handle);
  end_use(call);
  Py_RETURN_NONE;
}

static int descriptor_of(const void* handle) { return farcall_call_poll_descriptor(handle); }

static PyObject* call_fileno(PyObject* self, PyObject* unused) {
  (void)unused;
  return poll_descriptor_of(&as_call(self)->life, descriptor_of);
}

static PyObject* call_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(&as_call(self)->life);
  Py_RETURN_NONE;
}
static PyObject* call_closed(PyObject* self, void* unused) {
  (void)unused;
  return PyBool_FromLong(is_closed(&as_call(self)->life));
}

static void call_free(PyObject* self) {
  close_life(&as_call(self)->life);
  free_object(self);
}

static PyMethodDef call_methods[] = {
    {"try_take", call_try_take, METH_NOARGS,
     "try_take() -> bytes, or None where there is no answer yet. Once."},
    {"fileno", call_fileno, METH_NOARGS,
     "The descriptor that becomes readable after poll_begin()."},
    {"poll_begin", call_poll_begin, METH_NOARGS,
     "poll_begin() -> whether to wait until fileno() is readable, before try_take()."},
    {"poll_end", call_poll_end, METH_NOARGS, "Before try_take(), after a poll_begin()."},
    {"close", call_close, METH_NOARGS, "Gives up a call in progress: the server is told."},
    {0}};
static PyGetSetDef call_attributes[] = {
    {"closed", call_closed, NULL, "Whether close() has been called.", NULL}, {0}};
static PyType_Slot call_slots[] = {{Py_tp_dealloc, call_free},
                                   {Py_tp_methods, call_methods},
                                   {Py_tp_getset, call_attributes},
                                   {Py_tp_doc, "A call in progress."},
                                   {0, NULL}};
static PyType_Spec call_spec = {
    .name = "farcall._farcall.Call",
    .basicsize = sizeof(Call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = call_slots,
};

bool add_async_call(PyObject* module) { return add_type(module, &call_spec, &call_type); }
