/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A thread that waits until another says so, a signal comes, or time is up.
 *
 * Where that is asked for, it spins for a while before it sleeps, if it has a processor to itself: on
 * another processor the answer may be there before a wake-up would be. How long is learned from the
 * waits before. It is asked for as with busy_poll: for a channel, or by spin_us for all.
 *
 * A waker calls stplr_waiter_notify() under the lock that guards what is waited for, and
 * stplr_waker_run() once it has let go of that lock; in between it holds a reference to the
 * thread, which may be gone from its wait already.
 */
#ifndef STPLR_WAITER_H
#define STPLR_WAITER_H

#include <linux/ktime.h>
#include <linux/sched.h>

#include "include/stplr.h"

/* How long waits of one kind spin before they sleep. What is learned is a guess, so it needs no lock. */
struct stplr_spin {
	u32 ns;
	u32 most_us; /* 0: what spin_us says */
};

struct stplr_waiter {
	struct task_struct *task;
	struct stplr_spin *spin;
	bool notified;
	bool spins; /* until others are more likely to be notified first */
};

struct stplr_waker {
	struct task_struct *task;
	bool hand_over; /* it does not spin, so this processor is the place for it */
};

/**
 * stplr_spin_init() - initialise what waits of one kind share
 * @spin: that
 * @most_us: how long they spin at most, no more than spin_us_max; 0: what spin_us says
 */
void stplr_spin_init(struct stplr_spin *spin, u32 most_us);

/* The module's parameters of these names. */
extern unsigned int stplr_spin_us, stplr_spin_us_max;

/* How many microseconds at most a wait of that kind spins, as things are. */
static inline u32 stplr_spin_most_us(const struct stplr_spin *spin)
{
	u32 most = READ_ONCE(stplr_spin_us_max);

	if (!spin->most_us)
		return READ_ONCE(stplr_spin_us);
	return spin->most_us < most ? spin->most_us : most;
}

/* A wait of the calling thread. What waits of its kind share stays as long as the waiter. */
static inline void stplr_waiter_init(struct stplr_waiter *waiter, struct stplr_spin *spin)
{
	waiter->task = current;
	waiter->spin = spin;
	waiter->notified = false;
	waiter->spins = true;
}

/* Makes the next sleep wait again. Under the lock that guards what is waited for. */
static inline void stplr_waiter_rearm(struct stplr_waiter *waiter)
{
	WRITE_ONCE(waiter->notified, false);
}

/* Others wait for the same and are to be notified first: this one need not spin any longer. */
static inline void stplr_waiter_rest(struct stplr_waiter *waiter)
{
	WRITE_ONCE(waiter->spins, false);
}

/* The deadline of who has caught a signal before: as 0, but what senders and receivers say is -EINTR. */
#define STPLR_DEADLINE_CAUGHT (-1)

/* A deadline from a timeout of a program. */
static inline ktime_t stplr_deadline(s64 timeout_ns)
{
	if (timeout_ns == STPLR_DISARMED)
		return STPLR_DEADLINE_CAUGHT;
	if (timeout_ns < 0)
		return KTIME_MAX;
	return timeout_ns ? ktime_add_safe(ktime_get(), timeout_ns) : 0;
}

/**
 * stplr_waiter_wait() - wait until notified
 * @waiter: a wait of the calling thread
 * @mode: which signals end it, TASK_INTERRUPTIBLE or TASK_KILLABLE, and TASK_FREEZABLE unless the caller
 *	has a lock that others would have to wait for meanwhile
 * @deadline: when it ends otherwise; KTIME_MAX is never, and 0 and less has passed
 *
 * Return: 0 when notified, and then what was written before that can be read without a lock; -EINTR,
 * -ETIMEDOUT.
 */
int stplr_waiter_wait(struct stplr_waiter *waiter, unsigned int mode, ktime_t deadline);

/**
 * stplr_waiter_notify() - end a wait, under the lock that guards what is waited for
 * @waiter: the wait
 * @waker: what stplr_waker_run() has to do
 */
void stplr_waiter_notify(struct stplr_waiter *waiter, struct stplr_waker *waker);

/**
 * stplr_waker_wake() - stplr_waker_run() where there is somebody to wake
 * @waker: who
 * @yields: as there
 */
void stplr_waker_wake(struct stplr_waker *waker, bool yields);

/* With yields, the caller says that it is about to sleep: the other may have this processor. */
static inline void stplr_waker_run(struct stplr_waker *waker, bool yields)
{
	if (waker->task)
		stplr_waker_wake(waker, yields);
}

#endif
