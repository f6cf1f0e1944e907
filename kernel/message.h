/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A message on its way: a call with the memory that it reads from and writes to.
 *
 * The bytes that are sent are seen as one run, whatever buffers they lie in; so is the room for the
 * reply. How they travel depends on their number:
 *
 *   sent     up to STPLR_INLINE     the sender copies them into the message
 *            up to STPLR_BOUNCE     the sender copies them into a buffer of their size
 *            beyond, or             the receiver copies once, from pages that the sender has
 *            registered memory      registered, or that it pins for the purpose, a batch at a time
 *   reply    up to STPLR_BOUNCE     the replier leaves a copy with the message (a chunk), which the
 *                                   client takes along when it wakes
 *            beyond, or             the replier copies once, to pages that are registered or that
 *            registered memory      it pins
 *
 * Nobody who works on the memory of a blocked peer waits for a page of it to come: pages are taken as
 * they are. For those that are not there the peer is asked, which is blocked for nothing else, and which
 * they then come, and are charged, to. That, and the lock of the peer's memory, are waited for no longer
 * than a moment: what cannot be had until then is the peer's problem. A sender then sends again, by way
 * of the kernel if it is not too much; a replier leaves the rest in chunks. So no client can stall a
 * server with its memory. Nor does anybody hold pages of a peer, or its memory, while waiting for memory
 * of its own.
 * Memory whose pages come from a file, other than one of tmpfs, or that a userfaultfd watches is its
 * owner's alone: what is sent from there the sender copies into a buffer, however much it is, and
 * what is replied to there goes by way of chunks.
 *
 * Ownership: everything here is the sender's until the call is submitted, and is freed with the
 * message. What is replied and charged belongs to whoever has claimed or borrowed the call, under the
 * lock of the message; the sender reads it once the call is DONE and nobody is busy with it. All is
 * charged to the sender: it says how much may be sent and replied, and where.
 */
#ifndef STPLR_MESSAGE_H
#define STPLR_MESSAGE_H

#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/types.h>

#include "buffers.h"
#include "call.h"
#include "doors/part.h"
#include "user.h"

struct file;
struct mm_struct;
struct pid;

#ifndef STPLR_BOUNCE
#define STPLR_BOUNCE 4096
#endif

/*
 * Outcome of a call whose sender has to fault its pages in and send again. No errno; never seen by
 * a program.
 */
#define STPLR_REFAULT (-4000)

struct stplr_message {
	struct stplr_call call;
	struct stplr_user *user; /* who is charged; a reference */
	struct pid *tgid, *tid; /* references */
	kuid_t uid;
	kgid_t gid;
	u64 label; /* of the connection */
	struct stplr_item *unblock; /* a pulse kept ready, for channels that want it; owned */
	void (*free_unblock)(struct stplr_item *pulse);
	size_t charged;

	struct stplr_buffers send, reply;
	struct mm_struct *mm; /* where both lie, if anybody is to reach or charge there; mmgrab */
	u8 *bounce; /* the bytes that are sent, or NULL: they are in mm */

	u32 file_count;
	struct file **files; /* references */
	size_t files_charged; /* for them, and part of charged */
	struct stplr_door_part of_door;

	struct mutex lock;
	size_t reply_end; /* one beyond the last byte that was written */
	struct list_head chunks; /* see leftovers.h */
	size_t left; /* what they take */
	size_t left_from, left_to; /* and between where they are, if there is any */
	/* What is left of the time to wait for the client's memory; guesses, so they need no lock. */
	int tries;
	s64 ask_ns;
	u8 *first; /* the bytes of what was written first, or NULL */
	size_t first_offset, first_length;

	s64 status; /* of the reply */
	u8 inline_send[STPLR_INLINE];
	u8 inline_reply[STPLR_INLINE];
};

static inline struct stplr_message *stplr_message_of(struct stplr_call *call)
{
	return container_of(call, struct stplr_message, call);
}

