/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's <string.h>, and the two functions that Solaris has there besides. The C library of
 * some systems has them, too.
 */
#pragma GCC system_header
#include_next <string.h>

#ifndef FARCALL_COMPAT_STRING_H
#define FARCALL_COMPAT_STRING_H

#if !defined(__GLIBC__) || !__GLIBC_PREREQ(2, 38)

#ifdef __cplusplus
extern "C" {
#endif

/* Both write at most `size` bytes, the last a 0, and return how long the whole would have been. */
size_t strlcpy(char* to, const char* from, size_t size);
size_t strlcat(char* to, const char* from, size_t size);

#ifdef __cplusplus
}
#endif

#endif

#endif /* FARCALL_COMPAT_STRING_H */
