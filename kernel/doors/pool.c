// SPDX-License-Identifier: GPL-2.0
#include "doors/pool.h"

#include <linux/cred.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/proc_fs.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "debug.h"
#include "doors/door.h"
#include "message.h"
#include "park.h"
#include "words.h"

/* The thread that has the call is to know that nobody waits for it any more. */
static void tell_of_leave(struct stplr_call *call)
{
	/* Its server ends after all that it owes, so it is there. */
	struct stplr_server *server = (struct stplr_server *)call->replier;
	struct stplr_pool *pool = server->pool;

	if (server->task && stplr_message_of(call)->of_door.door->attributes & STPLR_DOOR_NO_CANCEL)
		return;
	server->aborted = call->name;
	if (list_empty(&server->notice))
		list_add_tail(&server->notice, &pool->notices);
	wake_up_interruptible_poll(&pool->listeners, EPOLLIN | EPOLLRDNORM);
}

static void drop_notice(struct stplr_item *item)
{
	stplr_door_noticed(stplr_door_of_notice(item));
}

static void look_after_door(struct stplr_call *call, struct task_struct *receiver)
{
	stplr_door_sent(stplr_message_of(call)->of_door.door);
}

/* Without unblock: a client leaves as soon as it wants to. */
static const struct stplr_port_ops pool_ops = {
	.free_call = stplr_message_free,
	.left = tell_of_leave,
	.drop_pulse = drop_notice,
	.passes = stplr_interruption_passes,
	.bring = stplr_bring,
	.make_room = stplr_make_room,
	.sent = look_after_door,
};

void stplr_pool_put(struct stplr_pool *pool)
{
	if (!refcount_dec_and_test(&pool->refs))
		return;
	stplr_hide(&pool->shown);
	put_pid(pool->tgid);
	put_task_struct(pool->task);
	mmdrop(pool->mm);
	stplr_user_put_charged(pool->user, sizeof(*pool));
	kfree(pool);
}

void stplr_pool_lost(struct stplr_pool *pool)
{
	/* All of them: this comes once. */
	if (atomic_dec_and_test(&pool->doors))
		wake_up_interruptible_all(&pool->listeners);
	stplr_pool_put(pool);
}

bool stplr_pool_mine(const struct stplr_pool *pool)
{
	return pool->process == stplr_exit_process() && pool->mm == current->mm;
}

static void free_server(struct stplr_server *server)
{
	struct stplr_pool *pool = server->pool;

	spin_lock(&pool->port.lock);
	list_del(&server->notice);
	spin_unlock(&pool->port.lock);
	if (server->task)
		put_task_struct(server->task);
	stplr_user_uncharge(pool->user, sizeof(*server));
	kfree(server);
	stplr_pool_put(pool);
}

static void forget_locked(struct stplr_server *server)
{
	hash_del(&server->node);
	server->pool->server_count--;
}

static void thread_died(struct stplr_watch *watch)
{
	struct stplr_server *server = container_of(watch, struct stplr_server, watch);
	struct stplr_pool *pool = server->pool;

	spin_lock(&pool->lock);
	forget_locked(server);
	spin_unlock(&pool->lock);
	stplr_port_disown(&pool->port, server, -EINTR);
	free_server(server);
}

static struct stplr_server *find_locked(struct stplr_pool *pool)
{
	struct stplr_server *server;

	hash_for_each_possible(pool->servers, server, node, (unsigned long)current)
		if (server->task == current)
			return server;
	return NULL;
}

static struct stplr_server *new_server(struct stplr_pool *pool)
{
	struct stplr_server *server;
	int err = stplr_user_charge(pool->user, sizeof(*server));

	if (err)
		return ERR_PTR(err);
	server = kzalloc(sizeof(*server), GFP_KERNEL_ACCOUNT);
	if (!server) {
		stplr_user_uncharge(pool->user, sizeof(*server));
		return ERR_PTR(-ENOMEM);
	}
	refcount_inc(&pool->refs);
	server->pool = pool;
	INIT_LIST_HEAD(&server->notice);
	return server;
}

