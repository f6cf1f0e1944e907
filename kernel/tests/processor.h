/* SPDX-License-Identifier: GPL-2.0 */
/* Where a test's thread runs. Whoever includes this defines _GNU_SOURCE. */
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

#endif
