/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A channel: the port that a server receives from, as a file, perhaps with a name.
 *
 * The channel is closed when the last descriptor of its file is; connections then keep the object,
 * whose port lets nobody in. Processes that receive are watched: what one of them has received and
 * not answered ends with ESRCH when it does.
 */
#ifndef STPLR_CHANNEL_H
#define STPLR_CHANNEL_H

#include <linux/poll.h>
#include <linux/refcount.h>
#include <linux/rtmutex.h>
#include <linux/spinlock.h>

#include "debugfs.h"
#include "exit.h"
#include "include/stplr.h"
#include "port.h"
#include "user.h"

struct stplr_channel {
	struct stplr_port port;
	struct stplr_shown shown;
	refcount_t refs;
	u32 flags;
	struct stplr_user *user; /* reference */
	wait_queue_head_t receivers; /* who polls for something to receive */
	wait_queue_head_t clients; /* who polls for the end of the channel */

	/*
	 * Protects the next six; taken before port.lock. A spinlock, for whoever holds it cannot be
	 * kept from letting go of it by others that want the processor.
	 */
	spinlock_t lock;
	const void *last_server; /* a guess that saves a search */
	unsigned int server_count;
	struct list_head servers;
	struct list_head death_notices; /* connections with one to send */
	struct list_head connections;
	struct list_head budgets; /* of users, for their pulses */
	struct rt_mutex inherit_lock; /* protects the next two; see inherit.h */
	struct list_head loans;
	unsigned int loan_count;

	struct hlist_node named; /* under the lock in name.c */
	unsigned int space; /* that it is named in */
	kuid_t uid;
	kgid_t gid;
	umode_t mode;
	char name[STPLR_NAME_MAX];
};

/* Both return a descriptor. */
long stplr_channel_create(const struct stplr_channel_create __user *user);

void stplr_channel_put(struct stplr_channel *channel);

/* The channel behind a descriptor, with a reference; ERR_PTR(-EBADF, -EINVAL). */
struct stplr_channel *stplr_channel_from_fd(int fd);

/* name.c: names are unique in an IPC namespace. 0, -EACCES, -EADDRINUSE. */
int stplr_name_attach(struct stplr_channel *channel);
void stplr_name_detach(struct stplr_channel *channel);

/* The channel of that name, with a reference, if the caller may connect; -ENOENT, -EACCES. */
struct stplr_channel *stplr_name_find(const char *name);

/* receive.c */
long stplr_channel_receive(struct stplr_channel *channel, struct stplr_receive __user *user,
			   struct file *file);
long stplr_channel_reply(struct stplr_channel *channel, const struct stplr_reply __user *user);
long stplr_channel_reply_receive(struct stplr_channel *channel,
				 struct stplr_reply_receive __user *user, struct file *file);
long stplr_channel_read(struct stplr_channel *channel, const struct stplr_access __user *user);
long stplr_channel_write(struct stplr_channel *channel, const struct stplr_access __user *user);

int stplr_channel_watch_server(struct stplr_channel *channel);

/* Watches the calling process, which is about to receive. 0, -ENOMEM, -EDQUOT. */
static inline int stplr_channel_serve(struct stplr_channel *channel)
{
	/* The process is the caller's, so it is there for as long as this matters. */
	if (likely(READ_ONCE(channel->last_server) == stplr_exit_process()))
		return 0;
	return stplr_channel_watch_server(channel);
}

/* A deadline from a timeout of a program. */
static inline ktime_t stplr_deadline(s64 timeout_ns)
{
	if (timeout_ns < 0)
		return KTIME_MAX;
	return timeout_ns ? ktime_add_safe(ktime_get(), timeout_ns) : 0;
}

#endif
