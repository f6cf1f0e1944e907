// SPDX-License-Identifier: GPL-2.0
#include "inherit.h"

#include <linux/hashtable.h>
#include <linux/rtmutex.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <uapi/linux/sched/types.h>

#include "counters.h"
#include "exit.h"

/* A thread that receives on such channels, for as long as one of them is open. */
struct heir {
	struct hlist_node node; /* in heirs */
	struct list_head loans;
	unsigned int count; /* of them */
	struct stplr_watch watch;
	struct task_struct *task; /* reference */
	int raised; /* to this priority; 0: it runs with its own */
	struct sched_attr own; /* what it gets back, while it is raised */
};

/* What one channel has one thread run with. */
struct loan {
	struct list_head of_heir;
	struct list_head of_channel; /* in channel->loans */
	struct heir *heir;
	struct stplr_channel *channel; /* which ends its loans before it goes */
	struct stplr_user *user; /* who is charged; the channel's */
	u64 serving; /* id of the call that counts, or 0 */
	int priority; /* of that call */
	int urgency; /* of the queue, as last seen */
};

/* From so many channels a thread inherits at most: all of them are gone through under a lock. */
#define LOANS_MAX 64

/* And so many threads inherit from a channel. */
#define HEIRS_MAX 256

static DEFINE_RT_MUTEX(inherit_lock);
static DEFINE_HASHTABLE(heirs, 6);

int stplr_priority_of_current(void)
{
	switch (current->policy) {
	case SCHED_FIFO:
	case SCHED_RR:
		return STPLR_PRIORITY_REAL_TIME + current->rt_priority;
	case SCHED_DEADLINE:
		return STPLR_PRIORITY_DEADLINE;
	default:
		return STPLR_PRIORITY_NORMAL - task_nice(current);
	}
}

static struct heir *find_heir_locked(const struct task_struct *task)
{
	struct heir *heir;

	hash_for_each_possible(heirs, heir, node, (unsigned long)task)
		if (heir->task == task)
			return heir;
	return NULL;
}

static struct loan *find_loan_locked(struct stplr_channel *channel, const struct task_struct *task)
{
	struct loan *loan;

	list_for_each_entry(loan, &channel->loans, of_channel)
		if (loan->heir->task == task)
			return loan;
	return NULL;
}

static void remember_own(struct heir *heir)
{
	struct task_struct *task = heir->task;
	unsigned int policy = READ_ONCE(task->policy), priority = READ_ONCE(task->rt_priority);
	bool real_time = policy == SCHED_FIFO || policy == SCHED_RR;

	/* Somebody may be changing both at this moment. What is kept has to be something valid. */
	heir->own = (struct sched_attr){
		.size = sizeof(heir->own),
		.sched_policy = policy,
		.sched_flags = task->sched_reset_on_fork ? SCHED_FLAG_RESET_ON_FORK : 0,
		.sched_nice = task_nice(task),
		.sched_priority = real_time ? max(priority, 1U) : 0,
	};
}

static void restore_own(struct heir *heir)
{
	const struct sched_attr normal = { .size = sizeof(normal), .sched_policy = SCHED_NORMAL };

	/* Nobody keeps what was lent. */
	if (sched_setattr_nocheck(heir->task, &heir->own))
		sched_setattr_nocheck(heir->task, &normal);
}

/* What the thread needs in order to run with this priority; false: what it has is enough. */
static bool raise(const struct sched_attr *own, int priority, struct sched_attr *attr)
{
	bool real_time = own->sched_policy == SCHED_FIFO || own->sched_policy == SCHED_RR;

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
		attr->sched_priority = wanted;
		return true;
	}
	if (real_time || priority <= STPLR_PRIORITY_NORMAL - own->sched_nice)
		return false;
	if (own->sched_policy == SCHED_IDLE)
		attr->sched_policy = SCHED_NORMAL;
	attr->sched_nice = STPLR_PRIORITY_NORMAL - priority;
	return true;
}

/* Gives the thread what its loans add up to. */
static void settle_locked(struct heir *heir)
{
	struct sched_attr attr;
	struct loan *loan;
	int wanted = 0;

	list_for_each_entry(loan, &heir->loans, of_heir)
		wanted = max3(wanted, loan->serving ? loan->priority : 0, loan->urgency);
	if (wanted == heir->raised)
		return;
	if (!heir->raised)
		remember_own(heir);
	if (raise(&heir->own, wanted, &attr)) {
		sched_setattr_nocheck(heir->task, &attr);
		heir->raised = wanted;
		stplr_count(STPLR_COUNT_RAISES);
	} else if (heir->raised) {
		restore_own(heir);
		heir->raised = 0;
	}
}

static void free_heir(struct heir *heir)
{
	put_task_struct(heir->task);
	kfree(heir);
}

static void remove_loan_locked(struct loan *loan)
{
	loan->heir->count--;
	loan->channel->loan_count--;
	list_del(&loan->of_heir);
	list_del(&loan->of_channel);
	stplr_user_uncharge(loan->user, sizeof(*loan) + sizeof(struct heir));
	stplr_user_put(loan->user);
	kfree(loan);
}

static void heir_died(struct stplr_watch *watch)
{
	struct heir *heir = container_of(watch, struct heir, watch);
	struct loan *loan, *next;

	rt_mutex_lock(&inherit_lock);
	hash_del(&heir->node);
	list_for_each_entry_safe(loan, next, &heir->loans, of_heir)
		remove_loan_locked(loan);
	rt_mutex_unlock(&inherit_lock);
	free_heir(heir);
}

