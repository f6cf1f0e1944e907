/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's <sys/stat.h>, and the file type of doors. Linux has no such type: the library's
 * stat() and its relatives report it for door descriptors and for paths that a door is attached to.
 */
#pragma GCC system_header
#include_next <sys/stat.h>

#ifndef FARCALL_COMPAT_SYS_STAT_H
#define FARCALL_COMPAT_SYS_STAT_H

#define S_IFDOOR 0xD000
#define S_ISDOOR(mode) (((mode)&0xF000) == S_IFDOOR)

#endif /* FARCALL_COMPAT_SYS_STAT_H */
