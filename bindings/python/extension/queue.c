/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.ItemQueue: bytes of several processes, in order. */
#include "queue.h"

#include <errno.h>

typedef struct {
  PyObject_HEAD struct life life;
} ItemQueue;

static PyTypeObject* queue_type;

static struct life* life_of(PyObject* self) { return &((ItemQueue*)self)->life; }

static PyObject* make(struct queue* queue) {
  ItemQueue* const self = queue ? (ItemQueue*)PyType_GenericAlloc(queue_type, 0) : NULL;
  if (!self) {
    if (queue) queue_free(queue);
    return NULL;
  }
  self->life.handle = queue;
  self->life.free = queue_free;
  self->life.shared = true;
  return (PyObject*)self;
}

static void item_queue_free(PyObject* self) {
  close_life(life_of(self));
  free_object(self);
}

static PyObject* create_queue(PyObject* module, PyObject* const* args, Py_ssize_t count,
                              PyObject* keywords) {
  (void)module;
  static const char* const names[] = {"capacity", "most", NULL};
  PyObject* values[2] = {0};
  size_t capacity, most;
  if (!take_arguments(args, count, keywords, names, values, 1) || !as_size(values[0], &capacity) ||
      !as_size(values[1], &most))
    return NULL;
  return make(queue_create(capacity ? capacity : (size_t)1 << 20, most));
}

static PyObject* adopt_queue(PyObject* module, PyObject* sequence) {
  (void)module;
  int descriptors[kQueueDescriptors];
  return take_descriptors(sequence, descriptors, kQueueDescriptors) ? make(queue_open(descriptors))
                                                                    : NULL;
}

static PyObject* item_queue_descriptors(PyObject* self, PyObject* unused) {
  (void)unused;
  if (!enter(life_of(self))) return NULL;
  const struct queue* const queue = life_of(self)->handle;
  PyObject* const list = give_descriptors(queue->descriptors, kQueueDescriptors);
  leave(life_of(self));
  return list;
}

static PyObject* item_queue_reserve(PyObject* self, PyObject* seconds) {
  const int64_t timeout = as_timeout(seconds);
  if (timeout == -2 || !enter(life_of(self))) return NULL;
  const int64_t error = queue_reserve(life_of(self)->handle, begin_timeout(timeout));
  leave(life_of(self));
  if (error == -EAGAIN || error == -ETIMEDOUT) Py_RETURN_FALSE;
  if (error != 0) return raise_error(error);
  Py_RETURN_TRUE;
}

static PyObject* put(PyObject* self, PyObject* item,
                     int64_t (*function)(struct queue*, const void*, size_t)) {
  Py_buffer bytes;
  if (PyObject_GetBuffer(item, &bytes, PyBUF_SIMPLE) < 0) return NULL;
  int64_t error = kRaised;
  if (enter(life_of(self))) {
    error = function(life_of(self)->handle, bytes.buf, (size_t)bytes.len);
    leave(life_of(self));
  }
  PyBuffer_Release(&bytes);
  if (error == -EAGAIN) Py_RETURN_FALSE;
  if (error != 0) return raise_error(error);
  Py_RETURN_TRUE;
}
static PyObject* item_queue_try_put(PyObject* self, PyObject* item) {
  return put(self, item, queue_try_put);
}
static PyObject* item_queue_put(PyObject* self, PyObject* item) {
  return put(self, item, queue_put);
}

static PyObject* item_queue_get(PyObject* self, PyObject* seconds) {
  const int64_t timeout = as_timeout(seconds);
  if (timeout == -2 || !enter(life_of(self))) return NULL;
  int64_t error = 0;
  PyObject* const item = queue_get(life_of(self)->handle, begin_timeout(timeout), &error);
  leave(life_of(self));
  if (item) return item;
  if (error == -EAGAIN || error == -ETIMEDOUT) Py_RETURN_NONE;
  return raise_error(error);
}

static PyObject* item_queue_size(PyObject* self, PyObject* unused) {
  (void)unused;
  if (!enter(life_of(self))) return NULL;
  struct queue_memory* const memory = ((struct queue*)life_of(self)->handle)->memory;
  const uint64_t got = atomic_load(&memory->get.items);
  const uint64_t reserved = atomic_load(&memory->reserved);
  leave(life_of(self));
  return PyLong_FromUnsignedLongLong(reserved - got);
}

static PyObject* item_queue_empty(PyObject* self, PyObject* unused) {
  (void)unused;
  if (!enter(life_of(self))) return NULL;
  const bool empty = queue_is_empty(life_of(self)->handle);
  leave(life_of(self));
  return PyBool_FromLong(empty);
}

static PyObject* item_queue_close(PyObject* self, PyObject* unused) {
  (void)unused;
  close_life(life_of(self));
  Py_RETURN_NONE;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"reserve", item_queue_reserve, METH_O,
     "reserve(timeout) -> bool: promises one item a place; False where there is none in time."},
    {"try_put", item_queue_try_put, METH_O,
     "Puts an item, which is reserved unless any number may be there; False where there is no room "
     "at once: then it is reserved."},
    {"put", item_queue_put, METH_O,
     "Puts a reserved item of any size; waits for ever, unmoved by signals."},
    {"get", item_queue_get, METH_O,
     "get(timeout) -> bytes: the first item; None where there is none in time."},
    {"size", item_queue_size, METH_NOARGS, "How many items have been reserved, and not got."},
    {"empty", item_queue_empty, METH_NOARGS, "Whether there is nothing to get."},
    {"descriptors", item_queue_descriptors, METH_NOARGS,
     "For another process, which adopts their duplicates."},
    {"close", item_queue_close, METH_NOARGS, "Closes it for this process."},
    {0}};

static PyType_Slot slots[] = {{Py_tp_dealloc, item_queue_free},
                              {Py_tp_methods, methods},
                              {Py_tp_doc, "A queue of bytes."},
                              {0, NULL}};

static PyType_Spec spec = {
    .name = "farcall._farcall.ItemQueue",
    .basicsize = sizeof(ItemQueue),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

PyMethodDef queue_functions[] = {
    {"create_queue", FAST(create_queue), "create_queue(capacity, most=0) -> queue"},
    {"adopt_queue", adopt_queue, METH_O, "adopt_queue(descriptors) -> queue"},
    {0}};

bool add_queue(PyObject* module) { return add_type(module, &spec, &queue_type); }
