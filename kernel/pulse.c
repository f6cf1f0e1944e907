// SPDX-License-Identifier: GPL-2.0
#include "pulse.h"

#include <linux/err.h>
#include <linux/slab.h>

struct stplr_budget *stplr_budget_new(int limit)
{
	struct stplr_budget *budget = kmalloc(sizeof(*budget), GFP_KERNEL_ACCOUNT);

	if (budget) {
		refcount_set(&budget->refs, 1);
		atomic_set(&budget->left, limit);
	}
	return budget;
}

void stplr_budget_put(struct stplr_budget *budget)
{
	if (refcount_dec_and_test(&budget->refs))
		kfree(budget);
}

struct stplr_pulse_item *stplr_pulse_new(struct stplr_user *guess, struct stplr_budget *budget,
					 s32 code, s64 value)
{
	struct stplr_pulse_item *pulse;
	int err = -ENOMEM;

	if (budget && atomic_dec_if_positive(&budget->left) < 0)
		return ERR_PTR(-EAGAIN);
	pulse = kzalloc(sizeof(*pulse), GFP_KERNEL_ACCOUNT);
	if (!pulse)
		goto refund;
	pulse->user = stplr_user_get_like(guess);
	if (!pulse->user)
		goto free;
	err = stplr_user_charge(pulse->user, sizeof(*pulse));
	if (err)
		goto put_user;
	if (budget && atomic_inc_return(&pulse->user->pulses) > STPLR_PULSES_MAX) {
		err = -EAGAIN;
		goto uncharge;
	}
	if (budget)
		refcount_inc(&budget->refs);
	pulse->budget = budget;
	pulse->item.kind = STPLR_ITEM_PULSE;
	pulse->code = code;
	pulse->value = value;
	return pulse;

uncharge:
	atomic_dec(&pulse->user->pulses);
	stplr_user_uncharge(pulse->user, sizeof(*pulse));
put_user:
	stplr_user_put(pulse->user);
free:
	kfree(pulse);
refund:
	if (budget)
		atomic_inc(&budget->left);
	return ERR_PTR(err);
}

void stplr_pulse_free(struct stplr_item *item)
{
	struct stplr_pulse_item *pulse = stplr_pulse_of(item);

	if (pulse->budget) {
		atomic_inc(&pulse->budget->left);
		stplr_budget_put(pulse->budget);
		atomic_dec(&pulse->user->pulses);
	}
	stplr_user_uncharge(pulse->user, sizeof(*pulse));
	stplr_user_put(pulse->user);
	kfree(pulse);
}
