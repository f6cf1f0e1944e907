// SPDX-License-Identifier: GPL-2.0
#include "waiter.h"

#include <linux/hrtimer.h>
#include <linux/moduleparam.h>
#include <linux/rcupdate.h>
#include <linux/sched/clock.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/sched/task.h>
#include <linux/wait.h>

#include "compat.h"
#include "counters.h"

/* How much later than asked a sleeper may be woken, so that timers can share an interrupt. */
#define TIMER_SLACK_NS 50000

#define SPIN_US_MAX 1000

unsigned int stplr_spin_us;
unsigned int stplr_spin_us_max = 200;

static int set_spin_us(const char *text, const struct kernel_param *param)
{
	return param_set_uint_minmax(text, param, 0, SPIN_US_MAX);
}

static const struct kernel_param_ops spin_us_ops = { .set = set_spin_us, .get = param_get_uint };

module_param_cb(spin_us, &spin_us_ops, &stplr_spin_us, 0644);
__MODULE_PARM_TYPE(spin_us, "uint");
MODULE_PARM_DESC(spin_us, "Longest time in microseconds to spin before sleeping, where a channel does not say: 0 (never) to 1000");
module_param_cb(spin_us_max, &spin_us_ops, &stplr_spin_us_max, 0644);
__MODULE_PARM_TYPE(spin_us_max, "uint");
MODULE_PARM_DESC(spin_us_max, "The most of that for which a channel may ask, 0 to 1000");

void stplr_spin_init(struct stplr_spin *spin, u32 most_us)
{
	spin->ns = 0;
	spin->most_us = most_us;
}

/* Spins until notified, the end or something better to do. Whether it was notified. */
static bool spin_until(const struct stplr_waiter *waiter, unsigned int mode, u64 end)
{
	/* Pairs with the release in stplr_waiter_notify(). */
	while (!smp_load_acquire(&waiter->notified)) {
		if (!READ_ONCE(waiter->spins) || need_resched() || !single_task_running() ||
		    signal_pending_state(mode, current) || local_clock() >= end)
			return false;
		cpu_relax();
	}
	return true;
}

/* A wait that spinning would have ended is worth spinning for, twice as long to be sure. */
static void learn(struct stplr_spin *spin, u64 took)
{
	u32 most = stplr_spin_most_us(spin) * NSEC_PER_USEC;
	u32 before = READ_ONCE(spin->ns);

	if (took >= most)
		WRITE_ONCE(spin->ns, before / 2);
	else if (took > before)
		WRITE_ONCE(spin->ns, min_t(u32, 2 * took, most));
}

static int sleep(struct stplr_waiter *waiter, unsigned int mode, ktime_t deadline)
{
	int err = 0;

	for (;;) {
		/* mode may hold TASK_FREEZABLE: the freezer leaves the thread asleep then. */
		set_current_state(mode);
		/* Pairs with the release in stplr_waiter_notify(), here and below. */
		if (smp_load_acquire(&waiter->notified))
			break;
		/*
		 * Be it only because somebody freezes threads: that the caller can tell, and have the
		 * thread come back.
		 */
		if (signal_pending_state(mode, current)) {
			err = -EINTR;
			break;
		}
		if (deadline == KTIME_MAX) {
			schedule();
		} else if (deadline <= 0 || !schedule_hrtimeout_range(&deadline, TIMER_SLACK_NS,
								  HRTIMER_MODE_ABS)) {
			/* As above: it may have come just now. */
			err = smp_load_acquire(&waiter->notified) ? 0 : -ETIMEDOUT;
			break;
		}
	}
	__set_current_state(TASK_RUNNING);
	return err;
}

int stplr_waiter_wait(struct stplr_waiter *waiter, unsigned int mode, ktime_t deadline)
{
	struct stplr_spin *spin = waiter->spin;
	u64 start, most;
	int err;

	/* With others on this processor, whoever is waited for may be among them. */
	if (likely(!stplr_spin_most_us(spin)) || deadline <= 0 || !single_task_running())
		return sleep(waiter, mode, deadline);
	/* Pairs with the release in stplr_waiter_notify(). */
	if (smp_load_acquire(&waiter->notified))
		return 0;
	start = local_clock();
	most = READ_ONCE(spin->ns);
	if (most && deadline != KTIME_MAX)
		most = clamp_t(s64, ktime_sub(deadline, ktime_get()), 0, most);
	if (most && spin_until(waiter, mode, start + most)) {
		stplr_count(STPLR_COUNT_SPINS);
		return 0;
	}
	err = sleep(waiter, mode, deadline);
	if (READ_ONCE(waiter->spins))
		learn(spin, local_clock() - start);
	return err;
}

void stplr_waiter_notify(struct stplr_waiter *waiter, struct stplr_waker *waker)
{
	/* A thread that was notified and has not slept since is awake. */
	waker->task = NULL;
	if (waiter->notified)
		return;
	waker->task = get_task_struct(waiter->task);
	waker->hand_over = !stplr_spin_most_us(waiter->spin);
	/*
	 * Pairs with set_current_state() above: the sleeper sees this, or the waker its state. And
	 * with the loads there: who sees this sees what it is about.
	 */
	smp_store_release(&waiter->notified, true);
}

void stplr_waker_wake(struct stplr_waker *waker, bool yields)
{
	if (yields) {
		struct wait_queue_entry entry;

		/*
		 * wake_up_process() has no way to say so; this is what it and wait queues use. Of the
		 * entry it reads only whom to wake.
		 */
		entry.private = waker->task;
		default_wake_function(&entry, TASK_NORMAL,
				      waker->hand_over ? STPLR_WAKE_HANDOFF : STPLR_WAKE_SYNC,
				      NULL);
	} else {
		wake_up_process(waker->task);
	}
	put_task_struct(waker->task);
}
