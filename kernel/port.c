// SPDX-License-Identifier: GPL-2.0
#include "port.h"

#include <linux/errno.h>
#include <linux/hash.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

/* One thread's wait for an item. Lives on its stack, in port->receivers while it has none. */
struct receiver {
	struct hlist_node node;
	struct stplr_waiter waiter;
	struct stplr_item *item; /* given to it, taken out of the queue */
};

static struct stplr_call *call_of(struct stplr_item *item)
{
	return container_of(item, struct stplr_call, item);
}

static struct stplr_item *item_of(const struct rb_node *node)
{
	return container_of(node, struct stplr_item, node);
}

static bool item_before(struct rb_node *a, const struct rb_node *b)
{
	const struct stplr_item *left = item_of(a), *right = item_of(b);

	if (left->priority != right->priority)
		return left->priority > right->priority;
	return left->order < right->order;
}

void stplr_port_init(struct stplr_port *port, const struct stplr_port_ops *ops, u64 secret)
{
	int i;

	spin_lock_init(&port->lock);
	port->closed = false;
	port->order = 0;
	for (i = 0; i < STPLR_ITEM_KINDS; i++)
		port->queues[i] = RB_ROOT_CACHED;
	INIT_HLIST_HEAD(&port->receivers);
	INIT_HLIST_HEAD(&port->calls);
	for (i = 0; i < 1 << STPLR_OWED_BITS; i++)
		INIT_HLIST_HEAD(&port->owed[i]);
	port->receiving.ns = 0;
	port->sending.ns = 0;
	port->asking.ns = 0;
	port->ids = 0;
	port->id_factor = secret | 1;
	port->ops = ops;
}

void stplr_call_init(struct stplr_call *call, struct stplr_port *port, u64 id, int priority,
		     bool wants_reply)
{
	call->port = port;
	call->id = id;
	call->item.priority = priority;
	call->item.kind = STPLR_ITEM_CALL;
	call->item.queued = false;
	call->wants_reply = wants_reply;
	call->taker = NULL;
	call->taker_tid = 0;
	call->outcome = 0;
	call->interrupted = false;
	call->unblocked = false;
	call->settled = false;
	call->abandoned = false;
	call->away = false;
	call->busy = 0;
	call->touching = 0;
	call->ask = NULL;
	INIT_HLIST_NODE(&call->owed);
	INIT_HLIST_NODE(&call->all);
	refcount_set(&call->refs, 1);
	stplr_waiter_init(&call->sender);
}

void stplr_call_put(struct stplr_call *call)
{
	if (refcount_dec_and_test(&call->refs))
		call->port->ops->free_call(call);
}

static void enqueue_locked(struct stplr_port *port, struct stplr_item *item)
{
	rb_add_cached(&item->node, &port->queues[item->kind], item_before);
	item->queued = true;
	if (item->kind == STPLR_ITEM_CALL)
		call_of(item)->state = STPLR_CALL_QUEUED;
}

static void dequeue_locked(struct stplr_port *port, struct stplr_item *item)
{
	rb_erase_cached(&item->node, &port->queues[item->kind]);
	item->queued = false;
}

/* The caller of take owns the item from here on; of a call, it is lent a reference. */
static void take_locked(struct stplr_item *item)
{
	if (item->kind == STPLR_ITEM_CALL) {
		struct stplr_call *call = call_of(item);

		call->state = STPLR_CALL_TAKEN;
		call->busy++;
		refcount_inc(&call->refs);
	}
}

static struct receiver *first_receiver_locked(struct stplr_port *port)
{
	return hlist_entry_safe(port->receivers.first, struct receiver, node);
}

/* To the receiver that came last, or into the queue. */
static void deliver_locked(struct stplr_port *port, struct stplr_item *item,
			   struct stplr_waker *waker)
{
	struct receiver *receiver;

	waker->task = NULL;
	receiver = first_receiver_locked(port);
	if (!receiver) {
		enqueue_locked(port, item);
		port->ops->readable(port);
		return;
	}
	hlist_del_init(&receiver->node);
	take_locked(item);
	receiver->item = item;
	stplr_waiter_notify(&receiver->waiter, waker);
}

