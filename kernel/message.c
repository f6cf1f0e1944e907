// SPDX-License-Identifier: GPL-2.0
#include "message.h"

#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "counters.h"
#include "page.h"
#include "region.h"
#include "words.h"

/* Pages pinned at a time: enough to hide the cost of taking mmap_lock, little to hold on to. */
#define BATCH 32

/*
 * How often those who want to reach into a peer look, some 30 us apart, for the lock of the peer's
 * memory: for one message, and in addition for each batch of it. The peer may hold it for as long as
 * it likes, so nobody waits for it otherwise.
 */
#define LOCK_TRIES 20
#define LOCK_TRIES_OF_BATCH 8

/* Up to so many bytes, what could not be read from the sender's pages is sent by way of the kernel. */
#define AGAIN_MAX (1UL << 20)

/* What a server may leave a client, beside twice the room that the client has. */
#define LEFT_MAX (64UL << 10)

/* A small piece takes as much, so that what is written bit by bit can go into one. */
#define PIECE_MIN 256

/* How many messages that could not be read a receiver without time passes over, and for how long. */
#define DROPPED_MAX 64
#define DROPPING_NS (2 * NSEC_PER_MSEC)

static struct kmem_cache *messages;
static struct kmem_cache *bounces;

/*
 * Objects with a constructor are not cleared when they are allocated, which takes longer than to fill
 * them. Nobody reads from these what was not written for this very message.
 */
static void leave_as_it_is(void *bytes)
{
}

int stplr_message_init(void)
{
	const size_t first = offsetof(struct stplr_message, inline_send);

	/* Only the inline bytes, at the end, are ever copied from and to programs. */
	messages = kmem_cache_create_usercopy("stplr_message", sizeof(struct stplr_message), 0,
					      SLAB_ACCOUNT | SLAB_HWCACHE_ALIGN, first,
					      sizeof(struct stplr_message) - first, NULL);
	if (!messages)
		return -ENOMEM;
	bounces = kmem_cache_create("stplr_bounce", STPLR_BOUNCE, 0, SLAB_ACCOUNT, leave_as_it_is);
	if (!bounces) {
		kmem_cache_destroy(messages);
		return -ENOMEM;
	}
	return 0;
}

void stplr_message_exit(void)
{
	kmem_cache_destroy(bounces);
	kmem_cache_destroy(messages);
}

static int add_segment(struct stplr_buffers *buffers, struct stplr_segment *segment, u64 base,
		       u32 length)
{
	segment->base = base;
	segment->length = length;
	segment->copied = 0;
	buffers->total += length;
	return buffers->total > STPLR_BYTES_MAX ? -EMSGSIZE : 0;
}

int stplr_buffers_get(struct stplr_buffers *buffers, const struct stplr_msg __user *user,
		      u32 count)
{
	struct stplr_msg one;
	int err;
	u32 i;

	stplr_buffers_one(buffers, 0, 0);
	if (count > STPLR_MSGS_MAX)
		return -EINVAL;
	if (count > ARRAY_SIZE(buffers->few)) {
		buffers->segments = kmalloc_array(count, sizeof(*buffers->segments),
						  GFP_KERNEL_ACCOUNT);
		if (!buffers->segments) {
			buffers->segments = buffers->few;
			return -ENOMEM;
		}
	}
	for (i = 0; i < count; i++) {
		err = stplr_get_arguments(&one, user + i);
		if (!err)
			err = add_segment(buffers, &buffers->segments[i],
					  (u64)(unsigned long)one.msgbuf, one.buflen);
		if (err) {
			stplr_buffers_put(buffers);
			return err;
		}
	}
	buffers->count = count;
	return 0;
}

int stplr_buffers_registered(struct stplr_buffers *buffers, const struct stplr_buffer *from,
			     struct stplr_regions *regions)
{
	stplr_buffers_one(buffers, from->address, from->length);
	buffers->region = stplr_region_find(regions, from->count & ~STPLR_REGION, from->address,
					    from->length);
	return buffers->region ? 0 : -EFAULT;
}

