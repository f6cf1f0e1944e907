/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into who sends: from when LATE is in its environment on, it says on descriptor 1 that it
 * is about to ring a doorbell, and waits until it may read from descriptor 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef long system_call(long number, ...);

long syscall(long number, ...) {
  static system_call* next;
  if (!next) next = (system_call*)dlsym(RTLD_NEXT, "syscall");
  long given[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; ++i) given[i] = va_arg(arguments, long);
  va_end(arguments);
  char go;
  if (number == SYS_sendto && given[2] == 1 && getenv("LATE") &&
      (write(1, "r", 1) != 1 || read(0, &go, 1) != 1))
    _exit(1);
  return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
