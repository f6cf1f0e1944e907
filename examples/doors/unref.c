// SPDX-License-Identifier: Apache-2.0
//
// The server is told when nobody else holds its door any more, by a call of its own kind.
#include <door.h>
#include <synch.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static sema_t unreferenced;

static void serve(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)size;
  (void)passed;
  (void)count;
  if (data == DOOR_UNREF_DATA) {
    printf("nobody else holds the door\n");
    fflush(stdout);
    sema_post(&unreferenced);
  } else {
    printf("a call\n");
    fflush(stdout);
  }
  door_return(NULL, 0, NULL, 0);
}

int main(void) {
  sema_init(&unreferenced, 0, USYNC_THREAD, NULL);
  const int door = check(door_create(serve, NULL, DOOR_UNREF), "door_create");
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    door_arg_t nothing = {0};
    check(door_call(door, &nothing), "door_call");
    return 0;  // and the last descriptor outside the server goes
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  while (sema_wait(&unreferenced) != 0) continue;
  return status != 0;
}
