// SPDX-License-Identifier: GPL-2.0
#include "waiter.h"

#include <linux/hrtimer.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/wait.h>

#include "compat.h"

/* How much later than asked a sleeper may be woken, so that timers can share an interrupt. */
#define TIMER_SLACK_NS 50000

void stplr_waiter_init(struct stplr_waiter *waiter)
{
	waiter->task = current;
	waiter->notified = false;
}

int stplr_waiter_sleep(struct stplr_waiter *waiter, unsigned int mode, ktime_t deadline)
{
	int err = 0;

	for (;;) {
		set_current_state(mode);
		/* Pairs with the release in stplr_waiter_notify(), here and below. */
		if (smp_load_acquire(&waiter->notified))
			break;
		if (signal_pending_state(mode, current)) {
			err = -EINTR;
			break;
		}
		if (deadline == KTIME_MAX) {
			schedule();
		} else if (!deadline || !schedule_hrtimeout_range(&deadline, TIMER_SLACK_NS,
								  HRTIMER_MODE_ABS)) {
			/* As above: it may have come just now. */
			err = smp_load_acquire(&waiter->notified) ? 0 : -ETIMEDOUT;
			break;
		}
	}
	__set_current_state(TASK_RUNNING);
	return err;
}

void stplr_waiter_notify(struct stplr_waiter *waiter, struct stplr_waker *waker)
{
	/* A thread that was notified and has not slept since is awake. */
	waker->task = NULL;
	if (waiter->notified)
		return;
	waker->task = get_task_struct(waiter->task);
	/*
	 * Pairs with set_current_state() above: the sleeper sees this, or the waker its state. And
	 * with the loads there: who sees this sees what it is about.
	 */
	smp_store_release(&waiter->notified, true);
}

void stplr_waker_wake(struct stplr_waker *waker, bool yields)
{
	if (yields) {
		struct wait_queue_entry entry STPLR_UNSET;

		/*
		 * wake_up_process() has no way to say so; this is what it and wait queues use. Of the
		 * entry it reads only whom to wake.
		 */
		entry.private = waker->task;
		default_wake_function(&entry, TASK_NORMAL, STPLR_WAKE_HANDOFF, NULL);
	} else {
		wake_up_process(waker->task);
	}
	put_task_struct(waker->task);
}
