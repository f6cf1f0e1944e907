/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A pulse: a code and a value in the queue of a port, with nobody waiting for it.
 *
 * Who has a pulse owns it, be it a port or a thread. It is charged to a user from its allocation
 * on, and to a budget if it has one: a count of what may be queued at a time.
 */
#ifndef STPLR_PULSE_QUEUED_H
#define STPLR_PULSE_QUEUED_H

#include "port.h"
#include "user.h"

struct stplr_budget {
	refcount_t refs;
	atomic_t left;
};

struct stplr_pulse_item {
	struct stplr_item item;
	struct stplr_user *user;
	struct stplr_budget *budget; /* reference, or NULL */
	s32 code;
	s64 value;
};

struct stplr_budget *stplr_budget_new(int limit);
void stplr_budget_put(struct stplr_budget *budget);

/* ERR_PTR: -ENOMEM, -EDQUOT, and -EAGAIN when the budget, or with one the user's, is used up. */
struct stplr_pulse_item *stplr_pulse_new(struct stplr_user *guess, struct stplr_budget *budget,
					 s32 code, s64 value);
void stplr_pulse_free(struct stplr_item *item);

static inline struct stplr_pulse_item *stplr_pulse_of(struct stplr_item *item)
{
	return container_of(item, struct stplr_pulse_item, item);
}

#endif
