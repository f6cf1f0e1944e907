/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of one process that all of its workers hear of, by name. */
#include <errno.h>
#include <farcall/farcall.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3, STEPS = 4 };

/* A worker: adds up the numbers of the steps until nothing follows. */
static int work(const char *name)
{
  farcall_subscriber *steps;
  uint64_t step, missed;
  int64_t size;
  int sum = 0;
  if (farcall_subscriber_open(name, NULL, INT64_C(10000000000), &steps) != 0) return 0; /* 10 s */
  while ((size = farcall_subscriber_receive(steps, &step, sizeof step, NULL, &missed,
                                            FARCALL_FOREVER)) == sizeof step)
    sum += (int)step;
  farcall_subscriber_close(steps);
  return size == -EPIPE ? sum : 0;
}

int main(void)
{
  char name[40];
  farcall_publisher *publisher;
  int error, status;
  snprintf(name, sizeof name, "example-steps-%d", (int)getpid());
  for (int i = 0; i < WORKERS; ++i)
    if (fork() == 0) _exit(work(name));

  error = farcall_publisher_create(name, NULL, &publisher);
  if (error != 0) {
    fprintf(stderr, "publish %s: %s\n", name, strerror(-error));
    return 1;
  }
  while (farcall_publisher_readers(publisher) < WORKERS) usleep(1000);
  for (uint64_t step = 1; step <= STEPS; ++step) {
    error = farcall_publisher_send(publisher, &step, sizeof step, FARCALL_FOREVER);
    if (error != 0) fprintf(stderr, "send: %s\n", strerror(-error));
  }
  farcall_publisher_close(publisher);
  while (wait(&status) > 0) printf("a worker: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  return 0;
}