static void submit_locked(struct stplr_port *port, struct stplr_item *item,
			  struct stplr_waker *waker)
{
	item->order = port->order++;
	deliver_locked(port, item, waker);
}

/* Wakes the sender if it may leave now. */
static void notify_sender_locked(struct stplr_call *call, struct stplr_waker *waker)
{
	waker->task = NULL;
	if (call->abandoned || call->touching || (call->busy && !call->interrupted))
		return;
	if (call->state == STPLR_CALL_DONE && !call->busy)
		/* Pairs with the sender's look before it takes the lock. */
		smp_store_release(&call->settled, true);
	if (call->state == STPLR_CALL_DONE || call->interrupted)
		stplr_waiter_notify(&call->sender, waker);
}

/* The caller drops the reference that belonged to the port. */
static void end_locked(struct stplr_call *call, int outcome)
{
	if (call->item.queued)
		dequeue_locked(call->port, &call->item);
	hlist_del_init(&call->owed);
	hlist_del_init(&call->all);
	call->state = STPLR_CALL_DONE;
	call->outcome = outcome;
}

/* Lets whoever asks the sender for something go on. */
static void end_ask_locked(struct stplr_call *call, int outcome, struct stplr_waker *waker)
{
	waker->task = NULL;
	if (!call->ask)
		return;
	call->ask->outcome = outcome;
	stplr_waiter_notify(&call->ask->waiter, waker);
	call->ask = NULL;
}

/*
 * The sender wants to leave. Whether it does; if so the reference of the port is the caller's to
 * drop if *ended.
 */
static bool leave_locked(struct stplr_call *call, int why, bool fatal, bool *ended,
			 struct stplr_waker *waker)
{
	struct stplr_item *pulse;

	*ended = false;
	waker->task = NULL;
	if (call->state == STPLR_CALL_DONE && !call->busy)
		return true;
	if (call->touching && !fatal) {
		call->interrupted = true;
		return false;
	}
	if ((call->state == STPLR_CALL_OWED || call->state == STPLR_CALL_ANSWERING) && !fatal) {
		if (call->unblocked)
			return false;
		pulse = call->port->ops->unblock(call);
		if (pulse) {
			call->unblocked = true;
			submit_locked(call->port, pulse, waker);
			return false;
		}
	}
	if (call->busy) {
		call->abandoned = true;
		call->outcome = why;
		end_ask_locked(call, -ESRCH, waker);
		return true;
	}
	end_locked(call, why);
	*ended = true;
	return true;
}

/*
 * Multiplying by an odd number maps no two numbers to one, so no id comes twice, and none is 0. It
 * need not be hard to guess: only who received a call can use its id.
 */
static u64 next_id_locked(struct stplr_port *port)
{
	return ++port->ids * port->id_factor;
}

/* By the sender, which lets go of the lock meanwhile: brings what somebody waits for. */
static void serve_ask_locked(struct stplr_call *call, struct stplr_waker *waker)
{
	struct stplr_port *port = call->port;
	struct stplr_ask *ask = call->ask, copy = *ask;
	int err;

	spin_unlock(&port->lock);
	err = port->ops->bring(copy.base, copy.length, copy.write);
	spin_lock(&port->lock);
	/* Who asked may have lost patience, and another may ask now: it looks for itself, too. */
	if (call->ask == ask)
		end_ask_locked(call, err, waker);
}

/* The call goes on meanwhile, without anybody to ask. */
static void go_away(struct stplr_call *call)
{
	struct stplr_waker waker;

	spin_lock(&call->port->lock);
	call->away = true;
	end_ask_locked(call, -EBUSY, &waker);
	spin_unlock(&call->port->lock);
	stplr_waker_run(&waker, false);
}

