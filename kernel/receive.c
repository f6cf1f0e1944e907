// SPDX-License-Identifier: GPL-2.0
/* A channel's side of a call: receive, reply. */
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>

#include "channel.h"
#include "compat.h"
#include "counters.h"
#include "debug.h"
#include "exit.h"
#include "files.h"
#include "inherit.h"
#include "message.h"
#include "park.h"
#include "pulse.h"
#include "tracepoints.h"
#include "words.h"

/* A wait for something to receive. */
struct receiving {
	struct stplr_channel *channel;
	struct stplr_receive __user *user;
	size_t size; /* of which it knows so much */
	ktime_t deadline;
	struct file *file; /* of the channel; a reference while parked */
	struct stplr_receive arguments; /* in: what comes before id */
};

/* What of the arguments is out. */
static int put_received(struct receiving *receiving)
{
	return stplr_put_sized(receiving->user, &receiving->arguments, receiving->size, id);
}

/* Who is being killed will not see it, so what it has been given is another's. */
static int tell(struct receiving *receiving)
{
	int err = put_received(receiving);

	return !err && fatal_signal_pending(current) ? -EINTR : err;
}

static int receive_pulse(struct receiving *receiving, struct stplr_item *item)
{
	struct stplr_port *port = &receiving->channel->port;
	struct stplr_receive *arguments = &receiving->arguments;
	struct stplr_pulse_item *pulse = stplr_pulse_of(item);
	const size_t first = offsetof(struct stplr_receive, id);
	int err;

	memset((u8 *)arguments + first, 0, sizeof(*arguments) - first);
	arguments->pulse = 1;
	arguments->code = pulse->code;
	arguments->value = pulse->value;
	arguments->priority = item->priority;
	err = tell(receiving);
	if (!err || stplr_port_requeue(port, item))
		stplr_pulse_free(item);
	return err;
}

/* As pid_vnr(), which looks for what is nearly always the first. */
static pid_t number_here(struct pid *pid)
{
	return task_pid(current)->level ? pid_vnr(pid) : pid_nr(pid);
}

static void describe(struct stplr_message *message, struct stplr_receive *arguments)
{
	arguments->id = 0;
	if (message->call.wants_reply)
		arguments->id = arguments->wanted_id ? arguments->wanted_id : message->call.id;
	arguments->label = message->label;
	arguments->length = message->send.total;
	arguments->room = message->reply.total;
	arguments->pulse = 0;
	arguments->code = 0;
	arguments->value = message->file_count;
	arguments->priority = message->call.item.priority;
	arguments->file_count = min(message->file_count, arguments->file_room);
	arguments->pid = number_here(message->tgid);
	arguments->tid = number_here(message->tid);
	/* The usual case, spared two searches through the same single range. */
	if (current_user_ns() == &init_user_ns) {
		arguments->uid = __kuid_val(message->uid);
		arguments->gid = __kgid_val(message->gid);
	} else {
		arguments->uid = from_kuid_munged(current_user_ns(), message->uid);
		arguments->gid = from_kgid_munged(current_user_ns(), message->gid);
	}
}

/* Gives up the call, with what is wrong on its sender's side. */
static int drop_call(struct stplr_channel *channel, struct stplr_call *call, int peer_error)
{
	u64 id = call->id;

	if (peer_error != STPLR_REFAULT)
		stplr_log(STPLR_DEBUG_ERRORS, "channel %u: nothing from %d: error %d\n",
			  channel->port.number, pid_nr(stplr_message_of(call)->tid), peer_error);
	stplr_call_finish(call, peer_error, true);
	stplr_inherit_ended(channel, id);
	return -EAGAIN;
}

/* For what is wrong on the caller's side: the call, and its priority, are another's. */
static int put_back(struct stplr_channel *channel, struct stplr_call *call, int err)
{
	stplr_call_untake(call);
	stplr_inherit_received(channel, 0, 0);
	return err;
}

/* The server has all of the message. False: its sender has left meanwhile, and waits for nothing. */
static bool settle(struct stplr_channel *channel, struct stplr_call *call,
		   const struct stplr_receive *arguments)
{
	u64 id = call->id;
	bool here;

	if (!call->wants_reply) {
		here = stplr_call_finish(call, 0, false);
		/* Its sender may be stopped, or anywhere, and lends nothing any more. */
		stplr_inherit_ended(channel, id);
		return here;
	}
	stplr_inherit_received(channel, id, arguments->priority);
	here = stplr_call_keep(call, arguments->wanted_id, stplr_exit_process(),
			       task_pid_nr(current));
	if (!here)
		stplr_inherit_ended(channel, id);
	return here;
}

/* The caller has been told of the message. -EAGAIN when its sender has left. */
static int hand_out(struct receiving *receiving, struct stplr_call *call)
{
	struct stplr_channel *channel = receiving->channel;
	struct stplr_message *message = stplr_message_of(call);

	stplr_count(STPLR_COUNT_RECEIVES);
	trace_stplr_receive(channel->port.number, pid_nr(message->tid), message->send.total);
	stplr_log(STPLR_DEBUG_CALLS, "channel %u: received from %d\n", channel->port.number,
		  pid_nr(message->tid));
	return settle(channel, call, &receiving->arguments) ? 0 : -EAGAIN;
}

