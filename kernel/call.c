// SPDX-License-Identifier: GPL-2.0
/* A call from the side of those who receive and answer it. */
#include "call.h"

#include <linux/errno.h>
#include <linux/hash.h>
#include <linux/sched.h>

#include "port_locked.h"

void stplr_call_init(struct stplr_call *call, struct stplr_port *port, u64 id, int priority,
		     bool wants_reply)
{
	call->port = port;
	call->id = id;
	call->name = 0;
	call->item.priority = priority;
	call->item.kind = STPLR_ITEM_CALL;
	call->item.queued = false;
	call->wants_reply = wants_reply;
	call->replier = NULL;
	call->receiver = NULL;
	call->replier_tid = 0;
	call->outcome = 0;
	call->interrupted = 0;
	call->unblocked = false;
	call->settled = false;
	call->abandoned = false;
	call->away = false;
	call->busy = 0;
	call->reading = 0;
	call->touching = 0;
	call->ask = NULL;
	INIT_HLIST_NODE(&call->owed);
	INIT_HLIST_NODE(&call->all);
	refcount_set(&call->refs, 1);
	stplr_waiter_init(&call->sender, &port->sending);
}

void stplr_call_put(struct stplr_call *call)
{
	if (refcount_dec_and_test(&call->refs))
		call->port->ops->free_call(call);
}

void stplr_call_notify_locked(struct stplr_call *call, struct stplr_waker *waker)
{
	waker->task = NULL;
	/* Of what is settled the sender may be gone already. */
	if (call->abandoned || call->settled || call->touching)
		return;
	if (stplr_call_over_locked(call))
		/* Pairs with the sender's look before it takes the lock. */
		smp_store_release(&call->settled, true);
	if (call->settled)
		stplr_waiter_notify(&call->sender, waker);
}

void stplr_call_end_locked(struct stplr_call *call, int outcome)
{
	if (call->item.queued)
		stplr_port_dequeue_locked(call->port, &call->item);
	hlist_del_init(&call->owed);
	hlist_del_init(&call->all);
	call->state = STPLR_CALL_DONE;
	call->outcome = outcome;
}

static void add_owed_locked(struct stplr_call *call)
{
	call->state = STPLR_CALL_OWED;
	hlist_add_head(&call->owed, &call->port->owed[hash_64(call->name, STPLR_OWED_BITS)]);
}

/* Only then has it been delivered to anybody. */
static void add_first_owed_locked(struct stplr_call *call, u64 name, const void *replier,
				  int replier_tid)
{
	call->name = name ? name : call->id;
	call->replier = replier;
	call->replier_tid = replier_tid;
	add_owed_locked(call);
}

bool stplr_call_keep(struct stplr_call *call, u64 name, const void *replier, int replier_tid)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker;
	bool ended = false, kept = false;

	spin_lock(&port->lock);
	call->busy--;
	/* Or the port was closed meanwhile. */
	if (call->state == STPLR_CALL_TAKEN) {
		ended = call->abandoned;
		kept = !ended;
		if (ended)
			stplr_call_end_locked(call, -EINTR);
		else
			add_first_owed_locked(call, name, replier, replier_tid);
	}
	stplr_call_notify_locked(call, &waker);
	spin_unlock(&port->lock);
	stplr_waker_run(&waker, false);
	stplr_call_put_ended(call, ended);
	return kept;
}

void stplr_call_untake(struct stplr_call *call)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker = {}, sender = {};
	bool ended = false, back = false;

	spin_lock(&port->lock);
	call->busy--;
	if (call->state == STPLR_CALL_TAKEN) {
		ended = call->abandoned;
		back = !ended;
		if (ended)
			stplr_call_end_locked(call, -EINTR);
		else
			stplr_port_deliver_locked(port, &call->item, &waker);
	}
	stplr_call_notify_locked(call, &sender);
	spin_unlock(&port->lock);
	/* Whoever has it now, and is not woken yet, is to the sender what the caller was. */
	if (back && port->ops->sent)
		port->ops->sent(call, waker.task);
	stplr_waker_run(&waker, false);
	stplr_waker_run(&sender, false);
	stplr_call_put_ended(call, ended);
}

