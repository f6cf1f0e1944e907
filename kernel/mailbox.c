// SPDX-License-Identifier: GPL-2.0
#include "mailbox.h"

#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "counters.h"
#include "debug.h"
#include "debugfs.h"
#include "exit.h"
#include "leftovers.h"
#include "message.h"
#include "park.h"
#include "tracepoints.h"
#include "words.h"

struct mailbox {
	struct stplr_port port;
	struct stplr_shown shown;
	struct hlist_node node, by_uuid; /* in the tables; read under RCU */
	struct list_head sibling; /* in open->mailboxes */
	const struct stplr_open *open; /* while registered; compared, never followed */
	struct stplr_watch watch;
	struct rcu_head rcu;
	refcount_t refs; /* one while registered, one for each call in progress */
	bool registered;
	struct stplr_user *user; /* who is charged; a reference */
	struct task_struct *task; /* reference, so that no later thread looks like it */
	int minor;
	u64 uuid;
	int tid; /* for people to read */
	struct stplr_message *spare; /* owned */
};

/* Protects the tables, every open's list, and registered. */
static DEFINE_SPINLOCK(mailboxes_lock);
static DEFINE_HASHTABLE(mailboxes, 10); /* by thread */
static DEFINE_HASHTABLE(uuids, 10);

static void not_polled(struct stplr_port *port)
{
}

static struct stplr_item *no_unblock(struct stplr_call *call)
{
	return NULL;
}

static void no_pulse(struct stplr_item *item)
{
	WARN_ON_ONCE(1);
}

static const struct stplr_port_ops mailbox_ops = {
	.free_call = stplr_message_free,
	.readable = not_polled,
	.unblock = no_unblock,
	.drop_pulse = no_pulse,
	.passes = stplr_interruption_passes,
	.bring = stplr_bring,
};

static void describe(struct seq_file *file, struct stplr_shown *shown)
{
	struct mailbox *mailbox = container_of(shown, struct mailbox, shown);

	seq_printf(file, "handle of %d on node %d\n", mailbox->tid, mailbox->minor);
}

static void mailbox_put(struct mailbox *mailbox)
{
	if (!refcount_dec_and_test(&mailbox->refs))
		return;
	stplr_hide(&mailbox->shown);
	stplr_message_drop(mailbox->spare);
	put_task_struct(mailbox->task);
	stplr_user_uncharge(mailbox->user, sizeof(*mailbox));
	stplr_user_put(mailbox->user);
	kfree_rcu(mailbox, rcu);
}

static bool get_shown(struct stplr_shown *shown)
{
	return refcount_inc_not_zero(&container_of(shown, struct mailbox, shown)->refs);
}

static void put_shown(struct stplr_shown *shown)
{
	mailbox_put(container_of(shown, struct mailbox, shown));
}

static const struct stplr_shown_ops mailbox_shown_ops = {
	.get = get_shown,
	.put = put_shown,
	.describe = describe,
};

/* Under RCU; the result has a reference. */
static struct mailbox *find_rcu(int minor, const struct task_struct *task)
{
	struct mailbox *mailbox;

	hash_for_each_possible_rcu(mailboxes, mailbox, node, (unsigned long)task)
		if (mailbox->task == task && mailbox->minor == minor &&
		    refcount_inc_not_zero(&mailbox->refs))
			return mailbox;
	return NULL;
}

static bool known(const struct stplr_open *open, u64 uuid)
{
	struct mailbox *mailbox;
	bool found = false;

	rcu_read_lock();
	hash_for_each_possible_rcu(uuids, mailbox, by_uuid, uuid)
		found |= mailbox->uuid == uuid && mailbox->open == open;
	rcu_read_unlock();
	return found;
}

/* The mailbox of the calling thread, with a reference, if that is what uuid names. */
static struct mailbox *own(struct stplr_open *open, u64 uuid)
{
	struct mailbox *mailbox;

	if (open->tgid != task_tgid(current))
		return ERR_PTR(-EBADR);
	rcu_read_lock();
	mailbox = find_rcu(open->minor, current);
	rcu_read_unlock();
	if (mailbox && mailbox->uuid == uuid)
		return mailbox;
	if (mailbox)
		mailbox_put(mailbox);
	return ERR_PTR(known(open, uuid) ? -EBADR : -ENODEV);
}

static struct mailbox *other(struct stplr_open *open, s32 pid, s32 tid)
{
	struct mailbox *mailbox = NULL;
	struct task_struct *task;

