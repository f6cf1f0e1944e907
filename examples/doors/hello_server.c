// SPDX-License-Identifier: Apache-2.0
//
// Greets whoever calls the door at PATH, until it is told to end:
//
//   hello_server PATH &
//   hello_client PATH NAME
#include <door.h>
#include <fcntl.h>
#include <signal.h>
#include <stropts.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static void greet(void* cookie, char* name, size_t size, door_desc_t* descriptors, uint_t count) {
  (void)descriptors;
  (void)count;
  char greeting[100];
  const int length =
      snprintf(greeting, sizeof greeting, "%s, %.*s!", (const char*)cookie, (int)size, name);
  // The reply is copied before this stack goes. door_return() comes back only if it fails.
  door_return(greeting, (size_t)length < sizeof greeting ? (size_t)length : sizeof greeting - 1,
              NULL, 0);
  perror("door_return");
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s PATH\n", argv[0]);
    return 2;
  }
  // Blocked before there are server threads, which inherit it, so that only sigwait() takes them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, NULL);

  const int door = check(door_create(greet, "Hello", 0), "door_create");
  // A door is attached to a file that is there already. Its permissions say who may open it.
  const int file = check(open(argv[1], O_WRONLY | O_CREAT | O_EXCL, 0644), argv[1]);
  close(file);
  check(fattach(door, argv[1]), "fattach");

  int signal = 0;
  sigwait(&ends, &signal);
  check(fdetach(argv[1]), "fdetach");
  check(unlink(argv[1]), "unlink");
  check(door_revoke(door), "door_revoke");
  return 0;
}