int stplr_call_touch(struct stplr_call *call)
{
	int err = 0;

	spin_lock(&call->port->lock);
	if (call->abandoned || stplr_call_over_locked(call))
		err = -ESRCH;
	else if (call->away)
		err = -EBUSY;
	else if (call->interrupted)
		err = -EINPROGRESS;
	else
		call->touching++;
	spin_unlock(&call->port->lock);
	return err;
}

/* The sender has waited for this to leave. As it may be slow to run, it does not do so itself. */
static void leave_at_last_locked(struct stplr_call *call, struct stplr_waker *sender,
				 struct stplr_waker *other)
{
	const int why = call->interrupted;
	bool ended;

	call->interrupted = 0;
	if (stplr_call_leave_locked(call, why, false, &ended, other))
		stplr_waiter_notify(&call->sender, sender);
}

void stplr_call_untouch(struct stplr_call *call)
{
	struct stplr_waker sender, other = {};

	spin_lock(&call->port->lock);
	call->touching--;
	stplr_call_notify_locked(call, &sender);
	if (call->interrupted && !call->touching && !call->settled && !call->abandoned)
		leave_at_last_locked(call, &sender, &other);
	spin_unlock(&call->port->lock);
	stplr_waker_run(&other, false);
	stplr_waker_run(&sender, false);
}

bool stplr_call_taken_by(struct stplr_call *call, const struct task_struct *receiver)
{
	bool taken;

	spin_lock(&call->port->lock);
	taken = call->state == STPLR_CALL_TAKEN && call->receiver == receiver;
	spin_unlock(&call->port->lock);
	return taken;
}

static struct stplr_call *find_owed_locked(struct stplr_port *port, u64 name,
					   const void *replier)
{
	struct stplr_call *call;

	hlist_for_each_entry(call, &port->owed[hash_64(name, STPLR_OWED_BITS)], owed)
		if (call->name == name && call->replier == replier)
			return call;
	return NULL;
}

/* Lends the caller a reference and makes it busy with the call. */
static struct stplr_call *hold_owed(struct stplr_port *port, u64 name, const void *replier,
				    bool claim, bool reads)
{
	struct stplr_call *call;

	spin_lock(&port->lock);
	call = find_owed_locked(port, name, replier);
	if (call) {
		call->busy++;
		call->reading += reads;
		refcount_inc(&call->refs);
		if (claim) {
			call->state = STPLR_CALL_ANSWERING;
			hlist_del_init(&call->owed);
		}
	}
	spin_unlock(&port->lock);
	return call;
}

bool stplr_port_pass(struct stplr_port *port, u64 name, const void *replier, const void *to)
{
	struct stplr_call *call;

	spin_lock(&port->lock);
	call = find_owed_locked(port, name, replier);
	if (call)
		call->replier = to;
	spin_unlock(&port->lock);
	return call;
}

struct stplr_call *stplr_port_claim(struct stplr_port *port, u64 name, const void *replier)
{
	return hold_owed(port, name, replier, true, false);
}

struct stplr_call *stplr_port_borrow(struct stplr_port *port, u64 name, const void *replier,
				     bool reads)
{
	return hold_owed(port, name, replier, false, reads);
}

/* The caller is no longer busy with the call, which is OWED again or still. */
static void release_owed(struct stplr_call *call, bool claimed, bool reads)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker;
	bool ended = false;

	spin_lock(&port->lock);
	call->busy--;
	call->reading -= reads;
	if (claimed && call->state == STPLR_CALL_ANSWERING)
		add_owed_locked(call);
	/* Whoever was answering it was not told, and is not through with it. */
	if (call->abandoned)
		stplr_call_tell_left_locked(call);
	if (call->abandoned && !call->busy && call->state == STPLR_CALL_OWED) {
		stplr_call_end_locked(call, -EINTR);
		ended = true;
	}
	if (stplr_call_over_locked(call))
		hlist_del_init(&call->owed);
	stplr_call_notify_locked(call, &waker);
	spin_unlock(&port->lock);
	stplr_waker_run(&waker, false);
	stplr_call_put_ended(call, ended);
}