/* The same with descriptors. Nothing can fail after them but what was just seen to work. */
static noinline int hand_out_with_files(struct receiving *receiving, struct stplr_call *call)
{
	struct stplr_message *message = stplr_message_of(call);
	const u32 count = receiving->arguments.file_count;
	struct stplr_user *owner = message->user;
	struct stplr_given given[STPLR_FILES_MAX];
	int err, peer_error = 0;

	err = stplr_files_install(message->files, count, owner,
				  u64_to_user_ptr(receiving->arguments.files), given, &peer_error);
	if (peer_error)
		return drop_call(receiving->channel, call, peer_error);
	if (err)
		return put_back(receiving->channel, call, err);
	/* The message may be gone before its files are. */
	refcount_inc(&owner->refs);
	err = hand_out(receiving, call);
	if (err)
		stplr_files_close(given, count, owner);
	stplr_user_put(owner);
	return err;
}

/* -EAGAIN when the message was dropped for its sender's fault, or its sender has left. */
static int receive_call(struct receiving *receiving, struct stplr_call *call,
			const struct stplr_buffers *buffers)
{
	struct stplr_message *message = stplr_message_of(call);
	int err, peer_error;
	long length;

	length = stplr_message_read_run(message, 0, buffers, &peer_error);
	if (peer_error)
		return drop_call(receiving->channel, call, peer_error);
	describe(message, &receiving->arguments);
	err = length < 0 ? length : tell(receiving);
	if (err)
		return put_back(receiving->channel, call, err);
	if (unlikely(receiving->arguments.file_count))
		return hand_out_with_files(receiving, call);
	return hand_out(receiving, call);
}

/* False: the client has left. It may be using its room for something else by now. */
static bool give_answer(struct stplr_channel *channel, struct stplr_answer *answer)
{
	u64 id = answer->call->id;
	/* A server's next step is to receive. */
	bool here = stplr_call_finish(answer->call, answer->outcome, true);

	answer->call = NULL;
	/* The client is on its way before this thread may lose the processor. */
	if (here)
		stplr_inherit_ended(channel, id);
	return here;
}

/* Whoever was lent a priority keeps it until the client is on its way. */
static int begin(struct stplr_channel *channel, struct stplr_answer *answer)
{
	if (!(channel->flags & STPLR_CHANNEL_INHERIT))
		return 0;
	if (answer->call)
		give_answer(channel, answer);
	return stplr_inherit_begin(channel);
}

/* Gives the answer, if there is one, whatever comes of the rest. */
static int receive_until(struct receiving *receiving, const struct stplr_buffers *buffers,
			 struct stplr_answer *answer)
{
	struct stplr_drops dropped = {};
	struct stplr_item *item;
	int err = begin(receiving->channel, answer);

	while (!err) {
		err = stplr_port_answer_and_take(&receiving->channel->port, answer,
						 receiving->deadline, &item);
		if (err)
			break;
		if (item->kind == STPLR_ITEM_PULSE)
			err = receive_pulse(receiving, item);
		else
			err = receive_call(receiving, container_of(item, struct stplr_call, item),
					   buffers);
		if (err != -EAGAIN)
			break;
		err = stplr_message_go_on(receiving->deadline, &dropped);
		if (err == -ETIMEDOUT)
			stplr_port_remind(&receiving->channel->port);
	}
	return err;
}

static long park(const struct receiving *receiving);

/*
 * Gives the buffers back. One without a deadline is started anew by whoever interrupts it, where that is
 * wanted.
 */
static long go_on(struct receiving *receiving, struct stplr_buffers *buffers,
		  struct stplr_answer *answer)
{
	long err = receive_until(receiving, buffers, answer);

	stplr_buffers_put(buffers);
	if (err == -ETIMEDOUT && receiving->file->f_flags & O_NONBLOCK)
		return -EAGAIN;
	if (err == -ETIMEDOUT && receiving->deadline == STPLR_DEADLINE_CAUGHT)
		return -EINTR;
	if (likely(err != -EINTR))
		return err;
	if (receiving->deadline == KTIME_MAX)
		return -ERESTARTSYS;
	return stplr_interruption_passes() ? park(receiving) : -EINTR;
}

static long resume(void *what)
{
	struct receiving *receiving = what;
	struct file *file = receiving->file;
	struct stplr_buffers buffers;
	struct stplr_answer none = {};
	long err = stplr_buffers_from(&buffers, &receiving->arguments.buffer, NULL);

	if (!err)
		err = go_on(receiving, &buffers, &none);
	kfree(receiving);
	fput(file);
	return err;
}

static void drop(void *what)
{
	struct receiving *receiving = what;

	fput(receiving->file);
	kfree(receiving);
}

static const struct stplr_parked_ops parked_ops = { .resume = resume, .drop = drop };

static long park(const struct receiving *receiving)
{
	struct receiving *copy = kmemdup(receiving, sizeof(*receiving), GFP_KERNEL_ACCOUNT);

	if (!copy)
		return -EINTR;
	get_file(copy->file);
	return stplr_park(copy, copy->file, &parked_ops);
}

