// SPDX-License-Identifier: GPL-2.0
#include "channel.h"

#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched/task.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "connection.h"
#include "debug.h"
#include "exit.h"
#include "info.h"
#include "inherit.h"
#include "message.h"
#include "park.h"
#include "pulse.h"
#include "words.h"

/* What a channel is charged. */
#define COST (sizeof(struct stplr_channel) + sizeof(struct stplr_budget))

#define ALL_FLAGS (STPLR_CHANNEL_UNBLOCK | STPLR_CHANNEL_DISCONNECT | STPLR_CHANNEL_INHERIT)

/* So many processes receive from a channel at most: all of them are gone through under a lock. */
#define SERVERS_MAX 1024

/* So many pulses that were posted to a channel itself may be queued there. */
#define POSTS_MAX 16384

/* A process that has received from a channel. */
struct server {
	struct stplr_watch watch;
	struct list_head node; /* in channel->servers */
	struct stplr_channel *channel; /* reference */
	const void *process;
	/* Reference: until its death has been dealt with, no other process is known by the same key. */
	struct task_struct *task;
};

/* Called with port->lock held. */
static void tell_pollers(struct stplr_port *port)
{
	struct stplr_channel *channel = container_of(port, struct stplr_channel, port);

	/* The end is for all, also for those of whom else one at a time is woken (EPOLLEXCLUSIVE). */
	if (unlikely(port->closed))
		wake_up_interruptible_all(&channel->receivers);
	else
		wake_up_interruptible_poll(&channel->receivers, EPOLLIN | EPOLLRDNORM);
}

/* The sender stays for as long as the server likes, if it is told. */
static struct stplr_item *tell_of_unblock(struct stplr_call *call)
{
	struct stplr_message *message = stplr_message_of(call);
	struct stplr_item *pulse = message->unblock;

	message->unblock = NULL;
	if (pulse)
		stplr_pulse_of(pulse)->value = call->name;
	return pulse;
}

static const struct stplr_port_ops channel_ops = {
	.free_call = stplr_message_free,
	.readable = tell_pollers,
	.unblock = tell_of_unblock,
	.drop_pulse = stplr_pulse_free,
	.passes = stplr_interruption_passes,
	.bring = stplr_bring,
	.make_room = stplr_make_room,
	.sent = stplr_inherit_sent,
};

void stplr_channel_put(struct stplr_channel *channel)
{
	if (!refcount_dec_and_test(&channel->refs))
		return;
	stplr_hide(&channel->shown);
	stplr_budget_put(channel->posts);
	stplr_user_put_charged(channel->user, COST);
	kfree(channel);
}

static void free_server(struct server *server)
{
	stplr_user_uncharge(server->channel->user, sizeof(*server));
	stplr_channel_put(server->channel);
	put_task_struct(server->task);
	kfree(server);
}

static void server_died(struct stplr_watch *watch)
{
	struct server *server = container_of(watch, struct server, watch);
	struct stplr_channel *channel = server->channel;

	stplr_log(STPLR_DEBUG_DEATHS, "channel %*pE: a server has ended\n",
		  (int)strlen(channel->name), channel->name);
	spin_lock(&channel->lock);
	list_del(&server->node);
	channel->server_count--;
	if (channel->last_server == server->process)
		WRITE_ONCE(channel->last_server, NULL);
	spin_unlock(&channel->lock);
	stplr_port_disown(&channel->port, server->process, -ESRCH);
	free_server(server);
}

static bool serves_locked(struct stplr_channel *channel, const void *process)
{
	struct server *server;

	list_for_each_entry(server, &channel->servers, node)
		if (server->process == process)
			return true;
	return false;
}

static struct server *new_server(struct stplr_channel *channel)
{
	struct server *server;
	int err = stplr_user_charge(channel->user, sizeof(*server));

	if (err)
		return ERR_PTR(err);
	server = kzalloc(sizeof(*server), GFP_KERNEL_ACCOUNT);
	if (!server) {
		stplr_user_uncharge(channel->user, sizeof(*server));
		return ERR_PTR(-ENOMEM);
	}
	refcount_inc(&channel->refs);
	server->channel = channel;
	server->process = stplr_exit_process();
	/* There is one for all threads, however many channels they serve. */
	server->task = get_task_struct(current->group_leader);
	return server;
}

/* Whether the calling process is known. If it is not, fresh is who is to be, if not NULL. */
static bool know_server(struct stplr_channel *channel, struct server *fresh, int *err)
{
	const void *process = stplr_exit_process();
	bool known;

	spin_lock(&channel->lock);
	known = serves_locked(channel, process);
	*err = !known && channel->server_count == SERVERS_MAX ? -EDQUOT : 0;
	if (!known && !*err && fresh) {
		channel->server_count++;
		list_add(&fresh->node, &channel->servers);
		stplr_exit_watch(&fresh->watch, process, server_died);
	}
	if (known || (!*err && fresh))
		WRITE_ONCE(channel->last_server, process);
	spin_unlock(&channel->lock);
	return known;
}