void stplr_call_unclaim(struct stplr_call *call)
{
	release_owed(call, true, false);
}

void stplr_call_return(struct stplr_call *call, bool reads)
{
	release_owed(call, false, reads);
}

bool stplr_call_finish_locked(struct stplr_call *call, int outcome, struct stplr_waker *waker)
{
	bool ended = call->state != STPLR_CALL_DONE;

	call->busy--;
	if (ended) {
		stplr_call_end_locked(call, outcome);
		/* Whoever writes to it keeps it there. */
		if (!stplr_call_over_locked(call))
			hlist_add_head(&call->owed, &call->port->answered);
	}
	stplr_call_notify_locked(call, waker);
	return ended;
}

bool stplr_call_finish(struct stplr_call *call, int outcome, bool yields)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker;
	bool ended, left;

	spin_lock(&port->lock);
	left = call->abandoned;
	ended = stplr_call_finish_locked(call, outcome, &waker);
	spin_unlock(&port->lock);
	stplr_call_put_ended(call, ended);
	stplr_waker_run(&waker, yields);
	return ended && !left;
}

bool stplr_port_end_one(struct stplr_port *port, int outcome)
{
	struct stplr_waker waker = {};
	struct stplr_call *call, *answered;

	spin_lock(&port->lock);
	call = hlist_entry_safe(port->calls.first, struct stplr_call, all);
	answered = hlist_entry_safe(port->answered.first, struct stplr_call, owed);
	if (call) {
		stplr_call_end_locked(call, outcome);
		stplr_call_notify_locked(call, &waker);
	} else if (answered) {
		/* Its sender does not wait for the rest. The port has no reference to it any more. */
		hlist_del_init(&answered->owed);
		answered->outcome = outcome;
		stplr_call_notify_locked(answered, &waker);
	}
	spin_unlock(&port->lock);
	stplr_waker_run(&waker, false);
	if (call)
		stplr_call_put(call);
	cond_resched();
	return call || answered;
}

/*
 * Calls that are found in one go, however many others there are, are ended together. They are the
 * port's until they are put, so they can be strung together by what the port needs no more.
 */
static void end_among_locked(struct stplr_call *call, int outcome, struct hlist_head *ended)
{
	stplr_call_end_locked(call, outcome);
	hlist_add_head(&call->all, ended);
	stplr_call_notify_locked(call, &call->waker);
}

/* Without the lock. */
static void put_all(struct hlist_head *ended)
{
	struct stplr_call *call;
	struct hlist_node *next;

	hlist_for_each_entry_safe(call, next, ended, all) {
		hlist_del_init(&call->all);
		stplr_waker_run(&call->waker, false);
		stplr_call_put(call);
		cond_resched();
	}
}

/* Those of one bucket. */
static void disown_some(struct stplr_port *port, struct hlist_head *bucket, const void *replier,
			int outcome)
{
	struct hlist_head ended = { NULL };
	struct stplr_call *call;
	struct hlist_node *next;

	spin_lock(&port->lock);
	hlist_for_each_entry_safe(call, next, bucket, owed)
		if (call->replier == replier)
			end_among_locked(call, outcome, &ended);
	spin_unlock(&port->lock);
	put_all(&ended);
}

void stplr_port_cancel(struct stplr_port *port,
		       bool (*matches)(const struct stplr_call *call, const void *context),
		       const void *context, int outcome)
{
	struct hlist_head ended = { NULL };
	struct stplr_call *call;
	struct hlist_node *next;

	spin_lock(&port->lock);
	hlist_for_each_entry_safe(call, next, &port->calls, all)
		if (call->state == STPLR_CALL_QUEUED && matches(call, context))
			end_among_locked(call, outcome, &ended);
	spin_unlock(&port->lock);
	put_all(&ended);
}

void stplr_port_disown(struct stplr_port *port, const void *replier, int outcome)
{
	int i;

	for (i = 0; i < 1 << STPLR_OWED_BITS; i++)
		disown_some(port, &port->owed[i], replier, outcome);
}
