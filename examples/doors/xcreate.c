// SPDX-License-Identifier: Apache-2.0
//
// A private door with exactly three threads, each with a number that its set-up function gives it.
#include <door.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { kThreads = 3 };

static int numbers;
static _Thread_local int number;

// Called once for each thread; 1 says that one was made that runs `start`.
static int create_thread(door_info_t* info, void* (*start)(void*), void* argument, void* cookie) {
  (void)info;
  (void)cookie;
  pthread_t thread;
  if (pthread_create(&thread, NULL, start, argument) != 0) return -1;
  pthread_detach(thread);
  return 1;
}

// Called by each thread before it serves.
static void set_up(void* cookie) {
  (void)cookie;
  number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
}

static void serve(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)data;
  (void)size;
  (void)passed;
  (void)count;
  usleep(100 * 1000);  // so that calls overlap
  door_return((char*)&number, sizeof number, NULL, 0);
}

static int call(int door) {
  int answer = 0;
  door_arg_t arguments = {.rbuf = (char*)&answer, .rsize = sizeof answer};
  check(door_call(door, &arguments), "door_call");
  return answer;
}

int main(void) {
  // DOOR_NO_DEPLETION_CB: no further threads when these are busy; callers wait for them.
  const int door =
      check(door_xcreate(serve, NULL, DOOR_NO_DEPLETION_CB, create_thread, set_up, NULL, kThreads),
            "door_xcreate");
  printf("%d threads were ready before the first call\n",
         __atomic_load_n(&numbers, __ATOMIC_RELAXED));
  fflush(stdout);

  pid_t clients[6];
  for (int i = 0; i < 6; ++i) {
    clients[i] = check(fork(), "fork");
    if (clients[i] == 0) return call(door);
  }
  int in_range = 0;
  for (int i = 0; i < 6; ++i) {
    int status = 0;
    check(waitpid(clients[i], &status, 0), "waitpid");
    const int by = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    in_range += by >= 1 && by <= kThreads;
  }
  printf("%d calls were served by one of them\n", in_range);
  return 0;
}
