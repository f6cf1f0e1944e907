/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the library that run functions of Python's.
 *
 * Each keeps its state of Python's from its first function to its end: to make one takes longer
 * than a call, and what a function keeps in a threading.local stays as it does in other threads.
 *
 * A thread that comes back to Python when the interpreter ends is ended by it, and takes the
 * process along from within the library. So the program's end waits for those in Python, and keeps
 * others out.
 */
#include <pthread.h>

#include "extension.h"

static atomic_uint in_python;
static atomic_bool ending;

static _Thread_local unsigned depth; /* how many functions this thread is in */

/* glibc's, for what C++ calls a thread_local with a destructor. Python finds its state by a
 * pthread key, and the values of keys are gone in the order of the keys, which is not ours. */
extern int __cxa_thread_atexit_impl(void (*function)(void*), void* argument, void* object);
extern void* __dso_handle;

static void go_out(void) { atomic_fetch_sub(&in_python, 1); }

static bool come_in(void) {
  atomic_fetch_add(&in_python, 1);
  if (!atomic_load(&ending)) return true;
  go_out();
  return false;
}

static void drop_state(void* unused) {
  (void)unused;
  if (!come_in()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyGILState_Release(PyGILState_LOCKED); /* for keep_state() */
  PyGILState_Release(state);
  go_out();
}

/* Python counts who has asked for this thread's state: now one more has, until the thread ends. */
static void keep_state(void) {
  if (__cxa_thread_atexit_impl(drop_state, NULL, &__dso_handle) == 0) (void)PyGILState_Ensure();
}

bool enter_python(PyGILState_STATE* state) {
  if (!come_in()) return false;
  const bool known = PyGILState_GetThisThreadState() != NULL;
  *state = PyGILState_Ensure();
  if (!known) keep_state();
  ++depth;
  return true;
}

void leave_python(PyGILState_STATE state) {
  --depth;
  PyGILState_Release(state);
  go_out();
}

unsigned end_foreign_threads(void) {
  atomic_store(&ending, true);
  return atomic_load(&in_python);
}

/* In a child only the thread that has forked is left, with all functions that it is in. */
static void forget_other_threads(void) { atomic_store(&in_python, depth); }

bool prepare_foreign_threads(void) {
  if (pthread_atfork(NULL, NULL, forget_other_threads) == 0) return true;
  PyErr_NoMemory();
  return false;
}
