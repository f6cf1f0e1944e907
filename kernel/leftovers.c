// SPDX-License-Identifier: GPL-2.0
#include "leftovers.h"

#include <linux/memcontrol.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

/* What a server may leave a client, beside twice the room that the client has, and a piece for each buffer. */
#define LEFT_MAX (64UL << 10)

/* A small piece takes as much, so that what is written bit by bit can go into one. */
#define PIECE_MIN 256

/* And no piece takes more, or, where memory is scattered, than the latter. */
#define PIECE_MAX (32UL << 10)
#define PIECE_SCATTERED 4096

static struct kmem_cache *bounces;

int stplr_leftovers_init(void)
{
	bounces = kmem_cache_create_usercopy("stplr_bounce", STPLR_BOUNCE, 0, SLAB_ACCOUNT, 0,
					     STPLR_BOUNCE, NULL);
	return bounces ? 0 : -ENOMEM;
}

void stplr_leftovers_exit(void)
{
	kmem_cache_destroy(bounces);
}

u8 *stplr_bounce_alloc(void)
{
	return kmem_cache_alloc(bounces, GFP_KERNEL);
}

void stplr_bounce_free(u8 *bounce)
{
	kmem_cache_free(bounces, bounce);
}

void stplr_leftovers_free(struct stplr_message *message)
{
	struct stplr_chunk *chunk, *next;

	list_for_each_entry_safe(chunk, next, &message->chunks, node) {
		stplr_message_uncharge(message, sizeof(*chunk) + chunk->room);
		kfree(chunk);
		cond_resched();
	}
	INIT_LIST_HEAD(&message->chunks);
	message->left = 0;
	if (message->first && message->first != message->inline_reply) {
		stplr_message_uncharge(message, STPLR_BOUNCE);
		stplr_bounce_free(message->first);
	}
	message->first = NULL;
}

int stplr_charge_client(struct stplr_message *message, size_t bytes)
{
	int err = stplr_user_charge_for(message->user, bytes);

	if (!err)
		message->charged += bytes;
	return err;
}

/* A bounce buffer if that is as much as is wanted. */
static void *allocate(size_t bytes, gfp_t flags)
{
	flags |= __GFP_NOWARN;
	return bytes == STPLR_BOUNCE ? kmem_cache_alloc(bounces, flags) : kmalloc(bytes, flags);
}

/*
 * Charged to the memory cgroup of the client, which may be at its limit: nothing is reclaimed there,
 * and nobody killed, by a thread of the server.
 */
static void *allocate_charged(struct stplr_message *message, size_t bytes)
{
	struct mem_cgroup *group = get_mem_cgroup_from_mm(message->mm);
	struct mem_cgroup *before = set_active_memcg(group);
	void *memory = allocate(bytes, GFP_NOWAIT | __GFP_ACCOUNT);

	set_active_memcg(before);
	mem_cgroup_put(group);
	return memory;
}

