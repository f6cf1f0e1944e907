// SPDX-License-Identifier: GPL-2.0
#include "inherit.h"

#include <linux/hashtable.h>
#include <linux/rculist.h>
#include <linux/rtmutex.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/tracepoint.h>

#include "call.h"
#include "counters.h"
#include "exit.h"

/* A thread that receives on such channels, for as long as one of them is open. */
struct heir {
	struct hlist_node node; /* in heirs, which forks look into without a lock */
	unsigned int count; /* of loans, there and to come, and one for the watch; as node */
	struct stplr_watch watch;
	struct task_struct *task; /* reference */
	struct rt_mutex lock; /* protects what follows */
	struct list_head loans;
	int raised; /* to this priority; 0: it runs with its own */
	struct stplr_own own; /* what it gets back, while it is raised */
	struct rcu_head rcu;
};

/* What one channel has one thread run with. Under that channel's lock. */
struct loan {
	struct list_head of_heir; /* under heir->lock */
	struct list_head of_channel; /* in channel->loans */
	struct heir *heir; /* counted there */
	struct stplr_channel *channel; /* which ends its loans before it goes */
	struct stplr_user *user; /* who is charged; the channel's */
	u64 serving; /* id of the call that counts, or 0 */
	int priority; /* of that call */
	int urgency; /* of the queue, as last seen */
	int wanted; /* what these add up to; written under heir->lock as well */
};

/* From so many channels a thread inherits at most: all of them are gone through under a lock. */
#define LOANS_MAX 64

/* And so many threads inherit from a channel. */
#define HEIRS_MAX 256

/* What an heir is charged, however many loans it has: each pays for it. */
#define COST (sizeof(struct loan) + sizeof(struct heir))

/* Protects the table. Nothing nests in it but what exit.c has. */
static DEFINE_SPINLOCK(heirs_lock);
static DEFINE_HASHTABLE(heirs, 6);

static struct tracepoint *fork_tracepoint;

/* What the kernel makes of the raise in a child is not always what the child would have been without. */
static void on_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	struct heir *heir;

	rcu_read_lock();
	hash_for_each_possible_rcu(heirs, heir, node, (unsigned long)parent)
		if (heir->task == parent)
			stplr_own_start(&heir->own, parent, child);
	rcu_read_unlock();
}

int stplr_inherit_init(void)
{
	fork_tracepoint = stplr_find_tracepoint("sched_process_fork");
	return fork_tracepoint ? tracepoint_probe_register(fork_tracepoint, on_fork, NULL) :
				 -EOPNOTSUPP;
}

void stplr_inherit_exit(void)
{
	tracepoint_probe_unregister(fork_tracepoint, on_fork, NULL);
	tracepoint_synchronize_unregister();
}

/* Gives the thread what its loans add up to. Under heir->lock. */
static void settle_locked(struct heir *heir)
{
	struct loan *loan;
	int wanted = 0;

	list_for_each_entry(loan, &heir->loans, of_heir)
		wanted = max(wanted, loan->wanted);
	if (wanted == heir->raised)
		return;
	if (!heir->raised)
		stplr_own_remember(&heir->own, heir->task);
	if (stplr_own_raise(&heir->own, heir->task, wanted)) {
		heir->raised = wanted;
		stplr_count(STPLR_COUNT_RAISES);
	} else if (heir->raised) {
		stplr_own_restore(&heir->own, heir->task);
		heir->raised = 0;
	}
}

/* What the loan is for has changed. */
static void update_locked(struct loan *loan)
{
	int wanted = max(loan->serving ? loan->priority : 0, loan->urgency);

	if (wanted == loan->wanted)
		return;
	rt_mutex_lock(&loan->heir->lock);
	loan->wanted = wanted;
	settle_locked(loan->heir);
	rt_mutex_unlock(&loan->heir->lock);
}

static void free_heir(struct heir *heir)
{
	put_task_struct(heir->task);
	kfree_rcu(heir, rcu);
}

/* For a loan that has gone, or for the watch. An heir that is dying just now is left to that. */
static void put_heir(struct heir *heir)
{
	bool last;

	spin_lock(&heirs_lock);
	last = !--heir->count || (heir->count == 1 && stplr_exit_unwatch(&heir->watch));
	if (last)
		hash_del_rcu(&heir->node);
	spin_unlock(&heirs_lock);
	if (last)
		free_heir(heir);
}

