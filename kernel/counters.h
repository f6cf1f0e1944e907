/* SPDX-License-Identifier: GPL-2.0 */
/* What has happened since the module was loaded, counted by each processor for itself. */
#ifndef STPLR_COUNTERS_H
#define STPLR_COUNTERS_H

#include <linux/percpu.h>
#include <linux/types.h>

enum stplr_counter {
	STPLR_COUNT_SENDS,
	STPLR_COUNT_RECEIVES,
	STPLR_COUNT_REPLIES,
	STPLR_COUNT_PULSES,
	STPLR_COUNT_SPINS, /* waits that ended before the thread slept */
	STPLR_COUNT_INTERRUPTED, /* waits of senders that a signal ended */
	STPLR_COUNT_TIMED_OUT,
	STPLR_COUNT_PEER_GONE, /* waits of senders whose server went away */
	STPLR_COUNT_REFAULTS, /* messages sent again because pages were not at hand */
	STPLR_COUNT_PIN_BATCHES, /* times that pages of a peer were pinned for one copy */
	STPLR_COUNT_ASKS, /* times that a peer was asked for pages that were not there, or for room */
	STPLR_COUNT_OVER_LIMIT, /* charges that were refused */
	STPLR_COUNT_RAISES, /* threads raised to a client's priority */
	STPLR_COUNTERS,
};

struct stplr_counters {
	u64 count[STPLR_COUNTERS];
};

DECLARE_PER_CPU(struct stplr_counters, stplr_counters);

static inline void stplr_count(enum stplr_counter counter)
{
	this_cpu_inc(stplr_counters.count[counter]);
}

#endif
