// SPDX-License-Identifier: Apache-2.0
//
// Two doors with threads of their own: however busy the slow one is, the quick one answers. The
// create function is called whenever a door has no thread that waits; its threads bind themselves.
#include <door.h>
#include <string.h>
#include <sys/wait.h>
#include <thread.h>
#include <unistd.h>

#include "check.h"

static int slow_door;
static int quick_door;
static mutex_t made = DEFAULTMUTEX;  // held until both doors are there to be bound to

static void* run(void* is_slow) {
  mutex_lock(&made);
  const int door = is_slow != NULL ? slow_door : quick_door;
  mutex_unlock(&made);
  // From here this thread serves only that door.
  check(door_bind(door), "door_bind");
  door_return(NULL, 0, NULL, 0);
  return NULL;
}

// `info` tells for which door: NULL for the pool that all other doors share.
static void create_thread(door_info_t* info) {
  static char yes;
  if (info == NULL) return;
  thr_create(NULL, 0, run, info->di_data != 0 ? &yes : NULL, THR_BOUND | THR_DETACHED, NULL);
}

static void serve(void* is_slow, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)data;
  (void)size;
  (void)passed;
  (void)count;
  if (is_slow != NULL) sleep(60);
  door_info_t info;
  char* answer = door_info(DOOR_QUERY, &info) == 0 && (info.di_attributes & DOOR_PRIVATE)
                     ? "a thread of its own"
                     : "just any thread";
  door_return(answer, strlen(answer), NULL, 0);
}

int main(void) {
  door_server_create(create_thread);
  mutex_lock(&made);
  slow_door = check(door_create(serve, "slow", DOOR_PRIVATE), "door_create");
  quick_door = check(door_create(serve, NULL, DOOR_PRIVATE), "door_create");
  mutex_unlock(&made);

  const pid_t waits = check(fork(), "fork");
  if (waits == 0) {
    door_arg_t nothing = {0};
    door_call(slow_door, &nothing);
    return 0;
  }
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    char reply[100];
    door_arg_t arguments = {.rbuf = reply, .rsize = sizeof reply};
    check(door_call(quick_door, &arguments), "door_call");
    printf("the quick door was served by %.*s\n", (int)arguments.data_size, arguments.data_ptr);
    return 0;
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  return status != 0;  // which ends the slow call, too
}
