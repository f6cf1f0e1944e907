// SPDX-License-Identifier: Apache-2.0
//
// A reply that does not fit the client's buffer comes in memory of its own, which is then the
// client's to unmap.
#include <door.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

// As many letters as the request asks for.
static void letters(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)passed;
  (void)count;
  // The thread that serves never comes back from door_return(), so memory is its own for good.
  static _Thread_local char text[100000];
  size_t wanted = 0;
  if (size == sizeof wanted) memcpy(&wanted, data, sizeof wanted);
  if (wanted > sizeof text) wanted = sizeof text;
  for (size_t i = 0; i < wanted; ++i) text[i] = (char)('a' + i % 26);
  door_return(text, wanted, NULL, 0);
}

static void ask_for(int door, size_t wanted) {
  char room[1000];
  door_arg_t arguments = {
      .data_ptr = (char*)&wanted, .data_size = sizeof wanted, .rbuf = room, .rsize = sizeof room};
  check(door_call(door, &arguments), "door_call");
  const int fits = arguments.rbuf == room;
  printf("%zu bytes, the last one '%c', %s\n", arguments.data_size,
         arguments.data_ptr[arguments.data_size - 1],
         fits ? "in the client's buffer" : "in new memory");
  if (!fits) check(munmap(arguments.rbuf, arguments.rsize), "munmap");
}

int main(void) {
  const int door = check(door_create(letters, NULL, 0), "door_create");
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    ask_for(door, 26);
    ask_for(door, 100000);
    return 0;
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  return status != 0;
}