	rcu_read_lock();
	task = pid_task(find_vpid(tid), PIDTYPE_PID);
	if (task && task_tgid_vnr(task) == pid)
		mailbox = find_rcu(open->minor, task);
	rcu_read_unlock();
	return mailbox ? mailbox : ERR_PTR(-ENODEV);
}

static bool unregister_locked(struct mailbox *mailbox)
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
static void close_mailbox(struct mailbox *mailbox)
{
	stplr_port_close(&mailbox->port, -ENODEV);
	mailbox_put(mailbox);
}

/* The watch holds a reference of its own. */
static void thread_died(struct stplr_watch *watch)
{
	struct mailbox *mailbox = container_of(watch, struct mailbox, watch);
	bool mine;

	spin_lock(&mailboxes_lock);
	mine = unregister_locked(mailbox);
	spin_unlock(&mailboxes_lock);
	if (mine) {
		stplr_log(STPLR_DEBUG_DEATHS, "handle %016llx: its thread has ended\n",
			  mailbox->uuid);
		close_mailbox(mailbox);
	}
	mailbox_put(mailbox);
}

static void retire(struct mailbox *mailbox)
{
	if (stplr_exit_unwatch(&mailbox->watch))
		mailbox_put(mailbox);
	close_mailbox(mailbox);
}

long stplr_mailbox_get(struct stplr_open *open, void __user *argument)
{
	struct stplr_handle handle;
	struct mailbox *mailbox, *twin;
	int err = -ENOMEM;

	if (open->tgid != task_tgid(current))
		return -EBADR;
	rcu_read_lock();
	twin = find_rcu(open->minor, current);
	rcu_read_unlock();
	if (twin) {
		mailbox_put(twin);
		return -EBUSY;
	}

	mailbox = kzalloc(sizeof(*mailbox), GFP_KERNEL_ACCOUNT);
	if (!mailbox)
		return -ENOMEM;
	mailbox->user = stplr_user_get_like(open->user);
	if (!mailbox->user)
		goto free;
	err = stplr_user_charge(mailbox->user, sizeof(*mailbox));
	if (err)
		goto put_user;
	mailbox->uuid = get_random_u64();
	handle.uuid = mailbox->uuid;
	err = -EFAULT;
	if (copy_to_user(argument, &handle, sizeof(handle)))
		goto uncharge;
	stplr_port_init(&mailbox->port, &mailbox_ops, mailbox->uuid);
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

uncharge:
	stplr_user_uncharge(mailbox->user, sizeof(*mailbox));
put_user:
	stplr_user_put(mailbox->user);
free:
	kfree(mailbox);
	return err;
}

long stplr_mailbox_put(struct stplr_open *open, void __user *argument)
{
	struct stplr_handle handle;
	struct mailbox *mailbox;
	bool mine;

	if (stplr_get_arguments(&handle, argument))
		return -EFAULT;
	mailbox = own(open, handle.uuid);
	if (IS_ERR(mailbox))
		return PTR_ERR(mailbox);
	spin_lock(&mailboxes_lock);
	mine = unregister_locked(mailbox);
	spin_unlock(&mailboxes_lock);
	if (mine)
		retire(mailbox);
	mailbox_put(mailbox);
	return 0;
}

void stplr_mailbox_release_all(struct stplr_open *open)
{
	struct mailbox *mailbox;

	for (;;) {
		spin_lock(&mailboxes_lock);
		mailbox = list_first_entry_or_null(&open->mailboxes, struct mailbox, sibling);
		if (mailbox)
			unregister_locked(mailbox);
		spin_unlock(&mailboxes_lock);
		if (!mailbox)
			return;
		retire(mailbox);
	}
}

/* Tells a program how much of each buffer was used. */
static int put_counts(const struct stplr_msgs *msgs, const struct stplr_buffers *buffers)
{
	struct stplr_msg __user *user = (struct stplr_msg __user *)msgs->msgs;
	u32 i;

	for (i = 0; i < buffers->count; i++)
		if (put_user(buffers->segments[i].copied, &user[i].buflen))
			return -EFAULT;
	return 0;
}

/* Whether the counts could be put, found out before anything happens that cannot be undone. */
static int probe_counts(const struct stplr_msgs *msgs, const struct stplr_buffers *buffers)
{
	struct stplr_msg __user *user = (struct stplr_msg __user *)msgs->msgs;
	u32 i;

	for (i = 0; i < buffers->count; i++)
		if (put_user(buffers->segments[i].length, &user[i].buflen))
			return -EFAULT;
	return 0;
}

