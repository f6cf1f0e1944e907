/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.Server and Client: procedures that other processes call. */
#include <errno.h>

#include "extension.h"

/* ---- Server ---- */

typedef struct {
  PyObject_HEAD struct life life;
  PyObject* path;
} Server;

static PyTypeObject *server_type, *client_type;

static Server* as_server(PyObject* self) { return (Server*)self; }

/* What a function has returned: nothing, text or bytes. */
static bool write_result(farcall_call_reply* reply, PyObject* result) {
  int error = 0;
  if (PyUnicode_Check(result)) {
    Py_ssize_t size;
    const char* const text = PyUnicode_AsUTF8AndSize(result, &size);
    if (!text) return false;
    error = farcall_reply_write(reply, text, (size_t)size);
  } else if (result != Py_None) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(result, &buffer, PyBUF_SIMPLE) < 0) return false;
    error = farcall_reply_write(reply, buffer.buf, (size_t)buffer.len);
    PyBuffer_Release(&buffer);
  }
  if (error != 0) raise_error(error);
  return error == 0;
}

static PyObject* end_calls(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  return PyLong_FromUnsignedLong(end_foreign_threads());
}

/* Called by threads that Python does not know. */
static int run_function(void* context, const void* request, size_t size,
                        farcall_call_reply* reply) {
  PyObject* const function = context;
  PyGILState_STATE state;
  if (!enter_python(&state)) return -1;
  PyObject* const data = PyBytes_FromStringAndSize(request, (Py_ssize_t)size);
  PyObject* const result = data ? PyObject_CallFunctionObjArgs(function, data, NULL) : NULL;
  const bool done = result && write_result(reply, result);
  if (!done) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
  Py_XDECREF(data);
  leave_python(state);
  return done ? 0 : -1;
}

static void release_function(void* context) {
  PyGILState_STATE state;
  if (!enter_python(&state)) return;
  Py_DECREF((PyObject*)context);
  leave_python(state);
}

static void free_server(void* handle) {
  PyThreadState* const thread = PyEval_SaveThread();
  farcall_server_close(handle);
  PyEval_RestoreThread(thread);
}

static bool take_subtype(PyObject* object, PyTypeObject* base, PyTypeObject** type) {
  if (PyType_Check(object) && PyType_IsSubtype((PyTypeObject*)object, base)) {
    *type = (PyTypeObject*)object;
    return true;
  }
  PyErr_SetString(PyExc_TypeError, "the first argument is a subclass of the type to be made");
  return false;
}

static PyObject* serve_calls(PyObject* module, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "path", "function", "mode", "longest", NULL};
  PyObject* values[5] = {0};
  PyTypeObject* type;
  struct farcall_server_options options = {.size = sizeof options, .release = release_function};
  size_t mode = 0;
  if (!take_arguments(args, count, keywords, names, values, 3) ||
      !take_subtype(values[0], server_type, &type) || !as_size(values[3], &mode) ||
      !as_size(values[4], &options.longest))
    return NULL;
  options.mode = (mode_t)mode;
  PyObject* path;
  if (!PyUnicode_FSConverter(values[1], &path)) return NULL;
  if (!PyCallable_Check(values[2])) {
    Py_DECREF(path);
    PyErr_SetString(PyExc_TypeError, "what serves calls can be called");
    return NULL;
  }
  Server* const server = as_server(PyType_GenericAlloc(type, 0));
  if (!server) {
    Py_DECREF(path);
    return NULL;
  }
  server->path = path;
  server->life.free = free_server;
  farcall_server* handle = NULL;
  const char* const text = PyBytes_AsString(path);
  Py_INCREF(values[2]);
  PyThreadState* const thread = PyEval_SaveThread();
  const int error = farcall_server_create(text, run_function, values[2], &options, &handle);
  PyEval_RestoreThread(thread);
  server->life.handle = handle;
  if (error == 0) return (PyObject*)server;
  Py_DECREF(values[2]);
  raise_at_path(error, path); /* which is the server's */
  Py_DECREF(server);
  return NULL;
}

