/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads as Solaris programs call them, made of pthreads: a thread_t is a pthread_t, and both sets
 * of functions can be used on any thread. Each function returns 0 or an error number; errno is left
 * alone. See thr_create(3).
 */
#ifndef FARCALL_COMPAT_THREAD_H
#define FARCALL_COMPAT_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <synch.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): C has nothing else. */
typedef pthread_t thread_t;
typedef pthread_key_t thread_key_t;
/* NOLINTEND(modernize-use-using) */

/* Flags of thr_create(). */
#define THR_BOUND 0x00000001     /* every thread of Linux is */
#define THR_NEW_LWP 0x00000002   /* every thread of Linux has one */
#define THR_DETACHED 0x00000040  /* is not joined */
#define THR_SUSPENDED 0x00000080 /* starts with thr_continue() */
#define THR_DAEMON 0x00000100    /* does not keep the process alive, nor does thr_join(0) see it */

#define THR_MIN_STACK thr_min_stack()

/* For thr_keycreate_once(): a key that is not yet. */
#define THR_ONCE_KEY 0xFFFFFFFFU

/* `stack` may be NULL and `size` 0, for the defaults. EINVAL: a stack below thr_min_stack(), or
 * unknown flags; EAGAIN: no more threads; ENOMEM. */
int thr_create(void* stack, size_t size, void* (*start)(void*), void* argument, long flags,
               thread_t* thread);
/* Thread 0 stands for whichever thread of thr_create() ends next. ESRCH: there is none, it is
 * detached, or another thread waits for it; EDEADLK. */
int thr_join(thread_t thread, thread_t* departed, void** status);
void thr_exit(void* status) __attribute__((__noreturn__));
thread_t thr_self(void);
int thr_main(void); /* 1 in the main thread, 0 in others */
void thr_yield(void);
int thr_kill(thread_t thread, int signal);
int thr_sigsetmask(int how, const __sigset_t* set, __sigset_t* old);

/* Starts a thread that was created with THR_SUSPENDED. Only threads of thr_create(): ESRCH. */
int thr_continue(thread_t thread);
/* ENOTSUP for a thread that runs: Linux cannot stop one thread from outside. */
int thr_suspend(thread_t thread);

int thr_setconcurrency(int level); /* remembered; Linux runs every thread that can run */
int thr_getconcurrency(void);
int thr_setprio(thread_t thread, int priority); /* within the range of its scheduling policy */
int thr_getprio(thread_t thread, int* priority);

int thr_keycreate(thread_key_t* key, void (*destructor)(void*));
int thr_keycreate_once(thread_key_t* key, void (*destructor)(void*)); /* *key: THR_ONCE_KEY */
int thr_setspecific(thread_key_t key, void* value);
int thr_getspecific(thread_key_t key, void** value);

size_t thr_min_stack(void);
#ifdef __stack_t_defined            /* strict C89 has none */
int thr_stksegment(stack_t* stack); /* of the caller; ss_sp is its highest address */
#endif

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_COMPAT_THREAD_H */