static int await_end(struct stplr_call *call, ktime_t deadline, bool *delivered)
{
	struct stplr_port *port = call->port;
	unsigned int mode = TASK_INTERRUPTIBLE;
	struct stplr_waker waker, asker;
	bool leaves, ended;
	int err, why = 0;

	do {
		err = stplr_waiter_wait(&call->sender, mode, deadline, &port->sending);
		/* Pairs with the release of whoever settled it: what it was settled to is seen. */
		if (likely(smp_load_acquire(&call->settled))) {
			*delivered = call->taker != NULL;
			return call->outcome;
		}
		if (err == -EINTR && mode == TASK_INTERRUPTIBLE && port->ops->passes &&
		    port->ops->passes()) {
			go_away(call);
			return STPLR_AWAY;
		}
		asker.task = NULL;
		spin_lock(&port->lock);
		stplr_waiter_rearm(&call->sender);
		if (err)
			why = err;
		else if (call->interrupted && !why)
			why = -EINTR;
		if (call->state == STPLR_CALL_DONE && !call->busy) {
			leaves = true;
			ended = false;
			waker.task = NULL;
		} else if (err || call->interrupted) {
			leaves = leave_locked(call, why, fatal_signal_pending(current), &ended,
					      &waker);
		} else {
			leaves = false;
			waker.task = NULL;
		}
		if (!leaves && why) {
			/* Told once; from here on only death or an end of the call matters. */
			mode = TASK_KILLABLE;
			deadline = KTIME_MAX;
		}
		err = call->outcome;
		/* A call that somebody had has left the queue for good, even if it was put back. */
		*delivered = call->taker != NULL;
		if (!leaves && call->ask)
			serve_ask_locked(call, &asker);
		spin_unlock(&port->lock);
		stplr_waker_run(&asker, false);
		stplr_waker_run(&waker, false);
	} while (!leaves);

	if (ended)
		stplr_call_put(call);
	return err;
}

int stplr_port_send(struct stplr_call *call, ktime_t deadline, bool *delivered)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker;

	spin_lock(&port->lock);
	if (port->closed) {
		spin_unlock(&port->lock);
		*delivered = false;
		return -ESRCH;
	}
	if (!call->id)
		call->id = next_id_locked(port);
	refcount_inc(&call->refs);
	hlist_add_head(&call->all, &port->calls);
	submit_locked(port, &call->item, &waker);
	spin_unlock(&port->lock);
	if (port->ops->sent)
		port->ops->sent(call, waker.task);
	stplr_waker_run(&waker, true);
	return await_end(call, deadline, delivered);
}

int stplr_port_resume(struct stplr_call *call, ktime_t deadline, bool *delivered)
{
	spin_lock(&call->port->lock);
	call->away = false;
	spin_unlock(&call->port->lock);
	return await_end(call, deadline, delivered);
}

/* Whether that could be done: whoever touches the sender's memory is through in a moment. */
static bool forget(struct stplr_call *call, bool *ended)
{
	struct stplr_port *port = call->port;
	bool done;

	*ended = false;
	spin_lock(&port->lock);
	done = !call->touching;
	if (done && call->busy) {
		call->abandoned = true;
	} else if (done && call->state != STPLR_CALL_DONE) {
		end_locked(call, -EINTR);
		*ended = true;
	}
	spin_unlock(&port->lock);
	return done;
}

void stplr_port_forget(struct stplr_call *call)
{
	bool ended;

	while (!forget(call, &ended))
		cond_resched();
	if (ended)
		stplr_call_put(call);
}

/* As a new one, or where it was before. */
static int give(struct stplr_port *port, struct stplr_item *pulse,
		void (*how_locked)(struct stplr_port *port, struct stplr_item *item,
				   struct stplr_waker *waker))
{
	struct stplr_waker waker = {};
	int err = 0;

	spin_lock(&port->lock);
	if (port->closed)
		err = -ESRCH;
	else
		how_locked(port, pulse, &waker);
	spin_unlock(&port->lock);
	stplr_waker_run(&waker, false);
	return err;
}

int stplr_port_post(struct stplr_port *port, struct stplr_item *pulse, int priority)
{
	pulse->kind = STPLR_ITEM_PULSE;
	pulse->priority = priority;
	return give(port, pulse, submit_locked);
}

int stplr_port_unpost(struct stplr_port *port, struct stplr_item *pulse)
{
	return give(port, pulse, deliver_locked);
}

static struct stplr_item *first_locked(struct stplr_port *port)
{
	struct rb_node *call = rb_first_cached(&port->queues[STPLR_ITEM_CALL]);
	struct rb_node *pulse = rb_first_cached(&port->queues[STPLR_ITEM_PULSE]);

