/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a replier leaves with a message, for its client to copy when it wakes.
 *
 * All of it is charged to the client's user, and to the memory cgroup of the client's process: no
 * server pays for what its clients let lie. A client at its limit is not made room for by its server,
 * which would reclaim, or kill, on its behalf. It is asked to do so itself, for a moment; then its call
 * fails.
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

/**
 * stplr_leftovers_init() - make what they are allocated from
 *
 * Return: 0, or -ENOMEM.
 */
int stplr_leftovers_init(void);

/**
 * stplr_leftovers_exit() - undo stplr_leftovers_init()
 */
void stplr_leftovers_exit(void);

/**
 * stplr_bounce_alloc() - STPLR_BOUNCE bytes, for what is sent by way of the kernel
 *
 * Return: them, charged to the caller's memory cgroup, or NULL.
 */
u8 *stplr_bounce_alloc(void);

/**
 * stplr_bounce_free() - free what stplr_bounce_alloc() returned
 * @bounce: that
 */
void stplr_bounce_free(u8 *bounce);

/**
 * stplr_charge_client() - charge the client's user with what a replier is about to leave it
 * @message: the message, which gives it back when it is through
 * @bytes: how much that is
 *
 * Return: 0 or -EDQUOT.
 */
int stplr_charge_client(struct stplr_message *message, size_t bytes);

/**
 * stplr_leftovers_meet() - compare what was left with some place
 * @message: the message
 * @offset: where the place begins
 * @length: its bytes
 * @covers: nothing was left for elsewhere
 *
 * Return: whether something was left for there.
 */
bool stplr_leftovers_meet(const struct stplr_message *message, size_t offset, size_t length,
			  bool *covers);

/**
 * stplr_leave() - leave a copy of the caller's bytes
 * @message: the message
 * @offset: where they belong; what comes later goes over what was there
 * @from: where they are
 * @length: how many
 * @peer_error: as for stplr_message_write()
 *
 * Return: as stplr_message_write().
 */
int stplr_leave(struct stplr_message *message, size_t offset, u64 from, size_t length,
		int *peer_error);

/**
 * stplr_leftovers_free() - forget what was left
 * @message: the message
 */
void stplr_leftovers_free(struct stplr_message *message);

/**
 * stplr_leftovers_collect() - copy what was left to where it belongs; by the sender, once it is through
 * @message: the message
 *
 * Return: 0, -EFAULT, -EINTR.
 */
int stplr_leftovers_collect(struct stplr_message *message);

#endif
