// SPDX-License-Identifier: GPL-2.0
#include "mailbox.h"

#include <linux/hashtable.h>
#include <linux/pid.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "debug.h"
#include "debugfs.h"
#include "exit.h"
#include "include/stplr_handles.h"
#include "message.h"
#include "park.h"
#include "words.h"

/* Protects the tables, every open's list, and registered. */
static DEFINE_SPINLOCK(mailboxes_lock);
static DEFINE_HASHTABLE(mailboxes, 10); /* by thread */
static DEFINE_HASHTABLE(uuids, 10);

static void no_pulse(struct stplr_item *item)
{
	WARN_ON_ONCE(1);
}

static const struct stplr_port_ops mailbox_ops = {
	.free_call = stplr_message_free,
	.drop_pulse = no_pulse,
	.passes = stplr_interruption_passes,
	.bring = stplr_bring,
	.make_room = stplr_make_room,
};

static void describe(struct seq_file *file, struct stplr_shown *shown)
{
	struct stplr_mailbox *mailbox = container_of(shown, struct stplr_mailbox, shown);

	seq_printf(file, "handle of %d on node %d\n", mailbox->tid, mailbox->minor);
}

void stplr_mailbox_drop(struct stplr_mailbox *mailbox)
{
	if (!refcount_dec_and_test(&mailbox->refs))
		return;
	stplr_hide(&mailbox->shown);
	stplr_message_drop(mailbox->spare);
	put_task_struct(mailbox->task);
	stplr_user_put_charged(mailbox->user, sizeof(*mailbox));
	kfree_rcu(mailbox, rcu);
}

static bool get_shown(struct stplr_shown *shown)
{
	return refcount_inc_not_zero(&container_of(shown, struct stplr_mailbox, shown)->refs);
}

static void put_shown(struct stplr_shown *shown)
{
	stplr_mailbox_drop(container_of(shown, struct stplr_mailbox, shown));
}

static const struct stplr_shown_ops mailbox_shown_ops = {
	.get = get_shown,
	.put = put_shown,
	.describe = describe,
};

/* Under RCU; the result has a reference. */
static struct stplr_mailbox *find_rcu(int minor, const struct task_struct *task)
{
	struct stplr_mailbox *mailbox;

	hash_for_each_possible_rcu(mailboxes, mailbox, node, (unsigned long)task)
		if (mailbox->task == task && mailbox->minor == minor &&
		    refcount_inc_not_zero(&mailbox->refs))
			return mailbox;
	return NULL;
}

static bool known(const struct stplr_open *open, u64 uuid)
{
	struct stplr_mailbox *mailbox;
	bool found = false;

	rcu_read_lock();
	hash_for_each_possible_rcu(uuids, mailbox, by_uuid, uuid)
		found |= mailbox->uuid == uuid && mailbox->open == open;
	rcu_read_unlock();
	return found;
}

struct stplr_mailbox *stplr_mailbox_own(struct stplr_open *open, u64 uuid)
{
	struct stplr_mailbox *mailbox;

	if (open->tgid != task_tgid(current))
		return ERR_PTR(-EBADR);
	rcu_read_lock();
	mailbox = find_rcu(open->minor, current);
	rcu_read_unlock();
	if (mailbox && mailbox->uuid == uuid)
		return mailbox;
	if (mailbox)
		stplr_mailbox_drop(mailbox);
	return ERR_PTR(known(open, uuid) ? -EBADR : -ENODEV);
}

struct stplr_mailbox *stplr_mailbox_other(struct stplr_open *open, s32 pid, s32 tid)
{
	struct stplr_mailbox *mailbox = NULL;
	struct task_struct *task;

	rcu_read_lock();
	task = pid_task(find_vpid(tid), PIDTYPE_PID);
	if (task && task_tgid_vnr(task) == pid)
		mailbox = find_rcu(open->minor, task);
	rcu_read_unlock();
	return mailbox ? mailbox : ERR_PTR(-ENODEV);
}

static bool unregister_locked(struct stplr_mailbox *mailbox)
{
	if (!mailbox->registered)
		return false;
	mailbox->registered = false;
	hash_del_rcu(&mailbox->node);
	hash_del_rcu(&mailbox->by_uuid);
	list_del(&mailbox->sibling);
	return true;
}