static struct heir *new_heir_locked(void)
{
	struct heir *heir = kzalloc(sizeof(*heir), GFP_KERNEL_ACCOUNT);

	if (!heir)
		return NULL;
	INIT_LIST_HEAD(&heir->loans);
	heir->task = get_task_struct(current);
	hash_add(heirs, &heir->node, (unsigned long)current);
	stplr_exit_watch(&heir->watch, stplr_exit_thread(), heir_died);
	return heir;
}

/* Ends what nobody uses; a heir that is dying ends itself. */
static void release_heir_locked(struct heir *heir)
{
	if (!list_empty(&heir->loans) || !stplr_exit_unwatch(&heir->watch))
		return;
	hash_del(&heir->node);
	free_heir(heir);
}

static struct loan *new_loan_locked(struct stplr_channel *channel, int *err)
{
	struct heir *heir = find_heir_locked(current);
	struct loan *loan;

	*err = -EDQUOT;
	if ((heir && heir->count == LOANS_MAX) || channel->loan_count == HEIRS_MAX)
		return NULL;
	/* Each loan pays for a heir, though several may share one. */
	*err = stplr_user_charge(channel->user, sizeof(*loan) + sizeof(*heir));
	if (*err)
		return NULL;
	*err = -ENOMEM;
	loan = kzalloc(sizeof(*loan), GFP_KERNEL_ACCOUNT);
	if (!loan)
		goto uncharge;
	if (!heir)
		heir = new_heir_locked();
	if (!heir)
		goto free;
	*err = 0;
	refcount_inc(&channel->user->refs);
	loan->user = channel->user;
	loan->heir = heir;
	heir->count++;
	loan->channel = channel;
	channel->loan_count++;
	list_add(&loan->of_heir, &heir->loans);
	list_add(&loan->of_channel, &channel->loans);
	return loan;

free:
	kfree(loan);
uncharge:
	stplr_user_uncharge(channel->user, sizeof(*loan) + sizeof(*heir));
	return NULL;
}

int stplr_inherit_begin(struct stplr_channel *channel)
{
	struct loan *loan;
	int err = 0;

	rt_mutex_lock(&inherit_lock);
	loan = find_loan_locked(channel, current);
	if (!loan)
		loan = new_loan_locked(channel, &err);
	if (loan) {
		loan->serving = 0;
		loan->urgency = stplr_port_urgency(&channel->port);
		settle_locked(loan->heir);
	}
	rt_mutex_unlock(&inherit_lock);
	return err;
}

/* All threads of the channel see the queue as it is now. */
static void look_locked(struct stplr_channel *channel)
{
	int urgency = stplr_port_urgency(&channel->port);
	struct loan *loan;

	list_for_each_entry(loan, &channel->loans, of_channel) {
		if (loan->urgency == urgency)
			continue;
		loan->urgency = urgency;
		settle_locked(loan->heir);
	}
}

void stplr_inherit_sent(struct stplr_call *call, struct task_struct *receiver)
{
	struct stplr_channel *channel = container_of(call->port, struct stplr_channel, port);
	struct loan *loan;

	if (!(channel->flags & STPLR_CHANNEL_INHERIT))
		return;
	rt_mutex_lock(&inherit_lock);
	if (receiver) {
		loan = find_loan_locked(channel, receiver);
		/* The receiver may be further already than this thread is: then it knows better. */
		if (loan && stplr_call_taken(call)) {
			loan->serving = call->id;
			loan->priority = call->item.priority;
			settle_locked(loan->heir);
		}
	} else {
		look_locked(channel);
	}
	rt_mutex_unlock(&inherit_lock);
}

/*
 * The queue is looked at after the thread is known to serve, and senders look for threads after they
 * are in the queue, so one of the two sees the other.
 */
void stplr_inherit_received(struct stplr_channel *channel, u64 id, int priority)
{
	struct loan *loan;

	if (!(channel->flags & STPLR_CHANNEL_INHERIT))
		return;
	rt_mutex_lock(&inherit_lock);
	loan = find_loan_locked(channel, current);
	if (loan) {
		loan->serving = id;
		loan->priority = priority;
		settle_locked(loan->heir);
	}
	look_locked(channel);
	rt_mutex_unlock(&inherit_lock);
}

void stplr_inherit_ended(struct stplr_channel *channel, u64 id)
{
	struct loan *loan;

	if (!(channel->flags & STPLR_CHANNEL_INHERIT))
		return;
	rt_mutex_lock(&inherit_lock);
	list_for_each_entry(loan, &channel->loans, of_channel) {
		if (loan->serving != id)
			continue;
		loan->serving = 0;
		settle_locked(loan->heir);
	}
	look_locked(channel);
	rt_mutex_unlock(&inherit_lock);
}

void stplr_inherit_close(struct stplr_channel *channel)
{
	struct loan *loan, *next;
	struct heir *heir;

	rt_mutex_lock(&inherit_lock);
	list_for_each_entry_safe(loan, next, &channel->loans, of_channel) {
		heir = loan->heir;
		remove_loan_locked(loan);
		settle_locked(heir);
		release_heir_locked(heir);
	}
	rt_mutex_unlock(&inherit_lock);
}