struct stplr_server *stplr_pool_known_server(struct stplr_pool *pool)
{
	struct stplr_server *server;

	spin_lock(&pool->lock);
	server = find_locked(pool);
	spin_unlock(&pool->lock);
	return server;
}

struct stplr_server *stplr_pool_server(struct stplr_pool *pool)
{
	struct stplr_server *server = stplr_pool_known_server(pool);

	if (likely(server))
		return server;
	server = new_server(pool);
	if (IS_ERR(server))
		return server;
	server->task = get_task_struct(current);
	/* Nobody but this thread adds it. */
	spin_lock(&pool->lock);
	hash_add(pool->servers, &server->node, (unsigned long)current);
	pool->server_count++;
	stplr_exit_watch(&server->watch, stplr_exit_thread(), thread_died);
	spin_unlock(&pool->lock);
	return server;
}

static void add_deferred_locked(struct stplr_server *deferred)
{
	hash_add(deferred->pool->deferred, &deferred->node, (unsigned long)deferred->call);
}

void stplr_pool_deferred_again(struct stplr_server *deferred)
{
	struct stplr_pool *pool = deferred->pool;

	spin_lock(&pool->lock);
	add_deferred_locked(deferred);
	spin_unlock(&pool->lock);
}

void stplr_pool_deferred_end(struct stplr_server *deferred)
{
	if (deferred)
		free_server(deferred);
}

static struct stplr_server *find_deferred_locked(struct stplr_pool *pool, u64 call)
{
	struct stplr_server *server;

	hash_for_each_possible(pool->deferred, server, node, (unsigned long)call)
		if (server->call == call)
			return server;
	return NULL;
}

int stplr_pool_defer(struct stplr_pool *pool, u64 call, struct stplr_server *server)
{
	struct stplr_server *deferred;
	bool passed;

	/* A call that is still being taken has no replier. */
	if (!server)
		return -ESRCH;
	deferred = new_server(pool);
	if (IS_ERR(deferred))
		return PTR_ERR(deferred);
	deferred->call = call;
	spin_lock(&pool->lock);
	passed = stplr_port_pass(&pool->port, call, server, deferred);
	/*
	 * From now on it may be answered. At this moment its client may leave, and whoever is told of that and
	 * answers finds who stands for it.
	 */
	if (passed)
		add_deferred_locked(deferred);
	spin_unlock(&pool->lock);
	if (!passed)
		free_server(deferred);
	return passed ? 0 : -ESRCH;
}

struct stplr_call *stplr_pool_claim(struct stplr_pool *pool, u64 id, struct stplr_server *server,
				    struct stplr_server **deferred)
{
	struct stplr_call *call = stplr_port_claim(&pool->port, id, server);

	*deferred = NULL;
	if (call)
		return call;
	spin_lock(&pool->lock);
	*deferred = find_deferred_locked(pool, id);
	if (*deferred)
		hash_del(&(*deferred)->node);
	spin_unlock(&pool->lock);
	return *deferred ? stplr_port_claim(&pool->port, id, *deferred) : NULL;
}

struct stplr_call *stplr_pool_borrow(struct stplr_pool *pool, u64 id, struct stplr_server *server)
{
	struct stplr_call *call = stplr_port_borrow(&pool->port, id, server, true);
	const struct stplr_server *deferred;

	if (call)
		return call;
	spin_lock(&pool->lock);
	deferred = find_deferred_locked(pool, id);
	spin_unlock(&pool->lock);
	/* Only compared: it may be answered at this moment. */
	return deferred ? stplr_port_borrow(&pool->port, id, deferred, true) : NULL;
}