void stplr_buffers_drop(struct stplr_buffers *buffers)
{
	if (buffers->segments != buffers->few)
		kfree(buffers->segments);
	if (buffers->region)
		stplr_region_put(buffers->region);
	stplr_buffers_one(buffers, 0, 0);
}

/* What a sender is charged for and known by, which a message keeps from one use to the next. */
static int own_message(struct stplr_message *message, struct stplr_user *guess)
{
	int err;

	message->user = stplr_user_get_like(guess);
	if (!message->user)
		return -ENOMEM;
	err = stplr_user_charge(message->user, sizeof(*message));
	if (err) {
		stplr_user_put(message->user);
		return err;
	}
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
	stplr_user_uncharge(message->user, message->charged);
	stplr_user_put(message->user);
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

static void uncharge(struct stplr_message *message, size_t bytes)
{
	message->charged -= bytes;
	stplr_user_uncharge(message->user, bytes);
}

/* Of what was replied. */
static void free_bytes(struct stplr_message *message)
{
	struct stplr_chunk *chunk, *next;

	list_for_each_entry_safe(chunk, next, &message->chunks, node) {
		uncharge(message, sizeof(*chunk) + chunk->room);
		kvfree(chunk);
		cond_resched();
	}
	INIT_LIST_HEAD(&message->chunks);
	message->left = 0;
	if (message->first && message->first != message->inline_reply) {
		uncharge(message, STPLR_BOUNCE);
		kmem_cache_free(bounces, message->first);
	}
	message->first = NULL;
}

/* Of what was sent. */
static void free_bounce(struct stplr_message *message)
{
	if (message->bounce == message->inline_send)
		message->bounce = NULL;
	if (!message->bounce)
		return;
	if (message->send.total <= STPLR_BOUNCE)
		kmem_cache_free(bounces, message->bounce);
	else
		kvfree(message->bounce);
	message->bounce = NULL;
}

/* Gives back all that one use took; what is left is as good as new. */
static void empty(struct stplr_message *message)
{
	u32 i;

	/* All that is not inline is charged. */
	if (message->charged != sizeof(*message))
		free_bytes(message);
	message->first = NULL;
	message->reply_end = 0;
	if (message->files) {
		for (i = 0; i < message->file_count; i++)
			fput(message->files[i]);
		kfree(message->files);
		message->files = NULL;
		message->file_count = 0;
	}
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
		uncharge(message, message->charged - sizeof(*message));
}

void stplr_message_free(struct stplr_call *call)
{
	struct stplr_message *message = stplr_message_of(call);

	empty(message);
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

void stplr_message_done(struct stplr_message *message, struct stplr_message **spare)
{
	/* Nobody can take a further reference once the call is DONE. */
	if (refcount_read(&message->call.refs) != 1) {
		stplr_call_put(&message->call);
		return;
	}
	/* Pairs with the release of whoever dropped the last but one. */
	smp_acquire__after_ctrl_dep();
	empty(message);
	if (READ_ONCE(*spare) || cmpxchg(spare, NULL, message))
		stplr_message_drop(message);
}

/* Out of line, so that the callers of what follows save no registers for these. */
static noinline bool many_in(u8 *to, u64 from, size_t length)
{
	return stplr_bytes_in(to, from, length);
}

static noinline bool many_out(u64 to, const u8 *from, size_t length)
{
	return stplr_bytes_out(to, from, length);
}

/* False: the program's memory faults. */
static __always_inline bool bytes_in(u8 *to, u64 from, size_t length)
{
	if (likely(length <= STPLR_INLINE))
		return !stplr_few_in(to, u64_to_user_ptr(from), length);
	return many_in(to, from, length);
}

static __always_inline bool bytes_out(u64 to, const u8 *from, size_t length)
{
	if (likely(length <= STPLR_INLINE))
		return !stplr_few_out(u64_to_user_ptr(to), from, length);
	return many_out(to, from, length);
}

static int copy_all_in(u8 *to, const struct stplr_buffers *from)
{
	u32 i;

	for (i = 0; i < from->count; i++) {
		const struct stplr_segment *segment = &from->segments[i];

		if (!bytes_in(to, segment->base, segment->length))
			return -EFAULT;
		to += segment->length;
	}
	return 0;
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

static int tries_for(size_t bytes)
{
	return bytes / (BATCH * PAGE_SIZE) * LOCK_TRIES_OF_BATCH;
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
	message->tries = LOCK_TRIES + tries_for(message->send.total) +
			 tries_for(message->reply.total);
	if (message->send.segments != message->send.few)
		extra += message->send.count * sizeof(struct stplr_segment);
	if (message->reply.segments != message->reply.few)
		extra += message->reply.count * sizeof(struct stplr_segment);
	if (message->send.total > STPLR_INLINE && !direct && !charged)
		extra += max_t(size_t, message->send.total, STPLR_BOUNCE);
	if (extra) {
		err = charge_sender(message, extra);
		if (err)
			return err;
	}

	if ((direct && !message->send.region) ||
	    (is_direct(&message->reply) && !message->reply.region)) {
		message->mm = current->mm;
		mmgrab(message->mm);
	}
	if (message->send.total <= STPLR_INLINE)
		message->bounce = message->inline_send;
	else if (direct)
		return 0;
	else if (message->send.total <= STPLR_BOUNCE)
		message->bounce = kmem_cache_alloc(bounces, GFP_KERNEL);
	else
		message->bounce = kvmalloc(message->send.total, GFP_KERNEL_ACCOUNT);
	return message->bounce ? copy_all_in(message->bounce, &message->send) : -ENOMEM;
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
	if (stplr_interrupted(TASK_INTERRUPTIBLE))
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

	for (i = 0; i < message->send.count; i++) {
		const struct stplr_segment *segment = &message->send.segments[i];

		if (segment->length &&
		    fault_in_readable(u64_to_user_ptr(segment->base), segment->length))
			return -EFAULT;
	}
	return 0;
}

/* For a moment. */
static bool lock_map(struct mm_struct *mm, int *tries)
{
	while (!mmap_read_trylock(mm)) {
		if (READ_ONCE(*tries) <= 0 || fatal_signal_pending(current))
			return false;
		WRITE_ONCE(*tries, READ_ONCE(*tries) - 1);
		usleep_range(20, 40);
	}
	return true;
}

/*
 * Copies between the memory of a peer, whose mm is held, and the caller's, as far as the peer's
 * pages can be had without waiting. Returns the bytes copied; *peer_error tells why not all, and
 * is 0 if that is because of the caller's own memory.
 */
static size_t copy_remote(struct mm_struct *mm, u64 remote, u64 local, size_t length, bool write,
			  int *tries, int *peer_error)
{
	unsigned int flags = FOLL_NOWAIT | (write ? FOLL_WRITE : 0);
	struct page *pages[BATCH];
	size_t done = 0;
	bool fine = true;

	*peer_error = 0;
	while (done < length && fine) {
		size_t within = offset_in_page(remote + done);
		size_t wanted = min_t(size_t, DIV_ROUND_UP(within + length - done, PAGE_SIZE),
				      BATCH);
		long i, pinned;

		stplr_count(STPLR_COUNT_PIN_BATCHES);
		if (!lock_map(mm, tries)) {
			*peer_error = STPLR_REFAULT;
			break;
		}
		pinned = 0;
		if (stplr_is_plain_locked(mm, (remote + done) & PAGE_MASK, wanted * PAGE_SIZE))
			pinned = stplr_pin_remote(mm, (remote + done) & PAGE_MASK, wanted, flags,
						  pages);
		mmap_read_unlock(mm);
		if (pinned <= 0) {
			/*
			 * All else is a page that takes time, or may, or that this thread is being
			 * killed.
			 */
			*peer_error = pinned == -EFAULT ? -EFAULT : STPLR_REFAULT;
			break;
		}
		for (i = 0; i < pinned && fine; i++) {
			size_t bytes = min_t(size_t, PAGE_SIZE - within, length - done);

			fine = stplr_page_copy(pages[i], within, local + done, bytes, write);
			if (fine)
				done += bytes;
			within = 0;
		}
		unpin_user_pages_dirty_lock(pages, pinned, write);
	}
	return done;
}

/* Finds the segment that offset falls in and how far; false at the end. */
static bool find_segment(const struct stplr_buffers *buffers, size_t offset, u32 *index,
			 size_t *within)
{
	for (*index = 0; *index < buffers->count; ++*index) {
		if (offset < buffers->segments[*index].length) {
			*within = offset;
			return true;
		}
		offset -= buffers->segments[*index].length;
	}
	return false;
}

/* Like copy_remote(), over as many segments as it takes. */
static size_t copy_pinning(struct stplr_message *message, const struct stplr_buffers *buffers,
			   size_t offset, u64 local, size_t length, bool write, int *peer_error)
{
	size_t done = 0, within;
	u32 index;

	*peer_error = -EFAULT;
	if (!mmget_not_zero(message->mm))
		return 0;
	*peer_error = 0;
	if (!find_segment(buffers, offset, &index, &within))
		goto put;
	while (done < length && index < buffers->count) {
		const struct stplr_segment *segment = &buffers->segments[index];
		size_t bytes = min_t(size_t, segment->length - within, length - done);
		size_t copied = copy_remote(message->mm, segment->base + within, local + done,
					    bytes, write, &message->tries, peer_error);

		done += copied;
		if (copied < bytes)
			break;
		index++;
		within = 0;
	}
put:
	/* The last user of a memory takes it down, which is not for the peer to do. */
	mmput_async(message->mm);
	return done;
}

static size_t copy_segments(struct stplr_message *message, const struct stplr_buffers *buffers,
			    size_t offset, u64 local, size_t length, bool write, int *peer_error)
{
	if (!buffers->region)
		return copy_pinning(message, buffers, offset, local, length, write, peer_error);
	*peer_error = 0;
	return stplr_region_copy(buffers->region, buffers->segments->base + offset, local, length,
				 write);
}

int stplr_message_read(struct stplr_message *message, size_t offset, u64 to, size_t length,
		       int *peer_error)
{
	*peer_error = 0;
	if (!length)
		return 0;
	if (message->bounce)
		return bytes_out(to, message->bounce + offset, length) ? 0 : -EFAULT;
	if (copy_segments(message, &message->send, offset, to, length, false, peer_error) == length)
		return 0;
	if (!*peer_error)
		return -EFAULT;
	if (*peer_error != STPLR_REFAULT || !fatal_signal_pending(current))
		return 0;
	/*
	 * Whoever is being killed gets no pages. The sender need not do anything about that: it would
	 * be back at once, and a receiver that is being killed would never be done with such senders.
	 */
	*peer_error = 0;
	return -EINTR;
}

/* Charges the client with what a replier is about to leave it. */
static int charge_client(struct stplr_message *message, size_t bytes)
{
	int err = stplr_user_charge_for(message->user, bytes);

	if (!err)
		message->charged += bytes;
	return err;
}

/* Up to STPLR_BOUNCE bytes. Called with message->lock held, as is all that follows here. */
static int leave_first(struct stplr_message *message, size_t offset, u64 from, size_t length,
		       int *peer_error)
{
	u8 *bytes = message->inline_reply;

	if (length > STPLR_INLINE) {
		*peer_error = charge_client(message, STPLR_BOUNCE);
		if (*peer_error)
			return 0;
		bytes = kmem_cache_alloc(bounces, GFP_KERNEL);
		if (!bytes) {
			uncharge(message, STPLR_BOUNCE);
			return -ENOMEM;
		}
	}
	message->first = bytes;
	message->first_offset = offset;
	message->first_length = bytes_in(bytes, from, length) ? length : 0;
	return message->first_length ? 0 : -EFAULT;
}

static int leave_chunk(struct stplr_message *message, size_t offset, u64 from, size_t length,
		       int *peer_error)
{
	struct stplr_chunk *chunk;
	size_t room = max_t(size_t, length, PIECE_MIN - sizeof(*chunk));
	int err = -ENOMEM;

	if (message->left + sizeof(*chunk) + room > 2 * (u64)message->reply.total + LEFT_MAX)
		return -ENOBUFS;
	*peer_error = charge_client(message, sizeof(*chunk) + room);
	if (*peer_error)
		return 0;
	chunk = kvmalloc(sizeof(*chunk) + room, GFP_KERNEL_ACCOUNT);
	if (!chunk)
		goto uncharge;
	err = -EFAULT;
	if (!many_in(chunk->data, from, length))
		goto free;
	chunk->offset = offset;
	chunk->length = length;
	chunk->room = room;
	message->left_from = message->left ? min(message->left_from, offset) : offset;
	message->left_to = message->left ? max(message->left_to, offset + length) : offset + length;
	message->left += sizeof(*chunk) + room;
	list_add_tail(&chunk->node, &message->chunks);
	return 0;

free:
	kvfree(chunk);
uncharge:
	uncharge(message, sizeof(*chunk) + room);
	return err;
}

/* Where such bytes go in a piece, and how long that becomes by them. False: they do not go there. */
static bool fits(size_t start, size_t *bytes, size_t room, size_t offset, size_t length)
{
	if (offset < start || offset - start > *bytes || length > room - (offset - start))
		return false;
	*bytes = max(*bytes, offset - start + length);
	return true;
}

/* Into what was left last, if it is in there, or follows and there is room. */
static bool leave_there(struct stplr_message *message, size_t offset, u64 from, size_t length,
			int *err)
{
	struct stplr_chunk *chunk;
	size_t bytes, room;

	*err = -EFAULT;
	if (!list_empty(&message->chunks)) {
		chunk = list_last_entry(&message->chunks, struct stplr_chunk, node);
		bytes = chunk->length;
		if (!fits(chunk->offset, &bytes, chunk->room, offset, length))
			return false;
		if (!many_in(chunk->data + (offset - chunk->offset), from, length))
			return true;
		chunk->length = bytes;
		message->left_to = max(message->left_to, offset + length);
	} else {
		bytes = message->first_length;
		room = message->first == message->inline_reply ? STPLR_INLINE : STPLR_BOUNCE;
		if (!message->first || !bytes ||
		    !fits(message->first_offset, &bytes, room, offset, length))
			return false;
		if (!many_in(message->first + (offset - message->first_offset), from, length))
			return true;
		message->first_length = bytes;
	}
	*err = 0;
	return true;
}

/* Whether the client will copy something that was left to there, and nothing to elsewhere. */
static bool overlaps(const struct stplr_message *message, size_t offset, size_t length, bool *covers)
{
	size_t from = SIZE_MAX, to = 0;

	if (message->first && message->first_length) {
		from = message->first_offset;
		to = from + message->first_length;
	}
	if (message->left) {
		from = min(from, message->left_from);
		to = max(to, message->left_to);
	}
	*covers = offset <= from && to <= offset + length;
	return offset < to && from < offset + length;
}

/*
 * Leaves a copy for the client to take. What comes later goes over what was there; all together is
 * bounded by the room that the client has.
 */
static int leave(struct stplr_message *message, size_t offset, u64 from, size_t length,
		 int *peer_error)
{
	int err;

	if (leave_there(message, offset, from, length, &err))
		return err;
	if (length <= STPLR_BOUNCE && !message->first && list_empty(&message->chunks))
		return leave_first(message, offset, from, length, peer_error);
	return leave_chunk(message, offset, from, length, peer_error);
}

int stplr_message_write(struct stplr_message *message, size_t offset, u64 from, size_t length,
			int *peer_error)
{
	bool meets, covers = false;
	size_t done = 0;
	int err = 0;

	*peer_error = 0;
	if (!length)
		return 0;
	if (mutex_lock_killable(&message->lock))
		return -EINTR;
	meets = (message->first || message->left) && overlaps(message, offset, length, &covers);
	if (length > (message->reply.region ? STPLR_INLINE : STPLR_BOUNCE) && (!meets || covers)) {
		done = copy_segments(message, &message->reply, offset, from, length, true,
				     peer_error);
		if (done < length && !*peer_error) {
			err = -EFAULT;
			goto unlock;
		}
		/* What was left before is older, but would be copied later. */
		if (meets && done == length)
			free_bytes(message);
		else if (meets)
			done = 0;
	}
	/* What the client's memory would not take at once, the client fetches itself. */
	if (done < length && *peer_error != -EFAULT) {
		*peer_error = 0;
		err = leave(message, offset + done, from + done, length - done, peer_error);
	}
	if (!err && !*peer_error && offset + length > message->reply_end)
		message->reply_end = offset + length;
unlock:
	mutex_unlock(&message->lock);
	return err;
}

static int copy_out(const struct stplr_buffers *to, size_t offset, const u8 *from, size_t length)
{
	size_t within;
	u32 index;

	if (!find_segment(to, offset, &index, &within))
		return length ? -EFAULT : 0;
	while (length) {
		const struct stplr_segment *segment = &to->segments[index];
		size_t bytes = min_t(size_t, segment->length - within, length);

		if (!bytes_out(segment->base + within, from, bytes))
			return -EFAULT;
		from += bytes;
		length -= bytes;
		within = 0;
		index++;
	}
	return 0;
}

long stplr_message_read_run(struct stplr_message *message, size_t offset,
			    const struct stplr_buffers *mine, int *peer_error)
{
	size_t left = offset < message->send.total ? message->send.total - offset : 0, done = 0;
	u32 i;
	int err;

	*peer_error = 0;
	for (i = 0; i < mine->count && left; i++) {
		size_t bytes = min_t(size_t, mine->segments[i].length, left);

		err = stplr_message_read(message, offset + done, mine->segments[i].base, bytes,
					 peer_error);
		if (err || *peer_error)
			return err;
		done += bytes;
		left -= bytes;
	}
	return done;
}

/* A write that failed half-way has written nothing, as far as anybody is told. */
static void take_back(struct stplr_message *message, size_t before, size_t after)
{
	mutex_lock(&message->lock);
	if (message->reply_end == after)
		message->reply_end = before;
	mutex_unlock(&message->lock);
}

long stplr_message_write_run(struct stplr_message *message, size_t offset,
			     const struct stplr_buffers *mine, int *peer_error)
{
	size_t left = offset < message->reply.total ? message->reply.total - offset : 0, done = 0;
	size_t end = READ_ONCE(message->reply_end);
	u32 i;
	int err;

	*peer_error = 0;
	for (i = 0; i < mine->count && left; i++) {
		size_t bytes = min_t(size_t, mine->segments[i].length, left);

		err = stplr_message_write(message, offset + done, mine->segments[i].base, bytes,
					  peer_error);
		if (unlikely(done && (err || *peer_error)))
			take_back(message, end, offset + done);
		if (err || *peer_error)
			return err;
		done += bytes;
		left -= bytes;
	}
	return done;
}

void stplr_message_discard(struct stplr_message *message)
{
	u32 i;

	mutex_lock(&message->lock);
	free_bytes(message);
	message->reply_end = 0;
	for (i = 0; i < message->reply.count; i++)
		message->reply.segments[i].copied = 0;
	mutex_unlock(&message->lock);
}

int stplr_message_collect(struct stplr_message *message)
{
	struct stplr_chunk *chunk;
	int err = 0;

	if (message->first)
		err = copy_out(&message->reply, message->first_offset, message->first,
			       message->first_length);
	list_for_each_entry(chunk, &message->chunks, node) {
		if (err)
			break;
		cond_resched();
		err = fatal_signal_pending(current) ?
			      -EINTR :
			      copy_out(&message->reply, chunk->offset, chunk->data, chunk->length);
	}
	return err;
}
