// SPDX-License-Identifier: GPL-2.0
#include "connection.h"

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "info.h"
#include "message.h"
#include "park.h"
#include "priority.h"
#include "pulse.h"
#include "region.h"
#include "words.h"

/* How many pulses of one connection may be queued, so that one client cannot drown the others. */
#define PULSES_MAX 256

/* And of all connections of a user to one channel, however many those are. */
#define PULSES_OF_USER_MAX 16384

/* So many channels are told of the death of a connection's channel: processes that share the connection. */
#define DEATHS_MAX 1024

/* A channel that is told. */
struct death {
	struct list_head node; /* in channel->death_notices */
	struct list_head sibling; /* in connection->deaths */
	struct stplr_connection *connection;
	struct stplr_channel *told; /* reference */
	struct stplr_pulse_item *pulse;
};

/* Of a label that is the kernel's, the lower ones count. */
#define STPLR_LABEL_BITS 48

/* With what belongs to it, of which a queued pulse or a region may hold on to a part for longer. */
static const size_t cost = sizeof(struct stplr_connection) +
			   STPLR_BUDGETS * sizeof(struct stplr_budget) +
			   sizeof(struct stplr_regions);

static atomic64_t labels = ATOMIC64_INIT(STPLR_LABELS);

u64 stplr_connection_label(void)
{
	return atomic64_inc_return(&labels);
}

bool stplr_connection_label_is_free(u64 label)
{
	return label >> STPLR_LABEL_BITS != STPLR_LABELS >> STPLR_LABEL_BITS;
}

/* With a reference; NULL: there is no memory. */
static struct stplr_budget *budget_of(struct stplr_channel *channel, struct stplr_user *user)
{
	struct stplr_budget *fresh = stplr_budget_new(PULSES_OF_USER_MAX), *budget;

	if (!fresh)
		return NULL;
	spin_lock(&channel->lock);
	budget = stplr_budget_share_locked(&channel->budgets, &channel->lock, user, fresh);
	spin_unlock(&channel->lock);
	if (budget != fresh)
		stplr_budget_put(fresh);
	return budget;
}

/* The same for the caller, who need not be who has made the connection: that may have given it away. */
static struct stplr_budget *budget_of_caller(struct stplr_connection *connection)
{
	struct stplr_budget *budget;
	struct stplr_user *user;

	if (likely(stplr_user_is_caller(connection->user))) {
		refcount_inc(&connection->budgets[1]->refs);
		return connection->budgets[1];
	}
	user = stplr_user_get();
	if (!user)
		return NULL;
	budget = budget_of(connection->channel, user);
	stplr_user_put(user);
	return budget;
}

struct stplr_pulse_item *stplr_connection_pulse(struct stplr_connection *connection, s32 code,
						s64 value)
{
	struct stplr_budget *budgets[STPLR_BUDGETS] = { NULL, budget_of_caller(connection) };
	struct stplr_pulse_item *pulse;

	if (!budgets[1])
		return ERR_PTR(-ENOMEM);
	pulse = stplr_pulse_new(budgets[1]->user, budgets, code, value);
	stplr_budget_put(budgets[1]);
	return pulse;
}

static long post(struct stplr_connection *connection, const struct stplr_pulse __user *user,
		 size_t size)
{
	struct stplr_budget *budgets[STPLR_BUDGETS] = { connection->budgets[0],
							budget_of_caller(connection) };
	long err;

	if (!budgets[1])
		return -ENOMEM;
	err = stplr_pulse_post(&connection->channel->port, budgets[1]->user, budgets, user, size);
	stplr_budget_put(budgets[1]);
	return err;
}

static void free_death(struct death *death)
{
	if (death->pulse)
		stplr_pulse_free(&death->pulse->item);
	stplr_channel_put(death->told);
	kfree(death);
}

static void send_death(struct death *death)
{
	struct stplr_item *item = &death->pulse->item;

	if (!stplr_port_post(&death->told->port, item, item->priority))
		death->pulse = NULL;
	free_death(death);
}

/* The caller's reference to told is the new one's, also where it fails. */
static struct death *new_death(struct stplr_connection *connection, struct stplr_channel *told,
			       s64 value)
{
	struct death *death = kzalloc(sizeof(*death), GFP_KERNEL_ACCOUNT);
	struct stplr_pulse_item *pulse;

	if (!death) {
		stplr_channel_put(told);
		return ERR_PTR(-ENOMEM);
	}
	death->connection = connection;
	death->told = told;
	pulse = stplr_pulse_new(connection->user, NULL, STPLR_PULSE_DEATH, value);
	if (IS_ERR(pulse)) {
		free_death(death);
		return ERR_CAST(pulse);
	}
	/* A server that is busy with ordinary messages would not learn of it with less. */
	pulse->item.priority = max(stplr_priority_of_current(), STPLR_PRIORITY_NORMAL);
	death->pulse = pulse;
	return death;
}

