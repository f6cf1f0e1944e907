// SPDX-License-Identifier: Apache-2.0
//
// <synch.h>: Solaris locks made of pthreads.
#include "farcall/compat/synch.h"

#include <time.h>

#include <cerrno>

static_assert(sizeof(rwlock_t) == sizeof(pthread_rwlock_t) &&
              alignof(rwlock_t) >= alignof(pthread_rwlock_t));

namespace {

// Solaris says ETIME where POSIX says ETIMEDOUT.
int timed(int error) noexcept { return error == ETIMEDOUT ? ETIME : error; }

// Semaphores say what is wrong in errno, which is left alone here.
template <class Call>
int semaphore_error(Call call) {
  const int before = errno;
  const int error = call() == 0 ? 0 : errno;
  errno = before;
  return timed(error);
}

// CLOCK_MONOTONIC in `time` from now; EINVAL for what is no time.
int deadline(const timespec& time, timespec& at) noexcept {
  constexpr long kSecond = 1'000'000'000;
  if (time.tv_sec < 0 || time.tv_nsec < 0 || time.tv_nsec >= kSecond) return EINVAL;
  ::clock_gettime(CLOCK_MONOTONIC, &at);
  at.tv_nsec += time.tv_nsec;
  const time_t carry = at.tv_nsec / kSecond;
  at.tv_nsec %= kSecond;
  if (__builtin_add_overflow(at.tv_sec, carry, &at.tv_sec) ||
      __builtin_add_overflow(at.tv_sec, time.tv_sec, &at.tv_sec))
    return EINVAL;
  return 0;
}

int shared(int type) noexcept {
  return (type & USYNC_PROCESS) != 0 ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE;
}

int set_mutex_attributes(pthread_mutexattr_t* attributes, int type, const void* argument) noexcept {
  constexpr int kTypes = USYNC_PROCESS | LOCK_ERRORCHECK | LOCK_RECURSIVE | LOCK_PRIO_INHERIT |
                         LOCK_PRIO_PROTECT | LOCK_ROBUST;
  if ((type & ~kTypes) != 0) return EINVAL;
  int kind = PTHREAD_MUTEX_NORMAL;
  if ((type & LOCK_ERRORCHECK) != 0) kind = PTHREAD_MUTEX_ERRORCHECK;
  if ((type & LOCK_RECURSIVE) != 0) kind = PTHREAD_MUTEX_RECURSIVE;
  int error = ::pthread_mutexattr_settype(attributes, kind);
  if (error == 0) error = ::pthread_mutexattr_setpshared(attributes, shared(type));
  if (error == 0 && (type & LOCK_ROBUST) != 0)
    error = ::pthread_mutexattr_setrobust(attributes, PTHREAD_MUTEX_ROBUST);
  if (error == 0 && (type & LOCK_PRIO_INHERIT) != 0)
    error = ::pthread_mutexattr_setprotocol(attributes, PTHREAD_PRIO_INHERIT);
  if (error == 0 && (type & LOCK_PRIO_PROTECT) != 0) {
    if (argument == nullptr) return EINVAL;
    error = ::pthread_mutexattr_setprotocol(attributes, PTHREAD_PRIO_PROTECT);
    if (error == 0)
      error = ::pthread_mutexattr_setprioceiling(attributes, *static_cast<const int*>(argument));
  }
  return error;
}

pthread_rwlock_t* pthreads(rwlock_t* lock) noexcept {
  return reinterpret_cast<pthread_rwlock_t*>(lock);
}

}  // namespace

