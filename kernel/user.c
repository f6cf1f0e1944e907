// SPDX-License-Identifier: GPL-2.0
#include "user.h"

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/user_namespace.h>

#include "counters.h"
#include "debug.h"

static unsigned long user_bytes = 64UL << 20;
module_param(user_bytes, ulong, 0644);
MODULE_PARM_DESC(user_bytes, "Bytes of kernel memory that one user may hold through this module");

/* Protects the table and the step of a count to and from zero. */
static DEFINE_SPINLOCK(users_lock);
static DEFINE_HASHTABLE(users, 6);

static struct stplr_user *find_locked(kuid_t uid)
{
	struct stplr_user *user;

	hash_for_each_possible(users, user, node, __kuid_val(uid))
		if (uid_eq(user->uid, uid))
			return user;
	return NULL;
}

/* Who is charged for what the caller does. */
static kuid_t payer(void)
{
	struct user_namespace *space = current_user_ns();

	if (likely(space == &init_user_ns))
		return current_uid();
	while (space->parent != &init_user_ns)
		space = space->parent;
	return uid_eq(space->owner, GLOBAL_ROOT_UID) ? current_uid() : space->owner;
}

/* With a reference; NULL: there is no memory. */
static struct stplr_user *find_or_make(kuid_t uid)
{
	struct stplr_user *found, *fresh;

	spin_lock(&users_lock);
	found = find_locked(uid);
	if (found)
		refcount_inc(&found->refs);
	spin_unlock(&users_lock);
	if (found)
		return found;

	fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	if (!fresh)
		return NULL;
	refcount_set(&fresh->refs, 1);
	fresh->uid = uid;
	stplr_closing_init(fresh);

	spin_lock(&users_lock);
	found = find_locked(uid);
	if (found)
		refcount_inc(&found->refs);
	else
		hash_add(users, &fresh->node, __kuid_val(uid));
	spin_unlock(&users_lock);
	if (!found)
		return fresh;
	kfree(fresh);
	return found;
}

void stplr_user_put(struct stplr_user *user)
{
	bool last;

	if (refcount_dec_not_one(&user->refs))
		return;
	spin_lock(&users_lock);
	last = refcount_dec_and_test(&user->refs);
	if (last)
		hash_del(&user->node);
	spin_unlock(&users_lock);
	if (!last)
		return;
	WARN_ON_ONCE(atomic_long_read(&user->bytes));
	kfree(user);
}

/* Nothing is added beyond the limit, be it for a moment: it would be somebody else's refusal. */
static bool add(struct stplr_user *user, size_t bytes, unsigned long limit)
{
	long before = atomic_long_read(&user->bytes);

	do {
		if (before + bytes > limit)
			return false;
	} while (!atomic_long_try_cmpxchg(&user->bytes, &before, before + bytes));
	return true;
}

static int charge(struct stplr_user *user, size_t bytes, bool (*may_exceed)(struct stplr_user *))
{
	if (likely(add(user, bytes, READ_ONCE(user_bytes))))
		return 0;
	if (may_exceed(user)) {
		atomic_long_add(bytes, &user->bytes);
		return 0;
	}
	stplr_count(STPLR_COUNT_OVER_LIMIT);
	stplr_log(STPLR_DEBUG_ERRORS, "user %u: no %zu bytes more\n", __kuid_val(user->uid), bytes);
	return -EDQUOT;
}

static bool caller_may_exceed(struct stplr_user *user)
{
	return capable(CAP_SYS_RESOURCE);
}

static bool is_root(struct stplr_user *user)
{
	return uid_eq(user->uid, GLOBAL_ROOT_UID);
}

int stplr_user_charge(struct stplr_user *user, size_t bytes)
{
	return charge(user, bytes, caller_may_exceed);
}

int stplr_user_charge_for(struct stplr_user *user, size_t bytes)
{
	return charge(user, bytes, is_root);
}

struct stplr_user *stplr_user_get(void)
{
	return find_or_make(payer());
}

bool stplr_user_is_caller(const struct stplr_user *user)
{
	return uid_eq(user->uid, payer());
}

int stplr_user_get_charged(struct stplr_user **user, struct stplr_user *guess, size_t bytes)
{
	int err;

	if (guess && stplr_user_is_caller(guess)) {
		refcount_inc(&guess->refs);
		*user = guess;
	} else {
		*user = stplr_user_get();
		if (!*user)
			return -ENOMEM;
	}
	err = stplr_user_charge(*user, bytes);
	if (err)
		stplr_user_put(*user);
	return err;
}

void stplr_user_charge_anyway(struct stplr_user *user, size_t bytes)
{
	atomic_long_add(bytes, &user->bytes);
}

void stplr_user_uncharge(struct stplr_user *user, size_t bytes)
{
	atomic_long_sub(bytes, &user->bytes);
}

void stplr_user_show(struct seq_file *file)
{
	struct stplr_user *user;
	int bucket;

	spin_lock(&users_lock);
	hash_for_each(users, bucket, user, node)
		seq_printf(file, "%u %ld\n", __kuid_val(user->uid), atomic_long_read(&user->bytes));
	spin_unlock(&users_lock);
}
