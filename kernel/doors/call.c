// SPDX-License-Identifier: GPL-2.0
/* What a client does with a door. */
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "doors/door.h"
#include "doors/descriptors.h"
#include "leftovers.h"
#include "message.h"
#include "sending.h"
#include "words.h"

/* A call on its way. The door is there as long as the file. */
struct outgoing {
	struct stplr_sending sending;
	struct stplr_door *door;
	struct stplr_door_call __user *user;
	size_t size; /* of which it knows so much */
	struct stplr_door_call arguments;
};

static struct outgoing *outgoing_of(struct stplr_sending *sending)
{
	return container_of(sending, struct outgoing, sending);
}

/* The errno of what the door does not take, or 0. */
static int admit(struct stplr_door *door, const struct stplr_door_call *arguments)
{
	if (READ_ONCE(door->revoked) || READ_ONCE(door->pool->port.closed))
		return -EBADF;
	if (arguments->size < READ_ONCE(door->data_min) ||
	    arguments->size > READ_ONCE(door->data_max))
		return -ENOBUFS;
	if (!arguments->count)
		return 0;
	if (door->attributes & STPLR_DOOR_REFUSE_DESC)
		return -EOPNOTSUPP;
	return arguments->count > READ_ONCE(door->desc_max) ? -ENFILE : 0;
}

/* What is sent: the errno that a server refuses it with, or 0. */
static int fill(struct stplr_message *message, const struct stplr_door_call *arguments)
{
	struct file **files;

	if (arguments->size > STPLR_BYTES_MAX || arguments->count > STPLR_DOOR_FILES_MAX)
		return -E2BIG;
	stplr_buffers_one(&message->send, arguments->data, arguments->size);
	files = stplr_door_files_get(arguments->descriptors, arguments->count);
	if (IS_ERR(files))
		return PTR_ERR(files);
	message->files = files;
	message->file_count = arguments->count;
	return 0;
}

static int prepare(struct stplr_sending *sending)
{
	const struct stplr_door_call *arguments = &outgoing_of(sending)->arguments;
	struct stplr_message *message = sending->message;
	struct stplr_door_part *part = &message->of_door;
	struct stplr_door *door = outgoing_of(sending)->door;

	refcount_inc(&door->refs);
	part->door = door;
	part->caller = get_current_cred();
	part->bare = arguments->flags & STPLR_CALL_BARE;
	stplr_call_init(&message->call, &door->pool->port, 0, 0, true);
	stplr_buffers_one(&message->reply, arguments->room,
			  min_t(u64, arguments->room_size, STPLR_BYTES_MAX));
	part->refusal = fill(message, arguments);
	/* What the kernel is short of is told at once. */
	if (part->refusal == -ENOMEM)
		return -ENOMEM;
	/* Of bad descriptors it is told only if the data is good. */
	if (part->refusal && part->refusal != -EINVAL)
		stplr_buffers_one(&message->send, 0, 0);
	return 0;
}

/* It waits for a thread as others do, and learns there whether it would have been refused anyway. */
static int unreadable(struct stplr_sending *sending)
{
	sending->message->of_door.refusal = -EFAULT;
	return 0;
}

static int failed(struct stplr_sending *sending, int err, bool delivered)
{
	if (err == -ESRCH)
		return delivered ? -EINTR : -EBADF;
	if (err == -EINTR)
		return delivered ? -EINTR : -EAGAIN;
	return err;
}

/* Descriptors that came back. The program is told of all else, so this is the last that can fail. */
static int take_files(struct outgoing *outgoing, struct stplr_door_part *part)
{
	struct stplr_door_call *arguments = &outgoing->arguments;
	struct stplr_door_fds given;
	int err, peer_error;

	arguments->received_count = part->file_count;
	if (part->file_count > arguments->received_room)
		return -EOVERFLOW;
	err = stplr_door_files_install(part->files, part->file_count,
				       part->door->user, arguments->received, &given,
				       &peer_error);
	if (!err)
		err = peer_error;
	if (err)
		return err;
	err = stplr_put_sized(outgoing->user, arguments, outgoing->size, replied);
	if (err) {
		stplr_door_files_close(&given);
		return err;
	}
	stplr_door_files_keep(&given);
	stplr_door_part_put_files(part);
	return 0;
}

static int answered(struct stplr_sending *sending)
{
	struct outgoing *outgoing = outgoing_of(sending);
	struct stplr_door_call *arguments = &outgoing->arguments;
	struct stplr_message *message = sending->message;
	struct stplr_door_part *part = &message->of_door;
	int err;

	if (part->refusal)
		return part->refusal;
	err = stplr_leftovers_collect(message);
	if (err)
		return err;
	arguments->replied = message->reply_end;
	arguments->mapped = 0;
	arguments->mapped_size = 0;
	arguments->reserved_too = 0;
	if (part->result) {
		arguments->replied = part->result_size;
		err = stplr_result_map(part, &arguments->mapped, &arguments->mapped_size);
		if (err)
			return err;
	}
	err = take_files(outgoing, part);
	if (err && part->result)
		vm_munmap(arguments->mapped, arguments->mapped_size);
	return err;
}

static const struct stplr_sending_ops ops = {
	.size = sizeof(struct outgoing),
	.gone = -ESRCH,
	.prepare = prepare,
	.unreadable = unreadable,
	.answered = answered,
	.failed = failed,
};

long stplr_door_call(struct stplr_door *door, struct stplr_door_call __user *user, size_t size,
		     struct file *file)
{
	struct outgoing outgoing;
	struct stplr_door_call *arguments = &outgoing.arguments;
	int err;

	err = stplr_get_sized_before(arguments, user, size, STPLR_DOOR_CALL_SIZE_VER0, replied);
	if (err)
		return err;
	if (arguments->flags & ~(STPLR_CALL_BARE | STPLR_CALL_ARMED) || arguments->armed > 1)
		return -EINVAL;
	if (arguments->armed && !(arguments->flags & STPLR_CALL_ARMED))
		return -EINVAL;
	if (arguments->flags & STPLR_CALL_BARE &&
	    (arguments->size || arguments->count || arguments->room_size))
		return -EINVAL;
	err = admit(door, arguments);
	if (err)
		return err;
	if (arguments->flags & STPLR_CALL_ARMED && !arguments->armed)
		return -EAGAIN;
	outgoing.door = door;
	outgoing.user = user;
	outgoing.size = size;
	stplr_sending_init(&outgoing.sending, &ops, door->user, &door->spare, KTIME_MAX, file);
	return stplr_sending_run(&outgoing.sending);
}
