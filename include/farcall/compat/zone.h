/* SPDX-License-Identifier: Apache-2.0
 *
 * Zones, as far as programs ask which one they are in: Linux has the global one alone.
 */
#ifndef FARCALL_COMPAT_ZONE_H
#define FARCALL_COMPAT_ZONE_H

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FARCALL_ZONEID_T
#define FARCALL_ZONEID_T
typedef int zoneid_t; /* NOLINT(modernize-use-using): C's, too */
#endif

#define GLOBAL_ZONEID 0
#define GLOBAL_ZONENAME "global"
#define ZONENAME_MAX 64

zoneid_t getzoneid(void); /* GLOBAL_ZONEID */

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_COMPAT_ZONE_H */
