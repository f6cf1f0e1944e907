/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a server: it takes a quarter of a second to let anybody in. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int accept4(int listener, struct sockaddr* address, socklen_t* size, int flags) {
  const int accepted = (int)syscall(SYS_accept4, listener, address, size, flags);
  if (accepted >= 0) usleep(250000);
  return accepted;
}
