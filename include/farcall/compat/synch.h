/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks as Solaris programs call them, made of pthreads: a mutex_t is a pthread_mutex_t and a
 * cond_t a pthread_cond_t. What is zeroed can be used without its init function, by threads of one
 * process. Each function returns 0 or an error number; errno is left alone. See synch(3).
 */
#ifndef FARCALL_COMPAT_SYNCH_H
#define FARCALL_COMPAT_SYNCH_H

#include <pthread.h>
#include <semaphore.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): C has nothing else. */
typedef pthread_mutex_t mutex_t;
typedef pthread_cond_t cond_t;
typedef sem_t sema_t;
/* A pthread_rwlock_t, which <pthread.h> hides from strict C89. */
typedef union {
  char opaque[56];
  long alignment;
} rwlock_t;

#ifndef FARCALL_TIMESTRUC_T
#define FARCALL_TIMESTRUC_T
typedef struct timespec timestruc_t;
#endif
/* NOLINTEND(modernize-use-using) */

/* Types for the init functions: who uses it, or'ed with what a mutex can do besides. */
#define USYNC_THREAD 0x00         /* threads of one process */
#define USYNC_PROCESS 0x01        /* any process that has mapped it */
#define USYNC_PROCESS_ROBUST 0x08 /* as LOCK_ROBUST, between processes */
#define LOCK_NORMAL 0x00
#define LOCK_ERRORCHECK 0x02
#define LOCK_RECURSIVE 0x04
#define LOCK_PRIO_INHERIT 0x10
#define LOCK_PRIO_PROTECT 0x20 /* the ceiling is the int that `argument` points to */
#define LOCK_ROBUST 0x40       /* when its owner dies the next to lock it gets EOWNERDEAD */

#define DEFAULTMUTEX PTHREAD_MUTEX_INITIALIZER
#define DEFAULTCV PTHREAD_COND_INITIALIZER
/* clang-format off */
#define DEFAULTRWLOCK { { 0 } }
#define DEFAULTSEMA { { 0 } }
/* clang-format on */

int mutex_init(mutex_t* mutex, int type, void* argument);
int mutex_destroy(mutex_t* mutex);
int mutex_lock(mutex_t* mutex);
int mutex_trylock(mutex_t* mutex); /* EBUSY */
int mutex_unlock(mutex_t* mutex);
int mutex_consistent(mutex_t* mutex);

int cond_init(cond_t* condition, int type, void* argument);
int cond_destroy(cond_t* condition);
int cond_wait(cond_t* condition, mutex_t* mutex);
/* Until a time of the wall clock, or for a time; ETIME when it is over. */
int cond_timedwait(cond_t* condition, mutex_t* mutex, const timestruc_t* until);
int cond_reltimedwait(cond_t* condition, mutex_t* mutex, const timestruc_t* time);
int cond_signal(cond_t* condition);
int cond_broadcast(cond_t* condition);

int rwlock_init(rwlock_t* lock, int type, void* argument);
int rwlock_destroy(rwlock_t* lock);
int rw_rdlock(rwlock_t* lock);
int rw_wrlock(rwlock_t* lock);
int rw_tryrdlock(rwlock_t* lock); /* EBUSY */
int rw_trywrlock(rwlock_t* lock); /* EBUSY */
int rw_unlock(rwlock_t* lock);

int sema_init(sema_t* semaphore, unsigned int count, int type, void* argument);
int sema_destroy(sema_t* semaphore);
int sema_wait(sema_t* semaphore);                                  /* EINTR after a signal */
int sema_trywait(sema_t* semaphore);                               /* EBUSY */
int sema_timedwait(sema_t* semaphore, const timestruc_t* until);   /* ETIME, EINTR */
int sema_reltimedwait(sema_t* semaphore, const timestruc_t* time); /* ETIME, EINTR */
int sema_post(sema_t* semaphore);

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_COMPAT_SYNCH_H */
