// SPDX-License-Identifier: GPL-2.0
#include "message.h"

#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "counters.h"
#include "files.h"
#include "leftovers.h"
#include "page.h"
#include "region.h"

/* Up to so many bytes, what could not be read from the sender's pages is sent by way of the kernel. */
#define AGAIN_MAX (1UL << 20)

/* How many messages that could not be read a receiver without time passes over, and for how long. */
#define DROPPED_MAX 64
#define DROPPING_NS (2 * NSEC_PER_MSEC)

static struct kmem_cache *messages;

int stplr_message_init(void)
{
	const size_t first = offsetof(struct stplr_message, inline_send);

	/* Only the inline bytes, at the end, are ever copied from and to programs. */
	messages = kmem_cache_create_usercopy("stplr_message", sizeof(struct stplr_message), 0,
					      SLAB_ACCOUNT | SLAB_HWCACHE_ALIGN, first,
					      sizeof(struct stplr_message) - first, NULL);
	if (!messages)
		return -ENOMEM;
	if (stplr_leftovers_init()) {
		kmem_cache_destroy(messages);
		return -ENOMEM;
	}
	return 0;
}

void stplr_message_exit(void)
{
	stplr_leftovers_exit();
	kmem_cache_destroy(messages);
}

/* What a sender is charged for and known by, which a message keeps from one use to the next. */
static int own_message(struct stplr_message *message, struct stplr_user *guess)
{
	int err = stplr_user_get_charged(&message->user, guess, sizeof(*message));

	if (err)
		return err;
	message->charged = sizeof(*message);
	message->tgid = get_pid(task_tgid(current));
	message->tid = get_pid(task_pid(current));
	current_uid_gid(&message->uid, &message->gid);
	return 0;
}

static bool is_own(const struct stplr_message *message)
{
	return message->tid == task_pid(current) && message->tgid == task_tgid(current) &&
	       uid_eq(message->uid, current_uid()) && gid_eq(message->gid, current_gid());
}

static void disown_message(struct stplr_message *message)
{
	put_pid(message->tid);
	put_pid(message->tgid);
	stplr_user_put_charged(message->user, message->charged);
}

struct stplr_message *stplr_message_new(struct stplr_user *guess, struct stplr_message **spare,
					int *err)
{
	struct stplr_message *message = READ_ONCE(*spare) ? xchg(spare, NULL) : NULL;

	*err = 0;
	if (message && is_own(message))
		return message;
	if (message) {
		disown_message(message);
	} else {
		message = kmem_cache_alloc(messages, GFP_KERNEL);
		if (!message) {
			*err = -ENOMEM;
			return NULL;
		}
		mutex_init(&message->lock);
		message->label = 0;
		message->unblock = NULL;
		message->mm = NULL;
		message->bounce = NULL;
		message->file_count = 0;
		message->files = NULL;
		message->files_charged = 0;
		memset(&message->of_door, 0, sizeof(message->of_door));
		message->status = 0;
		message->reply_end = 0;
		message->first = NULL;
		INIT_LIST_HEAD(&message->chunks);
		message->left = 0;
		stplr_buffers_one(&message->send, 0, 0);
		stplr_buffers_one(&message->reply, 0, 0);
	}
	*err = own_message(message, guess);
	if (*err) {
		mutex_destroy(&message->lock);
		kmem_cache_free(messages, message);
		return NULL;
	}
	return message;
}

/* Of what was sent. */
static void free_bounce(struct stplr_message *message)
{
	if (message->bounce == message->inline_send)
		message->bounce = NULL;
	if (!message->bounce)
		return;
	if (message->send.total <= STPLR_BOUNCE)
		stplr_bounce_free(message->bounce);
	else
		kvfree(message->bounce);
	message->bounce = NULL;
}

/* Who is not the sender does not wait for its files, and neither does work for all. */
static void put_files(struct stplr_message *message, bool by_sender)
{
	if (by_sender && !(current->flags & PF_KTHREAD)) {
		stplr_files_put(message->files, message->file_count);
	} else {
		message->charged -= message->files_charged;
		stplr_files_leave(message->files, message->file_count, message->user,
				  message->files_charged);
	}
	message->files = NULL;
	message->file_count = 0;
	message->files_charged = 0;
}

/* Gives back all that one use took; what is left is as good as new. */
static void empty(struct stplr_message *message, bool by_sender)
{
	/* All that is not inline is charged. */
	if (message->charged != sizeof(*message))
		stplr_leftovers_free(message);
	message->first = NULL;
	message->reply_end = 0;
	if (message->files)
		put_files(message, by_sender);
	if (message->of_door.door)
		stplr_door_part_put(message);
	if (message->unblock)
		message->free_unblock(message->unblock);
	message->unblock = NULL;
	free_bounce(message);
	if (message->mm)
		mmdrop(message->mm);
	message->mm = NULL;
	message->status = 0;
	stplr_buffers_put(&message->send);
	stplr_buffers_put(&message->reply);
	if (message->charged != sizeof(*message))
		stplr_message_uncharge(message, message->charged - sizeof(*message));
}

void stplr_message_free(struct stplr_call *call)
{
	struct stplr_message *message = stplr_message_of(call);

	empty(message, false);
	stplr_message_drop(message);
}

