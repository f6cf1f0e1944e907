// SPDX-License-Identifier: Apache-2.0
//
// A server has three calls in progress and one thread that serves: each call is taken away from it,
// and another thread answers them when all are there, the last one first.
#include <door.h>
#include <farcall/doors.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { kCalls = 3 };

static door_deferred_t* waiting[kCalls];
static int count;
static sem_t arrived;

static void serve(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t descriptors) {
  (void)cookie;
  (void)data;
  (void)size;
  (void)passed;
  (void)descriptors;
  check(door_defer(&waiting[count++]), "door_defer");
  sem_post(&arrived);
  door_return(NULL, 0, NULL, 0);  // answers nobody: the thread waits for the next call
}

static void call(int door, int number) {
  char text[32];
  const int length = snprintf(text, sizeof text, "call %d", number);
  door_arg_t arguments = {
      .data_ptr = text, .data_size = (size_t)length, .rbuf = text, .rsize = sizeof text};
  check(door_call(door, &arguments), "door_call");
  printf("%.*s\n", (int)arguments.data_size, arguments.data_ptr);
  fflush(stdout);
  exit(0);
}

int main(void) {
  sem_init(&arrived, 0, 0);
  const int door = check(door_create(serve, NULL, 0), "door_create");
  for (int i = 0; i < kCalls; ++i) {
    if (check(fork(), "fork") == 0) call(door, i);
    while (sem_wait(&arrived) != 0) continue;
  }
  for (int i = kCalls - 1; i >= 0; --i) {
    check(door_deferred_return(waiting[i], waiting[i]->data_ptr, waiting[i]->data_size, NULL, 0),
          "door_deferred_return");
    check(wait(NULL), "wait");
  }
  printf("all are answered\n");
  return 0;
}
