/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's <unistd.h>, and the two functions that Solaris declares there besides.
 */
#ifndef FARCALL_COMPAT_UNISTD_H
#define FARCALL_COMPAT_UNISTD_H

#pragma GCC system_header
#include <stropts.h>
#include_next <unistd.h>

#endif /* FARCALL_COMPAT_UNISTD_H */
