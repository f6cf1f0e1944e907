// SPDX-License-Identifier: GPL-2.0
#include "sending.h"

#include <linux/errno.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/slab.h>

#include "counters.h"
#include "message.h"
#include "park.h"
#include "pulse.h"
#include "tracepoints.h"

/* Sends once, and waits. The message, if there is one, is the caller's. */
static int start(struct stplr_sending *sending, bool *delivered)
{
	struct stplr_message *message;
	int err;

	message = stplr_message_new(sending->user, sending->spare, &err);
	sending->message = message;
	sending->sent = false;
	if (!message)
		return err;
	*delivered = true; /* and not to be restarted */
	err = sending->ops->prepare(sending);
	if (!err)
		err = stplr_message_load(message, sending->attempt);
	if (err == -EFAULT && sending->ops->unreadable)
		err = sending->ops->unreadable(sending);
	if (err)
		return err;
	sending->sent = true;
	stplr_count(STPLR_COUNT_SENDS);
	trace_stplr_send(message->call.port->number, message->call.item.priority,
			 message->send.total, message->call.wants_reply);
	err = stplr_port_send(&message->call, sending->deadline, delivered);
	return err == -ESRCH ? sending->ops->gone : err;
}

/* The wait has come to an end; what the program is told of it, or STPLR_REFAULT. */
static int conclude(struct stplr_sending *sending, int err, bool delivered)
{
	if (sending->ops->ended)
		sending->ops->ended(sending);
	stplr_message_count_outcome(err);
	if (err == STPLR_REFAULT)
		return stplr_message_prefault(sending->message) ? -EFAULT : err;
	if (err && sending->sent && sending->ops->failed)
		return sending->ops->failed(sending, err, delivered);
	if (err == -EINTR && !delivered && sending->deadline == KTIME_MAX)
		return -ERESTARTSYS;
	return err ? err : sending->ops->answered(sending);
}

static void end(struct stplr_sending *sending)
{
	if (sending->ops->end)
		sending->ops->end(sending);
}

/* The client has left, though it cannot know when. Where the server is to be told of that, it is. */
static void leave(struct stplr_sending *sending)
{
	struct stplr_message *message = sending->message;
	struct stplr_call *call = &message->call;
	struct stplr_item *pulse = message->unblock;
	bool owed;

	message->unblock = NULL;
	owed = stplr_port_forget(call);
	if (pulse) {
		stplr_pulse_of(pulse)->value = call->name;
		if (!owed || stplr_port_post(call->port, pulse, pulse->priority))
			stplr_pulse_free(pulse);
	}
	if (sending->ops->ended)
		sending->ops->ended(sending);
	stplr_message_count_outcome(-EINTR);
	stplr_message_done(message, sending->user, sending->spare);
	end(sending);
}

static void drop(void *what)
{
	struct stplr_sending *sending = what;
	struct file *file = sending->file;

	leave(sending);
	kfree(sending);
	fput(file);
}

static long go_on(struct stplr_sending *sending, bool parked);

static long resume(void *what)
{
	struct stplr_sending *sending = what;
	struct file *file = sending->file;
	long err = go_on(sending, true);

	kfree(sending);
	fput(file);
	return err;
}

static const struct stplr_parked_ops parked_ops = { .resume = resume, .drop = drop };

static long park(struct stplr_sending *sending)
{
	struct stplr_sending *copy = kmemdup(sending, sending->ops->size, GFP_KERNEL_ACCOUNT);

	if (!copy) {
		leave(sending);
		return -EINTR;
	}
	get_file(copy->file);
	return stplr_park(copy, copy->file, &parked_ops);
}

/* From the beginning, or from where it was parked. */
static long go_on(struct stplr_sending *sending, bool parked)
{
	bool delivered, resumed;
	int err;

	do {
		err = parked ? stplr_port_resume(&sending->message->call, sending->deadline,
						 &delivered) :
			       start(sending, &delivered);
		resumed = parked;
		parked = false;
		if (err == STPLR_AWAY)
			return park(sending);
		if (!sending->message)
			break;
		err = conclude(sending, err, delivered);
		stplr_message_done(sending->message, sending->user, sending->spare);
		/* That nobody read it while it was parked is no fault of its pages. */
	} while (err == STPLR_REFAULT && (resumed || ++sending->attempt < STPLR_ATTEMPTS));
	end(sending);
	return err == STPLR_REFAULT ? -EFAULT : err;
}

long stplr_sending_run(struct stplr_sending *sending)
{
	return go_on(sending, false);
}
