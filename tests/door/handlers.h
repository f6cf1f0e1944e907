/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FARCALL_TESTS_DOOR_HANDLERS_H
#define FARCALL_TESTS_DOOR_HANDLERS_H

#include <door.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The cookie of answer_with_a_handler(). */
struct handled {
  void (*entered)(void* what);
  void* what;
  int times; /* that the handler of a procedure ran */
  int ends;  /* that the handler of a thread ran */
};

/* Answers with what came; waits to be cancelled if nothing came. */
void answer_with_a_handler(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                           uint_t descriptor_count);
/* A server thread with a handler of its own. */
void* serve_with_a_handler(void* handled);

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_TESTS_DOOR_HANDLERS_H */
