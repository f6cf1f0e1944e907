// SPDX-License-Identifier: GPL-2.0
/* Bytes between a message, or the memory of its blocked sender, and the calling thread's memory. */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "compat.h"
#include "counters.h"
#include "leftovers.h"
#include "message.h"
#include "page.h"
#include "region.h"
#include "words.h"

/* How much of what it lacks a peer is asked for at a time. */
#define ASK_MAX (1UL << 20)

/* What an ask counts for at least, and for how long those that are not answered are not repeated. */
#define ASK_LEAST_NS (20 * NSEC_PER_USEC)
#define UNANSWERED_NS (100 * NSEC_PER_MSEC)

/* How often the caller's memory may go again just after it was brought. */
#define OWN_ATTEMPTS 8

/* Pages of the sender, of which each copy touches some. */
struct span {
	struct page *pinned[STPLR_BATCH];
	struct page **pages; /* those, or registered ones */
	long count;
};

/* For a moment, which is longer for more bytes. */
static bool lock_map(struct stplr_message *message, size_t length)
{
	int left = stplr_tries(length);

	while (!mmap_read_trylock(message->mm)) {
		if (!left-- || READ_ONCE(message->tries) <= 0 || fatal_signal_pending(current))
			return false;
		WRITE_ONCE(message->tries, READ_ONCE(message->tries) - 1);
		usleep_range(20, 40);
	}
	return true;
}

/*
 * For a moment, too. 0, -EFAULT, -ESRCH, or that they did not come in time: then nobody asks any client
 * of that user for a while, for there may be many whose clients do not answer.
 */
static int ask(struct stplr_message *message, struct stplr_ask *ask, size_t length)
{
	s64 left = READ_ONCE(message->ask_ns), most = stplr_ask_ns(length);
	ktime_t start = ktime_get();
	int err;

	if (left <= 0 || start < READ_ONCE(message->user->unanswered))
		return -ETIMEDOUT;
	stplr_count(STPLR_COUNT_ASKS);
	err = stplr_call_ask(&message->call, ask, ktime_add_ns(start, min(left, most)));
	left -= max_t(s64, ktime_to_ns(ktime_sub(ktime_get(), start)), ASK_LEAST_NS);
	WRITE_ONCE(message->ask_ns, left);
	if (err == -ETIMEDOUT)
		WRITE_ONCE(message->user->unanswered, ktime_add_ns(ktime_get(), UNANSWERED_NS));
	return err;
}

static int ask_for_pages(struct stplr_message *message, u64 base, size_t length, bool write)
{
	struct stplr_ask pages = { .base = base, .length = min(length, ASK_MAX), .write = write };

	return ask(message, &pages, length);
}

int stplr_message_make_room(struct stplr_message *message, size_t bytes)
{
	struct stplr_ask room = { .length = min(bytes, ASK_MAX), .room = true };

	return ask(message, &room, bytes);
}

/* 0, -ESRCH, -EINPROGRESS, or, where the sender is not waiting just now, STPLR_REFAULT. */
static int touch(struct stplr_message *message)
{
	int err = stplr_call_touch(&message->call);

	return err == -EBUSY ? STPLR_REFAULT : err;
}

/* As far as they are there, and touches then. -EAGAIN: the first is not. */
static long take_pages(struct stplr_message *message, u64 base, size_t wanted, bool write,
		       struct page **pages)
{
	long got = touch(message);

	if (got)
		return got;
	if (write)
		got = stplr_pin_remote(message->mm, base, wanted, FOLL_NOFAULT | FOLL_WRITE, pages);
	else
		got = stplr_get_remote(message->mm, base, wanted, FOLL_NOFAULT, pages);
	if (got > 0)
		return got;
	stplr_call_untouch(&message->call);
	return -EAGAIN;
}

/* Touches some of these bytes. The memory is held for the look alone. Fails as grab() does. */
static long pin(struct stplr_message *message, u64 remote, size_t length, size_t wanted, bool write,
		struct page **pages)
{
	const u64 base = remote & PAGE_MASK;
	long pinned = STPLR_REFAULT;

	if (!mmget_not_zero(message->mm))
		return -ESRCH;
	stplr_count(STPLR_COUNT_PIN_BATCHES);
	if (!lock_map(message, length))
		goto put;
	if (!stplr_is_mapped_locked(message->mm, base))
		pinned = -EFAULT;
	else if (stplr_is_plain_locked(message->mm, base, wanted * PAGE_SIZE))
		pinned = take_pages(message, base, wanted, write, pages);
	mmap_read_unlock(message->mm);
put:
	/* The last user of a memory takes it down, which is not for the peer to do. */
	mmput_async(message->mm);
	return pinned;
}

