/* SPDX-License-Identifier: Apache-2.0
 *
 * caller DESCRIPTOR|PATH TEXT: calls a door that was inherited or has a name, and writes the reply
 * to standard output. Exits with the errno of what failed, or 0.
 */
#include <door.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
  door_arg_t arguments;
  int door;

  if (argc != 3) return 126;
  alarm(20);
  door = argv[1][0] == '/' ? open(argv[1], O_RDONLY) : atoi(argv[1]);
  if (door < 0) return errno;
  memset(&arguments, 0, sizeof arguments);
  arguments.data_ptr = argv[2];
  arguments.data_size = strlen(argv[2]);
  if (door_call(door, &arguments) != 0) return errno;
  if (arguments.data_size > 0) {
    if (write(STDOUT_FILENO, arguments.data_ptr, arguments.data_size) < 0) return errno;
    munmap(arguments.rbuf, arguments.rsize);
  }
  return 0;
}