/* Gives back some of what a message is charged. */
static inline void stplr_message_uncharge(struct stplr_message *message, size_t bytes)
{
	message->charged -= bytes;
	stplr_user_uncharge(message->user, bytes);
}

/**
 * stplr_message_init() - make what messages are allocated from
 *
 * Return: 0, or -ENOMEM.
 */
int stplr_message_init(void);

/**
 * stplr_message_exit() - undo stplr_message_init(), when there is no message any more
 */
void stplr_message_exit(void);

/**
 * stplr_message_new() - make a message of the calling thread, charged to its user
 * @guess: who that may be; spares a search
 * @spare: what stplr_message_done() has kept there may be used again
 * @err: why there is none: -ENOMEM, -EDQUOT
 *
 * The caller initialises the call, fills in send and reply, then loads, then sends.
 * Return: the message with the sender's reference, or NULL.
 */
struct stplr_message *stplr_message_new(struct stplr_user *guess, struct stplr_message **spare,
					int *err);

/**
 * stplr_message_done() - drop the sender's reference, in place of stplr_call_put()
 * @message: the message
 * @owner: who is charged for what @spare belongs to
 * @spare: where it is kept to be used again, if that is empty, nobody else has it, and it is charged to @owner
 */
void stplr_message_done(struct stplr_message *message, struct stplr_user *owner,
			struct stplr_message **spare);

/**
 * stplr_message_drop() - free what is in a spare
 * @message: that, or NULL
 */
void stplr_message_drop(struct stplr_message *message);

/* How often a message is sent whose pages its receiver could not have. */
#define STPLR_ATTEMPTS 8

/**
 * stplr_message_load() - copy what is sent, or get ready for others to copy it
 * @message: the message, by its sender
 * @attempt: how often it has been sent
 *
 * Return: 0, -EFAULT, -EINTR, -ENOMEM, -EDQUOT.
 */
int stplr_message_load(struct stplr_message *message, int attempt);

/**
 * stplr_message_free() - free a message; for struct stplr_port_ops
 * @call: its call
 *
 * Whoever calls it has dropped the last reference and is not its sender, whose files it does not wait for.
 */
void stplr_message_free(struct stplr_call *call);

/**
 * stplr_message_count_failure() - count a send that failed
 * @outcome: its error, or STPLR_REFAULT
 */
void stplr_message_count_failure(int outcome);

/* What one receiver has passed over in one call. */
struct stplr_drops {
	u32 count;
	ktime_t since;
};

/**
 * stplr_message_go_on() - whether a receiver may look for the next message
 * @deadline: how long it may wait
 * @dropped: what it has passed over before; zero at first
 *
 * By one who has just passed over a message for its sender's fault. However many such senders there
 * are, they do not keep it.
 * Return: 0, -EINTR, -ETIMEDOUT.
 */
int stplr_message_go_on(ktime_t deadline, struct stplr_drops *dropped);

/* What came of a send, for the counters. */
static inline void stplr_message_count_outcome(int outcome)
{
	if (unlikely(outcome))
		stplr_message_count_failure(outcome);
}

/*
 * How often somebody who waits for the lock of a peer's memory looks for it, some 30 us apart, and how
 * long it waits for pages that it has asked for: for one message, and in addition for each batch of it,
 * but of no more than so many: what a message claims to be costs nothing. Nor does anybody wait at a time
 * for longer than the bytes are worth that it copies itself. The peer may let it wait for as long as it
 * likes, so nobody waits for it otherwise.
 */
#define STPLR_TRIES 20
#define STPLR_TRIES_OF_BATCH 8
#define STPLR_ASK_NS (5 * NSEC_PER_MSEC)
#define STPLR_ASK_OF_BATCH_NS (250 * NSEC_PER_USEC)
#define STPLR_BATCH 32 /* pages taken at a time: enough to hide the cost, little to hold on to */
#define STPLR_BATCHES_MAX 1500 /* half a second for each of both */