static int get_buffers(struct stplr_buffers *buffers, const struct stplr_msgs *msgs)
{
	return stplr_buffers_get(buffers, (const struct stplr_msg __user *)msgs->msgs,
				 msgs->count);
}

/* A call on its way. */
struct sending {
	struct stplr_open *open;
	struct mailbox *from, *to; /* references */
	struct stplr_msg_send_receive arguments;
	struct stplr_message *message; /* the sender's reference */
	int attempt;
	bool wants_reply;
	struct file *file; /* of the node; a reference while parked */
};

/* Sends once, and waits. The buffers are read anew each time. The message is the caller's. */
static int start(struct sending *sending, bool *delivered)
{
	const struct stplr_msg_send_receive *arguments = &sending->arguments;
	struct stplr_message *message;
	int err;

	message = stplr_message_new(sending->open->user, &sending->from->spare, &err);
	sending->message = message;
	if (!message)
		return err;
	*delivered = true; /* and not to be restarted */
	/* A thread waits for one answer at a time, so its id names the call. */
	stplr_call_init(&message->call, &sending->to->port, (unsigned long)message->tid, 0,
			sending->wants_reply);
	err = get_buffers(&message->send, &arguments->smsgs);
	if (!err && sending->wants_reply) {
		err = get_buffers(&message->reply, &arguments->rmsgs);
		if (!err)
			err = probe_counts(&arguments->rmsgs, &message->reply);
	}
	if (!err)
		err = stplr_message_load(message, sending->attempt);
	if (err)
		return err;
	stplr_count(STPLR_COUNT_SENDS);
	trace_stplr_send(sending->to->port.number, 0, message->send.total, sending->wants_reply);
	return stplr_port_send(&message->call, KTIME_MAX, delivered);
}

/* The wait has come to an end; what the program is told of it, or STPLR_REFAULT. */
static int conclude(struct sending *sending, int err, bool delivered)
{
	struct stplr_message *message = sending->message;

	stplr_message_count_outcome(err);
	if (err == STPLR_REFAULT)
		return stplr_message_prefault(message) ? -EFAULT : err;
	if (err == -EINTR && !delivered)
		return -ERESTARTSYS;
	if (err == -ESRCH)
		return -ENODEV;
	if (err)
		return err;
	/* The array of what is sent may be read-only, and the message is delivered. */
	(void)put_counts(&sending->arguments.smsgs, &message->send);
	if (!sending->wants_reply)
		return 0;
	err = stplr_leftovers_collect(message);
	return err ? err : put_counts(&sending->arguments.rmsgs, &message->reply);
}

static void put_ends(struct sending *sending)
{
	mailbox_put(sending->to);
	mailbox_put(sending->from);
}

static long park(const struct sending *sending);

/* From the beginning, or from where it was parked. Puts both ends, unless it is parked. */
static long go_on(struct sending *sending, bool parked)
{
	bool delivered;
	int err;

	do {
		err = parked ? stplr_port_resume(&sending->message->call, KTIME_MAX, &delivered) :
			       start(sending, &delivered);
		parked = false;
		if (err == STPLR_AWAY)
			return park(sending);
		if (!sending->message)
			break;
		err = conclude(sending, err, delivered);
		stplr_message_done(sending->message, &sending->from->spare);
	} while (err == STPLR_REFAULT && ++sending->attempt < STPLR_ATTEMPTS);
	put_ends(sending);
	return err == STPLR_REFAULT ? -EFAULT : err;
}

static long resume(void *what)
{
	struct sending *sending = what;
	struct file *file = sending->file;
	long err = go_on(sending, true);

	kfree(sending);
	fput(file);
	return err;
}

static void end_call(struct sending *sending)
{
	stplr_port_forget(&sending->message->call);
	stplr_message_done(sending->message, &sending->from->spare);
	put_ends(sending);
}

static void drop(void *what)
{
	struct sending *sending = what;

	end_call(sending);
	fput(sending->file);
	kfree(sending);
}

static const struct stplr_parked_ops parked_ops = { .resume = resume, .drop = drop };

static long park(const struct sending *sending)
{
	struct sending *copy = kmemdup(sending, sizeof(*sending), GFP_KERNEL_ACCOUNT);

	if (!copy) {
		struct sending last = *sending;

		end_call(&last);
		return -EINTR;
	}
	get_file(copy->file);
	return stplr_park(copy, copy->file, &parked_ops);
}