static void forget_deferred(struct stplr_pool *pool)
{
	struct stplr_server *server;
	struct hlist_node *next;
	int bucket;

	/* The last who had a descriptor is giving it up, so nobody else is here. */
	hash_for_each_safe(pool->deferred, bucket, next, server, node) {
		hash_del(&server->node);
		free_server(server);
	}
}

/* Threads that are ending at this moment are left to thread_died(). */
static void forget_servers(struct stplr_pool *pool)
{
	struct stplr_server *server;
	struct hlist_node *next;
	HLIST_HEAD(forgotten);
	int bucket;

	spin_lock(&pool->lock);
	hash_for_each_safe(pool->servers, bucket, next, server, node)
		if (stplr_exit_unwatch(&server->watch)) {
			forget_locked(server);
			hlist_add_head(&server->node, &forgotten);
		}
	spin_unlock(&pool->lock);
	hlist_for_each_entry_safe(server, next, &forgotten, node)
		free_server(server);
}

/* Clients that wait for a thread, or for one that has their call, learn of it. */
static void shut_down(struct stplr_pool *pool)
{
	stplr_port_close(&pool->port, -ESRCH);
}

/* The watch had a reference. */
static void program_ended(struct stplr_watch *watch)
{
	struct stplr_pool *pool = container_of(watch, struct stplr_pool, watch);

	stplr_log(STPLR_DEBUG_DEATHS, "pool %u: its program has ended\n", pool->port.number);
	shut_down(pool);
	stplr_pool_put(pool);
}

static int pool_release(struct inode *inode, struct file *file)
{
	struct stplr_pool *pool = file->private_data;

	shut_down(pool);
	forget_servers(pool);
	forget_deferred(pool);
	if (stplr_exit_unwatch(&pool->watch))
		stplr_pool_put(pool);
	stplr_pool_put(pool);
	return 0;
}

/*
 * Exec closes it, though others may have it still: then its doors have ended before the new program runs.
 * Where exec does not close it, program_ended() comes a moment later.
 */
static int pool_flush(struct file *file, fl_owner_t owner)
{
	struct stplr_pool *pool = file->private_data;

	if (pool->process == stplr_exit_process() && current->in_execve)
		shut_down(pool);
	return 0;
}

static __poll_t pool_poll(struct file *file, poll_table *table)
{
	struct stplr_pool *pool = file->private_data;

	poll_wait(file, &pool->listeners, table);
	return (list_empty_careful(&pool->notices) ? 0 : EPOLLIN | EPOLLRDNORM) |
	       (atomic_read(&pool->doors) ? 0 : EPOLLRDHUP);
}

static long tell_notice(struct stplr_pool *pool, struct stplr_door_notice __user *user, size_t size)
{
	struct stplr_door_notice notice = {};
	struct stplr_server *server;

	if (size < STPLR_DOOR_NOTICE_SIZE_VER0)
		return -EINVAL;
	/* What cannot be told stays. */
	if (clear_user(user, size))
		return -EFAULT;
	spin_lock(&pool->port.lock);
	server = list_first_entry_or_null(&pool->notices, struct stplr_server, notice);
	if (server) {
		list_del_init(&server->notice);
		notice.id = server->aborted;
		/* It may be ending, and has no number then. */
		notice.tid = server->task ? task_pid_vnr(server->task) : 0;
	}
	spin_unlock(&pool->port.lock);
	if (!server)
		return -EAGAIN;
	return stplr_put_whole(user, &notice, sizeof(notice), size);
}

