// SPDX-License-Identifier: GPL-2.0
/* What a server's thread does with a pool: answer, and wait for the next call. */
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/uidgid.h>

#include "compat.h"
#include "counters.h"
#include "doors/door.h"
#include "doors/descriptors.h"
#include "files.h"
#include "message.h"
#include "tracepoints.h"
#include "words.h"

/* A thread that waits for a call. */
struct serving {
	struct stplr_pool *pool;
	struct stplr_server *server;
	struct stplr_door_return __user *user;
	size_t size; /* of which it knows so much */
	struct stplr_door_return arguments;
};

static int write_data(struct stplr_message *message, const struct stplr_door_return *arguments,
		      int *peer_error)
{
	struct stplr_buffers mine;
	long length;

	*peer_error = 0;
	if (arguments->size > message->reply.total)
		return stplr_result_make(message, arguments->data, arguments->size, peer_error);
	stplr_buffers_one(&mine, arguments->data, arguments->size);
	length = stplr_message_write_run(message, 0, &mine, peer_error);
	return length < 0 ? length : 0;
}

/* They count for the server until it is through with its own memory, which may take as long as it likes. */
static int write_with_files(struct stplr_message *message, const struct stplr_door_return *arguments,
			    int *peer_error)
{
	const size_t bytes = arguments->count * STPLR_FILE_COST;
	struct stplr_user *server = message->of_door.door->user;
	int err;

	*peer_error = stplr_user_charge(server, bytes);
	if (*peer_error)
		return 0;
	err = write_data(message, arguments, peer_error);
	stplr_user_uncharge(server, bytes);
	if (!err && !*peer_error)
		*peer_error = stplr_door_part_charge(message, bytes);
	return err;
}

static int write_all(struct stplr_message *message, const struct stplr_door_return *arguments,
		     int *peer_error)
{
	struct stplr_door_part *part = &message->of_door;
	struct file **files;
	int err;

	if (arguments->count > STPLR_DOOR_FILES_MAX ||
	    (part->bare && (arguments->size || arguments->count)))
		return -E2BIG;
	files = stplr_door_files_get(arguments->descriptors, arguments->count);
	/* Of bad descriptors it is told only if the data is good. */
	if (PTR_ERR(files) == -EINVAL && !stplr_all_readable(arguments->data, arguments->size))
		return -EFAULT;
	if (IS_ERR(files))
		return PTR_ERR(files);
	part->files = files;
	part->file_count = arguments->count;
	err = arguments->count ? write_with_files(message, arguments, peer_error) :
				 write_data(message, arguments, peer_error);
	if (*peer_error == -EDQUOT || *peer_error == -ENOMEM)
		*peer_error = -EOVERFLOW;
	/* The call ends without them, and they count for nobody. */
	if (*peer_error)
		stplr_door_part_put_files(part);
	return err;
}

/* Claims and writes, but does not end the call. 0, or what is wrong, and then the client waits on. */
static int write_answer(struct serving *serving, struct stplr_answer *answer)
{
	const struct stplr_door_return *arguments = &serving->arguments;
	struct stplr_server *deferred;
	struct stplr_message *message;
	struct stplr_call *call;
	int err, peer_error = 0;

	call = stplr_pool_claim(serving->pool, arguments->id, serving->server, &deferred);
	if (!call) {
		stplr_pool_deferred_end(deferred);
		return -ESRCH;
	}
	answer->call = call;
	message = stplr_message_of(call);
	if (arguments->flags & STPLR_RETURN_AGAIN) {
		answer->outcome = STPLR_REFAULT;
		stplr_pool_deferred_end(deferred);
		return 0;
	}
	if (arguments->flags & STPLR_RETURN_REFUSE) {
		message->of_door.refusal = arguments->refusal ? -(int)arguments->refusal : -E2BIG;
		stplr_pool_deferred_end(deferred);
		return 0;
	}
	err = write_all(message, arguments, &peer_error);
	if (err) {
		stplr_door_part_clear(message);
		stplr_message_discard(message);
		stplr_call_unclaim(call);
		/* Not before: who finds it may answer, which must not end what the call refers to. */
		if (deferred)
			stplr_pool_deferred_again(deferred);
		answer->call = NULL;
		return err;
	}
	stplr_pool_deferred_end(deferred);
	stplr_count(STPLR_COUNT_REPLIES);
	trace_stplr_reply(serving->pool->port.number, pid_nr(message->tid), 0, arguments->size);
	answer->outcome = peer_error;
	return 0;
}

/* Gives up the call, for a reason that is its client's. */
static int drop_call(struct stplr_call *call, int why)
{
	stplr_call_finish(call, why, true);
	return -EAGAIN;
}

