/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's <sys/time.h>, and the clock that Solaris programs measure with.
 */
#pragma GCC system_header
#include_next <sys/time.h>

#ifndef FARCALL_COMPAT_SYS_TIME_H
#define FARCALL_COMPAT_SYS_TIME_H

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

hrtime_t gethrtime(void);  /* nanoseconds since some moment in the past; never set */
hrtime_t gethrvtime(void); /* processor time of the calling thread, in nanoseconds */

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_COMPAT_SYS_TIME_H */
