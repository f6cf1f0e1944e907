/* SPDX-License-Identifier: Apache-2.0
 *
 * A procedure in C, whose clean-up handlers are a list on the stack.
 */
#define _GNU_SOURCE
#include "door/handlers.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

static void count(void* handled) { ++*(int*)handled; }

void answer_with_a_handler(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                           uint_t descriptor_count) {
  struct handled* const handled = cookie;
  (void)descriptors;
  (void)descriptor_count;
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  pthread_cleanup_push(count, &handled->times);
  if (size == 0) {
    handled->entered(handled->what);
    for (;;) pause();
  }
  door_return(data, size, NULL, 0);
  pthread_cleanup_pop(0);
}

void* serve_with_a_handler(void* handled) {
  pthread_cleanup_push(count, &((struct handled*)handled)->ends);
  door_return(NULL, 0, NULL, 0);
  pthread_cleanup_pop(0);
  return NULL;
}

void answer_or_compute(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                       uint_t descriptor_count) {
  struct handled* const handled = cookie;
  (void)descriptors;
  (void)descriptor_count;
  if (size == 0) {
    handled->entered(handled->what);
    for (volatile int i = 0;; i = 1 - i) {
    }
  }
  door_return(data, size, NULL, 0);
}

void* serve_to_be_cancelled_at_once(void* nothing) {
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  door_return(NULL, 0, NULL, 0);
  return nothing;
}

static door_arg_t short_call(char* reply, size_t size) {
  door_arg_t arguments;
  memset(&arguments, 0, sizeof arguments);
  arguments.data_ptr = reply;
  arguments.data_size = size;
  arguments.rbuf = reply;
  arguments.rsize = size;
  return arguments;
}

void* call_to_be_cancelled_at_once(void* door) {
  char reply[] = "x";
  door_arg_t arguments = short_call(reply, sizeof reply);
  int type = -1;
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  const int result = door_call(*(int*)door, &arguments);
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  return (void*)(intptr_t)(type == PTHREAD_CANCEL_ASYNCHRONOUS ? result : -2);
}

#if defined(__x86_64__)

static const unsigned long long kTrap = 0x100;
static __thread volatile int steps_left;

static void step(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  if (--steps_left > 0) return;
  ((ucontext_t*)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)kTrap;
  pthread_cancel(pthread_self());
}

static void go_in_steps(int count) {
  steps_left = count;
  __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | kTrap);
}

/* By the C library's own function: the thread leaves the handler by being unwound. */
void prepare_steps(void) {
  int (*install)(int, const struct sigaction*, struct sigaction*) = NULL;
  struct sigaction action;
  *(void**)&install = dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "sigaction");
  memset(&action, 0, sizeof action);
  action.sa_sigaction = step;
  action.sa_flags = SA_SIGINFO;
  install(SIGTRAP, &action, NULL);
}

void answer_in_steps(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                     uint_t descriptor_count) {
  int count = 0;
  (void)cookie;
  (void)descriptors;
  (void)descriptor_count;
  if (size == sizeof count) memcpy(&count, data, size);
  if (count > 0) go_in_steps(count);
  door_return(data, size, NULL, 0);
}

void* call_in_steps(void* steps) {
  const struct steps* const mine = steps;
  int number = 0;
  door_arg_t arguments = short_call((char*)&number, sizeof number);
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  go_in_steps(mine->count);
  door_call(mine->door, &arguments);
  for (;;) pause();
}

#endif
