// SPDX-License-Identifier: GPL-2.0
/* Names of channels: one space for the machine, guarded by modes as files are. A name that begins with
 * the number of a user and a slash is that user's to take.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/hashtable.h>
#include <linux/kernel.h>
#include <linux/string.h>
#include <linux/stringhash.h>

#include "channel.h"

static DEFINE_MUTEX(names_lock);
static DEFINE_HASHTABLE(names, 10);

/* The address makes it differ from one boot to the next. */
static u32 hash(const char *name)
{
	return full_name_hash(&names, name, strlen(name));
}

static struct stplr_channel *find_locked(const char *name)
{
	struct stplr_channel *channel;

	hash_for_each_possible(names, channel, named, hash(name))
		if (!strcmp(channel->name, name))
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

/* Numbers are those of the initial namespace, so that all who read a name mean the same user. */
static bool may_attach(const char *name)
{
	const size_t digits = strspn(name, "0123456789");
	char number[11] = "";
	unsigned int owner;

	if (!digits || name[digits] != '/')
		return true;
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
	mutex_lock(&names_lock);
	if (find_locked(channel->name))
		err = -EADDRINUSE;
	else
		hash_add(names, &channel->named, hash(channel->name));
	mutex_unlock(&names_lock);
	return err;
}

void stplr_name_detach(struct stplr_channel *channel)
{
	mutex_lock(&names_lock);
	hash_del(&channel->named);
	mutex_unlock(&names_lock);
}

struct stplr_channel *stplr_name_find(const char *name)
{
	struct stplr_channel *channel;

	mutex_lock(&names_lock);
	channel = find_locked(name);
	if (!channel)
		channel = ERR_PTR(-ENOENT);
	else if (!may_connect(channel))
		channel = ERR_PTR(-EACCES);
	else
		refcount_inc(&channel->refs);
	mutex_unlock(&names_lock);
	return channel;
}