static void server_free(PyObject* self) {
  close_life(&as_server(self)->life);
  Py_XDECREF(as_server(self)->path);
  free_object(self);
}

static PyObject* server_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(&as_server(self)->life);
  Py_RETURN_NONE;
}
static PyObject* server_closed(PyObject* self, void* unused) {
  (void)unused;
  return PyBool_FromLong(is_closed(&as_server(self)->life));
}
static PyObject* server_path(PyObject* self, void* unused) {
  (void)unused;
  PyObject* const path = as_server(self)->path;
  return PyUnicode_DecodeFSDefaultAndSize(PyBytes_AsString(path), PyBytes_Size(path));
}

static PyMethodDef server_methods[] = {
    {"close", server_close, METH_NOARGS,
     "Takes no call any more. Those in progress are answered still."},
    {0}};
static PyGetSetDef server_attributes[] = {
    {"closed", server_closed, NULL, "Whether close() has been called.", NULL},
    {"path", server_path, NULL, "Where it serves.", NULL},
    {0}};
static PyType_Slot server_slots[] = {{Py_tp_dealloc, server_free},
                                     {Py_tp_methods, server_methods},
                                     {Py_tp_getset, server_attributes},
                                     {Py_tp_doc, "A function that is served."},
                                     {0, NULL}};
static PyType_Spec server_spec = {
    .name = "farcall._farcall.Server",
    .basicsize = sizeof(Server),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = server_slots,
};

/* (pid, uid, gid) */
static PyObject* caller(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  struct farcall_caller found = {.size = sizeof found};
  const int error = farcall_caller_get(&found);
  if (error == -EINVAL) {
    PyErr_SetString(PyExc_RuntimeError, "this thread serves no call, or its client has gone");
    return NULL;
  }
  if (error != 0) return raise_error(error);
  return Py_BuildValue("lkk", (long)found.pid, (unsigned long)found.uid, (unsigned long)found.gid);
}

/* ---- Client ---- */

typedef struct {
  PyObject_HEAD struct life life;
} Client;

static Client* as_client(PyObject* self) { return (Client*)self; }

static void free_client(void* handle) { farcall_client_close(handle); }

/* A wait of the library that is told of signals when it has lasted for a while. */
struct asking {
  PyThreadState* thread;
  bool noted;
  bool raised;
};

static int ask_python(void* context) {
  struct asking* const asking = context;
  PyEval_RestoreThread(asking->thread);
  if (!asking->noted) note_signals();
  asking->noted = true;
  asking->raised = PyErr_CheckSignals() < 0; /* those that came before were not noted */
  asking->thread = PyEval_SaveThread();
  return asking->raised;
}

static PyObject* open_client(PyObject* module, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"type", "path", "timeout", NULL};
  static const int64_t kLongestOpening = 5000000000;
  PyObject* values[3] = {0};
  PyTypeObject* type;
  if (!take_arguments(args, count, keywords, names, values, 2) ||
      !take_subtype(values[0], client_type, &type))
    return NULL;
  const int64_t timeout = as_timeout(values[2]);
  PyObject* path;
  if (timeout == -2 || !PyUnicode_FSConverter(values[1], &path)) return NULL;
  const struct deadline deadline = begin_timeout(timeout);
  farcall_client* handle = NULL;
  int error;
  /* A signal does not end it, so it is done in slices: each twice as long as the one before, as
   * nobody is asked again who is slow to answer. A slice of 0 would be none. */
  int64_t slice = 100000000;
  int64_t left = time_left(deadline, slice);
  do {
    PyThreadState* const thread = PyEval_SaveThread();
    error = farcall_client_open(PyBytes_AsString(path), left, &handle);
    PyEval_RestoreThread(thread);
    if (PyErr_CheckSignals() < 0) error = kRaised;
    if (slice < kLongestOpening) slice *= 2;
    left = time_left(deadline, slice);
  } while ((error == -ENOENT || error == -ECONNREFUSED || error == -ETIMEDOUT || error == -EINTR) &&
           left > 0);
  Client* client = NULL;
  if (error == 0) {
    client = as_client(PyType_GenericAlloc(type, 0));
    if (client) {
      client->life.handle = handle;
      client->life.free = free_client;
      client->life.shared = true;
    } else {
      farcall_client_close(handle);
    }
  } else if (error != kRaised) {
    raise_at_path(error, path);
  }
  Py_DECREF(path);
  return (PyObject*)client;
}

