/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain C11: adopts an end of a pipe from the descriptors that its arguments name, and sends back what
 * comes until nothing follows. Ends with the negative errno of what fails.
 */
#include <farcall/farcall.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
  int descriptors[FARCALL_PIPE_DESCRIPTORS];
  struct farcall_pipe_options options = {.size = sizeof options};
  farcall_pipe *end = NULL;
  char text[100];
  int64_t size = 0;
  int error = 0;
  if (count != 1 + FARCALL_PIPE_DESCRIPTORS) return 1;
  for (int i = 0; i < FARCALL_PIPE_DESCRIPTORS; ++i) descriptors[i] = atoi(arguments[1 + i]);
  error = farcall_pipe_adopt(descriptors, &options, &end);
  if (error != 0) return -error;
  while ((size = farcall_pipe_receive(end, text, sizeof text, NULL, FARCALL_FOREVER)) >= 0) {
    error = farcall_pipe_send(end, text, (size_t)size, FARCALL_FOREVER);
    if (error != 0) return -error;
  }
  farcall_pipe_close(end);
  return (int)-size;
}