static int add_death_locked(struct stplr_connection *connection, struct death *death)
{
	struct death *other;

	list_for_each_entry(other, &connection->deaths, sibling)
		if (other->told == death->told)
			return -EBUSY;
	if (connection->death_count == DEATHS_MAX)
		return -EAGAIN;
	connection->death_count++;
	list_add(&death->sibling, &connection->deaths);
	list_add(&death->node, &connection->channel->death_notices);
	return 0;
}

static void remove_death_locked(struct death *death)
{
	death->connection->death_count--;
	list_del(&death->sibling);
	list_del(&death->node);
}

static long ask_for_death(struct stplr_connection *connection,
			  const struct stplr_death __user *user, size_t size)
{
	struct stplr_channel *told;
	struct stplr_death arguments;
	struct death *death;
	int err = 0;
	bool closed;

	err = stplr_get_sized(&arguments, user, size, STPLR_DEATH_SIZE_VER0);
	if (err)
		return err;
	if (arguments.reserved)
		return -EINVAL;
	told = stplr_channel_from_fd(arguments.channel);
	if (IS_ERR(told))
		return PTR_ERR(told);
	death = new_death(connection, told, arguments.value);
	if (IS_ERR(death))
		return PTR_ERR(death);
	spin_lock(&connection->channel->lock);
	/* Who sends the notices takes the lock after the port is closed, so one of the two sees the other. */
	closed = stplr_port_closed(&connection->channel->port);
	if (!closed)
		err = add_death_locked(connection, death);
	spin_unlock(&connection->channel->lock);
	if (closed)
		send_death(death);
	else if (err)
		free_death(death);
	return err;
}

/* Takes out one, which becomes the caller's. NULL: there is none. */
static struct death *next_death(struct stplr_channel *channel)
{
	struct death *death;

	spin_lock(&channel->lock);
	death = list_first_entry_or_null(&channel->death_notices, struct death, node);
	if (death)
		remove_death_locked(death);
	spin_unlock(&channel->lock);
	return death;
}

void stplr_connection_send_death_notices(struct stplr_channel *channel)
{
	struct death *death;

	while ((death = next_death(channel))) {
		send_death(death);
		cond_resched();
	}
}

static long register_memory(struct stplr_connection *connection,
			    const struct stplr_register __user *user, size_t size)
{
	struct stplr_register arguments;
	int err = stplr_get_sized(&arguments, user, size, STPLR_REGISTER_SIZE_VER0);

	if (err)
		return err;
	return stplr_region_register(connection->regions, connection->user, arguments.address,
				     arguments.length);
}

static long tell_info(struct stplr_connection *connection, struct stplr_info __user *user,
		      size_t size)
{
	struct stplr_info info = { .kind = STPLR_KIND_CONNECTION, .label = connection->label };

	stplr_channel_describe(connection->channel, &info);
	return stplr_put_info(user, size, &info);
}

static void put_budgets(struct stplr_connection *connection)
{
	int i;

	for (i = 0; i < STPLR_BUDGETS; i++)
		if (connection->budgets[i])
			stplr_budget_put(connection->budgets[i]);
}

static void leave_channel(struct stplr_connection *connection)
{
	struct stplr_channel *channel = connection->channel;
	struct death *death, *next;
	LIST_HEAD(deaths);

	spin_lock(&channel->lock);
	list_del(&connection->sibling);
	list_for_each_entry_safe(death, next, &connection->deaths, sibling) {
		remove_death_locked(death);
		list_add(&death->node, &deaths);
	}
	spin_unlock(&channel->lock);
	list_for_each_entry_safe(death, next, &deaths, node)
		free_death(death);
}

static void connection_free(struct stplr_connection *connection)
{
	leave_channel(connection);
	if (connection->goodbye)
		stplr_pulse_free(&connection->goodbye->item);
	stplr_message_drop(connection->spare);
	stplr_regions_end(connection->regions);
	put_budgets(connection);
	stplr_user_put_charged(connection->user, cost);
	stplr_channel_put(connection->channel);
	kfree(connection);
}

