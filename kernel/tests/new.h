/* SPDX-License-Identifier: GPL-2.0 */
/* The second interface, as tests use it. */
#ifndef NEW_H
#define NEW_H

#include "../lib/libstplr.h"
#include "tap.h"

#define IS(expected, call)                                                                       \
	do {                                                                                     \
		long got_ = (long)(call);                                                        \
		if (got_ != (long)(expected)) {                                                  \
			printf("# %s:%d: %s is %ld\n", __FILE__, __LINE__, #call, got_);         \
			fflush(stdout);                                                          \
			_exit(1);                                                                \
		}                                                                                \
	} while (0)

/* Long enough for a slow machine: what should come comes much sooner. */
static const int64_t second = 10 * 1000000000LL;

static inline int new_channel(unsigned int flags)
{
	int channel = stplr_channel_create(NULL, 0, flags);

	CHECK(channel >= 0);
	return channel;
}

static inline int new_connection(int channel, uint64_t label)
{
	int connection = stplr_channel_connect(channel, label);

	CHECK(connection >= 0);
	return connection;
}

/* A client in a child, which has only the connection: BODY runs there. */
#define CLIENT(channel, connection, ...)                                                         \
	({                                                                                       \
		pid_t child_ = fork();                                                           \
		if (child_ == 0) {                                                               \
			close(channel);                                                          \
			__VA_ARGS__;                                                             \
			fflush(stdout);                                                          \
			_exit(0);                                                                \
		}                                                                                \
		child_;                                                                          \
	})

#endif