/* The channel's lock is held, and keeps its reference to the heir until that is put. */
static struct heir *remove_loan_locked(struct loan *loan)
{
	struct heir *heir = loan->heir;

	rt_mutex_lock(&heir->lock);
	list_del(&loan->of_heir);
	settle_locked(heir);
	rt_mutex_unlock(&heir->lock);
	list_del(&loan->of_channel);
	loan->channel->loan_count--;
	stplr_user_put_charged(loan->user, COST);
	kfree(loan);
	return heir;
}

/* The channel of some loan, with a reference, or NULL. */
static struct stplr_channel *some_channel(struct heir *heir)
{
	struct stplr_channel *channel = NULL;
	struct loan *loan;

	rt_mutex_lock(&heir->lock);
	loan = list_first_entry_or_null(&heir->loans, struct loan, of_heir);
	if (loan) {
		channel = loan->channel;
		refcount_inc(&channel->refs);
	}
	rt_mutex_unlock(&heir->lock);
	return channel;
}

static struct loan *find_loan_locked(struct stplr_channel *channel, const struct task_struct *task)
{
	struct loan *loan;

	list_for_each_entry(loan, &channel->loans, of_channel)
		if (loan->heir->task == task)
			return loan;
	return NULL;
}

static void heir_died(struct stplr_watch *watch)
{
	struct heir *heir = container_of(watch, struct heir, watch);
	struct stplr_channel *channel;
	struct loan *loan;

	while ((channel = some_channel(heir))) {
		rt_mutex_lock(&channel->inherit_lock);
		loan = find_loan_locked(channel, heir->task);
		if (loan)
			remove_loan_locked(loan);
		rt_mutex_unlock(&channel->inherit_lock);
		if (loan)
			put_heir(heir);
		stplr_channel_put(channel);
	}
	put_heir(heir);
}

static struct heir *new_heir(void)
{
	struct heir *heir = kzalloc(sizeof(*heir), GFP_KERNEL_ACCOUNT);

	if (!heir)
		return NULL;
	rt_mutex_init(&heir->lock);
	INIT_LIST_HEAD(&heir->loans);
	heir->task = get_task_struct(current);
	heir->count = 1;
	return heir;
}

/*
 * The calling thread as an heir, counted for one loan more; if it is none yet, fresh is what it becomes.
 * NULL: fresh is NULL, or (-EDQUOT) it has too many loans.
 */
static struct heir *count_in(struct heir *fresh, int *err)
{
	struct heir *heir;

	*err = 0;
	spin_lock(&heirs_lock);
	hash_for_each_possible(heirs, heir, node, (unsigned long)current)
		if (heir->task == current)
			break;
	if (!heir && fresh) {
		heir = fresh;
		hash_add_rcu(heirs, &heir->node, (unsigned long)current);
		stplr_exit_watch(&heir->watch, stplr_exit_thread(), heir_died);
	}
	if (heir && heir->count > LOANS_MAX) {
		heir = NULL;
		*err = -EDQUOT;
	}
	if (heir)
		heir->count++;
	spin_unlock(&heirs_lock);
	return heir;
}

/* Nobody but the thread itself makes it an heir. */
static struct heir *heir_of_current(int *err)
{
	struct heir *heir = count_in(NULL, err), *fresh;

	if (heir || *err)
		return heir;
	fresh = new_heir();
	if (fresh)
		return count_in(fresh, err);
	*err = -ENOMEM;
	return NULL;
}

static struct loan *new_loan(struct stplr_channel *channel, int *err)
{
	struct loan *loan;

	/* Each loan pays for an heir, though several may share one. */
	*err = stplr_user_charge(channel->user, COST);
	if (*err)
		return NULL;
	loan = kzalloc(sizeof(*loan), GFP_KERNEL_ACCOUNT);
	*err = -ENOMEM;
	if (!loan)
		goto uncharge;
	loan->heir = heir_of_current(err);
	if (!loan->heir)
		goto free;
	refcount_inc(&channel->user->refs);
	loan->user = channel->user;
	loan->channel = channel;
	return loan;

free:
	kfree(loan);
uncharge:
	stplr_user_uncharge(channel->user, COST);
	return NULL;
}

