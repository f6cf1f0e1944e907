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
 * server with its memory. Nor does anybody hold pages of a peer, or its memory, while he waits for memory
 * of his own.
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
	struct mm_struct *mm; /* where both lie, if anybody shall reach or charge there; mmgrab */
	u8 *bounce; /* the bytes that are sent, or NULL: they are in mm */

	u32 file_count;
	struct file **files; /* references */

	struct mutex lock;
	size_t reply_end; /* one beyond the last byte that was written */
	struct list_head chunks; /* see leftovers.h */
	size_t left; /* what they take */
	size_t left_from, left_to; /* and between where they are, if there is any */
	/* What is left of the time to wait for the client's memory; guesses, so they need no lock. */
	int tries;
	s64 patience_ns;
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

int stplr_message_init(void);
void stplr_message_exit(void);

/*
 * A message of the calling thread, charged to its user; guess spares a search for that, and *spare,
 * which may be NULL, an allocation. The caller fills in send and reply, then loads, then sends.
 */
struct stplr_message *stplr_message_new(struct stplr_user *guess, struct stplr_message **spare,
					int *err);

/* By the sender, in place of stplr_call_put(): keeps the message in *spare if that is empty. */
void stplr_message_done(struct stplr_message *message, struct stplr_message **spare);

/* Frees what is in a spare. */
void stplr_message_drop(struct stplr_message *message);

/* How often a message is sent whose pages its receiver could not have. */
#define STPLR_ATTEMPTS 8

/* Copies, or gets ready for others to copy. The first attempt is 0. */
int stplr_message_load(struct stplr_message *message, int attempt);

/* For struct stplr_port_ops. */
void stplr_message_free(struct stplr_call *call);

void stplr_message_count_failure(int outcome);

/* What one receiver has passed over in one call. */
struct stplr_drops {
	u32 count;
	ktime_t since;
};

/*
 * For a receiver that has just passed over a message for its sender's fault: 0 if it may look for
 * the next, else -EINTR or -ETIMEDOUT. However many such senders there are, they do not keep it.
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
 * long it waits for pages that it has asked for: for one message, and in addition for each batch of it.
 * The peer may let it wait for as long as it likes, so nobody waits for it otherwise.
 */
#define STPLR_TRIES 20
#define STPLR_TRIES_OF_BATCH 8
#define STPLR_PATIENCE_NS (5 * NSEC_PER_MSEC)
#define STPLR_PATIENCE_OF_BATCH_NS (250 * NSEC_PER_USEC)
#define STPLR_BATCH 32 /* pages taken at a time: enough to hide the cost, little to hold on to */

/* Faults in what is sent: the answer to STPLR_REFAULT. */
int stplr_message_prefault(struct stplr_message *message);

/*
 * By a receiver: copies bytes that are sent to the caller. -EFAULT: the caller's memory; -EINTR:
 * it is being killed; *peer_error is -EFAULT or STPLR_REFAULT for what is wrong with the sender's, and
 * -ESRCH when that has left.
 */
int stplr_message_read(struct stplr_message *message, size_t offset, u64 to, size_t length,
		       int *peer_error);

/*
 * By a replier: copies bytes of the caller into the room for the reply. -EFAULT, -EINTR, -ENOBUFS (too
 * much was left that the client has to copy itself): the caller's fault. What is wrong with the client's
 * memory, that its user (-EDQUOT) or its memory cgroup (-ENOMEM) may not hold any more, or that it has
 * left (-ESRCH), only *peer_error tells.
 */
int stplr_message_write(struct stplr_message *message, size_t offset, u64 from, size_t length,
			int *peer_error);

/* Either of these. */
typedef int stplr_message_copy(struct stplr_message *message, size_t offset, u64 local,
			       size_t length, int *peer_error);

/* Runs of bytes over all of the caller's buffers. Return the number of bytes, or an error. */
long stplr_message_read_run(struct stplr_message *message, size_t offset,
			    const struct stplr_buffers *mine, int *peer_error);
long stplr_message_write_run(struct stplr_message *message, size_t offset,
			     const struct stplr_buffers *mine, int *peer_error);

/* By a replier that failed and will try again: forgets what it left. */
void stplr_message_discard(struct stplr_message *message);

#endif
