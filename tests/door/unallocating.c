/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that allocates nothing where a signal handler might not, or a child of _Fork(). What the
 * C library has for that is in front here, and ends the program if the library of doors does.
 *
 *   door-unallocating files PATH...        of files that are no doors
 *   door-unallocating fork PATH...         the same in a child of a process that serves and calls
 *   door-unallocating door PATH            of a door that is attached there, once it is open
 *   door-unallocating own PATH             of a door of its own
 */
#define _GNU_SOURCE
#include <door.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread.h>
#include <unistd.h>

/* The C library's own. */
extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* memory, size_t size);
extern void __libc_free(void* memory);

static __thread int forbidden;

static void check(const char* what) {
  if (!forbidden) return;
  forbidden = 0;
  const char text[] = " in the library\n";
  if (write(STDERR_FILENO, what, strlen(what)) < 0 || write(STDERR_FILENO, text, sizeof text - 1) < 0)
    _exit(41);
  _exit(40);
}

void* malloc(size_t size) {
  check("malloc");
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  check("calloc");
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  check("realloc");
  return __libc_realloc(memory, size);
}
void free(void* memory) {
  if (memory != NULL) check("free");
  __libc_free(memory);
}

static void expect(int condition, int number) {
  if (!condition) _exit(number);
}

static void use_file(const char* path) {
  struct stat status;
  struct statx more;
  expect(stat(path, &status) == 0 && S_ISREG(status.st_mode), 2);
  expect(lstat(path, &status) == 0 && fstatat(AT_FDCWD, path, &status, 0) == 0, 3);
  expect(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &more) == 0, 4);
  const int fd = open(path, O_RDONLY);
  expect(fd >= 0 && fstat(fd, &status) == 0, 5);
  const int copy = dup(fd);
  expect(copy >= 0 && dup2(fd, copy) == copy && close(copy) == 0 && close(fd) == 0, 6);
  const int cut = open(path, O_WRONLY | O_TRUNC);
  expect(cut >= 0 && write(cut, "x", 1) == 1 && close(cut) == 0, 7);
}

static void use_copies(int door) {
  const int copy = dup(door);
  expect(copy >= 0 && dup2(door, copy) == copy && close(copy) == 0, 8);
  const int other = fcntl(door, F_DUPFD_CLOEXEC, 200);
  expect(other >= 200 && close(other) == 0, 9);
}

static void answer(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                   uint_t descriptor_count) {
  (void)cookie;
  (void)descriptors;
  (void)descriptor_count;
  door_return(data, size, NULL, 0);
}

static int serve_and_call(void) {
  const int door = door_create(answer, NULL, 0);
  char reply[8];
  door_arg_t arguments;
  memset(&arguments, 0, sizeof arguments);
  arguments.data_ptr = reply;
  arguments.data_size = 1;
  arguments.rbuf = reply;
  arguments.rsize = sizeof reply;
  expect(door >= 0 && door_call(door, &arguments) == 0, 10);
  return door;
}

static void* sleep_on(void* nothing) {
  for (;;) pause();
  return nothing;
}

int main(int count, char** arguments) {
  expect(count >= 3, 11);
  if (strcmp(arguments[1], "files") == 0) {
    forbidden = 1;
    for (int i = 2; i < count; ++i) use_file(arguments[i]);
  } else if (strcmp(arguments[1], "fork") == 0) {
    const int door = serve_and_call();
    expect(thr_create(NULL, 0, sleep_on, NULL, THR_DETACHED, NULL) == 0, 12);
    forbidden = 1;
    const pid_t child = _Fork();
    if (child == 0) {
      for (int i = 2; i < count; ++i) use_file(arguments[i]);
      use_copies(door);
      _exit(close(door) == 0 ? 0 : 13);
    }
    int status = -1;
    expect(waitpid(child, &status, 0) == child, 14);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 15);
  } else if (strcmp(arguments[1], "door") == 0) {
    const int door = open(arguments[2], O_RDONLY);
    struct stat status;
    expect(door >= 0 && fstat(door, &status) == 0 && S_ISDOOR(status.st_mode), 16);
    forbidden = 1;
    use_copies(door);
    expect(close(door) == 0, 17);
  } else {
    const int door = serve_and_call();
    forbidden = 1;
    use_copies(door);
  }
  _exit(0);
}
