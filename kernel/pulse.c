// SPDX-License-Identifier: GPL-2.0
#include "pulse.h"

#include <linux/err.h>
#include <linux/slab.h>

#include "counters.h"
#include "inherit.h"
#include "words.h"

struct stplr_budget *stplr_budget_new(int limit)
{
	struct stplr_budget *budget = kmalloc(sizeof(*budget), GFP_KERNEL_ACCOUNT);

	if (budget) {
		refcount_set(&budget->refs, 1);
		atomic_set(&budget->left, limit);
		budget->lock = NULL;
	}
	return budget;
}

struct stplr_budget *stplr_budget_share_locked(struct list_head *list, spinlock_t *lock,
					       struct stplr_user *user,
					       struct stplr_budget *fresh)
{
	struct stplr_budget *budget;

	list_for_each_entry(budget, list, node) {
		if (budget->user != user)
			continue;
		refcount_inc(&budget->refs);
		return budget;
	}
	refcount_inc(&user->refs);
	fresh->user = user;
	fresh->lock = lock;
	list_add(&fresh->node, list);
	return fresh;
}

void stplr_budget_put(struct stplr_budget *budget)
{
	bool last;

	if (!budget->lock) {
		if (refcount_dec_and_test(&budget->refs))
			kfree(budget);
		return;
	}
	if (refcount_dec_not_one(&budget->refs))
		return;
	spin_lock(budget->lock);
	last = refcount_dec_and_test(&budget->refs);
	if (last)
		list_del(&budget->node);
	spin_unlock(budget->lock);
	if (!last)
		return;
	stplr_user_put(budget->user);
	kfree(budget);
}

/* To the first of them. */
static void give_back(struct stplr_budget **budgets, int count)
{
	while (count--)
		if (budgets[count])
			atomic_inc(&budgets[count]->left);
}

/* From each of them, or from none. */
static bool take(struct stplr_budget **budgets)
{
	int i;

	for (i = 0; i < STPLR_BUDGETS; i++)
		if (budgets[i] && atomic_dec_if_positive(&budgets[i]->left) < 0) {
			give_back(budgets, i);
			return false;
		}
	return true;
}

struct stplr_pulse_item *stplr_pulse_new(struct stplr_user *guess, struct stplr_budget **budgets,
					 s32 code, s64 value)
{
	struct stplr_pulse_item *pulse;
	int err = -ENOMEM, i;

	if (budgets && !take(budgets))
		return ERR_PTR(-EAGAIN);
	pulse = kzalloc(sizeof(*pulse), GFP_KERNEL_ACCOUNT);
	if (!pulse)
		goto refund;
	err = stplr_user_get_charged(&pulse->user, guess, sizeof(*pulse));
	if (err)
		goto free;
	for (i = 0; budgets && i < STPLR_BUDGETS; i++) {
		pulse->budgets[i] = budgets[i];
		if (budgets[i])
			refcount_inc(&budgets[i]->refs);
	}
	pulse->item.kind = STPLR_ITEM_PULSE;
	pulse->code = code;
	pulse->value = value;
	return pulse;

free:
	kfree(pulse);
refund:
	if (budgets)
		give_back(budgets, STPLR_BUDGETS);
	return ERR_PTR(err);
}

void stplr_pulse_free(struct stplr_item *item)
{
	struct stplr_pulse_item *pulse = stplr_pulse_of(item);
	int i;

	give_back(pulse->budgets, STPLR_BUDGETS);
	for (i = 0; i < STPLR_BUDGETS; i++)
		if (pulse->budgets[i])
			stplr_budget_put(pulse->budgets[i]);
	stplr_user_put_charged(pulse->user, sizeof(*pulse));
	kfree(pulse);
}

long stplr_pulse_post(struct stplr_port *port, struct stplr_user *guess,
		      struct stplr_budget **budgets, const struct stplr_pulse __user *user,
		      size_t size)
{
	struct stplr_pulse_item *item;
	struct stplr_pulse arguments;
	int own, err;

	err = stplr_get_sized(&arguments, user, size, STPLR_PULSE_SIZE_VER0);
	if (err)
		return err;
	/* Nobody gets ahead of those who are more urgent by saying so. */
	own = stplr_priority_of_current();
	if (arguments.code < 0 || arguments.priority < 0 || arguments.priority > own)
		return -EINVAL;
	item = stplr_pulse_new(guess, budgets, arguments.code, arguments.value);
	if (IS_ERR(item))
		return PTR_ERR(item);
	err = stplr_port_post(port, &item->item, arguments.priority ? arguments.priority : own);
	if (err)
		stplr_pulse_free(&item->item);
	else
		stplr_count(STPLR_COUNT_PULSES);
	return err;
}