static void give_up(struct loan *loan)
{
	put_heir(loan->heir);
	stplr_user_put_charged(loan->user, COST);
	kfree(loan);
}

/* Without the channel's lock. Nobody else gives this thread a loan there meanwhile. */
static int add_loan(struct stplr_channel *channel)
{
	struct loan *loan;
	int err;

	loan = new_loan(channel, &err);
	if (!loan)
		return err;
	rt_mutex_lock(&channel->inherit_lock);
	if (channel->loan_count < HEIRS_MAX) {
		channel->loan_count++;
		list_add(&loan->of_channel, &channel->loans);
		rt_mutex_lock(&loan->heir->lock);
		list_add(&loan->of_heir, &loan->heir->loans);
		rt_mutex_unlock(&loan->heir->lock);
	} else {
		err = -EDQUOT;
	}
	rt_mutex_unlock(&channel->inherit_lock);
	if (err)
		give_up(loan);
	return err;
}

/* False: it has no loan there. */
static bool renew(struct stplr_channel *channel)
{
	struct loan *loan;

	rt_mutex_lock(&channel->inherit_lock);
	loan = find_loan_locked(channel, current);
	if (loan) {
		loan->serving = 0;
		loan->urgency = stplr_port_urgency(&channel->port);
		update_locked(loan);
	}
	rt_mutex_unlock(&channel->inherit_lock);
	return loan;
}

int stplr_inherit_join(struct stplr_channel *channel)
{
	struct loan *loan;

	rt_mutex_lock(&channel->inherit_lock);
	loan = find_loan_locked(channel, current);
	rt_mutex_unlock(&channel->inherit_lock);
	return loan ? 0 : add_loan(channel);
}

int stplr_inherit_begin(struct stplr_channel *channel)
{
	int err;

	if (likely(renew(channel)))
		return 0;
	err = add_loan(channel);
	if (!err)
		renew(channel);
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
		update_locked(loan);
	}
}

void stplr_inherit_sent(struct stplr_call *call, struct task_struct *receiver)
{
	struct stplr_channel *channel = container_of(call->port, struct stplr_channel, port);
	struct loan *loan;

	if (!(channel->flags & STPLR_CHANNEL_INHERIT))
		return;
	rt_mutex_lock(&channel->inherit_lock);
	if (receiver) {
		loan = find_loan_locked(channel, receiver);
		/* The receiver may be further already than this thread is, or have given the call back. */
		if (loan && stplr_call_taken_by(call, receiver)) {
			loan->serving = call->id;
			loan->priority = call->item.priority;
			update_locked(loan);
		}
	} else {
		look_locked(channel);
	}
	rt_mutex_unlock(&channel->inherit_lock);
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
	rt_mutex_lock(&channel->inherit_lock);
	loan = find_loan_locked(channel, current);
	if (loan) {
		loan->serving = id;
		loan->priority = priority;
		update_locked(loan);
	}
	look_locked(channel);
	rt_mutex_unlock(&channel->inherit_lock);
}

void stplr_inherit_ended(struct stplr_channel *channel, u64 id)
{
	struct loan *loan;

	if (!(channel->flags & STPLR_CHANNEL_INHERIT))
		return;
	rt_mutex_lock(&channel->inherit_lock);
	list_for_each_entry(loan, &channel->loans, of_channel) {
		if (loan->serving != id)
			continue;
		loan->serving = 0;
		update_locked(loan);
	}
	look_locked(channel);
	rt_mutex_unlock(&channel->inherit_lock);
}

void stplr_inherit_close(struct stplr_channel *channel)
{
	struct heir *heir;

	do {
		heir = NULL;
		rt_mutex_lock(&channel->inherit_lock);
		if (!list_empty(&channel->loans))
			heir = remove_loan_locked(list_first_entry(&channel->loans, struct loan,
								   of_channel));
		rt_mutex_unlock(&channel->inherit_lock);
		if (heir)
			put_heir(heir);
	} while (heir);
}
