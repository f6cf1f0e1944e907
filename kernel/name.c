// SPDX-License-Identifier: GPL-2.0
/*
 * Names of channels: a space for each IPC namespace, guarded by modes as files are. A name that begins with
 * the number of a user and a slash is that user's to take, who need not know the number; all others are for
 * who may override modes in the namespace.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/hashtable.h>
#include <linux/ipc_namespace.h>
#include <linux/kernel.h>
#include <linux/nsproxy.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/stringhash.h>
#include <linux/user_namespace.h>

#include "channel.h"

static DEFINE_SPINLOCK(names_lock);
static DEFINE_HASHTABLE(names, 10);

/* A namespace goes by its number, for modules cannot hold one before 6.12. Some kernels have none. */
static unsigned int space_of_current(void)
{
	const struct ipc_namespace *space = current->nsproxy->ipc_ns;

	return space ? space->ns.inum : 0;
}

static bool rules_space(void)
{
	const struct ipc_namespace *space = current->nsproxy->ipc_ns;

	return ns_capable(space ? space->user_ns : &init_user_ns, CAP_DAC_OVERRIDE);
}

/* The address makes it differ from one boot to the next. */
static u32 hash(unsigned int space, const char *name)
{
	return full_name_hash((u8 *)&names + space, name, strlen(name));
}

static struct stplr_channel *find_locked(unsigned int space, const char *name)
{
	struct stplr_channel *channel;

	hash_for_each_possible(names, channel, named, hash(space, name))
		if (channel->space == space && !strcmp(channel->name, name))
			return channel;
	return NULL;
}

static bool may_connect(const struct stplr_channel *channel)
{
	umode_t mode = channel->mode;

	if (uid_eq(current_fsuid(), channel->uid))
		mode >>= 6;
	else if (in_group_p(channel->gid))
		mode >>= 3;
	return mode & 2 || capable(CAP_DAC_OVERRIDE);
}

int stplr_name_complete(char name[STPLR_NAME_MAX])
{
	char rest[STPLR_NAME_MAX];

	if (name[0] != '~' || name[1] != '/')
		return 0;
	strscpy(rest, name + 1, sizeof(rest));
	return snprintf(name, STPLR_NAME_MAX, "%u%s", __kuid_val(current_fsuid()), rest) < STPLR_NAME_MAX ?
		       0 :
		       -ENAMETOOLONG;
}

/* Numbers are those of the initial namespace, so that all who read a name mean the same user. */
static bool may_attach(const char *name)
{
	const size_t digits = strspn(name, "0123456789");
	char number[11] = "";
	unsigned int owner;

	if (!digits || name[digits] != '/')
		return rules_space();
	if (digits >= sizeof(number))
		return false;
	memcpy(number, name, digits);
	if (kstrtouint(number, 10, &owner))
		return false;
	return __kuid_val(current_fsuid()) == owner || capable(CAP_DAC_OVERRIDE);
}

int stplr_name_attach(struct stplr_channel *channel)
{
	int err = 0;

	if (!may_attach(channel->name))
		return -EACCES;
	channel->space = space_of_current();
	spin_lock(&names_lock);
	if (find_locked(channel->space, channel->name))
		err = -EADDRINUSE;
	else
		hash_add(names, &channel->named, hash(channel->space, channel->name));
	spin_unlock(&names_lock);
	return err;
}

void stplr_name_detach(struct stplr_channel *channel)
{
	spin_lock(&names_lock);
	hash_del(&channel->named);
	spin_unlock(&names_lock);
}

struct stplr_channel *stplr_name_find(const char *name)
{
	struct stplr_channel *channel;

	spin_lock(&names_lock);
	channel = find_locked(space_of_current(), name);
	if (!channel)
		channel = ERR_PTR(-ENOENT);
	else if (!may_connect(channel))
		channel = ERR_PTR(-EACCES);
	else
		refcount_inc(&channel->refs);
	spin_unlock(&names_lock);
	return channel;
}