extern "C" {

int mutex_init(mutex_t* mutex, int type, void* argument) {
  if ((type & USYNC_PROCESS_ROBUST) != 0)
    type = (type & ~USYNC_PROCESS_ROBUST) | USYNC_PROCESS | LOCK_ROBUST;
  pthread_mutexattr_t attributes;
  int error = ::pthread_mutexattr_init(&attributes);
  if (error != 0) return error;
  error = set_mutex_attributes(&attributes, type, argument);
  if (error == 0) error = ::pthread_mutex_init(mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  return error;
}
int mutex_destroy(mutex_t* mutex) { return ::pthread_mutex_destroy(mutex); }
int mutex_lock(mutex_t* mutex) { return ::pthread_mutex_lock(mutex); }
int mutex_trylock(mutex_t* mutex) { return ::pthread_mutex_trylock(mutex); }
int mutex_unlock(mutex_t* mutex) { return ::pthread_mutex_unlock(mutex); }
int mutex_consistent(mutex_t* mutex) { return ::pthread_mutex_consistent(mutex); }

int cond_init(cond_t* condition, int type, void* /*argument*/) {
  if ((type & ~USYNC_PROCESS) != 0) return EINVAL;
  pthread_condattr_t attributes;
  int error = ::pthread_condattr_init(&attributes);
  if (error != 0) return error;
  error = ::pthread_condattr_setpshared(&attributes, shared(type));
  if (error == 0) error = ::pthread_cond_init(condition, &attributes);
  ::pthread_condattr_destroy(&attributes);
  return error;
}
int cond_destroy(cond_t* condition) { return ::pthread_cond_destroy(condition); }
int cond_wait(cond_t* condition, mutex_t* mutex) { return ::pthread_cond_wait(condition, mutex); }
int cond_timedwait(cond_t* condition, mutex_t* mutex, const timestruc_t* until) {
  return timed(::pthread_cond_timedwait(condition, mutex, until));
}
int cond_reltimedwait(cond_t* condition, mutex_t* mutex, const timestruc_t* time) {
  timespec until{};
  const int error = deadline(*time, until);
  if (error != 0) return error;
  return timed(::pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &until));
}
int cond_signal(cond_t* condition) { return ::pthread_cond_signal(condition); }
int cond_broadcast(cond_t* condition) { return ::pthread_cond_broadcast(condition); }

int rwlock_init(rwlock_t* lock, int type, void* /*argument*/) {
  if ((type & ~USYNC_PROCESS) != 0) return EINVAL;
  pthread_rwlockattr_t attributes;
  int error = ::pthread_rwlockattr_init(&attributes);
  if (error != 0) return error;
  error = ::pthread_rwlockattr_setpshared(&attributes, shared(type));
  if (error == 0) error = ::pthread_rwlock_init(pthreads(lock), &attributes);
  ::pthread_rwlockattr_destroy(&attributes);
  return error;
}
int rwlock_destroy(rwlock_t* lock) { return ::pthread_rwlock_destroy(pthreads(lock)); }
int rw_rdlock(rwlock_t* lock) { return ::pthread_rwlock_rdlock(pthreads(lock)); }
int rw_wrlock(rwlock_t* lock) { return ::pthread_rwlock_wrlock(pthreads(lock)); }
int rw_tryrdlock(rwlock_t* lock) { return ::pthread_rwlock_tryrdlock(pthreads(lock)); }
int rw_trywrlock(rwlock_t* lock) { return ::pthread_rwlock_trywrlock(pthreads(lock)); }
int rw_unlock(rwlock_t* lock) { return ::pthread_rwlock_unlock(pthreads(lock)); }

int sema_init(sema_t* semaphore, unsigned count, int type, void* /*argument*/) {
  if ((type & ~USYNC_PROCESS) != 0) return EINVAL;
  return semaphore_error([&] { return ::sem_init(semaphore, type, count); });
}
int sema_destroy(sema_t* semaphore) {
  return semaphore_error([&] { return ::sem_destroy(semaphore); });
}
int sema_wait(sema_t* semaphore) {
  return semaphore_error([&] { return ::sem_wait(semaphore); });
}
int sema_trywait(sema_t* semaphore) {
  const int error = semaphore_error([&] { return ::sem_trywait(semaphore); });
  return error == EAGAIN ? EBUSY : error;
}
int sema_timedwait(sema_t* semaphore, const timestruc_t* until) {
  return semaphore_error([&] { return ::sem_timedwait(semaphore, until); });
}
int sema_reltimedwait(sema_t* semaphore, const timestruc_t* time) {
  timespec until{};
  const int error = deadline(*time, until);
  if (error != 0) return error;
  return semaphore_error([&] { return ::sem_clockwait(semaphore, CLOCK_MONOTONIC, &until); });
}
int sema_post(sema_t* semaphore) {
  return semaphore_error([&] { return ::sem_post(semaphore); });
}

}  // extern "C"