static void *allocate_for_client(struct stplr_message *message, size_t bytes)
{
	void *memory = allocate_charged(message, bytes), *room;

	if (likely(memory))
		return memory;
	/* If it is the machine that is short of memory, there is some afterwards. */
	room = kmalloc(bytes, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	kfree(room);
	if (!room)
		return NULL;
	memory = allocate_charged(message, bytes);
	/* Then it is the group, and it may be full of what it can do without. */
	if (!memory && !stplr_message_make_room(message, bytes))
		memory = allocate_charged(message, bytes);
	return memory;
}

/* Up to STPLR_BOUNCE bytes. */
static int leave_first(struct stplr_message *message, size_t offset, u64 from, size_t length,
		       int *peer_error)
{
	u8 *bytes = message->inline_reply;

	if (length > STPLR_INLINE) {
		*peer_error = stplr_charge_client(message, STPLR_BOUNCE);
		if (*peer_error)
			return 0;
		bytes = allocate_for_client(message, STPLR_BOUNCE);
		if (!bytes) {
			stplr_message_uncharge(message, STPLR_BOUNCE);
			*peer_error = -ENOMEM;
			return 0;
		}
	}
	message->first = bytes;
	message->first_offset = offset;
	message->first_length = stplr_copy_in(bytes, from, length) ? length : 0;
	return message->first_length ? 0 : -EFAULT;
}

static struct stplr_chunk *new_chunk(struct stplr_message *message, size_t room, int *peer_error)
{
	struct stplr_chunk *chunk;

	*peer_error = stplr_charge_client(message, sizeof(*chunk) + room);
	if (*peer_error)
		return NULL;
	chunk = allocate_for_client(message, sizeof(*chunk) + room);
	if (chunk) {
		chunk->room = room;
		return chunk;
	}
	stplr_message_uncharge(message, sizeof(*chunk) + room);
	*peer_error = -ENOMEM;
	return NULL;
}

/* As many bytes as fit into one piece; how many, *length tells. */
static int leave_piece(struct stplr_message *message, size_t offset, u64 from, size_t *length,
		       int *peer_error)
{
	const size_t most = PIECE_MAX - sizeof(struct stplr_chunk);
	const size_t less = PIECE_SCATTERED - sizeof(struct stplr_chunk);
	struct stplr_chunk *chunk;

	*length = min(*length, most);
	chunk = new_chunk(message, max_t(size_t, *length, PIECE_MIN - sizeof(*chunk)), peer_error);
	if (!chunk && *peer_error == -ENOMEM && *length > less) {
		*length = less;
		chunk = new_chunk(message, less, peer_error);
	}
	if (!chunk)
		return 0;
	if (!stplr_copy_in(chunk->data, from, *length)) {
		stplr_message_uncharge(message, sizeof(*chunk) + chunk->room);
		kfree(chunk);
		return -EFAULT;
	}
	chunk->offset = offset;
	chunk->length = *length;
	message->left_from = message->left ? min(message->left_from, offset) : offset;
	message->left_to = message->left ? max(message->left_to, offset + *length) :
					   offset + *length;
	message->left += sizeof(*chunk) + chunk->room;
	list_add_tail(&chunk->node, &message->chunks);
	return 0;
}

static int leave_pieces(struct stplr_message *message, size_t offset, u64 from, size_t length,
			int *peer_error)
{
	size_t done = 0;
	int err = 0;

	/* Each buffer of the client's may be written apart. */
	if (message->left + sizeof(struct stplr_chunk) + max_t(size_t, length, PIECE_MIN) >
	    2 * (u64)message->reply.total + LEFT_MAX + (u64)message->reply.count * PIECE_MIN)
		return -ENOBUFS;
	while (done < length && !err && !*peer_error) {
		size_t bytes = length - done;

		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		err = leave_piece(message, offset + done, from + done, &bytes, peer_error);
		done += bytes;
	}
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
		if (!stplr_copy_in(chunk->data + (offset - chunk->offset), from, length))
			return true;
		chunk->length = bytes;
		message->left_to = max(message->left_to, offset + length);
	} else {
		bytes = message->first_length;
		room = message->first == message->inline_reply ? STPLR_INLINE : STPLR_BOUNCE;
		if (!message->first || !bytes ||
		    !fits(message->first_offset, &bytes, room, offset, length))
			return false;
		if (!stplr_copy_in(message->first + (offset - message->first_offset), from, length))
			return true;
		message->first_length = bytes;
	}
	*err = 0;
	return true;
}

bool stplr_leftovers_meet(const struct stplr_message *message, size_t offset, size_t length,
			  bool *covers)
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

int stplr_leave(struct stplr_message *message, size_t offset, u64 from, size_t length,
		int *peer_error)
{
	int err;

	*peer_error = 0;
	if (leave_there(message, offset, from, length, &err))
		return err;
	if (length <= STPLR_BOUNCE && !message->first && list_empty(&message->chunks))
		return leave_first(message, offset, from, length, peer_error);
	return leave_pieces(message, offset, from, length, peer_error);
}

int stplr_leftovers_collect(struct stplr_message *message)
{
	struct stplr_chunk *chunk;
	int err = 0;

	if (message->first)
		err = stplr_buffers_copy_out(&message->reply, message->first_offset,
					     message->first, message->first_length);
	list_for_each_entry(chunk, &message->chunks, node) {
		if (err)
			break;
		cond_resched();
		err = fatal_signal_pending(current) ?
			      -EINTR :
			      stplr_buffers_copy_out(&message->reply, chunk->offset, chunk->data,
						     chunk->length);
	}
	return err;
}