static inline int stplr_tries(size_t bytes)
{
	return STPLR_TRIES + min_t(size_t, bytes / (STPLR_BATCH * PAGE_SIZE), STPLR_BATCHES_MAX) *
				     STPLR_TRIES_OF_BATCH;
}

static inline s64 stplr_ask_ns(size_t bytes)
{
	return STPLR_ASK_NS +
	       min_t(size_t, bytes / (STPLR_BATCH * PAGE_SIZE), STPLR_BATCHES_MAX) *
		       STPLR_ASK_OF_BATCH_NS;
}

/**
 * stplr_message_prefault() - fault in what is sent: the answer to STPLR_REFAULT
 * @message: the message, by its sender
 *
 * Return: 0, or -EFAULT.
 */
int stplr_message_prefault(struct stplr_message *message);

/**
 * stplr_message_read() - copy bytes that are sent to the caller, a receiver
 * @message: the message
 * @offset: where they begin in what is sent
 * @to: where they go in the caller's memory
 * @length: how many they are; there are as many
 * @peer_error: -EFAULT or STPLR_REFAULT for what is wrong with the sender's memory, -ESRCH when that has
 *	left, or 0
 *
 * Return: 0, -EFAULT for the caller's memory, -EINTR when it is being killed.
 */
int stplr_message_read(struct stplr_message *message, size_t offset, u64 to, size_t length,
		       int *peer_error);

/**
 * stplr_message_write() - copy bytes of the caller, a replier, into the room for the reply
 * @message: the message
 * @offset: where they begin in that room
 * @from: where they are in the caller's memory
 * @length: how many they are; there is room
 * @peer_error: what is wrong with the client's memory, -EDQUOT or -ENOMEM when its user or its memory
 *	cgroup may not hold any more, -ESRCH when it has left, or 0
 *
 * Return: 0, -EFAULT, -EINTR, -ENOBUFS (too much was left that the client has to copy itself), which are
 * the caller's fault.
 */
int stplr_message_write(struct stplr_message *message, size_t offset, u64 from, size_t length,
			int *peer_error);

/* Either of these. */
typedef int stplr_message_copy(struct stplr_message *message, size_t offset, u64 local,
			       size_t length, int *peer_error);

/**
 * stplr_message_read_run() - stplr_message_read() to all of the caller's buffers
 * @message: the message
 * @offset: where to begin in what is sent
 * @mine: the buffers
 * @peer_error: as there
 *
 * Return: how many bytes, or as there.
 */
long stplr_message_read_run(struct stplr_message *message, size_t offset,
			    const struct stplr_buffers *mine, int *peer_error);

/**
 * stplr_message_write_run() - stplr_message_write() from all of the caller's buffers
 * @message: the message
 * @offset: where to begin in the room for the reply
 * @mine: the buffers
 * @peer_error: as there
 *
 * Return: how many bytes, or as there.
 */
long stplr_message_write_run(struct stplr_message *message, size_t offset,
			     const struct stplr_buffers *mine, int *peer_error);

/**
 * stplr_message_make_room() - have the client make room for what is to be charged to its memory cgroup
 * @message: the message
 * @bytes: how many; of more than 1 MiB, that much
 *
 * By the client, in its own time: nobody else reclaims memory there. It is not asked for longer than a moment.
 * Return: 0 if it has, be it that others have taken that room; an error.
 */
int stplr_message_make_room(struct stplr_message *message, size_t bytes);

/**
 * stplr_message_discard() - forget what was left; by a replier that failed and will try again
 * @message: the message
 */
void stplr_message_discard(struct stplr_message *message);

/**
 * stplr_message_access() - STPLR_READ or STPLR_WRITE
 * @port: where the caller has received the message
 * @replier: as whom it may answer it
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 * @write: which of both
 *
 * Return: as the system call does.
 */
long stplr_message_access(struct stplr_port *port, const void *replier,
			  const struct stplr_access __user *user, size_t size, bool write);

#endif
