/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's <signal.h>, and the functions that Solaris shows without being asked.
 */
#pragma GCC system_header
#include_next <signal.h>

#ifndef FARCALL_COMPAT_SIGNAL_H
#define FARCALL_COMPAT_SIGNAL_H

#if !defined(__USE_XOPEN_EXTENDED)

#ifdef __cplusplus
extern "C" {
#endif

void (*sigset(int number, void (*handler)(int)))(int);
int sighold(int number);
int sigrelse(int number);
int sigignore(int number);

#ifdef __cplusplus
}
#endif

#endif

#endif /* FARCALL_COMPAT_SIGNAL_H */
