/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where senders and receivers meet: the state machine of a call.
 *
 *            submit                       take                   keep
 *   (new) ─────────────> QUEUED ─────────────────> TAKEN ───────────────────> OWED
 *                        SEND-blocked     ▲  │     a receiver      REPLY-blocked │ ▲
 *                          │              │  │     reads from it                │ │ unclaim:
 *                          │              └──┘                           claim  │ │ the replier's
 *                          │         untake: the receiver's                     │ │ own fault
 *                          │         own fault; same place in the queue         ▼ │
 *                          │                          │                     ANSWERING
 *                          │ signal,                  │ finish:             a replier
 *                          │ timeout,                 │ one way, or         writes to it
 *                          │ port closed              │ sender's fault         │
 *                          ▼                          ▼                        ▼ finish
 *                        DONE <─────────────────── DONE <──────────────────── DONE
 *
 *   A thread that waits to receive is RECEIVE-blocked: it stands in port->receivers. Senders give
 *   their item to the receiver that came last (its caches are warm) or else queue it, so no item
 *   is queued while a receiver stands there.
 *
 * How a sender's wait can end otherwise:
 *   QUEUED      any signal, its deadline: it takes itself out of the queue; nobody saw the message.
 *   TAKEN       any signal, its deadline: at once. The receiver finds the call abandoned and passes
 *               it over: nobody saw the message.
 *   OWED        a fatal signal: at once. Another signal, its deadline: at once with EINTR or
 *               ETIMEDOUT, unless the port wants unblock pulses: then the server is told, and the
 *               sender waits on for the answer.
 *   ANSWERING   like OWED. The replier finds the call abandoned: its answer reaches nobody.
 *   An interruption that passes leaves all of these as they are: the sender is away for a while.
 *   Whoever is busy with a call (TAKEN, ANSWERING, or a read or write between them) may wait for
 *   memory of its own for as long as it likes, so the sender does not wait for that. It does wait
 *   for who touches its memory at this moment, between touch and untouch, where nobody sleeps for
 *   anything that a program decides.
 *
 * Nobody but the sender waits for pages of the sender to come. Who is busy and misses some asks the
 * sender for them, which has nothing else to do, and waits for a moment of its own choosing.
 *
 * Locking: port->lock protects everything in struct stplr_port, and of a call: item, state, busy,
 * touching, ask, interrupted, abandoned, away, outcome, and sender.notified. A call that is settled (DONE, and nobody
 * is busy with it) stays as it is, so its sender may look at it without the lock. The lock is taken
 * with interrupts on and nests in nothing but what inherit.h and debugfs.h name; only the lock of a
 * wait queue nests in it. A call's id, taker and port do not change while it is OWED.
 * Everything else in a call belongs to the sender until it is submitted, and then is read-only,
 * but for what message.h describes.
 *
 * References: the sender holds one until its wait ends. One belongs to the port's structures, from
 * submit to DONE; take, claim and borrow lend the caller one, which untake, keep, unclaim, return
 * and finish take back. Releasing the last may sleep.
 */
#ifndef STPLR_PORT_H
#define STPLR_PORT_H

#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/rbtree.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>

#include "waiter.h"

struct stplr_port;

enum stplr_item_kind {
	STPLR_ITEM_CALL,
	STPLR_ITEM_PULSE,
	STPLR_ITEM_KINDS,
};

/* What is queued: by priority, highest first, and of one priority the oldest. */
struct stplr_item {
	struct rb_node node;
	u64 order;
	int priority;
	u8 kind; /* enum stplr_item_kind */
	bool queued;
};

enum stplr_call_state {
	STPLR_CALL_QUEUED,
	STPLR_CALL_TAKEN,
	STPLR_CALL_OWED,
	STPLR_CALL_ANSWERING,
	STPLR_CALL_DONE,
};

/* Pages of a sender that somebody who is busy with its call waits for. */
struct stplr_ask {
	u64 base;
	size_t length;
	bool write;
	int outcome; /* once the sender has looked after it */
	struct stplr_waiter waiter;
};

