/* SPDX-License-Identifier: Apache-2.0
 *
 * A server and its client in one program, by functions of doors alone. plain PATH; prints how
 * the client has ended: 0 if doors do what they should and open() and stat() what they always do.
 */
#include <errno.h>
#include <farcall/doors.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static void add_one(void *cookie, char *data, size_t size, door_desc_t *descriptors, uint_t count) {
  door_cred_t caller;
  (void)cookie, (void)descriptors, (void)count;
  if (size != 1 || door_cred(&caller) != 0) door_return(NULL, 0, NULL, 0);
  /* Whether it is user 2000 that asks; to all else the letter that follows. */
  if (data[0] == 'u')
    data[0] = caller.dc_euid == 2000 ? 'U' : 'x';
  else
    ++data[0];
  door_return(data, size, NULL, 0);
}

/* The answer to one letter, or '?'. */
static char ask(int door, char question) {
  char answer = '?';
  door_arg_t arguments;
  memset(&arguments, 0, sizeof arguments);
  arguments.data_ptr = &question;
  arguments.data_size = 1;
  arguments.rbuf = &answer;
  arguments.rsize = 1;
  return door_call(door, &arguments) == 0 ? answer : '?';
}

static int client(const char *path) {
  struct stat status;
  char text[8];
  const int file = open(path, O_RDONLY);
  const int door = door_open(path, O_RDONLY | O_CLOEXEC);
  const int reused = door_open(path, O_RDONLY);
  const int other = dup(0);

  if (door < 0 || read(file, text, sizeof text) != 0) return 1;
  if (ask(door, 'a') != 'b' || ask(reused, 'p') != 'q') return 2;
  if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) return 3;
  /* The number of a door comes to stand for something else. */
  if (dup2(other, reused) != reused || ask(reused, 'p') != '?' || errno != EBADF) return 4;
  /* Who calls is who it has become. */
  if (geteuid() == 0 && (setegid(2000) != 0 || seteuid(2000) != 0 || ask(door, 'u') != 'U'))
    return 5;
  return 0;
}

int main(int argc, char **argv) {
  int door, status;
  pid_t child;

  alarm(30);
  if (argc != 2) return 126;
  close(open(argv[1], O_CREAT | O_RDWR, 0644));
  door = door_create(add_one, NULL, 0);
  if (door < 0 || fattach(door, argv[1]) != 0) {
    perror("attach");
    return 1;
  }
  child = fork();
  if (child == 0) _exit(client(argv[1]));
  waitpid(child, &status, 0);
  if (fdetach(argv[1]) != 0) perror("fdetach");
  if (door_open(argv[1], O_RDONLY) != -1 || errno != EINVAL) puts("still attached");
  printf("client: %d\n", status);
  return 0;
}
