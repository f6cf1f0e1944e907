/* SPDX-License-Identifier: Apache-2.0 */
/* Queues: objects as bytes. What is simple is written as it is; pickle does the rest. */
#include <errno.h>
#include <string.h>

#include "queue.h"

/* farcall._pickling.dumps and pickle.loads, looked up when they are first needed. */
static PyObject *dumps, *loads;

static PyObject* function(PyObject** kept, const char* module_name, const char* name) {
  if (*kept) return *kept;
  PyObject* const module = PyImport_ImportModule(module_name);
  if (!module) return NULL;
  *kept = PyObject_GetAttrString(module, name);
  Py_DECREF(module);
  return *kept;
}

static bool hold(struct queue_item* item, enum queue_kind kind, const void* bytes, size_t size) {
  item->kind = kind;
  item->bytes = bytes;
  item->size = size;
  return true;
}

static bool hold_small(struct queue_item* item, enum queue_kind kind, const void* value) {
  memcpy(item->small, value, sizeof item->small);
  return hold(item, kind, item->small, sizeof item->small);
}

static bool hold_number(struct queue_item* item, PyObject* object) {
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && hold_small(item, kInteger, &value);
}

static bool hold_float(struct queue_item* item, PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  return hold_small(item, kFloat, &value);
}

static bool hold_text(struct queue_item* item, PyObject* object) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text) return hold(item, kText, text, (size_t)size);
  PyErr_Clear(); /* it has halves of characters, which pickle knows to write */
  return false;
}

/* False: it is for pickle. */
static bool hold_simple(struct queue_item* item, PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object); /* not of subclasses: they may have more to them */
  if (object == Py_None) return hold(item, kNone, "", 0);
  if (object == Py_True) return hold(item, kTrue, "", 0);
  if (object == Py_False) return hold(item, kFalse, "", 0);
  if (type == &PyLong_Type) return hold_number(item, object);
  if (type == &PyFloat_Type) return hold_float(item, object);
  if (type == &PyUnicode_Type) return hold_text(item, object);
  if (type == &PyBytes_Type)
    return hold(item, kBytes, PyBytes_AsString(object), (size_t)PyBytes_Size(object));
  return false;
}

static bool hold_pickled(struct queue_item* item, PyObject* object) {
  PyObject* const dump = function(&dumps, "farcall._pickling", "dumps");
  PyObject* const pickled = dump ? PyObject_CallFunctionObjArgs(dump, object, NULL) : NULL;
  if (!pickled) return false;
  const bool held = PyObject_GetBuffer(pickled, &item->buffer, PyBUF_SIMPLE) == 0;
  Py_DECREF(pickled); /* the buffer keeps it */
  return held && hold(item, kPickled, item->buffer.buf, (size_t)item->buffer.len);
}

bool queue_hold(struct queue_item* item, PyObject* object) {
  return hold_simple(item, object) || hold_pickled(item, object);
}

void queue_let_go(struct queue_item* item) {
  if (item->kind == kPickled) PyBuffer_Release(&item->buffer);
}

PyObject* queue_pickled(struct queue_item* item, PyObject* object) {
  if (item->kind == kPickled) return PyBytes_FromStringAndSize(item->bytes, (Py_ssize_t)item->size);
  return hold_pickled(item, object) ? queue_pickled(item, object) : NULL;
}

PyObject* queue_object(enum queue_kind kind, const char* bytes, size_t size) {
  int64_t integer;
  double number;
  switch (kind) {
    case kNone: return Py_NewRef(Py_None);
    case kTrue: return Py_NewRef(Py_True);
    case kFalse: return Py_NewRef(Py_False);
    case kInteger: memcpy(&integer, bytes, sizeof integer); return PyLong_FromLongLong(integer);
    case kFloat: memcpy(&number, bytes, sizeof number); return PyFloat_FromDouble(number);
    case kText: return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)size, NULL);
    case kBytes:
    case kPickled: return PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
  }
  return raise_error(-EPROTO);
}

PyObject* queue_unpickled(PyObject* pickled) {
  PyObject* const load = function(&loads, "pickle", "loads");
  return load ? PyObject_CallFunctionObjArgs(load, pickled, NULL) : NULL;
}