static int connection_release(struct inode *inode, struct file *file)
{
	struct stplr_connection *connection = file->private_data;

	/*
	 * Whoever was less urgent, the server has to learn of it; and nobody gets ahead of ordinary clients by
	 * coming and going, however urgent the server is.
	 */
	if (connection->goodbye &&
	    !stplr_port_post(&connection->channel->port, &connection->goodbye->item,
			     STPLR_PRIORITY_NORMAL))
		connection->goodbye = NULL;
	connection_free(connection);
	return 0;
}

static __poll_t connection_poll(struct file *file, poll_table *table)
{
	struct stplr_connection *connection = file->private_data;

	poll_wait(file, &connection->channel->clients, table);
	return stplr_port_closed(&connection->channel->port) ?
		       EPOLLHUP | EPOLLERR :
		       EPOLLOUT | EPOLLWRNORM;
}

static long connection_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct stplr_connection *connection = file->private_data;
	const size_t size = _IOC_SIZE(command);
	void __user *user = (void __user *)argument;

	stplr_unpark();
	switch (STPLR_SIZELESS(command)) {
	case STPLR_SIZELESS(STPLR_SEND):
		return stplr_connection_send(connection, user, size, file);
	case STPLR_SIZELESS(STPLR_PULSE):
		return post(connection, user, size);
	case STPLR_SIZELESS(STPLR_DEATH):
		return ask_for_death(connection, user, size);
	case STPLR_SIZELESS(STPLR_REGISTER):
		return register_memory(connection, user, size);
	case STPLR_SIZELESS(STPLR_INFO):
		return tell_info(connection, user, size);
	case STPLR_SIZELESS(STPLR_UNREGISTER):
		return stplr_region_unregister(connection->regions, argument);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations connection_operations = {
	.owner = THIS_MODULE,
	.flush = stplr_unpark_file,
	.release = connection_release,
	.poll = connection_poll,
	.unlocked_ioctl = connection_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct stplr_connection *connection_new(struct stplr_channel *channel, u64 label)
{
	struct stplr_connection *connection = kzalloc(sizeof(*connection), GFP_KERNEL_ACCOUNT);
	struct stplr_pulse_item *goodbye = NULL;
	int err;

	if (!connection)
		return ERR_PTR(-ENOMEM);
	err = stplr_user_get_charged(&connection->user, NULL, cost);
	if (err)
		goto free;
	err = -ENOMEM;
	connection->budgets[0] = stplr_budget_new(PULSES_MAX);
	connection->budgets[1] = budget_of(channel, connection->user);
	if (!connection->budgets[0] || !connection->budgets[1])
		goto put_budgets;
	connection->regions = stplr_regions_new();
	if (!connection->regions)
		goto put_budgets;
	connection->label = label;
	connection->channel = channel;
	INIT_LIST_HEAD(&connection->deaths);
	if (channel->flags & STPLR_CHANNEL_DISCONNECT) {
		goodbye = stplr_connection_pulse(connection, STPLR_PULSE_DISCONNECT, label);
		if (IS_ERR(goodbye)) {
			err = PTR_ERR(goodbye);
			goto end_regions;
		}
	}
	connection->goodbye = goodbye;
	spin_lock(&channel->lock);
	list_add_tail(&connection->sibling, &channel->connections);
	spin_unlock(&channel->lock);
	return connection;

end_regions:
	stplr_regions_end(connection->regions);
put_budgets:
	put_budgets(connection);
	stplr_user_put_charged(connection->user, cost);
free:
	kfree(connection);
	return ERR_PTR(err);
}

void stplr_connection_show(struct seq_file *file, struct stplr_channel *channel)
{
	struct stplr_connection *connection;

	spin_lock(&channel->lock);
	list_for_each_entry(connection, &channel->connections, sibling)
		seq_printf(file, "%u %llu %u %u %d\n", channel->port.number, connection->label,
			   __kuid_val(connection->user->uid),
			   stplr_regions_count(connection->regions),
			   atomic_read(&connection->budgets[0]->left));
	spin_unlock(&channel->lock);
}

long stplr_connection_create(struct stplr_channel *channel, u64 label)
{
	struct stplr_connection *connection = connection_new(channel, label);
	long fd;

	if (IS_ERR(connection)) {
		stplr_channel_put(channel);
		return PTR_ERR(connection);
	}
	fd = stplr_anon_fd("[stplr-connection]", &connection_operations, connection);
	if (fd < 0)
		connection_free(connection);
	return fd;
}
