/* SPDX-License-Identifier: Apache-2.0
 *
 * What Doors programs want from <stropts.h>: naming a door in the file system. Linux has no
 * STREAMS, and nothing else of this header exists here.
 */
#ifndef FARCALL_COMPAT_STROPTS_H
#define FARCALL_COMPAT_STROPTS_H

#ifdef __cplusplus
extern "C" {
#endif

int fattach(int d, const char* path);
int fdetach(const char* path);
int isastream(int d); /* 0: Linux has none; EBADF */

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_COMPAT_STROPTS_H */