int stplr_channel_watch_server(struct stplr_channel *channel)
{
	struct server *fresh;
	int err;

	if (know_server(channel, NULL, &err) || err)
		return err;
	fresh = new_server(channel);
	if (IS_ERR(fresh))
		return PTR_ERR(fresh);
	/* Another thread of this process may have been first. */
	if (know_server(channel, fresh, &err) || err)
		free_server(fresh);
	return err;
}

/* Servers that are dying at this moment are left to server_died(). */
static void forget_servers(struct stplr_channel *channel)
{
	struct server *server, *next;
	LIST_HEAD(forgotten);

	spin_lock(&channel->lock);
	list_for_each_entry_safe(server, next, &channel->servers, node)
		if (stplr_exit_unwatch(&server->watch)) {
			list_move(&server->node, &forgotten);
			channel->server_count--;
		}
	spin_unlock(&channel->lock);
	list_for_each_entry_safe(server, next, &forgotten, node)
		free_server(server);
}

/* Whoever waits is told, and nobody gets in any more. A second time there is next to nothing to do. */
static void shut_down(struct stplr_channel *channel)
{
	const bool closed = stplr_port_closed(&channel->port);

	if (channel->name[0])
		stplr_name_detach(channel);
	stplr_port_close(&channel->port, -ESRCH);
	stplr_inherit_close(channel);
	wake_up_all(&channel->clients);
	stplr_connection_send_death_notices(channel);
	if (!closed)
		stplr_log(STPLR_DEBUG_OWNERS, "channel %*pE: closed\n",
			  (int)strlen(channel->name), channel->name);
}

static int channel_release(struct inode *inode, struct file *file)
{
	struct stplr_channel *channel = file->private_data;

	shut_down(channel);
	forget_servers(channel);
	stplr_channel_put(channel);
	return 0;
}

static __poll_t channel_poll(struct file *file, poll_table *table)
{
	struct stplr_channel *channel = file->private_data;

	poll_wait(file, &channel->receivers, table);
	return stplr_port_readable(&channel->port) ? EPOLLIN | EPOLLRDNORM : 0;
}

static long connect_to(struct stplr_channel *channel,
		       const struct stplr_channel_connect __user *user, size_t size)
{
	struct stplr_channel_connect arguments;
	int err = stplr_get_sized(&arguments, user, size, STPLR_CHANNEL_CONNECT_SIZE_VER0);

	if (err)
		return err;
	if (!stplr_connection_label_is_free(arguments.label))
		return -EINVAL;
	refcount_inc(&channel->refs);
	return stplr_connection_create(channel, arguments.label);
}

static long post(struct stplr_channel *channel, const struct stplr_pulse __user *user, size_t size)
{
	struct stplr_budget *budgets[STPLR_BUDGETS] = { channel->posts };

	return stplr_pulse_post(&channel->port, channel->user, budgets, user, size);
}

static long tell_info(struct stplr_channel *channel, struct stplr_info __user *user, size_t size)
{
	struct stplr_info info = { .kind = STPLR_KIND_CHANNEL };

	stplr_channel_describe(channel, &info);
	return stplr_put_info(user, size, &info);
}

