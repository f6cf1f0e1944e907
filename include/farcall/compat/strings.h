/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's <strings.h>. That of Solaris brings all of <string.h> with it.
 */
#pragma GCC system_header
#include_next <strings.h>

#ifndef FARCALL_COMPAT_STRINGS_H
#define FARCALL_COMPAT_STRINGS_H

#include <string.h>

#endif /* FARCALL_COMPAT_STRINGS_H */