	if (call && pulse)
		return item_of(item_before(pulse, call) ? pulse : call);
	if (pulse)
		return item_of(pulse);
	return call ? item_of(call) : NULL;
}

int stplr_port_take(struct stplr_port *port, ktime_t deadline, struct stplr_item **item)
{
	struct receiver receiver = {}, *before;
	int err = 0;

	spin_lock(&port->lock);
	*item = first_locked(port);
	if (*item) {
		dequeue_locked(port, *item);
		take_locked(*item);
		goto unlock;
	}
	if (port->closed || !deadline) {
		err = port->closed ? -ESRCH : -ETIMEDOUT;
		goto unlock;
	}
	stplr_waiter_init(&receiver.waiter);
	before = first_receiver_locked(port);
	if (before)
		stplr_waiter_rest(&before->waiter);
	hlist_add_head(&receiver.node, &port->receivers);
	spin_unlock(&port->lock);

	err = stplr_waiter_wait(&receiver.waiter, TASK_INTERRUPTIBLE, deadline, &port->receiving);
	/* Whoever gave it the item took it off the list before that. */
	if (likely(!err)) {
		*item = receiver.item;
		if (likely(*item))
			return 0;
	}

	spin_lock(&port->lock);
	/* An item that was given to this receiver is received, whatever else happened meanwhile. */
	*item = receiver.item;
	hlist_del_init(&receiver.node);
	if (*item)
		err = 0;
	else if (port->closed)
		err = -ESRCH;
unlock:
	spin_unlock(&port->lock);
	return err;
}

bool stplr_call_keep(struct stplr_call *call, const void *taker, int taker_tid)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker = {};
	bool ended = true, kept;

	spin_lock(&port->lock);
	call->busy--;
	call->taker = taker;
	call->taker_tid = taker_tid;
	if (call->state == STPLR_CALL_TAKEN) {
		ended = call->abandoned;
		if (ended) {
			end_locked(call, -EINTR);
		} else {
			call->state = STPLR_CALL_OWED;
			hlist_add_head(&call->owed,
				       &port->owed[hash_64(call->id, STPLR_OWED_BITS)]);
		}
	} else {
		ended = false; /* closed meanwhile */
	}
	kept = call->state == STPLR_CALL_OWED;
	notify_sender_locked(call, &waker);
	spin_unlock(&port->lock);
	stplr_waker_run(&waker, false);
	if (ended)
		stplr_call_put(call);
	stplr_call_put(call);
	return kept;
}

void stplr_call_untake(struct stplr_call *call)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker = {}, sender = {};
	bool ended = false;

	spin_lock(&port->lock);
	call->busy--;
	if (call->state == STPLR_CALL_TAKEN) {
		ended = call->abandoned;
		if (ended)
			end_locked(call, -EINTR);
		else
			deliver_locked(port, &call->item, &waker);
	}
	if (!call->busy)
		notify_sender_locked(call, &sender);
	spin_unlock(&port->lock);
	stplr_waker_run(&waker, false);
	stplr_waker_run(&sender, false);
	if (ended)
		stplr_call_put(call);
	stplr_call_put(call);
}

bool stplr_call_touch(struct stplr_call *call)
{
	bool there;

	spin_lock(&call->port->lock);
	there = !call->abandoned;
	if (there)
		call->touching++;
	spin_unlock(&call->port->lock);
	return there;
}

void stplr_call_untouch(struct stplr_call *call)
{
	struct stplr_waker waker;

	spin_lock(&call->port->lock);
	call->touching--;
	notify_sender_locked(call, &waker);
	spin_unlock(&call->port->lock);
	stplr_waker_run(&waker, false);
}

