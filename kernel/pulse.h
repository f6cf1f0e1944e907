/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A pulse: a code and a value in the queue of a port, with nobody waiting for it.
 *
 * Who has a pulse owns it, be it a port or a thread. It is charged to a user from its allocation
 * on, and to budgets if it has any: counts of what may be queued at a time.
 */
#ifndef STPLR_PULSE_QUEUED_H
#define STPLR_PULSE_QUEUED_H

#include "include/stplr.h"
#include "port.h"
#include "user.h"

struct stplr_budget {
	refcount_t refs;
	atomic_t left;
	/* Where others find it who are to share it, under *lock; NULL: nowhere. */
	spinlock_t *lock;
	struct list_head node;
	struct stplr_user *user; /* reference */
};

/*
 * What a pulse counts for: its connection, and all that its user, who posts it, has in the same channel, by
 * whichever connections. One that is kept ready by the kernel, to be queued later, counts for the latter from
 * then on.
 */
#define STPLR_BUDGETS 2

struct stplr_pulse_item {
	struct stplr_item item;
	struct stplr_user *user;
	struct stplr_budget *budgets[STPLR_BUDGETS]; /* references, or NULL */
	s32 code;
	s64 value;
};

/**
 * stplr_budget_new() - make a budget
 * @limit: how many pulses it is good for
 *
 * Return: the budget with a reference, or NULL.
 */
struct stplr_budget *stplr_budget_new(int limit);

/**
 * stplr_budget_share_locked() - the budget that a user shares
 * @list: where those are
 * @lock: of the list; held, and outlives all that is in the list
 * @user: whose
 * @fresh: what is put there if there is none yet
 *
 * Return: what is in the list, with a reference, or @fresh.
 */
struct stplr_budget *stplr_budget_share_locked(struct list_head *list, spinlock_t *lock,
					       struct stplr_user *user,
					       struct stplr_budget *fresh);

/**
 * stplr_budget_put() - drop a reference, without the lock
 * @budget: the budget
 */
void stplr_budget_put(struct stplr_budget *budget);

/**
 * stplr_pulse_new() - make a pulse
 * @guess: who is charged, as a rule
 * @budgets: which it counts for; that, or each of them, may be NULL
 * @code: what it says
 * @value: likewise
 *
 * Return: the pulse, or ERR_PTR(-ENOMEM, -EDQUOT), or -EAGAIN when a budget is used up.
 */
struct stplr_pulse_item *stplr_pulse_new(struct stplr_user *guess, struct stplr_budget **budgets,
					 s32 code, s64 value);

/**
 * stplr_pulse_free() - free a pulse, which counts no more
 * @item: its item
 */
void stplr_pulse_free(struct stplr_item *item);

/**
 * stplr_pulse_post() - queue a pulse for a program
 * @port: where
 * @guess: who is charged, as a rule
 * @budgets: which it counts for
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: 0, -EFAULT, -EINVAL, -E2BIG, -ESRCH when the port is closed, and as stplr_pulse_new().
 */
long stplr_pulse_post(struct stplr_port *port, struct stplr_user *guess,
		      struct stplr_budget **budgets, const struct stplr_pulse __user *user,
		      size_t size);

static inline struct stplr_pulse_item *stplr_pulse_of(struct stplr_item *item)
{
	return container_of(item, struct stplr_pulse_item, item);
}

#endif
