// SPDX-License-Identifier: GPL-2.0
#include "priority.h"

#include <linux/minmax.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/spinlock.h>

#include "compat.h"

int stplr_priority_of_current(void)
{
	switch (current->policy) {
	case SCHED_FIFO:
	case SCHED_RR:
		return STPLR_PRIORITY_REAL_TIME + current->rt_priority;
	case SCHED_DEADLINE:
		return STPLR_PRIORITY_DEADLINE;
	case SCHED_IDLE:
		return STPLR_PRIORITY_LEAST;
	default:
		return STPLR_PRIORITY_NORMAL - task_nice(current);
	}
}

static bool is_real_time(unsigned int policy)
{
	return policy == SCHED_FIFO || policy == SCHED_RR;
}

/* Whether a thread may go from one such policy to another at any time before it runs. */
static bool is_plain(unsigned int policy)
{
	return policy == SCHED_NORMAL || policy == SCHED_BATCH || policy == SCHED_IDLE;
}

#define START_KNOWN BIT(31)
#define START_POLICY_SHIFT 8
#define START_NICE_MASK 0xff

/* How children of such a thread start: policy and nice value in one word. 0: that is not for modules to set. */
static u32 start_of(unsigned int policy, int nice, bool resets)
{
	if (is_real_time(policy) || policy == SCHED_DEADLINE)
		return 0;
	if (resets)
		nice = max(nice, 0);
	return START_KNOWN | policy << START_POLICY_SHIFT | (u32)(nice - MIN_NICE);
}

void stplr_own_remember(struct stplr_own *own, const struct task_struct *task)
{
	unsigned int policy = READ_ONCE(task->policy), priority = READ_ONCE(task->rt_priority);
	bool real_time = is_real_time(policy);

	/* Somebody may be changing both at this moment. What is kept has to be something valid. */
	own->attr = (struct sched_attr){
		.size = sizeof(own->attr),
		.sched_policy = policy,
		.sched_flags = task->sched_reset_on_fork ? SCHED_FLAG_RESET_ON_FORK : 0,
		.sched_nice = task_nice(task),
		.sched_priority = real_time ? max(priority, 1U) : 0,
		.sched_runtime = real_time ? 0 : stplr_own_slice(task),
	};
	own->slack = READ_ONCE(task->timer_slack_ns);
	own->lent_real_time = false;
}

/* A group of threads may be given no real time at all, and its share is not for modules to see. */
static bool may_be_real_time(const struct task_struct *task)
{
#ifdef CONFIG_RT_GROUP_SCHED
	return READ_ONCE(task->sched_task_group) == READ_ONCE(init_task.sched_task_group);
#else
	return true;
#endif
}

/* What the thread needs in order to run with this priority; false: what it has is enough. */
static bool raise(const struct sched_attr *own, int priority, struct sched_attr *attr)
{
	bool real_time = is_real_time(own->sched_policy), idle = own->sched_policy == SCHED_IDLE;

	*attr = *own;
	attr->sched_flags = SCHED_FLAG_RESET_ON_FORK;
	if (own->sched_policy == SCHED_DEADLINE)
		return false;
	if (priority > STPLR_PRIORITY_REAL_TIME) {
		u32 wanted = min(priority - STPLR_PRIORITY_REAL_TIME, 99);

		if (real_time && own->sched_priority >= wanted)
			return false;
		if (!real_time)
			attr->sched_policy = SCHED_FIFO;
		attr->sched_runtime = 0;
		attr->sched_priority = wanted;
		return true;
	}
	/* SCHED_IDLE is less than the least, which may be nice 19. */
	if (real_time || priority < STPLR_PRIORITY_LEAST ||
	    (!idle && priority <= STPLR_PRIORITY_NORMAL - own->sched_nice))
		return false;
	if (idle)
		attr->sched_policy = SCHED_NORMAL;
	attr->sched_nice = STPLR_PRIORITY_NORMAL - priority;
	return true;
}

bool stplr_own_raise(struct stplr_own *own, struct task_struct *task, int priority)
{
	struct sched_attr attr;

	if (!may_be_real_time(task))
		priority = min(priority, STPLR_PRIORITY_REAL_TIME);
	if (!raise(&own->attr, priority, &attr))
		return false;
	/* Before it is raised, and until after it is not any more. */
	WRITE_ONCE(own->start, start_of(own->attr.sched_policy, own->attr.sched_nice,
					own->attr.sched_flags & SCHED_FLAG_RESET_ON_FORK));
	smp_wmb();
	sched_setattr_nocheck(task, &attr);
	own->lent_real_time |= attr.sched_policy != own->attr.sched_policy &&
			       attr.sched_policy == SCHED_FIFO;
	return true;
}

void stplr_own_restore(struct stplr_own *own, struct task_struct *task)
{
	const struct sched_attr normal = { .size = sizeof(normal), .sched_policy = SCHED_NORMAL };

	/* Nobody keeps what was lent. */
	if (sched_setattr_nocheck(task, &own->attr))
		sched_setattr_nocheck(task, &normal);
	/* Which SCHED_IDLE has, and keeps from before. */
	if (own->attr.sched_policy == SCHED_IDLE)
		set_user_nice(task, own->attr.sched_nice);
	WRITE_ONCE(own->start, 0);
	/* Real-time threads have none, and those that are no longer get the default. */
	if (own->lent_real_time)
		WRITE_ONCE(task->timer_slack_ns, own->slack);
}

/*
 * It has not run, so its policy is a number that others change under this lock alone; its weight follows
 * the nice value.
 */
static void start_with(struct task_struct *child, unsigned int policy, int nice)
{
	unsigned long flags;
	bool changes;

	raw_spin_lock_irqsave(&child->pi_lock, flags);
	changes = child->policy != policy && is_plain(child->policy) && is_plain(policy);
	if (changes)
		child->policy = policy;
	raw_spin_unlock_irqrestore(&child->pi_lock, flags);
	/* What stays the same is not looked at. */
	if (changes && task_nice(child) == nice)
		set_user_nice(child, nice ? 0 : 1);
	set_user_nice(child, nice);
}

void stplr_own_start(const struct stplr_own *own, const struct task_struct *parent,
		     struct task_struct *child)
{
	u32 start = READ_ONCE(own->start);

	/* If it is not raised, it may still have been when the child was made. */
	if (!start) {
		u32 as_parent = start_of(READ_ONCE(parent->policy), task_nice(parent),
					 parent->sched_reset_on_fork);

		/* Whoever has raised it before these were read has said first from what. */
		smp_rmb();
		start = READ_ONCE(own->start);
		if (!start)
			start = as_parent;
	}
	if (start && !is_real_time(child->policy))
		start_with(child, (start & ~START_KNOWN) >> START_POLICY_SHIFT,
			   (int)(start & START_NICE_MASK) + MIN_NICE);
}
