// SPDX-License-Identifier: Apache-2.0
//
// Calls the door of hello_server: hello_client PATH NAME
#include <door.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

// The server may still be starting: waits up to ten seconds for a door at `path`.
static void wait_for_door(const char* path) {
  const struct timespec pause = {0, 10 * 1000 * 1000};
  struct stat status;
  for (int i = 0; i < 1000; ++i) {
    if (stat(path, &status) == 0 && S_ISDOOR(status.st_mode)) return;
    nanosleep(&pause, NULL);
  }
  fprintf(stderr, "%s: no door; is hello_server running?\n", path);
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s PATH NAME\n", argv[0]);
    return 2;
  }
  wait_for_door(argv[1]);
  const int door = check(open(argv[1], O_RDONLY), argv[1]);

  char reply[100];
  door_arg_t arguments = {
      .data_ptr = argv[2], .data_size = strlen(argv[2]), .rbuf = reply, .rsize = sizeof reply};
  check(door_call(door, &arguments), "door_call");
  printf("%.*s\n", (int)arguments.data_size, arguments.data_ptr);
  return 0;
}
