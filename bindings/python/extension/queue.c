/* SPDX-License-Identifier: Apache-2.0 */
/* farcall._farcall.ItemQueue: objects of several processes, in order. */
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

/* 0; -EAGAIN with what has a place and is to be put later; or what stands in the way. */
static int64_t put_or_reserve(struct queue* queue, struct queue_item* item, PyObject* object,
                              int64_t timeout, PyObject** later) {
  const bool has_places = queue->memory->most != 0;
  int64_t error = has_places ? queue_reserve(queue, begin_timeout(timeout)) : 0;
  if (error != 0) return error;
  error = queue_try_put(queue, item);
  if (error == 0 || (error != -EAGAIN && !has_places)) return error;
  const int64_t refused = has_places ? 0 : queue_reserve(queue, begin_timeout(timeout));
  if (refused != 0) return refused;
  if (error == -EAGAIN) *later = queue_pickled(item, object);
  if (!*later) queue_give_back(queue);
  return error;
}

/* True where it is in the queue, False where no place was left in time, else the bytes to be put
 * later, for which there is a place. */
static PyObject* put_held(PyObject* self, struct queue_item* item, PyObject* object,
                          int64_t timeout) {
  if (!enter(life_of(self))) return NULL;
  PyObject* later = NULL;
  const int64_t error = put_or_reserve(life_of(self)->handle, item, object, timeout, &later);
  leave(life_of(self));
  if (later || PyErr_Occurred()) return later;
  if (error == 0) Py_RETURN_TRUE;
  if (error == -EAGAIN || error == -ETIMEDOUT) Py_RETURN_FALSE;
  return raise_error(error);
}

static PyObject* item_queue_put_object(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                       PyObject* keywords) {
  static const char* const names[] = {"object", "timeout", NULL};
  PyObject* values[2] = {0};
  if (!take_arguments(args, count, keywords, names, values, 1)) return NULL;
  const int64_t timeout = as_timeout(values[1]);
  struct queue_item item;
  if (timeout == -2 || !queue_hold(&item, values[0])) return NULL;
  PyObject* const result = put_held(self, &item, values[0], timeout);
  queue_let_go(&item);
  return result;
}

static PyObject* item_queue_put(PyObject* self, PyObject* pickled) {
  Py_buffer bytes;
  if (PyObject_GetBuffer(pickled, &bytes, PyBUF_SIMPLE) < 0) return NULL;
  int64_t error = kRaised;
  if (enter(life_of(self))) {
    error = queue_put(life_of(self)->handle, bytes.buf, (size_t)bytes.len);
    leave(life_of(self));
  }
  PyBuffer_Release(&bytes);
  if (error != 0) return raise_error(error);
  Py_RETURN_NONE;
}

static PyObject* item_queue_give_back(PyObject* self, PyObject* unused) {
  (void)unused;
  if (!enter(life_of(self))) return NULL;
  queue_give_back(life_of(self)->handle);
  leave(life_of(self));
  Py_RETURN_NONE;
}

/* The entry is the parent's. */
static PyObject* item_queue_forked(PyObject* self, PyObject* unused) {
  (void)unused;
  struct queue* const queue = life_of(self)->handle;
  if (queue) queue->process = NULL;
  Py_RETURN_NONE;
}

static PyObject* raise_empty(void) {
  PyObject* const module = PyImport_ImportModule("queue");
  PyObject* const empty = module ? PyObject_GetAttrString(module, "Empty") : NULL;
  if (empty) PyErr_SetNone(empty);
  Py_XDECREF(empty);
  Py_XDECREF(module);
  return NULL;
}

static PyObject* item_queue_get(PyObject* self, PyObject* seconds) {
  const int64_t timeout = as_timeout(seconds);
  if (timeout == -2 || !enter(life_of(self))) return NULL;
  int64_t error = 0;
  enum queue_kind kind;
  PyObject* const item = queue_get(life_of(self)->handle, begin_timeout(timeout), &kind, &error);
  leave(life_of(self));
  if (!item) return error == -EAGAIN || error == -ETIMEDOUT ? raise_empty() : raise_error(error);
  if (kind != kPickled) return item;
  PyObject* const object = queue_unpickled(item);
  Py_DECREF(item);
  return object;
}

static PyObject* item_queue_size(PyObject* self, PyObject* unused) {
  (void)unused;
  if (!enter(life_of(self))) return NULL;
  const int64_t size = queue_size(life_of(self)->handle);
  leave(life_of(self));
  return size < 0 ? NULL : PyLong_FromLongLong(size);
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

static PyMethodDef methods[] = {
    {"reserve", item_queue_reserve, METH_O,
     "reserve(timeout) -> bool: promises one item a place; False where there is none in time."},
    {"put_object", FAST(item_queue_put_object),
     "put_object(object, timeout=None): True; False where there is no place in time; where there "
     "is "
     "no room at once the pickled object, which is reserved."},
    {"put", item_queue_put, METH_O,
     "Puts a reserved pickled object of any size; waits for ever, unmoved by signals."},
    {"get", item_queue_get, METH_O,
     "get(timeout): the first object; queue.Empty where there is none in time."},
    {"give_back", item_queue_give_back, METH_NOARGS,
     "Gives back a place whose item is not going to be put."},
    {"forked", item_queue_forked, METH_NOARGS, "In a child, before it does anything else with it."},
    {"size", item_queue_size, METH_NOARGS, "How many items are there, or wait to be put."},
    {"empty", item_queue_empty, METH_NOARGS, "Whether there is nothing to get."},
    {"descriptors", item_queue_descriptors, METH_NOARGS,
     "For another process, which adopts their duplicates."},
    {"close", item_queue_close, METH_NOARGS, "Closes it for this process."},
    {0}};

static PyType_Slot slots[] = {{Py_tp_dealloc, item_queue_free},
                              {Py_tp_methods, methods},
                              {Py_tp_doc, "A queue of objects."},
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
