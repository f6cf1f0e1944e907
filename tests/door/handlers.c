/* SPDX-License-Identifier: Apache-2.0
 *
 * A procedure in C, whose clean-up handlers are a list on the stack.
 */
#include "door/handlers.h"

#include <pthread.h>
#include <unistd.h>

static void count(void* handled) { ++*(int*)handled; }

void answer_with_a_handler(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                           uint_t descriptor_count) {
  struct handled* const handled = cookie;
  (void)descriptors;
  (void)descriptor_count;
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  pthread_cleanup_push(count, &handled->times);
  if (size == 0) {
    handled->entered(handled->what);
    for (;;) pause();
  }
  door_return(data, size, NULL, 0);
  pthread_cleanup_pop(0);
}

void* serve_with_a_handler(void* handled) {
  pthread_cleanup_push(count, &((struct handled*)handled)->ends);
  door_return(NULL, 0, NULL, 0);
  pthread_cleanup_pop(0);
  return NULL;
}
