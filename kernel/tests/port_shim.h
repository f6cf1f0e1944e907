/* SPDX-License-Identifier: GPL-2.0 */
/* How threads of the state machine's tests wait, in user space, in place of waiter.c. */
#ifndef PORT_SHIM_H
#define PORT_SHIM_H

#include <time.h>

#include "../call.h"

_Thread_local struct task_struct *current;

unsigned int stplr_spin_us, stplr_spin_us_max;

void stplr_spin_init(struct stplr_spin *spin, u32 most_us)
{
	spin->ns = 0;
	spin->most_us = most_us;
}

/* A deadline is a number of turns of half a millisecond here. Nobody spins. */
int stplr_waiter_wait(struct stplr_waiter *waiter, unsigned int mode, ktime_t deadline)
{
	struct task_struct *task = waiter->task;
	int err = 0;

	pthread_mutex_lock(&task->lock);
	while (!__atomic_load_n(&waiter->notified, __ATOMIC_ACQUIRE)) {
		struct timespec until;

		if (task->killed || (task->signalled && mode & TASK_INTERRUPTIBLE)) {
			task->signalled = false;
			err = -EINTR;
			break;
		}
		if (deadline <= 0) {
			err = -ETIMEDOUT;
			break;
		}
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 500000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		pthread_cond_timedwait(&task->woken, &task->lock, &until);
		if (deadline != KTIME_MAX)
			deadline--;
	}
	pthread_mutex_unlock(&task->lock);
	return err;
}

void stplr_waiter_notify(struct stplr_waiter *waiter, struct stplr_waker *waker)
{
	waker->task = NULL;
	if (READ_ONCE(waiter->notified))
		return;
	waker->task = waiter->task;
	__atomic_store_n(&waiter->notified, true, __ATOMIC_RELEASE);
}

void stplr_waker_wake(struct stplr_waker *waker, bool yields)
{
	(void)yields;
	pthread_mutex_lock(&waker->task->lock);
	pthread_cond_broadcast(&waker->task->woken);
	pthread_mutex_unlock(&waker->task->lock);
}

#endif
