/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A port: what is queued for receivers, and the receivers that wait for it. Calls are in call.h.
 *
 *   A thread that waits to receive is RECEIVE-blocked: it stands in port->receivers. Whoever queues
 *   something gives it to the receiver that came last (its caches are warm) or else queues it, so
 *   nothing is queued while a receiver stands there.
 *
 * Locking: port->lock protects everything in struct stplr_port but how long waits spin, and of a call what
 * call.h names. It is taken with interrupts on, and nests in nothing but what inherit.h and debugfs.h
 * name; only the lock of a wait queue nests in it.
 */
#ifndef STPLR_PORT_H
#define STPLR_PORT_H

#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/rbtree.h>
#include <linux/spinlock.h>

#include "waiter.h"

struct stplr_call;
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

#define STPLR_OWED_BITS 5

struct stplr_port_ops {
	/* Called without locks once the last reference is gone. */
	void (*free_call)(struct stplr_call *call);
	/* Optional. Called with port->lock held: something is queued for which nobody waits, or it was closed. */
	void (*readable)(struct stplr_port *port);
	/*
	 * Optional. Called with port->lock held: a sender wants to leave an OWED call. Returns the item to
	 * queue (a pulse) if the sender has to wait on, NULL if it may leave.
	 */
	struct stplr_item *(*unblock)(struct stplr_call *call);
	/* Optional. Called with port->lock held: the sender of an OWED call has left, or leaves now. */
	void (*left)(struct stplr_call *call);
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
	/* Likewise: has the kernel make room for so many bytes where they count for the sender. 0, or an error. */
	int (*make_room)(size_t bytes);
	/*
	 * Optional. Called without locks by the sender, before it sleeps, or by who has put the call back:
	 * receiver was given the call and is not woken yet, or it is NULL and the call was queued.
	 */
	void (*sent)(struct stplr_call *call, struct task_struct *receiver);
};

struct stplr_port {
	spinlock_t lock;
	bool closed;
	u64 order; /* of the next item */
	struct rb_root_cached queues[STPLR_ITEM_KINDS]; /* apart, for nobody waits for a pulse */
	struct hlist_head receivers; /* who came last is first */
	struct stplr_spin receiving, sending; /* of who waits for a call, or for its end */
	struct stplr_spin asking; /* and for pages */
	struct hlist_head calls; /* all that are not DONE */
	struct hlist_head answered; /* that are, but whose answer others still write to */
	struct hlist_head owed[1 << STPLR_OWED_BITS]; /* by name */
	u64 ids; /* how many calls it has numbered */
	u64 id_factor; /* odd */
	u32 number; /* how traces and debugfs name it; set by its owner */
	const struct stplr_port_ops *ops;
};

/**
 * stplr_port_init() - initialise a port, which is open then
 * @port: the port
 * @ops: what its owner does for it; stays as long as the port
 * @secret: makes the ids of one port look different from those of another
 * @spin_us: as for stplr_spin_init()
 */
void stplr_port_init(struct stplr_port *port, const struct stplr_port_ops *ops, u64 secret,
		     u32 spin_us);

/**
 * stplr_port_close() - end whatever waits at a port
 * @port: the port
 * @outcome: what each of its calls ends with; a receiver's wait ends with -ESRCH
 *
 * Nothing gets in afterwards. May be called more than once.
 */
void stplr_port_close(struct stplr_port *port, int outcome);

/**
 * stplr_port_post() - queue a pulse
 * @port: the port
 * @pulse: the pulse, which becomes the port's
 * @priority: its place in the queue
 *
 * Never waits.
 * Return: 0, or -ESRCH when the port is closed; then the pulse stays the caller's.
 */
int stplr_port_post(struct stplr_port *port, struct stplr_item *pulse, int priority);

/**
 * stplr_port_requeue() - put a pulse that was taken back to its place
 * @port: the port that it was taken from
 * @pulse: the pulse
 *
 * Return: as stplr_port_post().
 */
int stplr_port_requeue(struct stplr_port *port, struct stplr_item *pulse);

/**
 * stplr_port_take() - receive the first item, or wait for one
 * @port: the port
 * @deadline: how long to wait; 0 and less is not at all
 * @item: what was received. A pulse is the caller's; of a call, which is TAKEN, it has a reference
 *
 * Return: 0, -EINTR, -ETIMEDOUT, or -ESRCH when the port is closed.
 */
int stplr_port_take(struct stplr_port *port, ktime_t deadline, struct stplr_item **item);

/**
 * stplr_port_readable() - look into the queue
 * @port: the port
 *
 * Return: whether something can be received at this moment, or the port is closed.
 */
bool stplr_port_readable(struct stplr_port *port);

/**
 * stplr_port_remind() - tell once more of what is queued, if anything is
 * @port: the port
 *
 * By a receiver that goes without having looked at all of it: who polls for edges hears of each item only once.
 */
void stplr_port_remind(struct stplr_port *port);

/**
 * stplr_port_closed() - look whether a port is closed
 * @port: the port
 *
 * Return: whether it is, for good.
 */
bool stplr_port_closed(struct stplr_port *port);

/**
 * stplr_port_urgency() - look how urgent the queue is
 * @port: the port
 *
 * Return: the priority of the most urgent call in it, or 0.
 */
int stplr_port_urgency(struct stplr_port *port);

enum stplr_blocked {
	STPLR_SEND_BLOCKED,
	STPLR_REPLY_BLOCKED,
	STPLR_RECEIVE_BLOCKED,
};

/*
 * Called with port->lock held. priority is that of the thread's call; server is the thread that a
 * REPLY-blocked one waits for, by its number. Both are else 0.
 */
typedef void stplr_tell_blocked(void *context, enum stplr_blocked state, struct task_struct *who,
				int priority, int server);

/**
 * stplr_port_blocked() - tell of each thread that waits at a port
 * @port: the port
 * @tell: called for each
 * @context: passed on
 */
void stplr_port_blocked(struct stplr_port *port, stplr_tell_blocked *tell, void *context);

#endif
