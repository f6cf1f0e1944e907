/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a replier leaves with a message, for its client to copy when it wakes.
 *
 * All of it is charged to the client's user, and to the memory cgroup of the client's process: no
 * server pays for what its clients let lie. A client at its limit is not made room for by its server,
 * which would reclaim, or kill, on its behalf: its call fails.
 *
 * Called with message->lock held, but for collect, which the client calls once nobody is busy.
 */
#ifndef STPLR_LEFTOVERS_H
#define STPLR_LEFTOVERS_H

#include "message.h"

/* Part of a reply, or of what a server wrote, that the client copies to its own memory. */
struct stplr_chunk {
	struct list_head node;
	size_t offset;
	size_t length;
	size_t room; /* for bytes that follow */
	u8 data[];
};

int stplr_leftovers_init(void);
void stplr_leftovers_exit(void);

/* STPLR_BOUNCE bytes, charged to the caller's memory cgroup; for what is sent by way of the kernel. */
u8 *stplr_bounce_alloc(void);
void stplr_bounce_free(u8 *bounce);

/* Whether something was left for there; *covers: and nothing for elsewhere. */
bool stplr_leftovers_meet(const struct stplr_message *message, size_t offset, size_t length,
			  bool *covers);

/*
 * Leaves a copy of the caller's bytes. What comes later goes over what was there. Fails as
 * stplr_message_write() does.
 */
int stplr_leave(struct stplr_message *message, size_t offset, u64 from, size_t length,
		int *peer_error);
void stplr_leftovers_free(struct stplr_message *message);

/* By the sender, once it is through: copies what was left to where it belongs. */
int stplr_leftovers_collect(struct stplr_message *message);

#endif
