// SPDX-License-Identifier: GPL-2.0
/* A client's side of a call. */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "connection.h"
#include "counters.h"
#include "inherit.h"
#include "leftovers.h"
#include "message.h"
#include "park.h"
#include "pulse.h"
#include "region.h"
#include "tracepoints.h"
#include "words.h"

static struct file **get_files(const struct stplr_send *arguments, int *err)
{
	s32 fds[STPLR_FILES_MAX];
	struct file **files;
	u32 i;

	*err = -EINVAL;
	if (arguments->file_count > STPLR_FILES_MAX)
		return NULL;
	*err = -EFAULT;
	if (copy_from_user(fds, u64_to_user_ptr(arguments->files),
			   arguments->file_count * sizeof(*fds)))
		return NULL;
	*err = -ENOMEM;
	files = kmalloc_array(arguments->file_count, sizeof(*files), GFP_KERNEL_ACCOUNT);
	if (!files)
		return NULL;
	for (i = 0; i < arguments->file_count; i++) {
		files[i] = fget(fds[i]);
		if (!files[i])
			goto put;
	}
	*err = 0;
	return files;

put:
	while (i--)
		fput(files[i]);
	kfree(files);
	*err = -EBADF;
	return NULL;
}

static int prepare(struct stplr_connection *connection, struct stplr_message *message,
		   const struct stplr_send *arguments, int attempt)
{
	int err = stplr_buffers_from(&message->send, &arguments->send, connection->regions);

	if (!err)
		err = stplr_buffers_from(&message->reply, &arguments->reply, connection->regions);
	if (!err && arguments->file_count) {
		message->files = get_files(arguments, &err);
		if (!err)
			message->file_count = arguments->file_count;
	}
	if (!err && connection->channel->flags & STPLR_CHANNEL_UNBLOCK) {
		struct stplr_pulse_item *pulse;

		pulse = stplr_connection_pulse(connection, STPLR_PULSE_UNBLOCK, 0);
		if (IS_ERR(pulse))
			return PTR_ERR(pulse);
		pulse->item.priority = message->call.item.priority;
		message->unblock = &pulse->item;
		message->free_unblock = stplr_pulse_free;
	}
	return err ? err : stplr_message_load(message, attempt);
}

/* A call on its way. */
struct sending {
	struct stplr_connection *connection;
	struct stplr_send __user *user;
	struct stplr_message *message; /* the sender's reference */
	ktime_t deadline;
	int attempt;
	struct file *file; /* of the connection; a reference while parked */
	struct stplr_send arguments; /* what comes before status */
};

static bool wants_reply(const struct sending *sending)
{
	return !(sending->arguments.flags & STPLR_SEND_ONE_WAY);
}

/* Sends once, and waits. The message, if there is one, is the caller's. */
static int start(struct sending *sending, bool *delivered)
{
	struct stplr_connection *connection = sending->connection;
	struct stplr_message *message;
	int err;

	message = stplr_message_new(connection->user, &connection->spare, &err);
	sending->message = message;
	if (!message)
		return err;
	message->label = connection->label;
	stplr_call_init(&message->call, &connection->channel->port, 0, stplr_priority_of_current(),
			wants_reply(sending));
	*delivered = true; /* and not to be restarted */
	err = prepare(connection, message, &sending->arguments, sending->attempt);
	if (err)
		return err;
	stplr_count(STPLR_COUNT_SENDS);
	trace_stplr_send(connection->channel->port.number, message->call.item.priority,
			 message->send.total, wants_reply(sending));
	return stplr_port_send(&message->call, sending->deadline, delivered);
}

/* The wait has come to an end; what the program is told of it, or STPLR_REFAULT. */
static int conclude(struct sending *sending, int err, bool delivered)
{
	struct stplr_message *message = sending->message;

	stplr_inherit_ended(sending->connection->channel, message->call.id);
	stplr_message_count_outcome(err);
	if (err == STPLR_REFAULT) {
		if (stplr_message_prefault(message))
			err = -EFAULT;
	} else if (err == -EINTR && !delivered && sending->deadline == KTIME_MAX) {
		err = -ERESTARTSYS;
	} else if (!err && wants_reply(sending)) {
		err = stplr_leftovers_collect(message);
		sending->arguments.status = message->status;
		sending->arguments.replied = message->reply_end;
		if (!err)
			err = stplr_put_arguments(sending->user, &sending->arguments, status);
	}
	return err;
}

static long park(const struct sending *sending);

/* From the beginning, or from where it was parked. */
static long go_on(struct sending *sending, bool parked)
{
	struct stplr_connection *connection = sending->connection;
	bool delivered;
	int err;

	do {
		err = parked ? stplr_port_resume(&sending->message->call, sending->deadline,
						 &delivered) :
			       start(sending, &delivered);
		parked = false;
		if (unlikely(err == STPLR_AWAY))
			return park(sending);
		if (unlikely(!sending->message))
			return err;
		err = conclude(sending, err, delivered);
		stplr_message_done(sending->message, &connection->spare);
	} while (unlikely(err == STPLR_REFAULT) && ++sending->attempt < STPLR_ATTEMPTS);
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

/* The client has left, though it cannot know when. Where the server is to be told of that, it is. */
static void drop(void *what)
{
	struct sending *sending = what;
	struct stplr_message *message = sending->message;
	struct stplr_channel *channel = sending->connection->channel;
	struct stplr_item *pulse = message->unblock;

	message->unblock = NULL;
	stplr_port_forget(&message->call);
	if (pulse) {
		stplr_pulse_of(pulse)->value = message->call.id;
		if (!message->call.taker || stplr_port_post(&channel->port, pulse, pulse->priority))
			stplr_pulse_free(pulse);
	}
	stplr_inherit_ended(channel, message->call.id);
	stplr_message_count_outcome(-EINTR);
	stplr_message_done(message, &sending->connection->spare);
	fput(sending->file);
	kfree(sending);
}

static const struct stplr_parked_ops parked_ops = { .resume = resume, .drop = drop };

static long park(const struct sending *sending)
{
	struct sending *copy = kmemdup(sending, sizeof(*sending), GFP_KERNEL_ACCOUNT);

	if (!copy) {
		stplr_port_forget(&sending->message->call);
		stplr_inherit_ended(sending->connection->channel, sending->message->call.id);
		stplr_message_done(sending->message, &sending->connection->spare);
		return -EINTR;
	}
	get_file(copy->file);
	return stplr_park(copy, copy->file, &parked_ops);
}

long stplr_connection_send(struct stplr_connection *connection, struct stplr_send __user *user,
			   struct file *file)
{
	struct sending sending STPLR_UNSET;

	if (stplr_get_arguments_before(&sending.arguments, user, status))
		return -EFAULT;
	if (sending.arguments.flags & ~STPLR_SEND_ONE_WAY)
		return -EINVAL;
	sending.connection = connection;
	sending.user = user;
	sending.file = file;
	sending.attempt = 0;
	sending.deadline = stplr_deadline(sending.arguments.timeout_ns);
	return go_on(&sending, false);
}
