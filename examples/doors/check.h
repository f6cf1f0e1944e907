// SPDX-License-Identifier: Apache-2.0
//
// Ends the program with a message where a call has failed.
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

static inline int check(int result, const char* what) {
  if (result < 0) {
    perror(what);
    exit(1);
  }
  return result;
}

#endif  // CHECK_H
