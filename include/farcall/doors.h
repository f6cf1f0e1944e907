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
 * call, or `error` is no errno; EOPNOTSUPP for doors of the module. */
int door_refuse(int error);

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_DOORS_H */
