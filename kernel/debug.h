/* SPDX-License-Identifier: GPL-2.0 */
/* What the module says in the kernel's log: nothing at level 0, each message at level 4. */
#ifndef STPLR_DEBUG_H
#define STPLR_DEBUG_H

#include <linux/printk.h>

enum stplr_debug_level {
	STPLR_DEBUG_ERRORS = 1, /* calls that failed for want of something */
	STPLR_DEBUG_OWNERS = 2, /* opens, handles, channels, connections */
	STPLR_DEBUG_DEATHS = 3, /* what was ended because a thread or process did */
	STPLR_DEBUG_CALLS = 4,
};

extern int stplr_debug;

#define stplr_log(level, format, ...)                                                           \
	do {                                                                                     \
		if (unlikely(READ_ONCE(stplr_debug) >= (level)))                                 \
			pr_info_ratelimited("stplr: " format, ##__VA_ARGS__);                    \
	} while (0)

#endif