int stplr_call_ask(struct stplr_call *call, struct stplr_ask *ask, ktime_t deadline)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker = {};
	int err = 0;

	stplr_waiter_init(&ask->waiter);
	ask->outcome = 0;
	spin_lock(&port->lock);
	if (call->abandoned)
		err = -ESRCH;
	else if (call->ask || call->away)
		err = -EBUSY;
	if (!err) {
		call->ask = ask;
		stplr_waiter_notify(&call->sender, &waker);
	}
	spin_unlock(&port->lock);
	if (err)
		return err;
	stplr_waker_run(&waker, true);
	err = stplr_waiter_wait(&ask->waiter, TASK_KILLABLE, deadline, &port->asking);
	spin_lock(&port->lock);
	if (call->ask == ask)
		call->ask = NULL;
	else
		err = ask->outcome;
	spin_unlock(&port->lock);
	return err;
}

static struct stplr_call *find_owed_locked(struct stplr_port *port, u64 id, const void *taker)
{
	struct stplr_call *call;

	hlist_for_each_entry(call, &port->owed[hash_64(id, STPLR_OWED_BITS)], owed)
		if (call->id == id && call->taker == taker)
			return call;
	return NULL;
}

/* Lends the caller a reference and makes it busy with the call. */
static struct stplr_call *hold_owed(struct stplr_port *port, u64 id, const void *taker, bool claim)
{
	struct stplr_call *call;

	spin_lock(&port->lock);
	call = find_owed_locked(port, id, taker);
	if (call) {
		call->busy++;
		refcount_inc(&call->refs);
		if (claim) {
			call->state = STPLR_CALL_ANSWERING;
			hlist_del_init(&call->owed);
		}
	}
	spin_unlock(&port->lock);
	return call;
}

struct stplr_call *stplr_port_claim(struct stplr_port *port, u64 id, const void *taker)
{
	return hold_owed(port, id, taker, true);
}

struct stplr_call *stplr_port_borrow(struct stplr_port *port, u64 id, const void *taker)
{
	return hold_owed(port, id, taker, false);
}

/* The caller is no longer busy with the call, which is OWED again or still. */
static void release_owed(struct stplr_call *call, bool claimed)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker;
	bool ended = false;

	spin_lock(&port->lock);
	call->busy--;
	if (claimed && call->state == STPLR_CALL_ANSWERING) {
		call->state = STPLR_CALL_OWED;
		hlist_add_head(&call->owed, &port->owed[hash_64(call->id, STPLR_OWED_BITS)]);
	}
	if (call->abandoned && !call->busy && call->state == STPLR_CALL_OWED) {
		end_locked(call, -EINTR);
		ended = true;
	}
	notify_sender_locked(call, &waker);
	spin_unlock(&port->lock);
	stplr_waker_run(&waker, false);
	if (ended)
		stplr_call_put(call);
	stplr_call_put(call);
}

void stplr_call_unclaim(struct stplr_call *call)
{
	release_owed(call, true);
}

void stplr_call_return(struct stplr_call *call)
{
	release_owed(call, false);
}

bool stplr_call_finish(struct stplr_call *call, int outcome, struct stplr_waker *waker)
{
	struct stplr_port *port = call->port;
	bool ended, left;

	spin_lock(&port->lock);
	left = call->abandoned;
	call->busy--;
	ended = call->state != STPLR_CALL_DONE;
	if (ended)
		end_locked(call, outcome);
	notify_sender_locked(call, waker);
	spin_unlock(&port->lock);
	if (ended)
		stplr_call_put(call);
	stplr_call_put(call);
	return !left;
}

/* Ends the oldest call, for each may have a sender to wake, which is not done under the lock. */
static bool end_one(struct stplr_port *port, int outcome)
{
	struct stplr_waker waker;
	struct stplr_call *call;

	spin_lock(&port->lock);
	call = hlist_entry_safe(port->calls.first, struct stplr_call, all);
	if (call) {
		end_locked(call, outcome);
		notify_sender_locked(call, &waker);
	}
	spin_unlock(&port->lock);
	if (!call)
		return false;
	stplr_waker_run(&waker, false);
	stplr_call_put(call);
	cond_resched();
	return true;
}

/*
 * Ends those of one bucket, which are found in one go however many others there are. They are the
 * port's until they are put below, so they can be strung together by what the port needs no more.
 */
