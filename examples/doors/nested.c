// SPDX-License-Identifier: Apache-2.0
//
// A server may call while it serves, also back to its client: factorials, where each of two
// processes multiplies once and asks the other for the rest. Each level takes a thread.
#include <door.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

struct Question {
  unsigned n;
};

static unsigned long ask(int door, int back, unsigned n) {
  struct Question question = {n};
  unsigned long answer = 0;
  // Every question brings a door for the questions that it leads to.
  door_desc_t passed = {.d_attributes = DOOR_DESCRIPTOR};
  passed.d_data.d_desc.d_descriptor = back;
  door_arg_t arguments = {.data_ptr = (char*)&question,
                          .data_size = sizeof question,
                          .desc_ptr = &passed,
                          .desc_num = 1,
                          .rbuf = (char*)&answer,
                          .rsize = sizeof answer};
  check(door_call(door, &arguments), "door_call");
  return answer;
}

static int own_door;

static void factorial(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  struct Question question;
  if (size != sizeof question || count != 1) door_return(NULL, 0, NULL, 0);
  memcpy(&question, data, sizeof question);
  const int other = passed->d_data.d_desc.d_descriptor;
  unsigned long answer = question.n < 2 ? 1 : question.n * ask(other, own_door, question.n - 1);
  close(other);
  door_return((char*)&answer, sizeof answer, NULL, 0);
}

int main(void) {
  const int server = check(door_create(factorial, NULL, 0), "door_create");
  own_door = server;
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    // A child has none of its parent's threads; with a door of its own it gets some.
    own_door = check(door_create(factorial, NULL, 0), "door_create");
    printf("10! = %lu\n", ask(server, own_door, 10));
    return 0;
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  return status != 0;
}