static int put_received(struct serving *serving)
{
	return stplr_put_sized(serving->user, &serving->arguments, serving->size, next_id);
}

static void describe_door(struct serving *serving, struct stplr_door *door)
{
	struct stplr_door_return *arguments = &serving->arguments;
	const size_t first = offsetof(struct stplr_door_return, next_id);

	memset((u8 *)arguments + first, 0, sizeof(*arguments) - first);
	arguments->procedure = door->procedure;
	arguments->cookie = door->cookie;
	arguments->door = door->id;
	arguments->attributes = door->attributes;
	/* A guess: whoever is about to wait here is not there yet. */
	if (hlist_empty(&serving->pool->port.receivers))
		arguments->notes = STPLR_NOTE_LAST;
}

static int receive_unref(struct serving *serving, struct stplr_item *item)
{
	struct stplr_door *door = stplr_door_of_notice(item);

	if (READ_ONCE(door->revoked)) {
		stplr_door_noticed(door);
		return -EAGAIN;
	}
	describe_door(serving, door);
	serving->arguments.notes |= STPLR_NOTE_UNREF;
	if (!put_received(serving)) {
		stplr_door_noticed(door);
		return 0;
	}
	if (stplr_port_requeue(&serving->pool->port, item))
		stplr_door_noticed(door);
	return -EFAULT;
}

static void describe(struct serving *serving, struct stplr_message *message)
{
	struct stplr_door_return *arguments = &serving->arguments;

	describe_door(serving, message->of_door.door);
	arguments->next_id = message->call.id;
	arguments->length = message->send.total;
	arguments->reply_room = message->reply.total;
	arguments->received_count = message->file_count;
	arguments->pid = pid_vnr(message->tgid);
	if (message->of_door.bare)
		arguments->notes |= STPLR_NOTE_BARE;
}

/* The thread has all of the call, but for what can fail for its own sake. */
static int hand_over(struct serving *serving, struct stplr_call *call)
{
	struct stplr_message *message = stplr_message_of(call);
	struct stplr_door_fds given;
	int err, peer_error;

	err = stplr_door_files_install(message->files, message->file_count, message->user,
				       serving->arguments.received, &given, &peer_error);
	if (peer_error || err == -EMFILE || err == -ENFILE)
		return drop_call(call, err ? -EMFILE : peer_error);
	if (!err) {
		err = put_received(serving);
		/* Who is being killed runs no procedure: the call is another's, or learns that all have left. */
		if (!err && fatal_signal_pending(current))
			err = -EINTR;
		if (err)
			stplr_door_files_close(&given);
	}
	/* For what is wrong on the caller's side: the call is another's, unless the door was revoked meanwhile. */
	if (err) {
		stplr_call_untake(call);
		return err;
	}
	stplr_count(STPLR_COUNT_RECEIVES);
	trace_stplr_receive(serving->pool->port.number, pid_nr(message->tid), message->send.total);
	if (stplr_call_keep(call, 0, serving->server, task_pid_nr(current))) {
		stplr_door_files_keep(&given);
		return 0;
	}
	stplr_door_files_close(&given);
	/* A thread that ends in its wait closes what it has been told of. */
	return put_user(0U, &serving->user->received_count) ? -EFAULT : -EAGAIN;
}

/* -EAGAIN when the call is refused, or its client has left. */
static int receive_call(struct serving *serving, struct stplr_call *call)
{
	const struct stplr_door_return *arguments = &serving->arguments;
	struct stplr_message *message = stplr_message_of(call);
	struct stplr_buffers buffers;
	int peer_error;
	long length;

	if (READ_ONCE(message->of_door.door->revoked))
		return drop_call(call, -EBADF);
	/* Nothing of it was taken along, unless it is the descriptors that are wrong. */
	if (message->of_door.refusal && message->of_door.refusal != -EINVAL)
		return drop_call(call, message->of_door.refusal);
	if (message->file_count > arguments->received_room)
		return drop_call(call, -E2BIG);
	stplr_buffers_one(&buffers, arguments->room,
			  min_t(u64, arguments->room_size, STPLR_BYTES_MAX));
	length = stplr_message_read_run(message, 0, &buffers, &peer_error);
	if (peer_error)
		return drop_call(call, peer_error);
	if (length < 0) {
		stplr_call_untake(call);
		return length;
	}
	/* That the data cannot be read would have come first. */
	if (message->of_door.refusal)
		return drop_call(call, message->of_door.refusal);
	describe(serving, message);
	return hand_over(serving, call);
}