struct stplr_call {
	struct stplr_item item;
	struct hlist_node owed; /* in port->owed while OWED */
	struct hlist_node all; /* in port->calls from submit to DONE */
	struct stplr_port *port;
	struct stplr_waiter sender;
	refcount_t refs;
	u64 id; /* how a reply names it; 0 until the port has numbered it, unless its owner did */
	const void *taker; /* who may answer it; compared, never followed */
	int taker_tid; /* which thread of it received it, for people to read */
	int outcome; /* of the sender's wait, once DONE */
	u8 state; /* enum stplr_call_state */
	bool wants_reply;
	bool interrupted; /* the sender wants to leave as soon as it may */
	bool unblocked; /* the server has been told so */
	bool settled; /* DONE and not busy; set with release, for the sender to read */
	bool abandoned; /* the sender has left; nobody to wake */
	bool away; /* the sender is out of its wait and may come back to it: nobody to ask */
	unsigned int busy; /* threads that are at work on the call */
	unsigned int touching; /* of those, who has hold of the sender's memory just now */
	struct stplr_ask *ask; /* of one of those, which waits for it; NULL: of none */
	struct stplr_waker waker; /* of whoever ends many calls at a time */
};

#define STPLR_OWED_BITS 5

struct stplr_port_ops {
	/* Called without locks once the last reference is gone. */
	void (*free_call)(struct stplr_call *call);
	/* Called with port->lock held: something was queued for which nobody waits, or closed. */
	void (*readable)(struct stplr_port *port);
	/*
	 * Called with port->lock held: a sender wants to leave an OWED call. Returns the item to
	 * queue (a pulse) if the sender shall wait on, NULL if it may leave.
	 */
	struct stplr_item *(*unblock)(struct stplr_call *call);
	/* Called without locks: a pulse that was queued when the port closed. */
	void (*drop_pulse)(struct stplr_item *item);
	/*
	 * Optional. Called without locks by a sender that is interrupted: whether it only has to be
	 * somewhere else, and will resume its wait.
	 */
	bool (*passes)(void);
	/*
	 * Optional. Called without locks by the sender: brings pages. 0, or -EFAULT if not even the
	 * first can be had.
	 */
	int (*bring)(u64 base, size_t length, bool write);
	/*
	 * Optional. Called without locks by the sender, before it sleeps: receiver was given the
	 * call and is not woken yet, or it is NULL and the call was queued.
	 */
	void (*sent)(struct stplr_call *call, struct task_struct *receiver);
};

struct stplr_port {
	spinlock_t lock;
	bool closed;
	u64 order; /* of the next item */
	struct rb_root_cached queues[STPLR_ITEM_KINDS]; /* apart, for nobody waits for a pulse */
	struct hlist_head receivers; /* who came last is first */
	struct stplr_patience receiving, sending; /* of who waits for a call, or for its end */
	struct stplr_patience asking; /* and for pages */
	struct hlist_head calls; /* all that are not DONE */
	struct hlist_head owed[1 << STPLR_OWED_BITS]; /* by id */
	u64 ids; /* how many calls it has numbered */
	u64 id_factor; /* odd */
	u32 number; /* how traces and debugfs name it; set by its owner */
	const struct stplr_port_ops *ops;
};

/* secret makes the ids of one port look different from those of another. */
void stplr_port_init(struct stplr_port *port, const struct stplr_port_ops *ops, u64 secret);

/* Ends each call with outcome and each receiver's wait with -ESRCH. Nothing gets in afterwards. */
void stplr_port_close(struct stplr_port *port, int outcome);

/* Ends every call that taker has received and not answered. */
void stplr_port_disown(struct stplr_port *port, const void *taker, int outcome);

/*
 * Initialises the part of a call that belongs to the port, with the sender's reference. With an id
 * of 0 the port gives it one that it gives to no other call.
 */
void stplr_call_init(struct stplr_call *call, struct stplr_port *port, u64 id, int priority,
		     bool wants_reply);
