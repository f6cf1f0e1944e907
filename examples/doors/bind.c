// SPDX-License-Identifier: Apache-2.0
//
// A thread can bind itself to the pool of a private door, ask which that is, and leave it again.
#include <door.h>
#include <errno.h>
#include <unistd.h>

#include "check.h"

static void serve(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)passed;
  (void)count;
  door_return(data, size, NULL, 0);
}

// Private doors get their threads from the program; here they get none.
static void create_none(door_info_t* info) { (void)info; }

static void tell(int shared, int private) {
  door_info_t of;
  door_info_t mine;
  if (door_info(DOOR_QUERY, &mine) != 0) {
    printf("bound to %s\n", errno == EBADF ? "no door" : "what?");
    return;
  }
  check(door_info(private, &of), "door_info");
  printf("bound to the %s door\n", of.di_uniquifier == mine.di_uniquifier ? "private" : "wrong");
  printf("binding to the other: %s\n",
         door_bind(shared) < 0 && errno == EINVAL ? "EINVAL" : "what?");
}

int main(void) {
  door_server_create(create_none);
  const int shared = check(door_create(serve, NULL, 0), "door_create");
  const int private = check(door_create(serve, NULL, DOOR_PRIVATE), "door_create");
  tell(shared, private);
  check(door_bind(private), "door_bind");
  tell(shared, private);
  check(door_unbind(), "door_unbind");
  tell(shared, private);
  printf("once more: %s\n", door_unbind() < 0 && errno == EBADF ? "EBADF" : "what?");
  return 0;
}
