// SPDX-License-Identifier: GPL-2.0
#include "buffers.h"

#include <linux/errno.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "region.h"

/* What a memory cgroup may keep for the processor that it was given back on, where no other gets at it. */
#define SET_ASIDE (64 * PAGE_SIZE)

/* After so many bytes others may have the processor. */
#define STEP (1UL << 20)

int stplr_buffers_room(struct stplr_buffers *buffers, u32 count)
{
	stplr_buffers_one(buffers, 0, 0);
	if (count > STPLR_MSGS_MAX)
		return -EINVAL;
	if (count <= ARRAY_SIZE(buffers->few))
		return 0;
	buffers->segments = kmalloc_array(count, sizeof(*buffers->segments), GFP_KERNEL_ACCOUNT);
	if (buffers->segments)
		return 0;
	buffers->segments = buffers->few;
	return -ENOMEM;
}

int stplr_buffers_add(struct stplr_buffers *buffers, u64 base, u32 length)
{
	if (buffers->total + length > STPLR_BYTES_MAX)
		return -EMSGSIZE;
	buffers->total += length;
	buffers->segments[buffers->count++] = (struct stplr_segment){ base, length, 0 };
	return 0;
}

int stplr_buffers_get(struct stplr_buffers *buffers, const struct stplr_part __user *user,
		      u32 count)
{
	int err = stplr_buffers_room(buffers, count);
	struct stplr_part part;
	u32 i;

	for (i = 0; i < count && !err; i++) {
		if (stplr_get_arguments(&part, user + i))
			err = -EFAULT;
		else if (part.reserved)
			err = -EINVAL;
		else
			err = stplr_buffers_add(buffers, part.address, part.length);
	}
	if (err)
		stplr_buffers_put(buffers);
	return err;
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

bool stplr_buffers_find(const struct stplr_buffers *buffers, size_t offset, u32 *index,
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

int stplr_buffers_copy_in(u8 *to, const struct stplr_buffers *from)
{
	u32 i;

	for (i = 0; i < from->count; i++) {
		const struct stplr_segment *segment = &from->segments[i];

		if (!stplr_copy_in(to, segment->base, segment->length))
			return -EFAULT;
		to += segment->length;
	}
	return 0;
}

int stplr_buffers_copy_out(const struct stplr_buffers *to, size_t offset, const u8 *from,
			   size_t length)
{
	size_t within;
	u32 index;

	if (!stplr_buffers_find(to, offset, &index, &within))
		return length ? -EFAULT : 0;
	while (length) {
		const struct stplr_segment *segment = &to->segments[index];
		size_t bytes = min_t(size_t, segment->length - within, length);

		if (!stplr_copy_out(segment->base + within, from, bytes))
			return -EFAULT;
		from += bytes;
		length -= bytes;
		within = 0;
		index++;
	}
	return 0;
}

bool stplr_much_in(u8 *to, u64 from, size_t length)
{
	for (; length > STEP; to += STEP, from += STEP, length -= STEP) {
		if (copy_from_user(to, u64_to_user_ptr(from), STEP))
			return false;
		cond_resched();
	}
	return !copy_from_user(to, u64_to_user_ptr(from), length);
}

bool stplr_much_out(u64 to, const u8 *from, size_t length)
{
	for (; length > STEP; to += STEP, from += STEP, length -= STEP) {
		if (copy_to_user(u64_to_user_ptr(to), from, STEP))
			return false;
		cond_resched();
	}
	return !copy_to_user(u64_to_user_ptr(to), from, length);
}

bool stplr_all_readable(u64 base, size_t length)
{
	for (; length > STEP; base += STEP, length -= STEP) {
		/* Who is being killed may have said that there is very much. */
		if (fatal_signal_pending(current) || fault_in_readable(u64_to_user_ptr(base), STEP))
			return false;
		cond_resched();
	}
	return !length || !fault_in_readable(u64_to_user_ptr(base), length);
}

int stplr_bring(u64 base, size_t length, bool write)
{
	size_t left = write ? fault_in_safe_writeable(u64_to_user_ptr(base), length) :
			      fault_in_readable(u64_to_user_ptr(base), length);

	return length && left == length ? -EFAULT : 0;
}

int stplr_make_room(size_t bytes)
{
	const size_t wanted = bytes + SET_ASIDE;
	struct page *page, *next;
	LIST_HEAD(pages);
	size_t taken;

	for (taken = 0; taken < wanted; taken += PAGE_SIZE) {
		page = alloc_page(GFP_HIGHUSER | __GFP_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN);
		if (!page)
			break;
		list_add(&page->lru, &pages);
		cond_resched();
	}
	list_for_each_entry_safe(page, next, &pages, lru) {
		list_del(&page->lru);
		__free_page(page);
	}
	return taken < bytes ? -ENOMEM : 0;
}
