/* SPDX-License-Identifier: Apache-2.0 */
/* Negative errnos as exceptions. */
#include <errno.h>
#include <string.h>

#include "extension.h"

PyObject *protocol_error, *message_too_long;

bool add_errors(PyObject* module) {
  protocol_error = PyErr_NewExceptionWithDoc(
      "farcall.ProtocolError",
      "The other end broke the rules of the memory that both share (EPROTO).", PyExc_OSError, NULL);
  message_too_long = PyErr_NewExceptionWithDoc(
      "farcall.MessageTooLong",
      "A message is longer than the buffer, or than can ever be sent (EMSGSIZE).\n\n"
      "needed: how long the one to receive is; it is still there.",
      PyExc_OSError, NULL);
  return protocol_error && message_too_long &&
         PyModule_AddObjectRef(module, "ProtocolError", protocol_error) == 0 &&
         PyModule_AddObjectRef(module, "MessageTooLong", message_too_long) == 0;
}

/* OSError chooses the subclass that Python has for the errno. */
static PyObject* raise_os_error(PyObject* type, int error, const char* text) {
  PyObject* const exception =
      PyObject_CallFunction(type, "is", error, text ? text : strerror(error));
  if (exception) {
    PyErr_SetObject((PyObject*)Py_TYPE(exception), exception);
    Py_DECREF(exception);
  }
  return NULL;
}

PyObject* raise_error(int64_t error) {
  switch (error) {
    case kRaised: return NULL;
    case -ENOMEM: return PyErr_NoMemory();
    case -EPROTO:
      return raise_os_error(protocol_error, EPROTO,
                            "the other end broke the rules of the shared memory");
    case -EMSGSIZE: return raise_os_error(message_too_long, EMSGSIZE, NULL);
    case -EPIPE: return raise_os_error(PyExc_OSError, EPIPE, "the other end has gone");
    case -EBUSY:
      PyErr_SetString(PyExc_RuntimeError, "another process uses this, so it can only be closed");
      return NULL;
    default: return raise_os_error(PyExc_OSError, (int)-error, NULL);
  }
}

PyObject* raise_used(void) {
  return raise_os_error(PyExc_OSError, EBUSY,
                        "this end has been used, so it must stay where it is");
}

PyObject* raise_calling(int64_t error) {
  switch (error) {
    case -EPIPE:
      return raise_os_error(PyExc_OSError, EPIPE,
                            "nobody serves it any more; the request has not been seen");
    case -ECONNABORTED:
      return raise_os_error(PyExc_OSError, ECONNABORTED,
                            "the server has failed or died while it served the call");
    case -EMSGSIZE:
      return raise_os_error(message_too_long, EMSGSIZE, "longer than the server takes");
    case -EUSERS: return raise_os_error(PyExc_OSError, EUSERS, "the server has too many clients");
    default: return raise_error(error);
  }
}

PyObject* raise_at_path(int64_t error, PyObject* path) {
  if (error == kRaised || error == -ENOMEM) return raise_error(error);
  const char* text = strerror((int)-error);
  if (error == -ECONNREFUSED) text = "nobody serves calls there";
  if (error == -EADDRINUSE) text = "somebody serves calls there already";
  PyObject* const name =
      PyUnicode_DecodeFSDefaultAndSize(PyBytes_AsString(path), PyBytes_Size(path));
  PyObject* const exception =
      name ? PyObject_CallFunction(PyExc_OSError, "isO", (int)-error, text, name) : NULL;
  if (exception) PyErr_SetObject((PyObject*)Py_TYPE(exception), exception);
  Py_XDECREF(exception);
  Py_XDECREF(name);
  return NULL;
}

PyObject* raise_receiving(int64_t error, size_t needed) {
  if (error == -EPIPE) {
    PyErr_SetString(PyExc_EOFError, "the other end has finished");
    return NULL;
  }
  if (error != -EMSGSIZE) return raise_error(error);
  PyObject* const exception =
      PyObject_CallFunction(message_too_long, "is", EMSGSIZE, "the buffer is too small");
  PyObject* const size = exception ? PyLong_FromSize_t(needed) : NULL;
  if (size && PyObject_SetAttrString(exception, "needed", size) == 0)
    PyErr_SetObject(message_too_long, exception);
  Py_XDECREF(size);
  Py_XDECREF(exception);
  return NULL;
}
