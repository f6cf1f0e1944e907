/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of bytes to a child, which counts the lines in it and answers when nothing follows. */
#include <farcall/farcall.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kLines = 100000 };

/* The child: reads whatever is there, as read(2) would. */
static int count(farcall_pipe *end)
{
  char some[4096], answer[40];
  int64_t size, lines = 0;
  int length;
  while ((size = farcall_pipe_read(end, some, sizeof some, FARCALL_FOREVER)) > 0)
    for (int64_t i = 0; i < size; ++i) lines += some[i] == '\n';
  if (size < 0) return 1;
  length = snprintf(answer, sizeof answer, "%lld lines", (long long)lines);
  size = farcall_pipe_write(end, answer, (size_t)length, FARCALL_FOREVER);
  farcall_pipe_close(end);
  return size != length;
}

/* All of it, though there may be more than there is room for; a signal may end a write early. */
static int write_all(farcall_pipe *end, const char *bytes, size_t size)
{
  while (size != 0) {
    const int64_t written = farcall_pipe_write(end, bytes, size, INT64_C(10000000000)); /* 10 s */
    if (written < 0) return (int)written;
    bytes += written;
    size -= (size_t)written;
  }
  return 0;
}

static int ask(farcall_pipe *end)
{
  char answer[40];
  int64_t size;
  int error = 0;
  for (int i = 0; i < kLines && error == 0; ++i) error = write_all(end, "one more line\n", 14);
  if (error == 0) error = farcall_pipe_finish(end);
  if (error != 0) return error;
  while ((size = farcall_pipe_read(end, answer, sizeof answer, FARCALL_FOREVER)) > 0)
    fwrite(answer, 1, (size_t)size, stdout);
  putchar('\n');
  return (int)size;
}

int main(void)
{
  const struct farcall_pipe_options options = {.size = sizeof options, .kind = FARCALL_PIPE_BYTES};
  farcall_pipe *here, *there;
  int status = 1, error = farcall_pipe_create(&options, &here, &there);
  pid_t child;
  if (error != 0 || (child = fork()) < 0) {
    fprintf(stderr, "no pipe or no child\n");
    return 1;
  }
  if (child == 0) { /* each side closes the other's end */
    farcall_pipe_close(here);
    _exit(count(there));
  }
  farcall_pipe_close(there);
  if ((error = ask(here)) != 0) fprintf(stderr, "ask: %s\n", strerror(-error));
  farcall_pipe_close(here);
  if (waitpid(child, &status, 0) != child) return 1;
  return error != 0 || status != 0;
}
