/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Steps of port.c, call.c and sender.c that one takes for another. Those that end in _locked are
 * called with port->lock held.
 */
#ifndef STPLR_PORT_LOCKED_H
#define STPLR_PORT_LOCKED_H

#include "call.h"

static inline struct stplr_call *stplr_call_of(struct stplr_item *item)
{
	return container_of(item, struct stplr_call, item);
}

/**
 * stplr_port_submit_locked() - give a new item to the receiver that came last, or queue it
 * @port: the port
 * @item: the item, whose kind and priority are set
 * @waker: wakes that receiver
 */
void stplr_port_submit_locked(struct stplr_port *port, struct stplr_item *item,
			      struct stplr_waker *waker);

/**
 * stplr_port_deliver_locked() - the same with an item that has its place in the order
 * @port: the port
 * @item: the item
 * @waker: wakes that receiver
 */
void stplr_port_deliver_locked(struct stplr_port *port, struct stplr_item *item,
			       struct stplr_waker *waker);

/**
 * stplr_port_dequeue_locked() - take an item out of the queue
 * @port: the port
 * @item: the item, which is queued
 */
void stplr_port_dequeue_locked(struct stplr_port *port, struct stplr_item *item);

/**
 * stplr_call_end_locked() - make a call DONE
 * @call: the call. The reference that belonged to the port is the caller's to drop
 * @outcome: what the sender's wait ends with
 */
void stplr_call_end_locked(struct stplr_call *call, int outcome);

/* For who has the call, if somebody has and is not answering it: once, when the sender has left. */
static inline void stplr_call_tell_left_locked(struct stplr_call *call)
{
	if (call->state != STPLR_CALL_OWED || call->unblocked || !call->port->ops->left)
		return;
	call->unblocked = true;
	call->port->ops->left(call);
}

/*
 * Nothing more comes of it: of what its sender is to get nothing is missing, though others may still read. What has
 * failed has nothing to get, and what they write is freed with the call.
 */
static inline bool stplr_call_over_locked(const struct stplr_call *call)
{
	return call->state == STPLR_CALL_DONE && (call->outcome || call->busy == call->reading);
}

/**
 * stplr_call_notify_locked() - wake the sender if it may leave now
 * @call: the call
 * @waker: wakes it
 */
void stplr_call_notify_locked(struct stplr_call *call, struct stplr_waker *waker);

/**
 * stplr_call_leave_locked() - the sender leaves, unless it has to wait on
 * @call: the call
 * @why: what its wait ends with
 * @fatal: whether it is being killed, and waits for nothing
 * @ended: whether that has ended the call, and the reference of the port is the caller's to drop; never where
 *	somebody is busy with it
 * @waker: wakes somebody else
 *
 * Return: whether it leaves. Else the server has been told, or whoever touches its memory last has it leave.
 */
bool stplr_call_leave_locked(struct stplr_call *call, int why, bool fatal, bool *ended,
			     struct stplr_waker *waker);

/**
 * stplr_call_finish_locked() - stplr_call_finish() without the references
 * @call: the call
 * @outcome: what the sender's wait ends with
 * @waker: wakes the sender
 *
 * Return: what to tell stplr_call_put_ended() once the lock is let go of.
 */
bool stplr_call_finish_locked(struct stplr_call *call, int outcome, struct stplr_waker *waker);

/* Without the lock: drops the caller's reference, and if it has ended the call, that of the port. */
static inline void stplr_call_put_ended(struct stplr_call *call, bool ended)
{
	if (ended)
		stplr_call_put(call);
	stplr_call_put(call);
}

/**
 * stplr_port_end_one() - end one call, without the lock
 * @port: the port
 * @outcome: what it ends with
 *
 * One at a time, for each may have a sender to wake, which is not done under the lock.
 * Return: false if there is none.
 */
bool stplr_port_end_one(struct stplr_port *port, int outcome);

#endif
