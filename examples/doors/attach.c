// SPDX-License-Identifier: Apache-2.0
//
// One door under two names, and what is left of a name when it is detached: attach DIRECTORY
#include <door.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <stropts.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static void serve(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)passed;
  (void)count;
  door_return(data, size, NULL, 0);
}

static void look_at(const char* path) {
  struct stat status;
  check(stat(path, &status), path);
  const int opened = check(open(path, O_RDONLY), path);
  door_arg_t nothing = {0};
  const int result = door_call(opened, &nothing);
  printf("%s: %s, a call: %s\n", path, S_ISDOOR(status.st_mode) ? "a door" : "a file",
         result == 0      ? "answered"
         : errno == EBADF ? "EBADF"
                          : strerror(errno));
  close(opened);
}

int main(int argc, char** argv) {
  check(chdir(argc > 1 ? argv[1] : "."), "chdir");
  const char* const names[] = {"first", "second"};
  const int door = check(door_create(serve, NULL, 0), "door_create");
  for (int i = 0; i < 2; ++i) {
    const int file = check(open(names[i], O_WRONLY | O_CREAT, 0600), names[i]);
    check((int)write(file, "what the file says\n", 19), "write");
    close(file);
    check(fattach(door, names[i]), "fattach");
  }
  look_at("first");
  look_at("second");
  if (fattach(door, "first") == 0) return 1;
  printf("attaching once more: %s\n", errno == EBUSY ? "EBUSY" : strerror(errno));

  check(fdetach("first"), "fdetach");
  look_at("first");
  look_at("second");
  char text[100];
  const int file = check(open("first", O_RDONLY), "open");
  const int length = check((int)read(file, text, sizeof text), "read");
  printf("%.*s", length, text);
  check(fdetach("second"), "fdetach");
  return 0;
}
