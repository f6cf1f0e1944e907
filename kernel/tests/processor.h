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

/* So that beside it threads of SCHED_IDLE hardly run, and the kernel's own still do. */
static inline void be_greedy(void)
{
	CHECK(nice(-20) == -20);
}

#endif