/* Whoever has no number in the receiver's namespace could not be answered. */
static bool can_name_caller(const struct mailbox *to)
{
	struct pid_namespace *space;
	bool can;

	/* The thread may be gone already, and its namespace with it. */
	rcu_read_lock();
	space = task_active_pid_ns(to->task);
	can = space && task_pid_nr_ns(current, space);
	rcu_read_unlock();
	return can;
}

static long send(struct sending *sending)
{
	struct stplr_open *open = sending->open;
	long err;

	sending->attempt = 0;
	sending->from = own(open, sending->arguments.handle.uuid);
	if (IS_ERR(sending->from))
		return PTR_ERR(sending->from);
	sending->to = other(open, sending->arguments.pid, sending->arguments.tid);
	if (IS_ERR(sending->to)) {
		mailbox_put(sending->from);
		return PTR_ERR(sending->to);
	}
	if (sending->from == sending->to)
		err = -EDEADLK;
	else if (sending->wants_reply && !can_name_caller(sending->to))
		err = -ENODEV;
	else
		return go_on(sending, false);
	put_ends(sending);
	return err;
}

long stplr_mailbox_send(struct stplr_open *open, void __user *argument, struct file *file)
{
	struct sending sending = { .open = open, .file = file };
	struct stplr_msg_send user;

	if (stplr_get_arguments(&user, argument))
		return -EFAULT;
	sending.arguments.handle = user.handle;
	sending.arguments.pid = user.pid;
	sending.arguments.tid = user.tid;
	sending.arguments.smsgs = user.smsgs;
	return send(&sending);
}

long stplr_mailbox_send_receive(struct stplr_open *open, void __user *argument, struct file *file)
{
	struct sending sending = { .open = open, .file = file, .wants_reply = true };

	if (stplr_get_arguments(&sending.arguments, argument))
		return -EFAULT;
	return send(&sending);
}

/* Copies by pairs: buffer i to buffer i. */
static int read_pairs(struct stplr_message *message, struct stplr_buffers *mine, int *peer_error)
{
	size_t offset = 0;
	u32 i;
	int err;

	*peer_error = 0;
	for (i = 0; i < message->send.count; i++) {
		struct stplr_segment *from = &message->send.segments[i], *to;

		from->copied = 0;
		if (i < mine->count) {
			to = &mine->segments[i];
			from->copied = min(from->length, to->length);
			to->copied = from->copied;
			err = stplr_message_read(message, offset, to->base, to->copied,
						 peer_error);
			if (err || *peer_error)
				return err;
		}
		offset += from->length;
	}
	for (; i < mine->count; i++)
		mine->segments[i].copied = 0;
	return 0;
}

static int put_sender(struct stplr_msg_receive __user *user, struct stplr_message *message)
{
	if (put_user(pid_vnr(message->tgid), &user->pid) ||
	    put_user(pid_vnr(message->tid), &user->tid) ||
	    put_user(message->call.wants_reply ? 1 : 0, &user->reply_required))
		return -EFAULT;
	return 0;
}

/* One attempt; -EAGAIN when the message was dropped for its sender's fault, or that has left. */
static int receive_once(struct mailbox *mailbox, const struct stplr_msg_receive *arguments,
			struct stplr_msg_receive __user *user, struct stplr_buffers *buffers)
{
	struct stplr_waker waker;
	struct stplr_message *message;
	struct stplr_item *item;
	int err, peer_error;
	bool here;

	err = stplr_port_take(&mailbox->port, KTIME_MAX, &item);
	if (err == -EINTR)
		return -ERESTARTSYS;
	if (err)
		return -ENODEV;

	message = stplr_message_of(container_of(item, struct stplr_call, item));
	err = read_pairs(message, buffers, &peer_error);
	if (!err && peer_error) {
		if (peer_error != STPLR_REFAULT)
			stplr_log(STPLR_DEBUG_ERRORS, "handle %016llx: nothing from %d: error %d\n",
				  mailbox->uuid, pid_nr(message->tid), peer_error);
		stplr_call_finish(&message->call, peer_error, &waker);
		stplr_waker_run(&waker, true);
		return -EAGAIN;
	}
	if (!err)
		err = put_counts(&arguments->rmsgs, buffers);
	if (!err)
		err = put_sender(user, message);
	if (err) {
		stplr_call_untake(&message->call);
		return err;
	}
	stplr_count(STPLR_COUNT_RECEIVES);
	trace_stplr_receive(mailbox->port.number, pid_nr(message->tid), message->send.total);
	stplr_log(STPLR_DEBUG_CALLS, "handle %016llx: received from %d\n", mailbox->uuid,
		  pid_nr(message->tid));
	if (message->call.wants_reply) {
		here = stplr_call_keep(&message->call, mailbox, task_pid_nr(current));
	} else {
		here = stplr_call_finish(&message->call, 0, &waker);
		stplr_waker_run(&waker, false);
	}
	return here ? 0 : -EAGAIN;
}