static long channel_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct stplr_channel *channel = file->private_data;
	const size_t size = _IOC_SIZE(command);
	void __user *user = (void __user *)argument;

	stplr_unpark();
	switch (STPLR_SIZELESS(command)) {
	case STPLR_SIZELESS(STPLR_CHANNEL_CONNECT):
		return connect_to(channel, user, size);
	case STPLR_SIZELESS(STPLR_RECEIVE):
		return stplr_channel_receive(channel, user, size, file);
	case STPLR_SIZELESS(STPLR_REPLY):
		return stplr_channel_reply(channel, user, size);
	case STPLR_SIZELESS(STPLR_REPLY_RECEIVE):
		return stplr_channel_reply_receive(channel, user, size, file);
	case STPLR_SIZELESS(STPLR_READ):
		return stplr_message_access(&channel->port, stplr_exit_process(), user, size, false);
	case STPLR_SIZELESS(STPLR_WRITE):
		return stplr_message_access(&channel->port, stplr_exit_process(), user, size, true);
	case STPLR_SIZELESS(STPLR_POST):
		return post(channel, user, size);
	case STPLR_SIZELESS(STPLR_SHUTDOWN):
		shut_down(channel);
		return 0;
	case STPLR_SIZELESS(STPLR_INFO):
		return tell_info(channel, user, size);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations channel_operations = {
	.owner = THIS_MODULE,
	.flush = stplr_unpark_file,
	.release = channel_release,
	.poll = channel_poll,
	.unlocked_ioctl = channel_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

void stplr_channel_describe(const struct stplr_channel *channel, struct stplr_info *info)
{
	info->flags = channel->flags;
	info->number = channel->port.number;
	info->spin_us = stplr_spin_most_us(&channel->port.receiving);
}

struct stplr_channel *stplr_channel_from_fd(int fd)
{
	struct stplr_channel *channel = ERR_PTR(-EINVAL);
	struct file *file = fget(fd);

	if (!file)
		return ERR_PTR(-EBADF);
	if (file->f_op == &channel_operations) {
		channel = file->private_data;
		refcount_inc(&channel->refs);
	}
	fput(file);
	return channel;
}

static void describe(struct seq_file *file, struct stplr_shown *shown)
{
	struct stplr_channel *channel = container_of(shown, struct stplr_channel, shown);

	seq_printf(file, "channel uid %u", __kuid_val(channel->uid));
	if (channel->flags & STPLR_CHANNEL_UNBLOCK)
		seq_puts(file, " unblock");
	if (channel->flags & STPLR_CHANNEL_DISCONNECT)
		seq_puts(file, " disconnect");
	if (channel->flags & STPLR_CHANNEL_INHERIT)
		seq_puts(file, " inherit");
	if (stplr_port_closed(&channel->port))
		seq_puts(file, " closed");
	if (channel->name[0]) {
		seq_puts(file, " name ");
		seq_escape(file, channel->name, " \t\n\\");
	}
	seq_putc(file, '\n');
}

static void show_connections(struct seq_file *file, struct stplr_shown *shown)
{
	stplr_connection_show(file, container_of(shown, struct stplr_channel, shown));
}

static bool get_shown(struct stplr_shown *shown)
{
	return refcount_inc_not_zero(&container_of(shown, struct stplr_channel, shown)->refs);
}

static void put_shown(struct stplr_shown *shown)
{
	stplr_channel_put(container_of(shown, struct stplr_channel, shown));
}

static const struct stplr_shown_ops channel_shown_ops = {
	.get = get_shown,
	.put = put_shown,
	.describe = describe,
	.connections = show_connections,
};

static struct stplr_channel *channel_new(const struct stplr_channel_create *arguments)
{
	struct stplr_channel *channel = kzalloc(sizeof(*channel), GFP_KERNEL_ACCOUNT);
	int err;

	if (!channel)
		return ERR_PTR(-ENOMEM);
	err = stplr_user_get_charged(&channel->user, NULL, COST);
	if (err)
		goto free;
	err = -ENOMEM;
	channel->posts = stplr_budget_new(POSTS_MAX);
	if (!channel->posts)
		goto put_user;
	stplr_port_init(&channel->port, &channel_ops, get_random_u64(), arguments->spin_us);
	refcount_set(&channel->refs, 1);
	channel->flags = arguments->flags;
	init_waitqueue_head(&channel->receivers);
	init_waitqueue_head(&channel->clients);
	spin_lock_init(&channel->lock);
	INIT_LIST_HEAD(&channel->servers);
	INIT_LIST_HEAD(&channel->death_notices);
	INIT_LIST_HEAD(&channel->connections);
	INIT_LIST_HEAD(&channel->budgets);
	rt_mutex_init(&channel->inherit_lock);
	INIT_LIST_HEAD(&channel->loans);
	INIT_HLIST_NODE(&channel->named);
	channel->uid = current_fsuid();
	channel->gid = current_fsgid();
	channel->mode = arguments->mode;
	strscpy(channel->name, arguments->name, sizeof(channel->name));
	stplr_show(&channel->shown, &channel->port, &channel_shown_ops);
	return channel;

put_user:
	stplr_user_put_charged(channel->user, COST);
free:
	kfree(channel);
	return ERR_PTR(err);
}

long stplr_channel_create(const struct stplr_channel_create __user *user, size_t size)
{
	struct stplr_channel_create arguments;
	struct stplr_channel *channel;
	long fd;

	fd = stplr_get_sized(&arguments, user, size, STPLR_CHANNEL_CREATE_SIZE_VER0);
	if (fd)
		return fd;
	if (arguments.flags & ~ALL_FLAGS || arguments.mode & ~0777u || arguments.reserved ||
	    strnlen(arguments.name, STPLR_NAME_MAX) == STPLR_NAME_MAX)
		return -EINVAL;
	fd = stplr_name_complete(arguments.name);
	if (fd)
		return fd;
	channel = channel_new(&arguments);
	if (IS_ERR(channel))
		return PTR_ERR(channel);
	if (channel->name[0]) {
		fd = stplr_name_attach(channel);
		if (fd)
			goto put;
	}
	fd = stplr_anon_fd("[stplr-channel]", &channel_operations, channel);
	if (fd >= 0) {
		/* By now somebody else may have closed it. */
		stplr_log(STPLR_DEBUG_OWNERS, "channel %*pE: created\n",
			  (int)strlen(arguments.name), arguments.name);
		return fd;
	}
	/* Whoever found the name meanwhile meets a port that is closed. */
	shut_down(channel);
put:
	stplr_channel_put(channel);
	return fd;
}
