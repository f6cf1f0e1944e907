/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A pulse: a code and a value in the queue of a port, with nobody waiting for it.
 *
 * Who has a pulse owns it, be it a port or a thread. It is charged to a user from its allocation
 * on, and to budgets if it has any: counts of what may be queued at a time.
 */
#ifndef STPLR_PULSE_QUEUED_H
#define STPLR_PULSE_QUEUED_H

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
 * What a pulse counts for: its connection, and all that its user has to the same channel. One that is kept
 * ready by the kernel, to be queued later, counts for the latter from then on.
 */
#define STPLR_BUDGETS 2

struct stplr_pulse_item {
	struct stplr_item item;
	struct stplr_user *user;
	struct stplr_budget *budgets[STPLR_BUDGETS]; /* references, or NULL */
	s32 code;
	s64 value;
};

struct stplr_budget *stplr_budget_new(int limit);

/*
 * That of this user in the list, with a reference, or else the fresh one, which is in the list then.
 * Under the lock, which outlives all that is in the list.
 */
struct stplr_budget *stplr_budget_share_locked(struct list_head *list, spinlock_t *lock,
					       struct stplr_user *user,
					       struct stplr_budget *fresh);

/* Without the lock. */
void stplr_budget_put(struct stplr_budget *budget);

/* budgets, or each of them, may be NULL. ERR_PTR: -ENOMEM, -EDQUOT, and -EAGAIN when one of them is used up. */
struct stplr_pulse_item *stplr_pulse_new(struct stplr_user *guess, struct stplr_budget **budgets,
					 s32 code, s64 value);
void stplr_pulse_free(struct stplr_item *item);

static inline struct stplr_pulse_item *stplr_pulse_of(struct stplr_item *item)
{
	return container_of(item, struct stplr_pulse_item, item);
}

#endif
