/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's <sys/types.h>, and the names that Solaris has there besides.
 */
#pragma GCC system_header
#include_next <sys/types.h>

#ifndef FARCALL_COMPAT_SYS_TYPES_H
#define FARCALL_COMPAT_SYS_TYPES_H

#ifndef FARCALL_UINT_T
#define FARCALL_UINT_T
typedef unsigned int uint_t;
#endif
typedef unsigned char uchar_t;
typedef unsigned short ushort_t;
typedef unsigned long ulong_t;
typedef long long longlong_t;
typedef unsigned long long u_longlong_t;
typedef long long hrtime_t;
#ifndef FARCALL_ZONEID_T
#define FARCALL_ZONEID_T
typedef int zoneid_t;
#endif
typedef enum { B_FALSE = 0, B_TRUE = 1 } boolean_t;

#endif /* FARCALL_COMPAT_SYS_TYPES_H */
