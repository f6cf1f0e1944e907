/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients may make a server of doors or messages hold. See farcall_limits_set(3).
 *
 * Doors and messages are libraries of their own, and have limits of their own.
 */
#ifndef FARCALL_LIMITS_H
#define FARCALL_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0 means the default. */
struct farcall_limits {
  size_t size;                 /* of this structure, as the program knows it */
  size_t sessions;             /* of a pool of doors or a channel: 65536 */
  size_t sessions_per_user;    /* of these: 16384 */
  size_t request_bytes;        /* the longest request: 1 TiB; a message: FARCALL_MESSAGE_MAX */
  size_t descriptors_per_user; /* a quarter of the process's descriptor table */
  size_t bytes_per_user;       /* of long requests at a time: 256 MiB */
  int64_t patience_ns;         /* with a client that is sent descriptors: 2 s */
};

/* For channels, and for doors, that are made from now on by any thread of this process. Return 0,
 * or -1 with errno EINVAL (`size` is none that ever was, a negative time). */
int farcall_limits_set(const struct farcall_limits* limits);
int door_limits_set(const struct farcall_limits* limits);
/* What is set; `limits->size` is to be set before. */
int farcall_limits_get(struct farcall_limits* limits);
int door_limits_get(struct farcall_limits* limits);

#ifdef __cplusplus
}
#endif

#endif