/*
 * Touches some of these bytes. 0, -EAGAIN: they are not there, and may come, -EFAULT: they will not,
 * -EINPROGRESS: not now, -ESRCH, STPLR_REFAULT.
 */
static int grab(struct stplr_message *message, struct stplr_region *region, u64 remote,
		size_t length, bool write, struct span *span)
{
	size_t wanted = min_t(size_t, DIV_ROUND_UP(offset_in_page(remote) + length, PAGE_SIZE),
			      STPLR_BATCH);

	if (region) {
		span->pages = stplr_region_pages(region, remote);
		span->count = wanted;
		return touch(message);
	}
	span->pages = span->pinned;
	span->count = pin(message, remote, length, wanted, write, span->pinned);
	return span->count < 0 ? span->count : 0;
}

static void let_go(struct stplr_message *message, struct span *span, bool write)
{
	stplr_call_untouch(&message->call);
	if (span->pages != span->pinned)
		return;
	if (write)
		unpin_user_pages_dirty_lock(span->pages, span->count, true);
	else
		release_pages(span->pages, span->count);
}

/* Copies as far as the caller's pages are there. Returns the bytes copied. */
static size_t copy_span(struct span *span, u64 remote, u64 local, size_t length, bool write)
{
	size_t within = offset_in_page(remote), done = 0;
	long i;

	for (i = 0; i < span->count && done < length; i++) {
		size_t bytes = min_t(size_t, PAGE_SIZE - within, length - done);

		if (!stplr_page_copy(span->pages[i], within, local + done, bytes, write))
			break;
		done += bytes;
		within = 0;
	}
	return done;
}

/*
 * grab(), once those who keep the sender from leaving are through, which takes them a moment: nobody is waited
 * for but them.
 */
static int grab_in_turn(struct stplr_message *message, struct stplr_region *region, u64 remote,
			size_t length, bool write, struct span *span)
{
	int err;

	for (;;) {
		err = grab(message, region, remote, length, write, span);
		if (err != -EINPROGRESS)
			return err;
		if (fatal_signal_pending(current))
			return STPLR_REFAULT;
		usleep_range(20, 40);
	}
}

/*
 * Copies between the memory of the sender and the caller's. Returns the bytes copied; *peer_error tells
 * why not all, and is 0 if that is because of the caller's own memory.
 */
static size_t copy_remote(struct stplr_message *message, struct stplr_region *region, u64 remote,
			  u64 local, size_t length, bool write, int *peer_error)
{
	size_t done = 0, copied, rest;
	struct span span;
	int idle = 0, err;

	*peer_error = 0;
	while (done < length) {
		err = grab_in_turn(message, region, remote + done, length - done, write, &span);
		if (err == -EAGAIN) {
			err = ask_for_pages(message, remote + done, length - done, write);
			if (!err)
				continue;
			if (err != -EFAULT && err != -ESRCH)
				err = STPLR_REFAULT;
		}
		if (err) {
			*peer_error = err;
			break;
		}
		copied = copy_span(&span, remote + done, local + done, length - done, write);
		let_go(message, &span, write);
		done += copied;
		idle = copied ? 0 : idle + 1;
		/* What is wanted next, too, if the memory is a new one. */
		rest = min_t(size_t, length - done, STPLR_BATCH * PAGE_SIZE);
		if (fatal_signal_pending(current) ||
		    (!copied && (idle > OWN_ATTEMPTS || stplr_bring(local + done, rest, !write))))
			break;
		cond_resched();
	}
	return done;
}

/* Like copy_remote(), over as many segments as it takes. */
static size_t copy_segments(struct stplr_message *message, const struct stplr_buffers *buffers,
			    size_t offset, u64 local, size_t length, bool write, int *peer_error)
{
	size_t done = 0, within;
	u32 index;

	*peer_error = 0;
	if (buffers->region)
		return copy_remote(message, buffers->region, buffers->segments->base + offset,
				   local, length, write, peer_error);
	if (!stplr_buffers_find(buffers, offset, &index, &within))
		return 0;
	while (done < length && index < buffers->count) {
		const struct stplr_segment *segment = &buffers->segments[index];
		size_t bytes = min_t(size_t, segment->length - within, length - done);
		size_t copied = copy_remote(message, NULL, segment->base + within, local + done,
					    bytes, write, peer_error);

		done += copied;
		if (copied < bytes)
			break;
		index++;
		within = 0;
	}
	return done;
}