/* Gives the answer, if there is one. */
static int receive(struct serving *serving, struct stplr_answer *answer)
{
	struct stplr_drops dropped = {};
	struct stplr_item *item;
	int err;

	do {
		err = stplr_port_answer_and_take(&serving->pool->port, answer, KTIME_MAX, &item);
		if (err)
			break;
		if (item->kind == STPLR_ITEM_PULSE)
			err = receive_unref(serving, item);
		else
			err = receive_call(serving, container_of(item, struct stplr_call, item));
		if (err != -EAGAIN)
			break;
		err = stplr_message_go_on(KTIME_MAX, &dropped);
	} while (!err);
	return err;
}

static int check(const struct stplr_door_return *arguments)
{
	const u32 known = STPLR_RETURN_ONLY | STPLR_RETURN_REFUSE | STPLR_RETURN_DEFER |
			  STPLR_RETURN_AGAIN;
	const u32 ends = STPLR_RETURN_REFUSE | STPLR_RETURN_AGAIN;

	if (arguments->flags & ~known || (arguments->flags & ends) == ends)
		return -EINVAL;
	if (arguments->flags & STPLR_RETURN_DEFER &&
	    arguments->flags != (STPLR_RETURN_DEFER | STPLR_RETURN_ONLY))
		return -EINVAL;
	if (!arguments->refusal)
		return 0;
	/* The kernel's own numbers, as of a restart, are not a server's to give. */
	return arguments->flags & STPLR_RETURN_REFUSE && arguments->refusal <= EHWPOISON ? 0 : -EINVAL;
}

long stplr_pool_return(struct stplr_pool *pool, struct stplr_door_return __user *user, size_t size)
{
	struct serving serving = { .pool = pool, .user = user, .size = size };
	struct stplr_answer answer = {};
	int err;

	err = stplr_get_sized_before(&serving.arguments, user, size, STPLR_DOOR_RETURN_SIZE_VER0,
				     next_id);
	if (!err)
		err = check(&serving.arguments);
	if (err)
		return err;
	/* Who only answers what was deferred need not be known, and must not fail for want of memory. */
	serving.server = serving.arguments.flags & STPLR_RETURN_ONLY ? stplr_pool_known_server(pool) :
								       stplr_pool_server(pool);
	if (IS_ERR(serving.server))
		return PTR_ERR(serving.server);
	if (serving.arguments.flags & STPLR_RETURN_DEFER)
		return stplr_pool_defer(pool, serving.arguments.id, serving.server);
	if (serving.arguments.id) {
		err = write_answer(&serving, &answer);
		if (err && err != -ESRCH)
			return err;
	}
	if (serving.arguments.flags & STPLR_RETURN_ONLY) {
		if (answer.call)
			stplr_call_finish(answer.call, answer.outcome, false);
		return 0;
	}
	err = receive(&serving, &answer);
	if (err != -EINTR)
		return err;
	/* What is restarted must not answer again. */
	return put_user(0ULL, &user->id) ? -EINTR : -ERESTARTSYS;
}

static void describe_cred(struct stplr_door_cred *to, const struct cred *cred)
{
	struct user_namespace *space = current_user_ns();

	to->euid = from_kuid_munged(space, cred->euid);
	to->egid = from_kgid_munged(space, cred->egid);
	to->ruid = from_kuid_munged(space, cred->uid);
	to->rgid = from_kgid_munged(space, cred->gid);
	to->suid = from_kuid_munged(space, cred->suid);
	to->sgid = from_kgid_munged(space, cred->sgid);
	to->group_count = cred->group_info->ngroups;
}

static int put_groups(const struct stplr_door_cred *to, const struct group_info *groups)
{
	u32 __user *room = u64_to_user_ptr(to->groups);
	u32 i;

	for (i = 0; i < min(to->group_room, to->group_count); i++)
		if (put_user(from_kgid_munged(current_user_ns(), groups->gid[i]), &room[i]))
			return -EFAULT;
	return 0;
}

long stplr_pool_cred(struct stplr_pool *pool, struct stplr_door_cred __user *user, size_t size)
{
	struct stplr_door_cred arguments;
	struct stplr_message *message;
	struct stplr_server *server;
	struct stplr_call *call;
	int err;

	err = stplr_get_sized_before(&arguments, user, size, STPLR_DOOR_CRED_SIZE_VER0, euid);
	if (err)
		return err;
	if (arguments.reserved)
		return -EINVAL;
	server = stplr_pool_known_server(pool);
	call = stplr_pool_borrow(pool, arguments.id, server);
	if (!call)
		return -EINVAL;
	message = stplr_message_of(call);
	describe_cred(&arguments, message->of_door.caller);
	arguments.pid = pid_vnr(message->tgid);
	err = put_groups(&arguments, message->of_door.caller->group_info);
	stplr_call_return(call, true);
	return err ? err : stplr_put_sized(user, &arguments, size, euid);
}