static long receive(struct receiving *receiving, struct stplr_buffers *buffers,
		    struct stplr_answer *answer)
{
	receiving->deadline = receiving->file->f_flags & O_NONBLOCK ?
				      0 :
				      stplr_deadline(receiving->arguments.timeout_ns);
	return go_on(receiving, buffers, answer);
}

long stplr_channel_receive(struct stplr_channel *channel, struct stplr_receive __user *user,
			   size_t size, struct file *file)
{
	struct receiving receiving;
	struct stplr_buffers buffers;
	struct stplr_answer none = {};
	int err;

	err = stplr_get_sized_before(&receiving.arguments, user, size, STPLR_RECEIVE_SIZE_VER0, id);
	if (err)
		return err;
	if (receiving.arguments.reserved)
		return -EINVAL;
	err = stplr_channel_serve(channel);
	if (!err)
		err = stplr_buffers_from(&buffers, &receiving.arguments.buffer, NULL);
	if (err)
		return err;
	receiving.channel = channel;
	receiving.user = user;
	receiving.size = size;
	receiving.file = file;
	return receive(&receiving, &buffers, &none);
}

/* Claims and writes, but does not end the call. Returns the number of bytes, or an error. */
static long write_answer(struct stplr_channel *channel, const struct stplr_reply *arguments,
			 struct stplr_answer *answer)
{
	struct stplr_message *message;
	struct stplr_buffers buffers;
	struct stplr_call *call;
	int peer_error = 0;
	long length;

	answer->call = NULL;
	/* Beyond are those that only the kernel knows, some of which would have a call made again. */
	if (arguments->reserved || arguments->reserved_too[0] || arguments->reserved_too[1] ||
	    arguments->error < 0 || arguments->error >= ERESTARTSYS)
		return -EINVAL;
	length = stplr_buffers_from(&buffers, &arguments->buffer, NULL);
	if (length)
		return length;
	length = -ESRCH;
	call = stplr_port_claim(&channel->port, arguments->id, stplr_exit_process());
	if (!call)
		goto put_buffers;

	message = stplr_message_of(call);
	length = stplr_message_write_run(message, 0, &buffers, &peer_error);
	/* Too much was left before; the client has to go on, and so has the server. */
	if (length == -ENOBUFS) {
		peer_error = -ENOBUFS;
		length = 0;
	}
	if (length < 0) {
		stplr_call_unclaim(call);
		goto put_buffers;
	}
	message->status = arguments->status;
	stplr_count(STPLR_COUNT_REPLIES);
	trace_stplr_reply(channel->port.number, pid_nr(message->tid), -arguments->error,
			  message->reply_end);
	answer->call = call;
	answer->outcome = peer_error ? peer_error : -arguments->error;
put_buffers:
	stplr_buffers_put(&buffers);
	return length;
}

long stplr_channel_reply(struct stplr_channel *channel, const struct stplr_reply __user *user,
			 size_t size)
{
	struct stplr_reply arguments;
	struct stplr_answer answer;
	long length;

	length = stplr_get_sized(&arguments, user, size, STPLR_REPLY_SIZE_VER0);
	if (length)
		return length;
	length = write_answer(channel, &arguments, &answer);
	if (length < 0)
		return length;
	return give_answer(channel, &answer) ? length : -ESRCH;
}

long stplr_channel_reply_receive(struct stplr_channel *channel,
				 struct stplr_reply_receive __user *user, size_t size,
				 struct file *file)
{
	const size_t first = offsetof(struct stplr_reply_receive, receive);
	struct receiving receiving;
	struct stplr_reply arguments;
	struct stplr_buffers buffers;
	struct stplr_answer answer = {};
	long err;

	if (size < STPLR_REPLY_RECEIVE_SIZE_VER0)
		return -EINVAL;
	receiving.size = size - first;
	if (stplr_get_arguments(&arguments, &user->reply))
		return -EFAULT;
	err = stplr_get_sized_before(&receiving.arguments, &user->receive, receiving.size,
				     STPLR_RECEIVE_SIZE_VER0, id);
	if (err)
		return err;
	if (receiving.arguments.reserved)
		return -EINVAL;
	err = stplr_channel_serve(channel);
	/* All that can fail comes before the answer, but for a wait. */
	if (!err && channel->flags & STPLR_CHANNEL_INHERIT)
		err = stplr_inherit_join(channel);
	if (!err)
		err = stplr_buffers_from(&buffers, &receiving.arguments.buffer, NULL);
	if (err)
		return err;
	if (arguments.id) {
		err = write_answer(channel, &arguments, &answer);
		if (err < 0 && err != -ESRCH) {
			stplr_buffers_put(&buffers);
			return err;
		}
	}
	receiving.channel = channel;
	receiving.user = &user->receive;
	receiving.file = file;
	err = receive(&receiving, &buffers, &answer);
	/* What is restarted must not answer again. */
	if (err == -ERESTARTSYS && put_user(0ULL, &user->reply.id))
		err = -EINTR;
	return err;
}