static void client_free(PyObject* self) {
  close_life(&as_client(self)->life);
  free_object(self);
}

static PyObject* client_call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
  static const char* const names[] = {"data", "timeout", NULL};
  enum { kRoom = 4096, kAskAfter = 20000000 };
  PyObject* values[2] = {0};
  if (!take_arguments(args, count, keywords, names, values, 1)) return NULL;
  const int64_t timeout = as_timeout(values[1]);
  Py_buffer data;
  if (timeout == -2 || PyObject_GetBuffer(values[0], &data, PyBUF_SIMPLE) < 0) return NULL;
  if (!enter(&as_client(self)->life)) {
    PyBuffer_Release(&data);
    return NULL;
  }
  char room[kRoom];
  struct farcall_answer answer = {.size = sizeof answer, .bytes = room, .room = sizeof room};
  struct asking asking = {0};
  const struct farcall_call_options options = {.size = sizeof options,
                                               .timeout = timeout,
                                               .give_up = ask_python,
                                               .context = &asking,
                                               .ask_after = kAskAfter};
  asking.thread = PyEval_SaveThread();
  const int error = farcall_client_call(as_client(self)->life.handle, data.buf, (size_t)data.len,
                                        &answer, &options);
  PyEval_RestoreThread(asking.thread);
  if (asking.noted) stop_noting();
  leave(&as_client(self)->life);
  PyBuffer_Release(&data);
  if (error != 0) return asking.raised ? NULL : raise_calling(error);
  PyObject* const reply = PyBytes_FromStringAndSize(answer.bytes, (Py_ssize_t)answer.length);
  farcall_answer_free(&answer);
  return reply;
}

static PyObject* client_begin(PyObject* self, PyObject* const* args, Py_ssize_t count,
                              PyObject* keywords) {
  return begin_call(&as_client(self)->life, args, count, keywords);
}

static PyObject* client_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(&as_client(self)->life);
  Py_RETURN_NONE;
}
static PyObject* client_closed(PyObject* self, void* unused) {
  (void)unused;
  return PyBool_FromLong(is_closed(&as_client(self)->life));
}

static PyMethodDef client_methods[] = {
    {"call", FAST(client_call),
     "call(data, timeout=None) -> bytes: sends a bytes-like object and waits for the reply."},
    {"begin", FAST(client_begin),
     "begin(data, timeout=None) -> Call: sends it, and does not wait. timeout: of the whole call."},
    {"close", client_close, METH_NOARGS, "Calls in progress are finished still."},
    {0}};
static PyGetSetDef client_attributes[] = {
    {"closed", client_closed, NULL, "Whether close() has been called.", NULL}, {0}};
static PyType_Slot client_slots[] = {{Py_tp_dealloc, client_free},
                                     {Py_tp_methods, client_methods},
                                     {Py_tp_getset, client_attributes},
                                     {Py_tp_doc, "A door that can be called."},
                                     {0, NULL}};
static PyType_Spec client_spec = {
    .name = "farcall._farcall.Client",
    .basicsize = sizeof(Client),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = client_slots,
};

PyMethodDef call_functions[] = {
    {"serve_calls", FAST(serve_calls),
     "serve_calls(type, path, function, mode=0, longest=0) -> Server"},
    {"open_client", FAST(open_client), "open_client(type, path, timeout=None) -> Client"},
    {"end_calls", end_calls, METH_NOARGS,
     "end_calls() -> how many calls are in progress; from now on none begins"},
    {"caller", caller, METH_NOARGS, "caller() -> (pid, uid, gid) of the call being served"},
    {0}};

bool add_call(PyObject* module) {
  return prepare_foreign_threads() && add_type(module, &server_spec, &server_type) &&
         add_type(module, &client_spec, &client_type) && add_async_call(module);
}