static void disown_some(struct stplr_port *port, struct hlist_head *bucket, const void *taker,
			int outcome)
{
	struct hlist_head ended = { NULL };
	struct stplr_call *call;
	struct hlist_node *next;

	spin_lock(&port->lock);
	hlist_for_each_entry_safe(call, next, bucket, owed) {
		if (call->taker != taker)
			continue;
		end_locked(call, outcome);
		hlist_add_head(&call->all, &ended);
		notify_sender_locked(call, &call->waker);
	}
	spin_unlock(&port->lock);
	hlist_for_each_entry_safe(call, next, &ended, all) {
		hlist_del_init(&call->all);
		stplr_waker_run(&call->waker, false);
		stplr_call_put(call);
		cond_resched();
	}
}

/* Of calls that are TAKEN or ANSWERING somebody is through soon: the outcome is theirs. */
void stplr_port_disown(struct stplr_port *port, const void *taker, int outcome)
{
	int i;

	for (i = 0; i < 1 << STPLR_OWED_BITS; i++)
		disown_some(port, &port->owed[i], taker, outcome);
}

static bool wake_one_receiver(struct stplr_port *port)
{
	struct receiver *receiver;
	struct stplr_waker waker;

	spin_lock(&port->lock);
	receiver = first_receiver_locked(port);
	if (receiver) {
		hlist_del_init(&receiver->node);
		stplr_waiter_notify(&receiver->waiter, &waker);
	}
	spin_unlock(&port->lock);
	if (receiver)
		stplr_waker_run(&waker, false);
	return receiver;
}

static bool drop_one_pulse(struct stplr_port *port)
{
	struct stplr_item *item;

	spin_lock(&port->lock);
	item = first_locked(port);
	if (item)
		dequeue_locked(port, item);
	spin_unlock(&port->lock);
	if (item)
		port->ops->drop_pulse(item);
	cond_resched();
	return item;
}

void stplr_port_close(struct stplr_port *port, int outcome)
{
	spin_lock(&port->lock);
	WRITE_ONCE(port->closed, true);
	port->ops->readable(port);
	spin_unlock(&port->lock);

	while (end_one(port, outcome))
		;
	while (wake_one_receiver(port))
		;
	while (drop_one_pulse(port))
		;
}

bool stplr_port_closed(struct stplr_port *port)
{
	bool closed;

	spin_lock(&port->lock);
	closed = port->closed;
	spin_unlock(&port->lock);
	return closed;
}

bool stplr_call_taken(struct stplr_call *call)
{
	bool taken;

	spin_lock(&call->port->lock);
	taken = call->state == STPLR_CALL_TAKEN;
	spin_unlock(&call->port->lock);
	return taken;
}

int stplr_port_urgency(struct stplr_port *port)
{
	struct rb_node *first;
	int priority;

	spin_lock(&port->lock);
	first = rb_first_cached(&port->queues[STPLR_ITEM_CALL]);
	priority = first ? item_of(first)->priority : 0;
	spin_unlock(&port->lock);
	return priority;
}

void stplr_port_blocked(struct stplr_port *port, stplr_tell_blocked *tell, void *context)
{
	struct receiver *receiver;
	struct stplr_call *call;

	spin_lock(&port->lock);
	hlist_for_each_entry(call, &port->calls, all) {
		/* Its sender may be gone altogether. */
		if (call->abandoned)
			continue;
		if (call->state == STPLR_CALL_QUEUED || call->state == STPLR_CALL_TAKEN)
			tell(context, STPLR_SEND_BLOCKED, call->sender.task, call->item.priority,
			     0);
		else
			tell(context, STPLR_REPLY_BLOCKED, call->sender.task, call->item.priority,
			     call->taker_tid);
	}
	hlist_for_each_entry(receiver, &port->receivers, node)
		tell(context, STPLR_RECEIVE_BLOCKED, receiver->waiter.task, 0, 0);
	spin_unlock(&port->lock);
}

/* Without the lock: whoever queues something takes the lock of the pollers' queue afterwards. */
bool stplr_port_readable(struct stplr_port *port)
{
	return READ_ONCE(port->closed) ||
	       !RB_EMPTY_ROOT(&port->queues[STPLR_ITEM_CALL].rb_root) ||
	       !RB_EMPTY_ROOT(&port->queues[STPLR_ITEM_PULSE].rb_root);
}
