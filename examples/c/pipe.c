/* SPDX-License-Identifier: Apache-2.0 */
/* A pipe between a process and its child: requests one way, answers the other. */
#include <ctype.h>
#include <errno.h>
#include <farcall/farcall.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child: answers in capitals until nothing follows. */
static int serve(farcall_pipe *end)
{
  char text[100];
  int64_t size;
  while ((size = farcall_pipe_receive(end, text, sizeof text, NULL, FARCALL_FOREVER)) >= 0) {
    for (int64_t i = 0; i < size; ++i) text[i] = (char)toupper((unsigned char)text[i]);
    if (farcall_pipe_send(end, text, (size_t)size, FARCALL_FOREVER) != 0) return 1;
  }
  farcall_pipe_close(end);
  return size == -EPIPE ? 0 : 1;
}

static int ask(farcall_pipe *end, const char *question)
{
  char answer[100];
  int64_t size;
  int error = farcall_pipe_send(end, question, strlen(question), FARCALL_FOREVER);
  if (error != 0) return error;
  size = farcall_pipe_receive(end, answer, sizeof answer, NULL, INT64_C(10000000000)); /* 10 s */
  if (size < 0) return (int)size;
  printf("%.*s\n", (int)size, answer);
  return 0;
}

int main(void)
{
  farcall_pipe *here, *there;
  int status = 1, error = farcall_pipe_create(NULL, &here, &there);
  pid_t child;
  if (error != 0 || (child = fork()) < 0) {
    fprintf(stderr, "no pipe or no child\n");
    return 1;
  }
  if (child == 0) { /* each side closes the other's end */
    farcall_pipe_close(here);
    _exit(serve(there));
  }
  farcall_pipe_close(there);
  if ((error = ask(here, "hello")) != 0 || (error = ask(here, "there")) != 0)
    fprintf(stderr, "ask: %s\n", strerror(-error));
  farcall_pipe_close(here); /* so the child ends */
  if (waitpid(child, &status, 0) != child) return 1;
  return error != 0 || status != 0;
}
