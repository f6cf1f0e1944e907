// SPDX-License-Identifier: GPL-2.0
/* Calls of the first interface: send, receive and reply by handles. */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "counters.h"
#include "debug.h"
#include "leftovers.h"
#include "mailbox.h"
#include "message.h"
#include "park.h"
#include "tracepoints.h"
#include "words.h"

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
	struct stplr_mailbox *from, *to; /* references */
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
	stplr_mailbox_drop(sending->to);
	stplr_mailbox_drop(sending->from);
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
static bool can_name_caller(const struct stplr_mailbox *to)
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
	sending->from = stplr_mailbox_own(open, sending->arguments.handle.uuid);
	if (IS_ERR(sending->from))
		return PTR_ERR(sending->from);
	sending->to = stplr_mailbox_other(open, sending->arguments.pid, sending->arguments.tid);
	if (IS_ERR(sending->to)) {
		stplr_mailbox_drop(sending->from);
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
static int receive_once(struct stplr_mailbox *mailbox, const struct stplr_msg_receive *arguments,
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
	struct stplr_mailbox *mailbox;
	struct stplr_drops dropped = {};
	int err;

	if (stplr_get_arguments(&arguments, argument))
		return -EFAULT;
	mailbox = stplr_mailbox_own(open, arguments.handle.uuid);
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
	stplr_mailbox_drop(mailbox);
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
static struct stplr_call *claim(struct stplr_mailbox *mailbox, s32 pid, s32 tid)
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
	struct stplr_mailbox *mailbox;
	struct stplr_call *call;
	int err, peer_error;

	if (stplr_get_arguments(&arguments, argument))
		return -EFAULT;
	mailbox = stplr_mailbox_own(open, arguments.handle.uuid);
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
	stplr_mailbox_drop(mailbox);
	return err;
}
