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
#include "include/stplr_handles.h"
#include "leftovers.h"
#include "mailbox.h"
#include "message.h"
#include "sending.h"
#include "tracepoints.h"
#include "words.h"

/*
 * Tells a program how much of each buffer was used; or that all of it was: to find out whether it can be told
 * before anything happens that cannot be undone, and to take back what it was told.
 */
static int put_counts(const struct stplr_msgs *msgs, const struct stplr_buffers *buffers, bool used)
{
	struct stplr_msg __user *user = (struct stplr_msg __user *)msgs->msgs;
	u32 i;

	for (i = 0; i < buffers->count; i++) {
		const struct stplr_segment *segment = &buffers->segments[i];

		if (put_user(used ? segment->copied : segment->length, &user[i].buflen))
			return -EFAULT;
	}
	return 0;
}

static int probe_counts(const struct stplr_msgs *msgs, const struct stplr_buffers *buffers)
{
	return put_counts(msgs, buffers, false);
}

static int get_buffers(struct stplr_buffers *buffers, const struct stplr_msgs *msgs)
{
	const struct stplr_msg __user *user = (const struct stplr_msg __user *)msgs->msgs;
	int err = stplr_buffers_room(buffers, msgs->count);
	struct stplr_msg one;
	u32 i;

	for (i = 0; i < msgs->count && !err; i++) {
		if (stplr_get_arguments(&one, user + i))
			err = -EFAULT;
		else
			err = stplr_buffers_add(buffers, (unsigned long)one.msgbuf, one.buflen);
	}
	if (err)
		stplr_buffers_put(buffers);
	return err;
}

/* A message on its way between two mailboxes. */
struct outgoing {
	struct stplr_sending sending;
	struct stplr_mailbox *from, *to; /* references */
	struct stplr_msg_send_receive arguments;
	bool wants_reply;
};

static struct outgoing *outgoing_of(struct stplr_sending *sending)
{
	return container_of(sending, struct outgoing, sending);
}

static int prepare(struct stplr_sending *sending)
{
	struct stplr_message *message = sending->message;
	const struct outgoing *outgoing = outgoing_of(sending);
	int err;

	/* A thread waits for one answer at a time, so its id names the call. */
	stplr_call_init(&message->call, &outgoing->to->port, (unsigned long)message->tid, 0,
			outgoing->wants_reply);
	err = get_buffers(&message->send, &outgoing->arguments.smsgs);
	if (err || !outgoing->wants_reply)
		return err;
	err = get_buffers(&message->reply, &outgoing->arguments.rmsgs);
	return err ? err : probe_counts(&outgoing->arguments.rmsgs, &message->reply);
}

static int answered(struct stplr_sending *sending)
{
	struct stplr_message *message = sending->message;
	const struct outgoing *outgoing = outgoing_of(sending);
	int err;

	/* The array of what is sent may be read-only, and the message is delivered. */
	(void)put_counts(&outgoing->arguments.smsgs, &message->send, true);
	if (!outgoing->wants_reply)
		return 0;
	err = stplr_leftovers_collect(message);
	return err ? err : put_counts(&outgoing->arguments.rmsgs, &message->reply, true);
}

static void put_ends(struct stplr_sending *sending)
{
	stplr_mailbox_drop(outgoing_of(sending)->to);
	stplr_mailbox_drop(outgoing_of(sending)->from);
}

static const struct stplr_sending_ops ops = {
	.size = sizeof(struct outgoing),
	.gone = -ENODEV,
	.prepare = prepare,
	.answered = answered,
	.end = put_ends,
};

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

static long send(struct outgoing *outgoing, struct stplr_open *open, struct file *file)
{
	long err;

	outgoing->from = stplr_mailbox_own(open, outgoing->arguments.handle.uuid);
	if (IS_ERR(outgoing->from))
		return PTR_ERR(outgoing->from);
	outgoing->to = stplr_mailbox_other(open, outgoing->arguments.pid, outgoing->arguments.tid);
	if (IS_ERR(outgoing->to)) {
		stplr_mailbox_drop(outgoing->from);
		return PTR_ERR(outgoing->to);
	}
	if (outgoing->from == outgoing->to) {
		err = -EDEADLK;
	} else if (outgoing->wants_reply && !can_name_caller(outgoing->to)) {
		err = -ENODEV;
	} else {
		stplr_sending_init(&outgoing->sending, &ops, open->user, &outgoing->from->spare,
				   KTIME_MAX, file);
		return stplr_sending_run(&outgoing->sending);
	}
	put_ends(&outgoing->sending);
	return err;
}

long stplr_mailbox_send(struct stplr_open *open, void __user *argument, struct file *file)
{
	struct stplr_msg_send user;
	struct outgoing outgoing = {};

	if (stplr_get_arguments(&user, argument))
		return -EFAULT;
	outgoing.arguments.handle = user.handle;
	outgoing.arguments.pid = user.pid;
	outgoing.arguments.tid = user.tid;
	outgoing.arguments.smsgs = user.smsgs;
	return send(&outgoing, open, file);
}

