/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a thread of Python waits.
 *
 * The library's own waits do not end when Python catches a signal, as Python's handler does not
 * tell the library of it. So they are short, and a long wait is a ppoll(2) on the descriptor that
 * the library lends for that, which every signal ends. Signals are blocked from the last look at
 * what has been caught until ppoll() opens them in the same step as it begins to wait: none falls
 * in between.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "extension.h"

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

struct deadline begin_timeout(int64_t timeout) {
  if (timeout == 0) return (struct deadline){0};
  if (timeout < 0) return (struct deadline){INT64_MAX};
  return (struct deadline){now() + timeout};
}

int64_t time_left(struct deadline deadline, int64_t most) {
  if (deadline.at == INT64_MAX) return most;
  if (deadline.at == 0) return 0;
  const int64_t left = deadline.at - now();
  return left <= 0 ? 0 : left < most ? left : most;
}

bool would_wait(int64_t result) {
  return result == -EAGAIN || result == -ETIMEDOUT || result == -EINTR;
}

/* Those that a thread brings upon itself would kill it if they were blocked. */
static void block_signals(sigset_t* before) {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  sigdelset(&all, SIGTRAP);
  sigdelset(&all, SIGABRT);
  pthread_sigmask(SIG_SETMASK, &all, before);
}

int64_t sleep_polling(int descriptor, struct deadline deadline) {
  if (PyErr_CheckSignals() < 0) return kRaised;
  sigset_t before;
  block_signals(&before);
  if (PyErr_CheckSignals() < 0) { /* caught since the line before last */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return kRaised;
  }
  PyThreadState* const thread = PyEval_SaveThread();
  struct pollfd poll = {.fd = descriptor, .events = POLLIN};
  const int64_t left = time_left(deadline, INT64_MAX);
  const struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
  ppoll(&poll, 1, deadline.at == INT64_MAX ? NULL : &timeout, &before);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  PyEval_RestoreThread(thread);
  return PyErr_CheckSignals() < 0 ? kRaised : 0;
}

int64_t sleep_on(const struct poll_functions* poll, void* handle, struct deadline deadline) {
  const bool sleeps = poll->begin(handle) == 1;
  const int64_t result = sleeps ? sleep_polling(poll->descriptor(handle), deadline) : 0;
  poll->end(handle);
  /* There may be said to be something again and again. */
  return !sleeps && PyErr_CheckSignals() < 0 ? kRaised : result;
}

int64_t take_lock(PyThread_type_lock lock, struct deadline deadline) {
  if (PyThread_acquire_lock_timed(lock, 0, 0) == PY_LOCK_ACQUIRED) return 0;
  if (deadline.at == 0) return -EAGAIN;
  /* Whoever shares a direction among threads waits in slices: a signal may come just before a wait.
   */
  for (;;) {
    const int64_t left = time_left(deadline, 50000000);
    if (left == 0) return -ETIMEDOUT;
    PyThreadState* const thread = PyEval_SaveThread();
    const PyLockStatus status = PyThread_acquire_lock_timed(lock, left / 1000 + 1, 1);
    PyEval_RestoreThread(thread);
    if (status == PY_LOCK_ACQUIRED) return 0;
    if (PyErr_CheckSignals() < 0) return kRaised;
  }
}

/* ---- waits of the library that cannot be polled ---- */

static struct sigaction handlers[NSIG];

/* Of another library that waits, or null. */
static _Atomic(note_function) also_noted;

void note_there_as_well(note_function note) { atomic_store(&also_noted, note); }

static void note_and_handle(int signal, siginfo_t* info, void* context) {
  farcall_note_signal();
  const note_function note = atomic_load(&also_noted);
  if (note) note();
  const struct sigaction* const handler = &handlers[signal];
  if (handler->sa_flags & SA_SIGINFO)
    handler->sa_sigaction(signal, info, context);
  else
    handler->sa_handler(signal);
}

/* Threads note them at once, while one is enough for all: who ends last takes it back. */
static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static bool noted[NSIG];

/* Who had them noted is not in a child. Its handlers are there still, and go on to note. */
void forget_noting(void) {
  pthread_mutex_init(&noting, NULL);
  users = 0;
}

static bool is_ours(const struct sigaction* handler) {
  return (handler->sa_flags & SA_SIGINFO) && handler->sa_sigaction == note_and_handle;
}

static bool is_handled(const struct sigaction* handler) {
  return (handler->sa_flags & SA_SIGINFO) ||
         (handler->sa_handler != SIG_DFL && handler->sa_handler != SIG_IGN);
}

void note_signals(void) {
  pthread_mutex_lock(&noting);
  ++users;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction handler;
    if (sigaction(signal, NULL, &handler) != 0 || !is_handled(&handler) || is_ours(&handler) ||
        (handler.sa_flags & (int)SA_RESETHAND))
      continue;
    handlers[signal] = handler;
    struct sigaction ours = handler;
    ours.sa_sigaction = note_and_handle;
    ours.sa_flags |= SA_SIGINFO;
    noted[signal] = sigaction(signal, &ours, NULL) == 0;
  }
  pthread_mutex_unlock(&noting);
}

void stop_noting(void) {
  pthread_mutex_lock(&noting);
  /* None: a handler has forked this child in between. */
  if (users != 0 && --users == 0)
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction handler;
      /* Who has put another handler there meanwhile keeps it. */
      if (noted[signal] && sigaction(signal, NULL, &handler) == 0 && is_ours(&handler))
        sigaction(signal, &handlers[signal], NULL);
      noted[signal] = false;
    }
  pthread_mutex_unlock(&noting);
}

/* ---- waits of a library that Python calls by ctypes ---- */

static PyObject* begin_noting(PyObject* module, PyObject* address) {
  (void)module;
  void* const note = PyLong_AsVoidPtr(address);
  if (!note && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no function is there");
  if (!note) return NULL;
  note_there_as_well((note_function)note);
  note_signals();
  if (PyErr_CheckSignals() == 0) Py_RETURN_NONE; /* those that came before were not noted */
  stop_noting();
  return NULL;
}

static PyObject* end_noting(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  stop_noting();
  Py_RETURN_NONE;
}

PyMethodDef waiting_functions[] = {
    {"begin_noting", begin_noting, METH_O,
     "begin_noting(address): handlers of signals call the function there until end_noting()."},
    {"end_noting", end_noting, METH_NOARGS, "Once for each begin_noting()."},
    {0}};
