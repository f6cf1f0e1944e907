// SPDX-License-Identifier: GPL-2.0
/* A call from the side of its sender, and what others ask of that. */
#include "call.h"

#include <linux/delay.h>
#include <linux/errno.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "port_locked.h"

/* Lets whoever asks the sender for something go on. */
static void end_ask_locked(struct stplr_call *call, int outcome, struct stplr_waker *waker)
{
	waker->task = NULL;
	if (!call->ask)
		return;
	call->ask->outcome = outcome;
	stplr_waiter_notify(&call->ask->waiter, waker);
	WRITE_ONCE(call->ask, NULL);
}

/* By the sender of what is settled, which others may still read; nobody begins to ask any more. */
static void refuse_ask(struct stplr_call *call)
{
	struct stplr_waker waker;

	spin_lock(&call->port->lock);
	end_ask_locked(call, -ESRCH, &waker);
	spin_unlock(&call->port->lock);
	stplr_waker_run(&waker, false);
}

bool stplr_call_leave_locked(struct stplr_call *call, int why, bool fatal, bool *ended,
			     struct stplr_waker *waker)
{
	struct stplr_item *pulse;

	*ended = false;
	waker->task = NULL;
	if (call->touching && !fatal) {
		call->interrupted = why;
		return false;
	}
	if ((call->state == STPLR_CALL_OWED || call->state == STPLR_CALL_ANSWERING) && !fatal) {
		if (call->unblocked)
			return false;
		pulse = call->port->ops->unblock ? call->port->ops->unblock(call) : NULL;
		if (pulse) {
			call->unblocked = true;
			stplr_port_submit_locked(call->port, pulse, waker);
			return false;
		}
	}
	stplr_call_tell_left_locked(call);
	if (call->busy) {
		call->abandoned = true;
		call->outcome = why;
		end_ask_locked(call, -ESRCH, waker);
		return true;
	}
	stplr_call_end_locked(call, why);
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
	__must_hold(&call->port->lock)
{
	struct stplr_port *port = call->port;
	struct stplr_ask *ask = call->ask, copy = *ask;
	int err;

	spin_unlock(&port->lock);
	err = copy.room ? port->ops->make_room(copy.length) :
			  port->ops->bring(copy.base, copy.length, copy.write);
	spin_lock(&port->lock);
	/* Who asked may have given up, and another may ask now. */
	if (call->ask == ask)
		end_ask_locked(call, err, waker);
}

/*
 * The call goes on meanwhile, without anybody to ask. Whoever touches the sender's memory is through in a
 * moment, and nobody begins to.
 */
static void go_away(struct stplr_call *call)
{
	struct stplr_waker waker;
	bool touched;

	do {
		spin_lock(&call->port->lock);
		call->away = true;
		end_ask_locked(call, -EBUSY, &waker);
		touched = call->touching;
		spin_unlock(&call->port->lock);
		stplr_waker_run(&waker, false);
		/* Asleep, as the other may need this processor. */
		if (touched)
			usleep_range(20, 40);
	} while (touched);
}

/* After a wait that ended with err: whether the sender leaves, and why, be it later. */
static bool look_locked(struct stplr_call *call, int err, int *why, bool *ended,
			struct stplr_waker *waker)
{
	*ended = false;
	waker->task = NULL;
	if (call->settled) {
		end_ask_locked(call, -ESRCH, waker);
		return true;
	}
	/* Whoever touched its memory last has seen to that. */
	if (call->abandoned)
		return true;
	stplr_waiter_rearm(&call->sender);
	if (!err)
		return false;
	*why = err;
	return stplr_call_leave_locked(call, err, fatal_signal_pending(current), ended, waker);
}

static int await_end(struct stplr_call *call, ktime_t deadline, bool *delivered)
{
	struct stplr_port *port = call->port;
	unsigned int mode = TASK_INTERRUPTIBLE;
	struct stplr_waker waker, asker;
	int err, outcome, why = 0;
	bool leaves, ended;

	do {
		err = stplr_waiter_wait(&call->sender, mode | TASK_FREEZABLE, deadline);
		/* Pairs with the release of whoever settled it: what it was settled to is seen. */
		if (likely(smp_load_acquire(&call->settled))) {
			if (unlikely(READ_ONCE(call->ask)))
				refuse_ask(call);
			*delivered = call->replier != NULL;
			return call->outcome;
		}
		if (err == -EINTR && mode == TASK_INTERRUPTIBLE && port->ops->passes &&
		    port->ops->passes()) {
			go_away(call);
			return STPLR_AWAY;
		}
		if (err == -ETIMEDOUT && deadline == STPLR_DEADLINE_CAUGHT)
			err = -EINTR;
		asker.task = NULL;
		spin_lock(&port->lock);
		leaves = look_locked(call, err, &why, &ended, &waker);
		outcome = call->settled ? call->outcome : why;
		/* A call that somebody had has left the queue for good, even if it was put back. */
		*delivered = call->replier != NULL;
		if (!leaves && call->ask)
			serve_ask_locked(call, &asker);
		spin_unlock(&port->lock);
		stplr_waker_run(&asker, false);
		stplr_waker_run(&waker, false);
		if (why) {
			/* Told once; from here on only death or an end of the call matters. */
			mode = TASK_KILLABLE;
			deadline = KTIME_MAX;
		}
	} while (!leaves);

	if (ended)
		stplr_call_put(call);
	return outcome;
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
	stplr_port_submit_locked(port, &call->item, &waker);
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

bool stplr_port_forget(struct stplr_call *call)
{
	struct stplr_port *port = call->port;
	bool owed, ended = false;

	spin_lock(&port->lock);
	owed = call->state == STPLR_CALL_OWED || call->state == STPLR_CALL_ANSWERING;
	stplr_call_tell_left_locked(call);
	if (call->busy) {
		call->abandoned = true;
	} else if (call->state != STPLR_CALL_DONE) {
		stplr_call_end_locked(call, -EINTR);
		ended = true;
	}
	spin_unlock(&port->lock);
	if (ended)
		stplr_call_put(call);
	return owed;
}

int stplr_call_ask(struct stplr_call *call, struct stplr_ask *ask, ktime_t deadline)
{
	struct stplr_port *port = call->port;
	struct stplr_waker waker = {};
	int err = 0;

	stplr_waiter_init(&ask->waiter, &port->asking);
	ask->outcome = 0;
	spin_lock(&port->lock);
	if (call->abandoned || stplr_call_over_locked(call))
		err = -ESRCH;
	else if (call->ask || call->away)
		err = -EBUSY;
	if (!err) {
		WRITE_ONCE(call->ask, ask);
		stplr_waiter_notify(&call->sender, &waker);
	}
	spin_unlock(&port->lock);
	if (err)
		return err;
	stplr_waker_run(&waker, true);
	/* Not to be frozen: it may have the lock of the message, and does not wait for long. */
	err = stplr_waiter_wait(&ask->waiter, TASK_KILLABLE, deadline);
	spin_lock(&port->lock);
	if (call->ask == ask)
		WRITE_ONCE(call->ask, NULL);
	else
		err = ask->outcome;
	spin_unlock(&port->lock);
	return err;
}
