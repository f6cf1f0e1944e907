/* SPDX-License-Identifier: GPL-2.0 */
/* What threads run with, and clients that lend them theirs. */
#ifndef RAISE_H
#define RAISE_H

#include <sched.h>
#include <sys/resource.h>

#include "new.h"

#define RAISED(policy) ((policy) | SCHED_RESET_ON_FORK)

static inline void be_real_time(int priority)
{
	struct sched_param parameters = { .sched_priority = priority };

	OK(sched_setscheduler(0, SCHED_FIFO, &parameters));
}

static inline bool runs_with(pid_t thread, int policy, int priority)
{
	struct sched_param parameters;

	OK(sched_getparam(thread, &parameters));
	return sched_getscheduler(thread) == policy && parameters.sched_priority == priority;
}

static inline bool has_nice(pid_t thread, int nice)
{
	return getpriority(PRIO_PROCESS, (id_t)thread) == nice;
}

/* What another process does comes to pass soon, or the test is ended for its slowness. */
#define AWAIT(condition)                                                                         \
	do {                                                                                     \
		while (!(condition))                                                             \
			nap(2);                                                                  \
	} while (0)

static inline pid_t real_time_client(int channel, int connection, int priority)
{
	return CLIENT(channel, connection, {
		be_real_time(priority);
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
}

static inline pid_t nice_client(int channel, int connection, int nice)
{
	return CLIENT(channel, connection, {
		OK(setpriority(PRIO_PROCESS, 0, nice));
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
}

static inline uint64_t receive(int channel)
{
	struct stplr_receive received;

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.id);
	return received.id;
}

#endif
