// SPDX-License-Identifier: GPL-2.0
#include "port.h"

#include <linux/errno.h>
#include <linux/sched.h>

#include "port_locked.h"

/* One thread's wait for an item. Lives on its stack, in port->receivers while it has none. */
struct receiver {
	struct hlist_node node;
	struct stplr_waiter waiter;
	struct stplr_item *item; /* given to it, taken out of the queue */
};

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

void stplr_port_init(struct stplr_port *port, const struct stplr_port_ops *ops, u64 secret,
		     u32 spin_us)
{
	int i;

	spin_lock_init(&port->lock);
	port->closed = false;
	port->order = 0;
	for (i = 0; i < STPLR_ITEM_KINDS; i++)
		port->queues[i] = RB_ROOT_CACHED;
	INIT_HLIST_HEAD(&port->receivers);
	INIT_HLIST_HEAD(&port->calls);
	INIT_HLIST_HEAD(&port->answered);
	for (i = 0; i < 1 << STPLR_OWED_BITS; i++)
		INIT_HLIST_HEAD(&port->owed[i]);
	stplr_spin_init(&port->receiving, spin_us);
	stplr_spin_init(&port->sending, spin_us);
	stplr_spin_init(&port->asking, spin_us);
	port->ids = 0;
	port->id_factor = secret | 1;
	port->ops = ops;
}

static void enqueue_locked(struct stplr_port *port, struct stplr_item *item)
{
	rb_add_cached(&item->node, &port->queues[item->kind], item_before);
	item->queued = true;
	if (item->kind == STPLR_ITEM_CALL)
		stplr_call_of(item)->state = STPLR_CALL_QUEUED;
}

void stplr_port_dequeue_locked(struct stplr_port *port, struct stplr_item *item)
{
	rb_erase_cached(&item->node, &port->queues[item->kind]);
	item->queued = false;
}

/* The caller of take owns the item from here on; of a call, it is lent a reference. */
static void take_locked(struct stplr_item *item, const struct task_struct *receiver)
{
	if (item->kind == STPLR_ITEM_CALL) {
		struct stplr_call *call = stplr_call_of(item);

		call->state = STPLR_CALL_TAKEN;
		call->receiver = receiver;
		call->busy++;
		refcount_inc(&call->refs);
	}
}

static struct receiver *first_receiver_locked(struct stplr_port *port)
{
	return hlist_entry_safe(port->receivers.first, struct receiver, node);
}

static void tell_pollers_locked(struct stplr_port *port)
{
	if (port->ops->readable)
		port->ops->readable(port);
}

void stplr_port_deliver_locked(struct stplr_port *port, struct stplr_item *item,
			       struct stplr_waker *waker)
{
	struct receiver *receiver;

	waker->task = NULL;
	receiver = first_receiver_locked(port);
	if (!receiver) {
		enqueue_locked(port, item);
		tell_pollers_locked(port);
		return;
	}
	hlist_del_init(&receiver->node);
	take_locked(item, receiver->waiter.task);
	receiver->item = item;
	stplr_waiter_notify(&receiver->waiter, waker);
}

void stplr_port_submit_locked(struct stplr_port *port, struct stplr_item *item,
			      struct stplr_waker *waker)
{
	item->order = port->order++;
	stplr_port_deliver_locked(port, item, waker);
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
	return give(port, pulse, stplr_port_submit_locked);
}

int stplr_port_requeue(struct stplr_port *port, struct stplr_item *pulse)
{
	return give(port, pulse, stplr_port_deliver_locked);
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

/*
 * Takes the first item, or, if the caller is to wait for one, puts it in line for that. False: it is
 * through, with *err.
 */
static bool line_up_locked(struct stplr_port *port, struct receiver *receiver, ktime_t deadline,
			   struct stplr_item **item, int *err)
{
	struct receiver *before;

	*err = 0;
	*item = first_locked(port);
	if (*item) {
		stplr_port_dequeue_locked(port, *item);
		take_locked(*item, current);
		return false;
	}
	if (port->closed || deadline <= 0) {
		*err = port->closed ? -ESRCH : -ETIMEDOUT;
		return false;
	}
	stplr_waiter_init(&receiver->waiter, &port->receiving);
	before = first_receiver_locked(port);
	if (before)
		stplr_waiter_rest(&before->waiter);
	hlist_add_head(&receiver->node, &port->receivers);
	return true;
}

/* By one who is in line. */
static int await_item(struct stplr_port *port, struct receiver *receiver, ktime_t deadline,
		      struct stplr_item **item)
{
	/* Not to be frozen in line, where it would be given what others could receive: it comes back to it. */
	int err = stplr_waiter_wait(&receiver->waiter, TASK_INTERRUPTIBLE, deadline);

	/* Whoever gave it the item took it off the list before that. */
	if (likely(!err)) {
		*item = receiver->item;
		if (likely(*item))
			return 0;
	}
	spin_lock(&port->lock);
	/* An item that was given to this receiver is received, whatever else happened meanwhile. */
	*item = receiver->item;
	hlist_del_init(&receiver->node);
	if (*item)
		err = 0;
	else if (port->closed)
		err = -ESRCH;
	spin_unlock(&port->lock);
	return err;
}

int stplr_port_take(struct stplr_port *port, ktime_t deadline, struct stplr_item **item)
{
	struct receiver receiver = {};
	bool waits;
	int err;

	spin_lock(&port->lock);
	waits = line_up_locked(port, &receiver, deadline, item, &err);
	spin_unlock(&port->lock);
	return waits ? await_item(port, &receiver, deadline, item) : err;
}

int stplr_port_answer_and_take(struct stplr_port *port, struct stplr_answer *answer,
			       ktime_t deadline, struct stplr_item **item)
{
	struct stplr_call *call = answer->call;
	struct receiver receiver = {};
	struct stplr_waker waker;
	bool ended, waits;
	int err;

	answer->call = NULL;
	if (!call)
		return stplr_port_take(port, deadline, item);
	spin_lock(&port->lock);
	ended = stplr_call_finish_locked(call, answer->outcome, &waker);
	waits = line_up_locked(port, &receiver, deadline, item, &err);
	spin_unlock(&port->lock);
	stplr_call_put_ended(call, ended);
	stplr_waker_run(&waker, waits);
	return waits ? await_item(port, &receiver, deadline, item) : err;
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
		stplr_port_dequeue_locked(port, item);
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
	tell_pollers_locked(port);
	spin_unlock(&port->lock);

	while (stplr_port_end_one(port, outcome))
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

void stplr_port_remind(struct stplr_port *port)
{
	spin_lock(&port->lock);
	if (first_locked(port))
		tell_pollers_locked(port);
	spin_unlock(&port->lock);
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
			     call->replier_tid);
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