void stplr_message_drop(struct stplr_message *message)
{
	if (!message)
		return;
	disown_message(message);
	mutex_destroy(&message->lock);
	kmem_cache_free(messages, message);
}

void stplr_message_done(struct stplr_message *message, struct stplr_user *owner,
			struct stplr_message **spare)
{
	/* Nobody can take a further reference once the call is DONE. */
	if (refcount_read(&message->call.refs) != 1) {
		stplr_call_put(&message->call);
		return;
	}
	/* Pairs with the release of whoever dropped the last but one. */
	smp_acquire__after_ctrl_dep();
	empty(message, true);
	/* Another's would be charged, and keep what it is known by, for as long as the owner likes. */
	if (message->user != owner || READ_ONCE(*spare) || cmpxchg(spare, NULL, message))
		stplr_message_drop(message);
}

/* Whether a peer copies from or to these buffers itself. */
static bool is_direct(const struct stplr_buffers *buffers)
{
	return buffers->total > (buffers->region ? STPLR_INLINE : STPLR_BOUNCE);
}

/* Whether all of the caller's buffers are such memory as others may reach into. */
static int find_plain(const struct stplr_buffers *buffers, bool *plain)
{
	u32 i;

	*plain = true;
	if (mmap_read_lock_killable(current->mm))
		return -EINTR;
	for (i = 0; i < buffers->count && *plain; i++)
		*plain = stplr_is_plain_locked(current->mm, buffers->segments[i].base,
					       buffers->segments[i].length);
	mmap_read_unlock(current->mm);
	return 0;
}

static int charge_sender(struct stplr_message *message, size_t bytes)
{
	int err = stplr_user_charge(message->user, bytes);

	if (!err)
		message->charged += bytes;
	return err;
}

/*
 * Whether to send by way of the kernel what could not be had from the sender's pages: if it is not
 * too much, for either; and in the end whatever it is.
 */
static bool gives_up(struct stplr_message *message, int attempt)
{
	size_t bytes = message->send.total;

	if (!attempt || message->send.region ||
	    (bytes > AGAIN_MAX && attempt < STPLR_ATTEMPTS - 1))
		return false;
	return !charge_sender(message, bytes);
}

int stplr_message_load(struct stplr_message *message, int attempt)
{
	bool direct = is_direct(&message->send), charged = false;
	size_t extra = 0;
	int err;

	if (direct && !message->send.region) {
		err = find_plain(&message->send, &direct);
		if (err)
			return err;
	}
	if (direct && gives_up(message, attempt)) {
		direct = false;
		charged = true;
	}
	message->tries = stplr_tries(message->send.total + message->reply.total);
	message->ask_ns = stplr_ask_ns(message->send.total + message->reply.total);
	if (message->send.segments != message->send.few)
		extra += message->send.count * sizeof(struct stplr_segment);
	if (message->reply.segments != message->reply.few)
		extra += message->reply.count * sizeof(struct stplr_segment);
	if (message->send.total > STPLR_INLINE && !direct && !charged)
		extra += max_t(size_t, message->send.total, STPLR_BOUNCE);
	if (message->files)
		extra += message->file_count * STPLR_FILE_COST;
	if (extra) {
		err = charge_sender(message, extra);
		if (err)
			return err;
	}
	if (message->files)
		message->files_charged = message->file_count * STPLR_FILE_COST;

	/* Whatever room there is for a reply, what a server leaves there bit by bit is charged to it. */
	if ((direct && !message->send.region) || message->reply.total || message->of_door.door) {
		message->mm = current->mm;
		mmgrab(message->mm);
	}
	if (message->send.total <= STPLR_INLINE)
		message->bounce = message->inline_send;
	else if (direct)
		return 0;
	else if (message->send.total <= STPLR_BOUNCE)
		message->bounce = stplr_bounce_alloc();
	else
		message->bounce = kvmalloc(message->send.total, GFP_KERNEL_ACCOUNT);
	return message->bounce ? stplr_buffers_copy_in(message->bounce, &message->send) : -ENOMEM;
}

void stplr_message_count_failure(int outcome)
{
	if (outcome == -EINTR)
		stplr_count(STPLR_COUNT_INTERRUPTED);
	else if (outcome == -ETIMEDOUT)
		stplr_count(STPLR_COUNT_TIMED_OUT);
	else if (outcome == -ESRCH || outcome == -ENODEV)
		stplr_count(STPLR_COUNT_PEER_GONE);
	else if (outcome == STPLR_REFAULT)
		stplr_count(STPLR_COUNT_REFAULTS);
}

int stplr_message_go_on(ktime_t deadline, struct stplr_drops *dropped)
{
	ktime_t now = ktime_get();

	cond_resched();
	if (signal_pending(current))
		return -EINTR;
	if (!dropped->count++)
		dropped->since = now;
	if (now < deadline)
		return 0;
	return dropped->count < DROPPED_MAX && now < ktime_add_ns(dropped->since, DROPPING_NS) ?
		       0 :
		       -ETIMEDOUT;
}

int stplr_message_prefault(struct stplr_message *message)
{
	u32 i;

	/* Its pages are there, whether it still is or not. */
	if (message->send.region)
		return 0;
	for (i = 0; i < message->send.count; i++) {
		const struct stplr_segment *segment = &message->send.segments[i];

		if (!stplr_all_readable(segment->base, segment->length))
			return -EFAULT;
	}
	return 0;
}
