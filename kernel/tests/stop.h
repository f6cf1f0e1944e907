/* SPDX-License-Identifier: GPL-2.0 */
/* Processes that are stopped while they wait in a call, and go on. */
#ifndef STOP_H
#define STOP_H

#include "new.h"
#include "seen.h"

static const int64_t forever = -1, minute = 60 * 1000000000LL;

static inline void await_blocked(pid_t process, const char *how)
{
	AWAIT_LINE(FOLDER "blocked", "%d %d %s ", process, process, how);
}

static inline void stop(pid_t process)
{
	int status;

	OK(kill(process, SIGSTOP));
	CHECK(waitpid(process, &status, WUNTRACED) == process && WIFSTOPPED(status));
}

static inline void go_on(pid_t process)
{
	OK(kill(process, SIGCONT));
}

#endif
