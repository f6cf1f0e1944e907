// SPDX-License-Identifier: Apache-2.0
//
// A door that is revoked finishes the call in progress, and takes no other.
#include <door.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static atomic_int door;  // the server's threads read it

static void serve_once(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)data;
  (void)size;
  (void)passed;
  (void)count;
  check(door_revoke(door), "door_revoke");  // closes the descriptor as well
  door_return("the last answer", 15, NULL, 0);
}

int main(void) {
  door = check(door_create(serve_once, NULL, 0), "door_create");
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    if (door_revoke(door) == 0) return 1;
    printf("revoking what others made: %s\n", errno == EPERM ? "EPERM" : strerror(errno));

    char reply[100];
    door_arg_t arguments = {.rbuf = reply, .rsize = sizeof reply};
    check(door_call(door, &arguments), "door_call");
    printf("%.*s\n", (int)arguments.data_size, arguments.data_ptr);

    door_info_t info;
    check(door_info(door, &info), "door_info");
    printf("revoked: %s\n", info.di_attributes & DOOR_REVOKED ? "yes" : "no");
    if (door_call(door, &arguments) == 0) return 1;
    printf("the next call: %s\n", errno == EBADF ? "EBADF" : strerror(errno));
    return 0;
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  return status != 0;
}