void stplr_call_put(struct stplr_call *call);

/*
 * Sends, and waits. Returns the outcome that somebody gave the call, or -EINTR or -ETIMEDOUT; then
 * *delivered says whether a receiver has it all the same. With -ESRCH the port was closed already.
 */
int stplr_port_send(struct stplr_call *call, ktime_t deadline, bool *delivered);

/*
 * What send and resume return for a sender that has to be elsewhere. The call goes on, and so
 * does the sender's wait for it, by resume; or by forget, by anybody, it ends.
 */
#define STPLR_AWAY (-4001)
int stplr_port_resume(struct stplr_call *call, ktime_t deadline, bool *delivered);
void stplr_port_forget(struct stplr_call *call);

/* Queues a pulse. Never waits. -ESRCH when the port is closed; then the pulse is the caller's. */
int stplr_port_post(struct stplr_port *port, struct stplr_item *pulse, int priority);

/* Puts a pulse that was taken back to its place. Fails likewise. */
int stplr_port_unpost(struct stplr_port *port, struct stplr_item *pulse);

/* Receives the first item, or waits for one: -EINTR, -ETIMEDOUT, -ESRCH when closed. */
int stplr_port_take(struct stplr_port *port, ktime_t deadline, struct stplr_item **item);

/* TAKEN -> OWED, -> QUEUED. False: its sender has left meanwhile, and the call is DONE. */
bool stplr_call_keep(struct stplr_call *call, const void *taker, int taker_tid);
void stplr_call_untake(struct stplr_call *call);

/* OWED -> ANSWERING, for taker's eyes only: NULL when there is no such call. */
struct stplr_call *stplr_port_claim(struct stplr_port *port, u64 id, const void *taker);
void stplr_call_unclaim(struct stplr_call *call);

/* Keeps the sender from leaving an OWED call, so that its memory can be read and written. */
struct stplr_call *stplr_port_borrow(struct stplr_port *port, u64 id, const void *taker);
void stplr_call_return(struct stplr_call *call);

/*
 * By whoever is busy with a call: until untouch, the sender does not leave of its own will. False: it
 * has left, and its memory is not to be touched any more.
 */
bool stplr_call_touch(struct stplr_call *call);
void stplr_call_untouch(struct stplr_call *call);

/*
 * By whoever is busy with a call and does not touch: has the sender bring pages. 0 if it has,
 * -EFAULT if it could not, -ETIMEDOUT, -EINTR (the caller is being killed), -ESRCH (the sender has
 * left), -EBUSY (another asks).
 */
int stplr_call_ask(struct stplr_call *call, struct stplr_ask *ask, ktime_t deadline);

/*
 * TAKEN or ANSWERING -> DONE. The waker wakes the sender; run it when the caller knows whether it
 * will sleep soon. False: the sender has left already, and nobody learns of the outcome.
 */
bool stplr_call_finish(struct stplr_call *call, int outcome, struct stplr_waker *waker);

/* Somebody has taken it and not decided yet what becomes of it. */
bool stplr_call_taken(struct stplr_call *call);

/* Something can be received at this moment, or the port is closed. */
bool stplr_port_readable(struct stplr_port *port);
bool stplr_port_closed(struct stplr_port *port);

/* The priority of the most urgent call in the queue, or 0. */
int stplr_port_urgency(struct stplr_port *port);

enum stplr_blocked {
	STPLR_SEND_BLOCKED,
	STPLR_REPLY_BLOCKED,
	STPLR_RECEIVE_BLOCKED,
};

/*
 * Tells of each thread that waits at the port, with port->lock held. priority is that of its call;
 * server is the thread that a REPLY-blocked one waits for, by its number. Both are else 0.
 */
typedef void stplr_tell_blocked(void *context, enum stplr_blocked state, struct task_struct *who,
				int priority, int server);
void stplr_port_blocked(struct stplr_port *port, stplr_tell_blocked *tell, void *context);

#endif
