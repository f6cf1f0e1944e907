/* SPDX-License-Identifier: Apache-2.0 */
/* A function of one process that another one calls, by the path of a door. */
#include <ctype.h>
#include <farcall/farcall.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Called by threads of the library. */
static int upper(void *context, const void *request, size_t size, farcall_call_reply *reply)
{
  const char *text = request;
  (void)context;
  for (size_t i = 0; i < size; ++i) {
    const char letter = (char)toupper((unsigned char)text[i]);
    if (farcall_reply_write(reply, &letter, 1) != 0) return -1;
  }
  return 0;
}

static int call(const char *path)
{
  farcall_client *client;
  char room[64];
  struct farcall_answer answer = {.size = sizeof answer, .bytes = room, .room = sizeof room};
  int error = farcall_client_open(path, INT64_C(10000000000), &client); /* waits for 10 s at most */
  if (error == 0) {
    error = farcall_client_call(client, "hello", 5, &answer, NULL);
    farcall_client_close(client);
  }
  if (error != 0) {
    fprintf(stderr, "call %s: %s\n", path, strerror(-error));
    return 1;
  }
  printf("%.*s\n", (int)answer.length, (char *)answer.bytes);
  fflush(stdout);
  farcall_answer_free(&answer);
  return 0;
}

int main(void)
{
  char path[64];
  farcall_server *server;
  int error, status = 1;
  snprintf(path, sizeof path, "/tmp/example-upper-%d", (int)getpid());
  const pid_t child = fork();
  if (child == 0) _exit(call(path));

  error = farcall_server_create(path, upper, NULL, NULL, &server);
  if (error != 0) {
    fprintf(stderr, "serve at %s: %s\n", path, strerror(-error));
    return 1;
  }
  waitpid(child, &status, 0);
  farcall_server_close(server);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
