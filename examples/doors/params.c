// SPDX-License-Identifier: Apache-2.0
//
// A door says how much it takes, and what is too much or too little does not reach its server.
#include <door.h>
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void serve(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)data;
  (void)size;
  (void)passed;
  (void)count;
  door_return(NULL, 0, NULL, 0);
}

static const char* send(int door, size_t size, uint_t descriptors) {
  char data[100] = {0};
  door_desc_t passed = {.d_attributes = DOOR_DESCRIPTOR};
  passed.d_data.d_desc.d_descriptor = STDIN_FILENO;
  door_arg_t arguments = {
      .data_ptr = data, .data_size = size, .desc_ptr = &passed, .desc_num = descriptors};
  if (door_call(door, &arguments) == 0) return "taken";
  switch (errno) {
    case ENOBUFS: return "ENOBUFS";
    case ENOTSUP: return "ENOTSUP";
    default: return strerror(errno);
  }
}

int main(void) {
  const int door = check(door_create(serve, NULL, DOOR_REFUSE_DESC), "door_create");
  check(door_setparam(door, DOOR_PARAM_DATA_MIN, 8), "door_setparam");
  check(door_setparam(door, DOOR_PARAM_DATA_MAX, 64), "door_setparam");
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    size_t most = 0;
    check(door_getparam(door, DOOR_PARAM_DATA_MAX, &most), "door_getparam");
    printf("at most %zu bytes\n", most);
    printf("4 bytes: %s\n", send(door, 4, 0));
    printf("64 bytes: %s\n", send(door, 64, 0));
    printf("65 bytes: %s\n", send(door, 65, 0));
    printf("a descriptor: %s\n", send(door, 8, 1));
    return 0;
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  return status != 0;
}