/* Drops the reference that belonged to the registration. */
static void close_mailbox(struct stplr_mailbox *mailbox)
{
	stplr_port_close(&mailbox->port, -ENODEV);
	stplr_mailbox_drop(mailbox);
}

/* The watch holds a reference of its own. */
static void thread_died(struct stplr_watch *watch)
{
	struct stplr_mailbox *mailbox = container_of(watch, struct stplr_mailbox, watch);
	bool mine;

	spin_lock(&mailboxes_lock);
	mine = unregister_locked(mailbox);
	spin_unlock(&mailboxes_lock);
	if (mine) {
		stplr_log(STPLR_DEBUG_DEATHS, "handle %016llx: its thread has ended\n",
			  mailbox->uuid);
		close_mailbox(mailbox);
	}
	stplr_mailbox_drop(mailbox);
}

static void retire(struct stplr_mailbox *mailbox)
{
	if (stplr_exit_unwatch(&mailbox->watch))
		stplr_mailbox_drop(mailbox);
	close_mailbox(mailbox);
}

long stplr_mailbox_get(struct stplr_open *open, void __user *argument)
{
	struct stplr_handle handle;
	struct stplr_mailbox *mailbox, *twin;
	int err;

	if (open->tgid != task_tgid(current))
		return -EBADR;
	rcu_read_lock();
	twin = find_rcu(open->minor, current);
	rcu_read_unlock();
	if (twin) {
		stplr_mailbox_drop(twin);
		return -EBUSY;
	}

	mailbox = kzalloc(sizeof(*mailbox), GFP_KERNEL_ACCOUNT);
	if (!mailbox)
		return -ENOMEM;
	err = stplr_user_get_charged(&mailbox->user, open->user, sizeof(*mailbox));
	if (err)
		goto free;
	mailbox->uuid = get_random_u64();
	handle.uuid = mailbox->uuid;
	err = -EFAULT;
	if (copy_to_user(argument, &handle, sizeof(handle)))
		goto put_user;
	stplr_port_init(&mailbox->port, &mailbox_ops, mailbox->uuid, 0);
	mailbox->task = get_task_struct(current);
	mailbox->open = open;
	mailbox->minor = open->minor;
	mailbox->registered = true;
	mailbox->tid = task_pid_nr(current);
	refcount_set(&mailbox->refs, 2);
	stplr_show(&mailbox->shown, &mailbox->port, &mailbox_shown_ops);
	spin_lock(&mailboxes_lock);
	hash_add_rcu(mailboxes, &mailbox->node, (unsigned long)current);
	hash_add_rcu(uuids, &mailbox->by_uuid, mailbox->uuid);
	list_add(&mailbox->sibling, &open->mailboxes);
	spin_unlock(&mailboxes_lock);
	stplr_exit_watch(&mailbox->watch, stplr_exit_thread(), thread_died);
	stplr_log(STPLR_DEBUG_OWNERS, "handle %016llx: taken by %d\n", handle.uuid,
		  task_pid_nr(current));
	return 0;

put_user:
	stplr_user_put_charged(mailbox->user, sizeof(*mailbox));
free:
	kfree(mailbox);
	return err;
}

long stplr_mailbox_put(struct stplr_open *open, void __user *argument)
{
	struct stplr_handle handle;
	struct stplr_mailbox *mailbox;
	bool mine;

	if (stplr_get_arguments(&handle, argument))
		return -EFAULT;
	mailbox = stplr_mailbox_own(open, handle.uuid);
	if (IS_ERR(mailbox))
		return PTR_ERR(mailbox);
	spin_lock(&mailboxes_lock);
	mine = unregister_locked(mailbox);
	spin_unlock(&mailboxes_lock);
	if (mine)
		retire(mailbox);
	stplr_mailbox_drop(mailbox);
	return 0;
}

void stplr_mailbox_release_all(struct stplr_open *open)
{
	struct stplr_mailbox *mailbox;

	for (;;) {
		spin_lock(&mailboxes_lock);
		mailbox = list_first_entry_or_null(&open->mailboxes, struct stplr_mailbox, sibling);
		if (mailbox)
			unregister_locked(mailbox);
		spin_unlock(&mailboxes_lock);
		if (!mailbox)
			return;
		retire(mailbox);
	}
}