int stplr_message_read(struct stplr_message *message, size_t offset, u64 to, size_t length,
		       int *peer_error)
{
	*peer_error = 0;
	if (!length)
		return 0;
	if (message->bounce)
		return stplr_copy_out(to, message->bounce + offset, length) ? 0 : -EFAULT;
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

int stplr_message_write(struct stplr_message *message, size_t offset, u64 from, size_t length,
			int *peer_error)
{
	bool meets, direct, covers = false;
	size_t done = 0;
	int err = 0;

	*peer_error = 0;
	if (!length)
		return 0;
	if (mutex_lock_killable(&message->lock))
		return -EINTR;
	meets = (message->first || message->left) && stplr_leftovers_meet(message, offset, length, &covers);
	direct = length > (message->reply.region ? STPLR_INLINE : STPLR_BOUNCE) && (!meets || covers);
	/* What cannot be read is to take nothing away of what was written before. */
	if ((meets || direct) && !stplr_all_readable(from, length)) {
		err = -EFAULT;
		goto unlock;
	}
	if (direct) {
		done = copy_segments(message, &message->reply, offset, from, length, true,
				     peer_error);
		if (done < length && !*peer_error) {
			err = -EFAULT;
			goto unlock;
		}
		/* What was left before is older, but would be copied later. */
		if (meets && done == length)
			stplr_leftovers_free(message);
		else if (meets)
			done = 0;
	}
	/* What the client's memory would not take at once, the client fetches itself. */
	if (done < length && (!*peer_error || *peer_error == STPLR_REFAULT))
		err = stplr_leave(message, offset + done, from + done, length - done, peer_error);
	if (!err && !*peer_error && offset + length > message->reply_end)
		message->reply_end = offset + length;
unlock:
	mutex_unlock(&message->lock);
	return err;
}

/* As far as bytes from offset on go there and back: *done, even if it fails. */
static int copy_run(struct stplr_message *message, size_t total, size_t offset,
		    const struct stplr_buffers *mine, stplr_message_copy *copy, size_t *done,
		    int *peer_error)
{
	size_t left = offset < total ? total - offset : 0;
	u32 i;
	int err;

	*peer_error = 0;
	*done = 0;
	for (i = 0; i < mine->count && left; i++) {
		size_t bytes = min_t(size_t, mine->segments[i].length, left);

		err = copy(message, offset + *done, mine->segments[i].base, bytes, peer_error);
		if (err || *peer_error)
			return err;
		*done += bytes;
		left -= bytes;
	}
	return 0;
}

long stplr_message_read_run(struct stplr_message *message, size_t offset,
			    const struct stplr_buffers *mine, int *peer_error)
{
	size_t done;
	int err = copy_run(message, message->send.total, offset, mine, stplr_message_read, &done,
			   peer_error);

	return err || *peer_error ? err : (long)done;
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
	size_t end = READ_ONCE(message->reply_end), done;
	int err = copy_run(message, message->reply.total, offset, mine, stplr_message_write, &done,
			   peer_error);

	if (likely(!err && !*peer_error))
		return done;
	if (done)
		take_back(message, end, offset + done);
	return err;
}

void stplr_message_discard(struct stplr_message *message)
{
	u32 i;

	mutex_lock(&message->lock);
	stplr_leftovers_free(message);
	message->reply_end = 0;
	for (i = 0; i < message->reply.count; i++)
		message->reply.segments[i].copied = 0;
	mutex_unlock(&message->lock);
}

long stplr_message_access(struct stplr_port *port, const void *replier,
			  const struct stplr_access __user *user, size_t size, bool write)
{
	struct stplr_access arguments;
	struct stplr_message *message;
	struct stplr_buffers buffers;
	struct stplr_call *call;
	int peer_error;
	long length;

	length = stplr_get_sized(&arguments, user, size, STPLR_ACCESS_SIZE_VER0);
	if (length)
		return length;
	length = stplr_buffers_from(&buffers, &arguments.buffer, NULL);
	if (length)
		return length;
	length = -ESRCH;
	call = stplr_port_borrow(port, arguments.id, replier, !write);
	if (!call)
		goto put_buffers;
	message = stplr_message_of(call);
	if (write)
		length = stplr_message_write_run(message, arguments.offset, &buffers, &peer_error);
	else
		length = stplr_message_read_run(message, arguments.offset, &buffers, &peer_error);
	if (peer_error)
		length = peer_error == STPLR_REFAULT ? -EAGAIN : peer_error;
	stplr_call_return(call, !write);
put_buffers:
	stplr_buffers_put(&buffers);
	return length;
}