long stplr_mailbox_receive(struct stplr_open *open, void __user *argument)
{
	struct stplr_msg_receive arguments;
	struct stplr_buffers buffers;
	struct mailbox *mailbox;
	struct stplr_drops dropped = {};
	int err;

	if (stplr_get_arguments(&arguments, argument))
		return -EFAULT;
	mailbox = own(open, arguments.handle.uuid);
	if (IS_ERR(mailbox))
		return PTR_ERR(mailbox);
	err = get_buffers(&buffers, &arguments.rmsgs);
	if (err)
		goto put_mailbox;
	err = probe_counts(&arguments.rmsgs, &buffers);
	if (err)
		goto put_buffers;
	do {
		err = receive_once(mailbox, &arguments, argument, &buffers);
		if (err != -EAGAIN)
			break;
		err = stplr_message_go_on(KTIME_MAX, &dropped) ? -ERESTARTSYS : 0;
	} while (!err);
put_buffers:
	stplr_buffers_put(&buffers);
put_mailbox:
	mailbox_put(mailbox);
	return err;
}

static int write_pairs(struct stplr_message *message, struct stplr_buffers *mine,
		       int *peer_error)
{
	size_t offset = 0;
	u32 i;
	int err;

	*peer_error = 0;
	for (i = 0; i < message->reply.count; i++) {
		struct stplr_segment *to = &message->reply.segments[i], *from;

		to->copied = 0;
		if (i < mine->count) {
			from = &mine->segments[i];
			to->copied = min(from->length, to->length);
			from->copied = to->copied;
			err = stplr_message_write(message, offset, from->base, from->copied,
						  peer_error);
			if (err || *peer_error)
				return err;
		}
		offset += to->length;
	}
	for (; i < mine->count; i++)
		mine->segments[i].copied = 0;
	return 0;
}

/* The call that a reply to this thread would answer. */
static struct stplr_call *claim(struct mailbox *mailbox, s32 pid, s32 tid)
{
	struct stplr_call *call;
	const struct pid *id;

	/* A sender waits with a reference to its id, so the id of an owed call is that sender's. */
	rcu_read_lock();
	id = find_vpid(tid);
	rcu_read_unlock();
	if (!id)
		return NULL;
	call = stplr_port_claim(&mailbox->port, (unsigned long)id, mailbox);
	if (call && pid_vnr(stplr_message_of(call)->tgid) != pid) {
		stplr_call_unclaim(call);
		return NULL;
	}
	return call;
}

long stplr_mailbox_reply(struct stplr_open *open, void __user *argument)
{
	struct stplr_msg_reply arguments;
	struct stplr_buffers buffers;
	struct stplr_waker waker;
	struct mailbox *mailbox;
	struct stplr_call *call;
	int err, peer_error;

	if (stplr_get_arguments(&arguments, argument))
		return -EFAULT;
	mailbox = own(open, arguments.handle.uuid);
	if (IS_ERR(mailbox))
		return PTR_ERR(mailbox);
	err = get_buffers(&buffers, &arguments.rmsgs);
	if (err)
		goto put_mailbox;
	err = -ENODEV;
	call = claim(mailbox, arguments.pid, arguments.tid);
	if (!call)
		goto put_buffers;

	err = write_pairs(stplr_message_of(call), &buffers, &peer_error);
	if (err) {
		stplr_message_discard(stplr_message_of(call));
		stplr_call_unclaim(call);
		goto put_buffers;
	}
	stplr_count(STPLR_COUNT_REPLIES);
	trace_stplr_reply(mailbox->port.number, pid_nr(stplr_message_of(call)->tid), peer_error,
			  stplr_message_of(call)->reply_end);
	if (!stplr_call_finish(call, peer_error, &waker))
		err = -ENODEV;
	/* A server's next step is to receive. */
	stplr_waker_run(&waker, true);
	(void)put_counts(&arguments.rmsgs, &buffers);
put_buffers:
	stplr_buffers_put(&buffers);
put_mailbox:
	mailbox_put(mailbox);
	return err;
}