static long pool_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct stplr_pool *pool = file->private_data;
	const size_t size = _IOC_SIZE(command);
	void __user *user = (void __user *)argument;
	struct stplr_server *server;

	stplr_unpark();
	if (!stplr_pool_mine(pool))
		return -EPERM;
	switch (STPLR_SIZELESS(command)) {
	case STPLR_SIZELESS(STPLR_DOOR_CREATE):
		return stplr_door_create(pool, user, size);
	case STPLR_SIZELESS(STPLR_DOOR_RETURN):
		return stplr_pool_return(pool, user, size);
	case STPLR_SIZELESS(STPLR_DOOR_CRED):
		return stplr_pool_cred(pool, user, size);
	case STPLR_SIZELESS(STPLR_READ):
		server = stplr_pool_server(pool);
		return IS_ERR(server) ? PTR_ERR(server) :
					stplr_message_access(&pool->port, server, user, size, false);
	case STPLR_SIZELESS(STPLR_POOL_NOTICE):
		return tell_notice(pool, user, size);
	default:
		return -ENOTTY;
	}
}

static void pool_show_fdinfo(struct seq_file *to, struct file *file)
{
	struct stplr_pool *pool = file->private_data;

	seq_printf(to, "door-pool:\t%u\nserver:\t%d\nthreads:\t%u\n", pool->port.number,
		   pid_nr_ns(pool->tgid, proc_pid_ns(file_inode(to->file)->i_sb)),
		   READ_ONCE(pool->server_count));
}

static const struct file_operations pool_operations = {
	.owner = THIS_MODULE,
	.flush = pool_flush,
	.release = pool_release,
	.poll = pool_poll,
	.unlocked_ioctl = pool_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = pool_show_fdinfo,
	.llseek = noop_llseek,
};

static void describe(struct seq_file *file, struct stplr_shown *shown)
{
	struct stplr_pool *pool = container_of(shown, struct stplr_pool, shown);

	seq_printf(file, "doors of %d%s\n", pid_nr(pool->tgid),
		   stplr_port_closed(&pool->port) ? " closed" : "");
}

static bool get_shown(struct stplr_shown *shown)
{
	return refcount_inc_not_zero(&container_of(shown, struct stplr_pool, shown)->refs);
}

static void put_shown(struct stplr_shown *shown)
{
	stplr_pool_put(container_of(shown, struct stplr_pool, shown));
}

static const struct stplr_shown_ops pool_shown_ops = {
	.get = get_shown,
	.put = put_shown,
	.describe = describe,
};

static struct stplr_pool *pool_new(u32 spin_us)
{
	struct stplr_pool *pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);
	int err;

	if (!pool)
		return ERR_PTR(-ENOMEM);
	err = stplr_user_get_charged(&pool->user, NULL, sizeof(*pool));
	if (err) {
		kfree(pool);
		return ERR_PTR(err);
	}
	stplr_port_init(&pool->port, &pool_ops, get_random_u64(), spin_us);
	refcount_set(&pool->refs, 2);
	pool->process = stplr_exit_process();
	pool->mm = current->mm;
	mmgrab(pool->mm);
	pool->task = get_task_struct(current->group_leader);
	pool->tgid = get_pid(task_tgid(current));
	init_waitqueue_head(&pool->listeners);
	INIT_LIST_HEAD(&pool->notices);
	spin_lock_init(&pool->lock);
	hash_init(pool->servers);
	hash_init(pool->deferred);
	stplr_show(&pool->shown, &pool->port, &pool_shown_ops);
	stplr_exit_watch(&pool->watch, stplr_exit_program(current), program_ended);
	return pool;
}

long stplr_pool_create(const struct stplr_pool_create __user *user, size_t size)
{
	struct stplr_pool_create arguments;
	struct stplr_pool *pool;
	long fd;

	fd = stplr_get_sized(&arguments, user, size, STPLR_POOL_CREATE_SIZE_VER0);
	if (fd)
		return fd;
	if (arguments.flags)
		return -EINVAL;
	pool = pool_new(arguments.spin_us);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	fd = stplr_anon_fd("[stplr-pool]", &pool_operations, pool);
	if (fd >= 0)
		return fd;
	if (stplr_exit_unwatch(&pool->watch))
		stplr_pool_put(pool);
	stplr_pool_put(pool);
	return fd;
}
