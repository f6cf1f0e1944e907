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
	struct list_head death_notices; /* to be sent when it is closed */
	struct list_head connections;
	struct list_head budgets; /* of users, for their pulses */
	struct stplr_budget *posts; /* reference; for pulses posted to the channel itself */
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

/**
 * stplr_channel_create() - make a channel
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: a descriptor, or an error.
 */
long stplr_channel_create(const struct stplr_channel_create __user *user, size_t size);

/**
 * stplr_channel_put() - drop a reference
 * @channel: the channel
 */
void stplr_channel_put(struct stplr_channel *channel);

/**
 * stplr_channel_describe() - say what there is to say of a channel
 * @channel: the channel
 * @info: gets its flags, its number, and how long its threads spin before they sleep
 */
void stplr_channel_describe(const struct stplr_channel *channel, struct stplr_info *info);

/**
 * stplr_channel_from_fd() - the channel behind a descriptor
 * @fd: the descriptor
 *
 * Return: the channel with a reference, or ERR_PTR(-EBADF, -EINVAL).
 */
struct stplr_channel *stplr_channel_from_fd(int fd);

/**
 * stplr_name_complete() - put the caller's number for a "~" that is followed by a slash
 * @name: the name, which ends in 0
 *
 * The number is that of the initial user namespace, where the caller may see another.
 * Return: 0, -ENAMETOOLONG.
 */
int stplr_name_complete(char name[STPLR_NAME_MAX]);

/**
 * stplr_name_attach() - give a channel its name, which no other has in the caller's IPC namespace
 * @channel: the channel, whose name is set
 *
 * Return: 0, -EACCES, -EADDRINUSE.
 */
int stplr_name_attach(struct stplr_channel *channel);

/**
 * stplr_name_detach() - take a channel's name away; a second time there is nothing to do
 * @channel: the channel
 */
void stplr_name_detach(struct stplr_channel *channel);

/**
 * stplr_name_find() - the channel of a name, if the caller may connect to it
 * @name: the name
 *
 * Return: the channel with a reference, or ERR_PTR(-ENOENT, -EACCES).
 */
struct stplr_channel *stplr_name_find(const char *name);

/**
 * stplr_channel_receive() - STPLR_RECEIVE
 * @channel: the channel
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 * @file: of the channel
 *
 * Return: as the system call does.
 */
long stplr_channel_receive(struct stplr_channel *channel, struct stplr_receive __user *user,
			   size_t size, struct file *file);

/**
 * stplr_channel_reply() - STPLR_REPLY
 * @channel: the channel
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: as the system call does.
 */
long stplr_channel_reply(struct stplr_channel *channel, const struct stplr_reply __user *user,
			 size_t size);

/**
 * stplr_channel_reply_receive() - STPLR_REPLY_RECEIVE
 * @channel: the channel
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 * @file: of the channel
 *
 * Return: as the system call does.
 */
long stplr_channel_reply_receive(struct stplr_channel *channel,
				 struct stplr_reply_receive __user *user, size_t size,
				 struct file *file);

/**
 * stplr_channel_watch_server() - stplr_channel_serve() where that may be for the first time
 * @channel: the channel
 *
 * Return: 0, -ENOMEM, -EDQUOT.
 */
int stplr_channel_watch_server(struct stplr_channel *channel);

/* Watches the calling process, which is about to receive. 0, -ENOMEM, -EDQUOT. */
static inline int stplr_channel_serve(struct stplr_channel *channel)
{
	/* The process is the caller's, so it is there for as long as this matters. */
	if (likely(READ_ONCE(channel->last_server) == stplr_exit_process()))
		return 0;
	return stplr_channel_watch_server(channel);
}

#endif
