/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Buffers of a program: what is sent, and the room for a reply, each seen as one run of bytes.
 *
 * Copies here are those of the thread whose memory it is, and may wait for it.
 */
#ifndef STPLR_BUFFERS_H
#define STPLR_BUFFERS_H

#include <linux/kernel.h>
#include <linux/types.h>

#include "include/stplr.h"
#include "words.h"

struct stplr_region;
struct stplr_regions;

/* Up to so many bytes are copied word by word. */
#define STPLR_INLINE 256

struct stplr_segment {
	u64 base;
	u32 length;
	u32 copied;
};

/* Buffers of one thread. Few ones need no memory of their own. */
struct stplr_buffers {
	u32 count;
	size_t total;
	struct stplr_segment *segments;
	struct stplr_segment few[2];
	struct stplr_region *region; /* reference; where they lie, or NULL */
};

/**
 * stplr_buffers_room() - make room for a number of buffers, of which there is none yet
 * @buffers: the buffers
 * @count: how many there will be
 *
 * Return: 0, -EINVAL (too many), -ENOMEM.
 */
int stplr_buffers_room(struct stplr_buffers *buffers, u32 count);

/**
 * stplr_buffers_add() - add a buffer, for which there is room
 * @buffers: the buffers
 * @base: its address
 * @length: its bytes
 *
 * Return: 0, or -EMSGSIZE: with all the others it is too much.
 */
int stplr_buffers_add(struct stplr_buffers *buffers, u64 base, u32 length);

/**
 * stplr_buffers_get() - read which buffers a program passes
 * @buffers: the buffers; there are none where this fails
 * @user: the program's array
 * @count: its length; 0 is no buffers
 *
 * Return: 0, -EFAULT, -EINVAL, -EMSGSIZE, -ENOMEM.
 */
int stplr_buffers_get(struct stplr_buffers *buffers, const struct stplr_part __user *user,
		      u32 count);

static inline void stplr_buffers_one(struct stplr_buffers *buffers, u64 base, u32 length)
{
	buffers->count = length ? 1 : 0;
	buffers->total = length;
	buffers->segments = buffers->few;
	buffers->few[0].base = base;
	buffers->few[0].length = length;
	buffers->few[0].copied = 0;
	buffers->region = NULL;
}

/**
 * stplr_buffers_registered() - stplr_buffers_from() for registered memory
 * @buffers: the buffers
 * @from: what the program passes
 * @regions: of the connection
 *
 * Return: 0, or -EFAULT for what is not in that region.
 */
int stplr_buffers_registered(struct stplr_buffers *buffers, const struct stplr_buffer *from,
			     struct stplr_regions *regions);

/* From what the second interface passes; regions is NULL where none can be meant. */
static inline int stplr_buffers_from(struct stplr_buffers *buffers,
				     const struct stplr_buffer *from,
				     struct stplr_regions *regions)
{
	if (likely(!from->count)) {
		stplr_buffers_one(buffers, from->address, from->length);
		return from->length > STPLR_BYTES_MAX ? -EMSGSIZE : 0;
	}
	if (regions && from->count & STPLR_REGION)
		return stplr_buffers_registered(buffers, from, regions);
	return stplr_buffers_get(buffers, u64_to_user_ptr(from->address), from->count);
}

/**
 * stplr_buffers_drop() - stplr_buffers_put() where there is something to give back
 * @buffers: the buffers, which are none then
 */
void stplr_buffers_drop(struct stplr_buffers *buffers);

static inline void stplr_buffers_put(struct stplr_buffers *buffers)
{
	if (unlikely(buffers->segments != buffers->few || buffers->region))
		stplr_buffers_drop(buffers);
	buffers->count = 0;
	buffers->total = 0;
}

/**
 * stplr_buffers_find() - find the segment that an offset falls in
 * @buffers: the buffers
 * @offset: into all of them
 * @index: of that segment
 * @within: how far into it
 *
 * Return: false at the end.
 */
bool stplr_buffers_find(const struct stplr_buffers *buffers, size_t offset, u32 *index,
			size_t *within);

/**
 * stplr_buffers_copy_in() - copy all of the caller's buffers
 * @to: where they go
 * @from: the buffers
 *
 * Return: 0 or -EFAULT.
 */
int stplr_buffers_copy_in(u8 *to, const struct stplr_buffers *from);

/**
 * stplr_buffers_copy_out() - copy to a part of the caller's buffers
 * @to: the buffers
 * @offset: where the part begins
 * @from: what is copied
 * @length: how many bytes
 *
 * Return: 0 or -EFAULT.
 */
int stplr_buffers_copy_out(const struct stplr_buffers *to, size_t offset, const u8 *from,
			   size_t length);

/**
 * stplr_bring() - bring pages of the caller
 * @base: where they begin
 * @length: how many bytes
 * @write: whether they are to be written
 *
 * Return: 0, or -EFAULT if not even the first can be had.
 */
int stplr_bring(u64 base, size_t length, bool write);

/**
 * stplr_make_room() - have the kernel make room in the memory cgroup of the caller
 * @bytes: how much
 *
 * Takes that, for which others may have to give up what they can do without, and gives it back.
 * Return: 0, or -ENOMEM where there is none; nobody is killed for that.
 */
int stplr_make_room(size_t bytes);

/**
 * stplr_much_in() - copy any number of the caller's bytes
 * @to: where they go
 * @from: where they are
 * @length: how many
 *
 * Return: false: the program's memory faults.
 */
bool stplr_much_in(u8 *to, u64 from, size_t length);

/**
 * stplr_much_out() - copy any number of bytes to the caller
 * @to: where they go
 * @from: where they are
 * @length: how many
 *
 * Return: false: the program's memory faults.
 */
bool stplr_much_out(u64 to, const u8 *from, size_t length);

/**
 * stplr_all_readable() - bring all pages of some of the caller's bytes
 * @base: where they begin
 * @length: how many bytes
 *
 * Return: false: one of them cannot be had.
 */
bool stplr_all_readable(u64 base, size_t length);

/* False: the program's memory faults. */
static __always_inline bool stplr_copy_in(u8 *to, u64 from, size_t length)
{
	if (likely(length <= STPLR_INLINE))
		return !stplr_few_in(to, u64_to_user_ptr(from), length);
	return stplr_much_in(to, from, length);
}

static __always_inline bool stplr_copy_out(u64 to, const u8 *from, size_t length)
{
	if (likely(length <= STPLR_INLINE))
		return !stplr_few_out(u64_to_user_ptr(to), from, length);
	return stplr_much_out(to, from, length);
}

#endif
