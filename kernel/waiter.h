/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A thread that waits until another says so, a signal comes, or time is up.
 *
 * Before it sleeps it looks for a while, if it has a processor to itself: on another processor the
 * answer may be there before a wake-up would be. How long is learned from the waits before.
 *
 * A waker calls stplr_waiter_notify() under the lock that guards what is waited for, and
 * stplr_waker_run() once it has let go of that lock; in between it holds a reference to the
 * thread, which may be gone from its wait already.
 */
#ifndef STPLR_WAITER_H
#define STPLR_WAITER_H

#include <linux/ktime.h>
#include <linux/sched.h>

struct stplr_waiter {
	struct task_struct *task;
	bool notified;
	bool looks; /* until others are more likely to be notified first */
};

/* How long waits of one kind look before they sleep. A guess, so it needs no lock. */
struct stplr_patience {
	u32 ns;
};

struct stplr_waker {
	struct task_struct *task;
};

void stplr_waiter_init(struct stplr_waiter *waiter);

/* Makes the next sleep wait again. Under the lock that guards what is waited for. */
static inline void stplr_waiter_rearm(struct stplr_waiter *waiter)
{
	WRITE_ONCE(waiter->notified, false);
}

/* Others wait for the same and are to be notified first: this one need not look any longer. */
static inline void stplr_waiter_rest(struct stplr_waiter *waiter)
{
	WRITE_ONCE(waiter->looks, false);
}

/*
 * 0 when notified, and then what was written before that can be read without a lock; -EINTR on a
 * signal that mode (TASK_INTERRUPTIBLE or TASK_KILLABLE) lets through, -ETIMEDOUT at the deadline.
 * KTIME_MAX is never; a deadline of 0 has passed.
 */
int stplr_waiter_wait(struct stplr_waiter *waiter, unsigned int mode, ktime_t deadline,
		      struct stplr_patience *patience);

/*
 * Whether there is a signal that mode lets through. Those who freeze threads, be it for a suspend, say
 * so by one that is none: then the thread is frozen here.
 */
bool stplr_interrupted(unsigned int mode);

void stplr_waiter_notify(struct stplr_waiter *waiter, struct stplr_waker *waker);

void stplr_waker_wake(struct stplr_waker *waker, bool yields);

/* With yields, the caller says that it is about to sleep: the other may have this processor. */
static inline void stplr_waker_run(struct stplr_waker *waker, bool yields)
{
	if (waker->task)
		stplr_waker_wake(waker, yields);
}

#endif
