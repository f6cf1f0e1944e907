// SPDX-License-Identifier: Apache-2.0
//
// A door that is told each time nobody else holds it any more, not only the first time: a server
// that keeps something open only while it has clients.
#include <door.h>
#include <synch.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static sema_t left_alone;

static void serve(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  static int times;
  (void)cookie;
  (void)size;
  (void)passed;
  (void)count;
  if (data == DOOR_UNREF_DATA) {
    printf("alone, time %d\n", ++times);
    fflush(stdout);
    sema_post(&left_alone);
  }
  door_return(NULL, 0, NULL, 0);
}

int main(void) {
  sema_init(&left_alone, 0, USYNC_THREAD, NULL);
  const int door = check(door_create(serve, NULL, DOOR_UNREF_MULTI), "door_create");
  for (int i = 0; i < 3; ++i) {
    const pid_t client = check(fork(), "fork");
    if (client == 0) {
      door_arg_t nothing = {0};
      check(door_call(door, &nothing), "door_call");
      return 0;  // and its descriptor goes
    }
    int status = 0;
    check(waitpid(client, &status, 0), "waitpid");
    if (status != 0) return 1;
    while (sema_wait(&left_alone) != 0) continue;
  }
  return 0;
}