long stplr_mailbox_send_receive(struct stplr_open *open, void __user *argument, struct file *file)
{
	struct outgoing outgoing = { .wants_reply = true };

	if (stplr_get_arguments(&outgoing.arguments, argument))
		return -EFAULT;
	return send(&outgoing, open, file);
}

/*
 * Copies by pairs, buffer i to buffer i, of which the smaller one counts: from or to the message, as
 * copy does.
 */
static int copy_pairs(struct stplr_message *message, struct stplr_buffers *theirs,
		      struct stplr_buffers *mine, stplr_message_copy *copy, int *peer_error)
{
	size_t offset = 0;
	u32 i;
	int err;

	*peer_error = 0;
	for (i = 0; i < mine->count; i++)
		mine->segments[i].copied = 0;
	for (i = 0; i < theirs->count; i++) {
		struct stplr_segment *their = &theirs->segments[i], *my;

		their->copied = 0;
		if (i < mine->count) {
			my = &mine->segments[i];
			my->copied = min(their->length, my->length);
			their->copied = my->copied;
			err = copy(message, offset, my->base, my->copied, peer_error);
			if (err || *peer_error)
				return err;
		}
		offset += their->length;
	}
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
	err = copy_pairs(message, &message->send, buffers, stplr_message_read, &peer_error);
	if (!err && peer_error) {
		if (peer_error != STPLR_REFAULT)
			stplr_log(STPLR_DEBUG_ERRORS, "handle %016llx: nothing from %d: error %d\n",
				  mailbox->uuid, pid_nr(message->tid), peer_error);
		stplr_call_finish(&message->call, peer_error, true);
		return -EAGAIN;
	}
	if (!err)
		err = put_counts(&arguments->rmsgs, buffers, true);
	if (!err)
		err = put_sender(user, message);
	if (err) {
		stplr_call_untake(&message->call);
		(void)probe_counts(&arguments->rmsgs, buffers);
		return err;
	}
	stplr_count(STPLR_COUNT_RECEIVES);
	trace_stplr_receive(mailbox->port.number, pid_nr(message->tid), message->send.total);
	stplr_log(STPLR_DEBUG_CALLS, "handle %016llx: received from %d\n", mailbox->uuid,
		  pid_nr(message->tid));
	if (message->call.wants_reply)
		here = stplr_call_keep(&message->call, 0, mailbox, task_pid_nr(current));
	else
		here = stplr_call_finish(&message->call, 0, false);
	if (here)
		return 0;
	/* What is received next has all the room, be it by a call that is restarted and reads it anew. */
	err = probe_counts(&arguments->rmsgs, buffers);
	return err ? err : -EAGAIN;
}

/* The calling thread's mailbox, with a reference, and the buffers of one of its calls; or ERR_PTR. */
static struct stplr_mailbox *own_with_buffers(struct stplr_open *open, u64 uuid,
					      const struct stplr_msgs *msgs,
					      struct stplr_buffers *buffers)
{
	struct stplr_mailbox *mailbox = stplr_mailbox_own(open, uuid);
	int err;

	if (IS_ERR(mailbox))
		return mailbox;
	err = get_buffers(buffers, msgs);
	if (!err)
		return mailbox;
	stplr_mailbox_drop(mailbox);
	return ERR_PTR(err);
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
	mailbox = own_with_buffers(open, arguments.handle.uuid, &arguments.rmsgs, &buffers);
	if (IS_ERR(mailbox))
		return PTR_ERR(mailbox);
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
	stplr_mailbox_drop(mailbox);
	return err;
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
	struct stplr_mailbox *mailbox;
	struct stplr_message *message;
	struct stplr_call *call;
	int err, peer_error;

	if (stplr_get_arguments(&arguments, argument))
		return -EFAULT;
	mailbox = own_with_buffers(open, arguments.handle.uuid, &arguments.rmsgs, &buffers);
	if (IS_ERR(mailbox))
		return PTR_ERR(mailbox);
	err = -ENODEV;
	call = claim(mailbox, arguments.pid, arguments.tid);
	if (!call)
		goto put_buffers;

	message = stplr_message_of(call);
	err = copy_pairs(message, &message->reply, &buffers, stplr_message_write, &peer_error);
	if (err) {
		stplr_message_discard(message);
		stplr_call_unclaim(call);
		goto put_buffers;
	}
	stplr_count(STPLR_COUNT_REPLIES);
	trace_stplr_reply(mailbox->port.number, pid_nr(message->tid), peer_error,
			  message->reply_end);
	/* A server's next step is to receive. */
	if (!stplr_call_finish(call, peer_error, true))
		err = -ENODEV;
	(void)put_counts(&arguments.rmsgs, &buffers, true);
put_buffers:
	stplr_buffers_put(&buffers);
	stplr_mailbox_drop(mailbox);
	return err;
}
