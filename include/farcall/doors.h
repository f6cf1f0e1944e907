/* SPDX-License-Identifier: Apache-2.0
 *
 * Doors for programs that were not written for Solaris: the functions of <door.h>, and one that
 * opens a door by its path. Linked with farcall-doors-plain, which leaves open(), stat(), close()
 * and all else of the C library as they are. See door_open(3) and door(7).
 */
#ifndef FARCALL_DOORS_H
#define FARCALL_DOORS_H

#include "compat/door.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A descriptor of the door that is attached to a path; -1 with errno, EINVAL where there is none.
 * `flags` are those of open(2): how the file is to be opened, which its permissions must allow,
 * O_CLOEXEC and O_NOFOLLOW. */
int door_open(const char* path, int flags);
/* Of both libraries. Ends the call that the thread serves without a reply: the client's door_call()
 * fails with that errno. Then as door_return(). -1 with errno: EINVAL where the thread serves no
 * call, or `error` is no errno; EOPNOTSUPP for doors of a module that cannot do this yet. */
int door_refuse(int error);

/* Of both libraries. A call that is answered later, by any thread of the process. See
 * door_defer(3). */
typedef struct door_deferred {
  char* data_ptr; /* the request, until the call has been answered */
  size_t data_size;
} door_deferred_t;

/* Takes the call that the thread serves away from it. The thread has none then, and waits for the
 * next by door_return(NULL, 0, NULL, 0). -1 with errno: EINVAL where it serves no call, ENOMEM;
 * EOPNOTSUPP for doors of a module that cannot do this yet. */
int door_defer(door_deferred_t** call);
/* Answers it, as door_return(); 0 means that it has been answered, or its client has gone, and that
 * `call` is no more. -1 with errno as door_return(), or EINVAL in a child of fork(): then it still
 * waits for its answer. */
int door_deferred_return(door_deferred_t* call, char* data_ptr, size_t data_size,
                         door_desc_t* desc_ptr, uint_t desc_num);
/* The same with an error, as door_refuse(). -1 with errno: EINVAL. */
int door_deferred_refuse(door_deferred_t* call, int error);
/* `gone` is called when the client has died or given up, once for each watch, at once where that
 * has happened already, and not any more when an answer has returned 0. By any thread; it must not
 * wait, end a call, or take a lock that is held while one is ended. NULL: nobody is told any more.
 * -1 with errno: EINVAL. */
int door_deferred_watch(door_deferred_t* call, void (*gone)(void* cookie), void* cookie);

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_DOORS_H */
