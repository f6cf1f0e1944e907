/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses a handle, until when, and in which process. */
#include <pthread.h>

#include "extension.h"

static const unsigned kClosed = 1u << 31;

/* Which process this is, among those that fork one another. */
static atomic_uint process = 1;

/* Held for as long as a first use takes note of itself. */
static atomic_flag taking = ATOMIC_FLAG_INIT;

/* How many shared ones this thread is in. Who forks there, in a handler of a signal, may come back
 * to them in the child. */
static _Thread_local unsigned inside;
static bool forked_inside;

static void begin_process(void) {
  atomic_flag_clear(&taking);
  forked_inside = inside != 0;
  atomic_fetch_add(&process, 1);
  forget_noting();
}

bool prepare_lives(void) {
  if (pthread_atfork(NULL, NULL, begin_process) == 0) return true;
  PyErr_NoMemory();
  return false;
}

bool is_closed(const struct life* life) { return atomic_load(&life->state) & kClosed; }

bool is_inherited(const struct life* life) {
  const unsigned owner = atomic_load(&life->owner);
  return !life->shared && owner != 0 && owner != atomic_load(&process);
}

/* Of who was inside when this process was forked nobody is in it. */
static bool is_new_here(const struct life* life) {
  return life->shared && !forked_inside && atomic_load(&life->owner) != atomic_load(&process);
}

static void take_over(struct life* life) {
  while (atomic_flag_test_and_set(&taking))
    ;
  if (is_new_here(life)) {
    atomic_fetch_and(&life->state, kClosed);
    atomic_store(&life->owner, atomic_load(&process));
  }
  atomic_flag_clear(&taking);
}

static bool count_in(struct life* life) {
  unsigned state = atomic_load(&life->state);
  do {
    if (state & kClosed) {
      PyErr_SetString(PyExc_ValueError, "this is closed");
      return false;
    }
  } while (!atomic_compare_exchange_weak(&life->state, &state, state + 1));
  if (life->shared) ++inside;
  return true;
}

bool enter(struct life* life) {
  if (is_new_here(life)) take_over(life);
  unsigned nobody = 0;
  /* Before the first use: from then on children that are forked see it. */
  atomic_compare_exchange_strong(&life->owner, &nobody, atomic_load(&process));
  if (is_inherited(life)) {
    PyErr_SetString(PyExc_RuntimeError,
                    "this was used by the process that forked this one, and can only be closed");
    return false;
  }
  return count_in(life);
}

bool enter_unused(struct life* life) { return count_in(life); }

static void free_handle(struct life* life) {
  void* const handle = life->handle;
  life->handle = NULL;
  if (handle) life->free(handle);
}

void leave(struct life* life) {
  if (life->shared) --inside;
  if (atomic_fetch_sub(&life->state, 1) == (kClosed | 1)) free_handle(life);
}

void close_life(struct life* life) {
  const unsigned before = atomic_fetch_or(&life->state, kClosed);
  if (before & kClosed) return;
  /* Those who used it when this process was forked are not in this process. */
  if (before == 0 || is_inherited(life) || is_new_here(life)) free_handle(life);
}

PyObject* poll_descriptor_of(struct life* life, int (*descriptor)(const void* handle)) {
  if (!enter(life)) return NULL;
  const int number = descriptor(life->handle);
  leave(life);
  return number < 0 ? raise_error(number) : PyLong_FromLong(number);
}
