/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Priorities of messages, and threads that run with one of those in place of their own: what that is in
 * the scheduler's terms, what such a thread gets back, and how its children start.
 */
#ifndef STPLR_PRIORITY_H
#define STPLR_PRIORITY_H

#include <linux/types.h>
#include <uapi/linux/sched/types.h>

struct task_struct;

/* 1 to 40 for nice 19 to -20, and 1 for SCHED_IDLE; above them real time. */
#define STPLR_PRIORITY_LEAST 1
#define STPLR_PRIORITY_NORMAL 20
#define STPLR_PRIORITY_REAL_TIME 40
#define STPLR_PRIORITY_DEADLINE (STPLR_PRIORITY_REAL_TIME + 100)

/* What a thread runs with by itself. */
struct stplr_own {
	struct sched_attr attr;
	u64 slack;
	bool lent_real_time;
	u32 start; /* how children start while it is raised, or 0; written as attr, read without a lock */
};

/**
 * stplr_priority_of_current() - the priority of the calling thread's messages
 *
 * Return: as above.
 */
int stplr_priority_of_current(void);

/**
 * stplr_own_remember() - note what a thread runs with, before it is raised
 * @own: where
 * @task: the thread
 */
void stplr_own_remember(struct stplr_own *own, const struct task_struct *task);

/**
 * stplr_own_raise() - have a thread run with a priority
 * @own: what was remembered of it
 * @task: the thread
 * @priority: which
 *
 * Return: false if its own is enough, and then nothing is changed.
 */
bool stplr_own_raise(struct stplr_own *own, struct task_struct *task, int priority);

/**
 * stplr_own_restore() - give a thread back what is its own
 * @own: what was remembered of it
 * @task: the thread
 */
void stplr_own_restore(struct stplr_own *own, struct task_struct *task);

/**
 * stplr_own_start() - have a child start as if its parent was not raised
 * @own: of the parent; it may be raised or not, and somebody may be changing that
 * @parent: the calling thread
 * @child: which has not run yet
 *
 * Does not sleep. A child of a real-time thread stays what the kernel has made it.
 */
void stplr_own_start(const struct stplr_own *own, const struct task_struct *parent,
		     struct task_struct *child);

#endif
