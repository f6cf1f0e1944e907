/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments, as Python gives them and as the C interface wants them. */
#include <math.h>
#include <string.h>

#include "extension.h"

static int index_of(PyObject* keyword, const char* const* names) {
  for (int i = 0; names[i]; ++i)
    if (PyUnicode_CompareWithASCIIString(keyword, names[i]) == 0) return i;
  return -1;
}

bool take_arguments(PyObject* const* args, Py_ssize_t count, PyObject* keywords,
                    const char* const* names, PyObject** values, int needed) {
  int most = 0;
  while (names[most]) ++most;
  if (count > most) {
    PyErr_Format(PyExc_TypeError, "takes at most %d arguments, not %zd", most, count);
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = args[i];
  const Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const keyword = PyTuple_GetItem(keywords, i);
    const int at = index_of(keyword, names);
    if (at < 0 || at < count) {
      PyErr_Format(PyExc_TypeError,
                   at < 0 ? "there is no argument %R" : "argument %R is given twice", keyword);
      return false;
    }
    values[at] = args[count + i];
  }
  for (int i = 0; i < needed; ++i)
    if (!values[i]) {
      PyErr_Format(PyExc_TypeError, "argument '%s' is missing", names[i]);
      return false;
    }
  return true;
}

int64_t as_timeout(PyObject* seconds) {
  if (!seconds || seconds == Py_None) return FARCALL_FOREVER;
  const double value = PyFloat_AsDouble(seconds);
  if (value == -1.0 && PyErr_Occurred()) return -2;
  if (isnan(value) || value < 0) {
    PyErr_SetString(PyExc_ValueError, "a timeout is None or at least 0");
    return -2;
  }
  if (value >= 9e9) return FARCALL_FOREVER; /* 285 years */
  const int64_t nanoseconds = (int64_t)(value * 1e9);
  return nanoseconds == 0 && value > 0 ? 1 : nanoseconds;
}

bool as_size(PyObject* number, size_t* size) {
  if (!number || number == Py_None) {
    *size = 0;
    return true;
  }
  const Py_ssize_t value = PyNumber_AsSsize_t(number, PyExc_OverflowError);
  if (value == -1 && PyErr_Occurred()) return false;
  if (value < 0) {
    PyErr_SetString(PyExc_ValueError, "a size is at least 0");
    return false;
  }
  *size = (size_t)value;
  return true;
}

const char* as_name(PyObject* text) {
  Py_ssize_t size = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(text, &size);
  if (!name || strlen(name) == (size_t)size) return name;
  PyErr_SetString(PyExc_ValueError, "a name has no null character in it");
  return NULL;
}

bool as_choice(PyObject* text, const char* what, const char* const* choices, int* choice) {
  if (!PyUnicode_Check(text)) {
    PyErr_Format(PyExc_TypeError, "%s is a string, not %R", what, text);
    return false;
  }
  *choice = index_of(text, choices);
  if (*choice >= 0) return true;
  PyErr_Format(PyExc_ValueError, "there is no %s %R", what, text);
  return false;
}

bool take_descriptors(PyObject* sequence, int* descriptors, int count) {
  for (int i = 0; i < count; ++i) {
    PyObject* const number = PySequence_GetItem(sequence, i);
    const long value = number ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    if (value == -1 && PyErr_Occurred()) return false;
    descriptors[i] = (int)value;
  }
  return true;
}

PyObject* give_descriptors(const int* descriptors, int count) {
  PyObject* const list = PyList_New(0);
  for (int i = 0; list && i < count; ++i) {
    PyObject* const number = PyLong_FromLong(descriptors[i]);
    const bool added = number && PyList_Append(list, number) == 0;
    Py_XDECREF(number);
    if (!added) {
      Py_DECREF(list);
      return NULL;
    }
  }
  return list;
}
