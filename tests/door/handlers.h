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

/* Answers with what came; works for ever, with nothing in it that a cancellation could come at, if
 * nothing came. The cookie is a struct handled. */
void answer_or_compute(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                       uint_t descriptor_count);
/* A server thread that can be cancelled at any moment. */
void* serve_to_be_cancelled_at_once(void* nothing);
/* The same of a thread that calls; what the call returned. */
void* call_to_be_cancelled_at_once(void* door);

#if defined(__x86_64__)
/* The same two, but they are cancelled after so many instructions of the library's: the request of
 * the one is an int, and the other makes that many. */
void answer_in_steps(void* cookie, char* data, size_t size, door_desc_t* descriptors,
                     uint_t descriptor_count);
struct steps {
  int door;
  int count;
};
void* call_in_steps(void* steps);
/* Before: has the processor stop after each instruction. */
void prepare_steps(void);
#endif

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_TESTS_DOOR_HANDLERS_H */
