/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The way of a message from its client's point of view, the same for whatever has a port:
 *
 *          prepare               send
 *   run ─────────────> message ────────> waits ─────────────────> answered, end
 *            ▲                            │ ▲ │
 *            │  pages were missing:       │ │ │
 *            │  STPLR_ATTEMPTS at most    │ │ │
 *            │  or somebody wanted them   │ │ │
 *            │  while it was parked       │ │ │
 *            └────────────────────────────┘ │ │ an interruption passes
 *                                    resume │ ▼
 *                                         parked ──> leaves, end
 *
 * A sending lies on its thread's stack, as the first member of what its owner keeps for it; while it
 * is parked there is a copy of all that instead.
 */
#ifndef STPLR_SENDING_H
#define STPLR_SENDING_H

#include <linux/ktime.h>

struct file;
struct stplr_message;
struct stplr_sending;
struct stplr_user;

struct stplr_sending_ops {
	size_t size; /* of what the sending is the first member of */
	int gone; /* errno for a port that was closed before */
	/*
	 * Initialises message->call, then fills in what the message is to be. Called for each attempt, so
	 * buffers are read anew. 0, or an error.
	 */
	int (*prepare)(struct stplr_sending *sending);
	/* The message has been received, or answered: what the program is told. */
	int (*answered)(struct stplr_sending *sending);
	/*
	 * Optional. What the program is told of a wait that ended with an error, which is else as sending.c has
	 * it. delivered: a receiver had all of the message.
	 */
	int (*failed)(struct stplr_sending *sending, int err, bool delivered);
	/*
	 * Optional. The bytes cannot be read (-EFAULT): 0 if the message is sent all the same, for its receiver
	 * to refuse.
	 */
	int (*unreadable)(struct stplr_sending *sending);
	/* Optional. The call has ended, however it did. */
	void (*ended)(struct stplr_sending *sending);
	/* Optional. Gives back what the owner holds for the sending. */
	void (*end)(struct stplr_sending *sending);
};

struct stplr_sending {
	const struct stplr_sending_ops *ops;
	struct stplr_user *user; /* whose the spare is, and likely the sender; see stplr_message_new() */
	struct stplr_message **spare; /* likewise; stays as long as the file */
	struct stplr_message *message; /* the sender's reference */
	ktime_t deadline;
	int attempt;
	bool sent; /* it has been queued */
	struct file *file; /* through which it is sent; a reference while parked */
};

/**
 * stplr_sending_init() - set up a sending
 * @sending: that
 * @ops: of its owner
 * @user: see there, as of what follows
 * @spare: see there
 * @deadline: when the wait for who receives or answers ends
 * @file: through which it is sent
 */
static inline void stplr_sending_init(struct stplr_sending *sending,
				      const struct stplr_sending_ops *ops, struct stplr_user *user,
				      struct stplr_message **spare, ktime_t deadline,
				      struct file *file)
{
	sending->ops = ops;
	sending->user = user;
	sending->spare = spare;
	sending->message = NULL;
	sending->deadline = deadline;
	sending->attempt = 0;
	sending->file = file;
}

/**
 * stplr_sending_run() - send a message, and wait until it has been received or answered
 * @sending: as stplr_sending_init() leaves it
 *
 * Return: as the system call does.
 */
long stplr_sending_run(struct stplr_sending *sending);

#endif
