// SPDX-License-Identifier: Apache-2.0
//
// Open files travel both ways. The client passes a file it has written; the server, which could not
// open it, numbers its lines and passes back the reading end of a pipe.
#include <door.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void number_lines(void* cookie, char* data, size_t size, door_desc_t* passed, uint_t count) {
  (void)cookie;
  (void)data;
  (void)size;
  if (count != 1 || !(passed->d_attributes & DOOR_DESCRIPTOR)) door_return(NULL, 0, NULL, 0);
  const int file = passed->d_data.d_desc.d_descriptor;  // ours now, and ours to close
  int ends[2];
  check(pipe(ends), "pipe");
  FILE* in = fdopen(file, "r");
  FILE* out = fdopen(ends[1], "w");
  char line[100];
  for (int number = 1; fgets(line, sizeof line, in) != NULL; ++number)
    fprintf(out, "%d %s", number, line);
  fclose(in);
  fclose(out);

  // DOOR_RELEASE: the server's own is closed once the client has its.
  door_desc_t reply = {.d_attributes = DOOR_DESCRIPTOR | DOOR_RELEASE};
  reply.d_data.d_desc.d_descriptor = ends[0];
  door_return(NULL, 0, &reply, 1);
}

static void be_client(int door) {
  FILE* file = tmpfile();
  if (file == NULL) {
    perror("tmpfile");
    exit(1);
  }
  fputs("alpha\nbeta\n", file);
  rewind(file);

  door_desc_t passed = {.d_attributes = DOOR_DESCRIPTOR};
  passed.d_data.d_desc.d_descriptor = fileno(file);
  door_desc_t reply[1];  // descriptors of the reply need room, too
  door_arg_t arguments = {
      .desc_ptr = &passed, .desc_num = 1, .rbuf = (char*)reply, .rsize = sizeof reply};
  check(door_call(door, &arguments), "door_call");
  if (arguments.desc_num != 1) {
    fprintf(stderr, "no descriptor came back\n");
    exit(1);
  }

  char text[100];
  ssize_t length;
  while ((length = read(arguments.desc_ptr->d_data.d_desc.d_descriptor, text, sizeof text)) > 0)
    printf("%.*s", (int)length, text);
}

int main(void) {
  const int door = check(door_create(number_lines, NULL, 0), "door_create");
  const pid_t client = check(fork(), "fork");
  if (client == 0) {
    be_client(door);
    return 0;
  }
  int status = 0;
  check(waitpid(client, &status, 0), "waitpid");
  return status != 0;
}
