/* SPDX-License-Identifier: GPL-2.0 */
/* Where a test's thread runs, and before whom. Whoever includes this defines _GNU_SOURCE. */
#ifndef PROCESSOR_H
#define PROCESSOR_H

#include <sched.h>

#include "tap.h"

static inline void run_on(int processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	OK(sched_setaffinity(0, sizeof(set), &set));
}

static inline void run_as(int policy, int priority)
{
	struct sched_param parameters = { .sched_priority = priority };

	OK(sched_setscheduler(0, policy, &parameters));
}

#define REAL_TIME_SHARE "/proc/sys/kernel/sched_rt_runtime_us"

/* Real-time threads leave nothing to others, until share_again(). Needs to be root. */
static inline void share_nothing(void)
{
	FILE *file = fopen(REAL_TIME_SHARE, "w");

	CHECK(file && fputs("-1", file) >= 0);
	OK(fclose(file));
}

/* The kernel's own setting. */
static inline void share_again(void)
{
	FILE *file = fopen(REAL_TIME_SHARE, "w");

	CHECK(file && fputs("950000", file) >= 0);
	OK(fclose(file));
}

#endif
