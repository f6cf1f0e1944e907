// SPDX-License-Identifier: GPL-2.0
/* What a connection sends. */
#include <linux/err.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "connection.h"
#include "files.h"
#include "inherit.h"
#include "leftovers.h"
#include "message.h"
#include "pulse.h"
#include "sending.h"
#include "words.h"

/* A message on its way from a connection. */
struct outgoing {
	struct stplr_sending sending;
	struct stplr_connection *connection;
	struct stplr_send __user *user;
	size_t size; /* of which it knows so much */
	struct stplr_send arguments; /* what comes before status */
};

static struct outgoing *outgoing_of(struct stplr_sending *sending)
{
	return container_of(sending, struct outgoing, sending);
}

static int prepare_unblock(struct stplr_connection *connection, struct stplr_message *message)
{
	struct stplr_pulse_item *pulse;

	pulse = stplr_connection_pulse(connection, STPLR_PULSE_UNBLOCK, 0);
	if (IS_ERR(pulse))
		return PTR_ERR(pulse);
	pulse->item.priority = message->call.item.priority;
	message->unblock = &pulse->item;
	message->free_unblock = stplr_pulse_free;
	return 0;
}

static int prepare(struct stplr_sending *sending)
{
	const struct stplr_send *arguments = &outgoing_of(sending)->arguments;
	struct stplr_connection *connection = outgoing_of(sending)->connection;
	struct stplr_message *message = sending->message;
	int err;

	message->label = connection->label;
	stplr_call_init(&message->call, &connection->channel->port, 0, stplr_priority_of_current(),
			!(arguments->flags & STPLR_SEND_ONE_WAY));
	err = stplr_buffers_from(&message->send, &arguments->send, connection->regions);
	if (!err)
		err = stplr_buffers_from(&message->reply, &arguments->reply, connection->regions);
	if (!err && arguments->file_count) {
		message->files = stplr_files_get(u64_to_user_ptr(arguments->files),
						 arguments->file_count);
		if (IS_ERR(message->files)) {
			err = PTR_ERR(message->files);
			message->files = NULL;
		} else {
			message->file_count = arguments->file_count;
		}
	}
	if (!err && connection->channel->flags & STPLR_CHANNEL_UNBLOCK)
		err = prepare_unblock(connection, message);
	return err;
}

static int answered(struct stplr_sending *sending)
{
	struct stplr_message *message = sending->message;
	struct outgoing *outgoing = outgoing_of(sending);
	int err;

	if (!message->call.wants_reply)
		return 0;
	err = stplr_leftovers_collect(message);
	if (err)
		return err;
	outgoing->arguments.status = message->status;
	outgoing->arguments.replied = message->reply_end;
	return stplr_put_sized(outgoing->user, &outgoing->arguments, outgoing->size, status);
}

static void ended(struct stplr_sending *sending)
{
	stplr_inherit_ended(outgoing_of(sending)->connection->channel, sending->message->call.id);
}

static const struct stplr_sending_ops ops = {
	.size = sizeof(struct outgoing),
	.gone = -ESRCH,
	.prepare = prepare,
	.answered = answered,
	.ended = ended,
};

long stplr_connection_send(struct stplr_connection *connection, struct stplr_send __user *user,
			   size_t size, struct file *file)
{
	struct outgoing outgoing;
	int err;

	err = stplr_get_sized_before(&outgoing.arguments, user, size, STPLR_SEND_SIZE_VER0, status);
	if (err)
		return err;
	if (outgoing.arguments.flags & ~STPLR_SEND_ONE_WAY)
		return -EINVAL;
	outgoing.connection = connection;
	outgoing.user = user;
	outgoing.size = size;
	stplr_sending_init(&outgoing.sending, &ops, connection->user, &connection->spare,
			   stplr_deadline(outgoing.arguments.timeout_ns), file);
	return stplr_sending_run(&outgoing.sending);
}
