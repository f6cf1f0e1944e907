// SPDX-License-Identifier: GPL-2.0
#include "doors/part.h"

#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/memcontrol.h>
#include <linux/mman.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "doors/door.h"
#include "files.h"
#include "leftovers.h"
#include "message.h"

/* What is copied at a time, between two looks whether the caller is being killed. */
#define STEP (32UL << 10)

/* What is asked for, and given back at once, where the machine is short of memory. */
#define ROOM (32UL << 10)

int stplr_door_part_charge(struct stplr_message *message, size_t bytes)
{
	int err = stplr_charge_client(message, bytes);

	if (!err)
		message->of_door.charged += bytes;
	return err;
}

void stplr_door_part_put_files(struct stplr_door_part *part)
{
	if (part->files)
		stplr_files_put(part->files, part->file_count);
	part->files = NULL;
	part->file_count = 0;
}

/* But for the files. */
static void clear(struct stplr_message *message)
{
	struct stplr_door_part *part = &message->of_door;

	if (part->result)
		fput(part->result);
	part->result = NULL;
	stplr_message_uncharge(message, part->charged);
	part->charged = 0;
}

void stplr_door_part_clear(struct stplr_message *message)
{
	stplr_door_part_put_files(&message->of_door);
	clear(message);
}

void stplr_door_part_put(struct stplr_message *message)
{
	struct stplr_door_part *part = &message->of_door;

	/* The client has not taken them, and waits for none of them to be closed. */
	if (part->files)
		stplr_files_leave_anyway(part->files, part->file_count, part->door->user);
	clear(message);
	put_cred(part->caller);
	stplr_door_put(part->door);
	memset(part, 0, sizeof(*part));
}

/*
 * In the memory cgroup of the client, which may be at its limit: nothing is reclaimed there, but by the client.
 * So the bytes are the kernel's: pages of the server's that had to come would be charged there, too.
 */
static ssize_t write_some(struct stplr_message *message, struct file *file, const void *bytes,
			  size_t count, loff_t *at)
{
	struct mem_cgroup *group = get_mem_cgroup_from_mm(message->mm);
	struct mem_cgroup *before = set_active_memcg(group);
	ssize_t written = kernel_write(file, bytes, count, at);

	set_active_memcg(before);
	mem_cgroup_put(group);
	return written;
}

/* If it is the machine that is short of memory, there is some afterwards; and then if it is the client's group. */
static bool make_room(struct stplr_message *message, size_t wanted, int attempt)
{
	void *room;

	if (attempt)
		return attempt == 1 && !stplr_message_make_room(message, wanted);
	room = kmalloc(ROOM, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	kfree(room);
	return room;
}

/* By way of a buffer of STEP bytes. */
static int fill_by(struct stplr_message *message, struct file *file, u64 from, size_t size,
		   u8 *buffer, int *peer_error)
{
	int attempt = 0;
	loff_t at = 0;

	while (at < size) {
		const size_t bytes = min_t(size_t, size - at, STEP);
		ssize_t written;

		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		if (copy_from_user(buffer, u64_to_user_ptr(from + at), bytes))
			return -EFAULT;
		written = write_some(message, file, buffer, bytes, &at);
		if (written == -ENOMEM && make_room(message, size - at, attempt)) {
			attempt++;
			continue;
		}
		attempt = 0;
		if (written > 0)
			continue;
		if (written == -EINTR)
			return written;
		*peer_error = -ENOMEM;
		return 0;
	}
	return 0;
}

static int fill(struct stplr_message *message, struct file *file, u64 from, size_t size,
		int *peer_error)
{
	u8 *buffer = kmalloc(STEP, GFP_KERNEL);
	int err;

	if (!buffer) {
		*peer_error = -ENOMEM;
		return 0;
	}
	err = fill_by(message, file, from, size, buffer, peer_error);
	kfree(buffer);
	return err;
}

/* In pages that are charged to nobody. *to: the file, if this succeeds. */
static int make(struct stplr_message *message, u64 from, size_t size, struct file **to,
		int *peer_error)
{
	struct file *file = shmem_file_setup("door-result", PAGE_ALIGN(size), STPLR_NO_VMA_FLAGS);
	int err;

	if (IS_ERR(file)) {
		*peer_error = -ENOMEM;
		return 0;
	}
	WRITE_ONCE(message->ask_ns, READ_ONCE(message->ask_ns) +
		   (s64)(size / (STPLR_BATCH * PAGE_SIZE) * STPLR_ASK_OF_BATCH_NS));
	mapping_set_gfp_mask(file->f_mapping, (GFP_HIGHUSER & ~__GFP_DIRECT_RECLAIM) | __GFP_NOWARN);
	err = fill(message, file, from, size, peer_error);
	if (err || *peer_error)
		fput(file);
	else
		*to = file;
	return err;
}

int stplr_result_make(struct stplr_message *message, u64 from, size_t size, int *peer_error)
{
	struct stplr_user *server = message->of_door.door->user;
	struct file *file;
	int err;

	*peer_error = 0;
	if (!access_ok(u64_to_user_ptr(from), size))
		return -EFAULT;
	/* A write beyond it would be the end of the server, which has not asked for a file. */
	if (size > rlimit(RLIMIT_FSIZE))
		return -EFBIG;
	if (size > MAX_RW_COUNT) {
		*peer_error = -ENOMEM;
		return 0;
	}
	/* How long it takes is up to the server. */
	*peer_error = stplr_user_charge(server, PAGE_ALIGN(size));
	if (*peer_error)
		return 0;
	err = make(message, from, size, &file, peer_error);
	stplr_user_uncharge(server, PAGE_ALIGN(size));
	if (err || *peer_error)
		return err;
	*peer_error = stplr_door_part_charge(message, PAGE_ALIGN(size));
	if (*peer_error) {
		fput(file);
		return 0;
	}
	message->of_door.result = file;
	message->of_door.result_size = size;
	return 0;
}

int stplr_result_map(struct stplr_door_part *part, u64 *address, u64 *size)
{
	const size_t bytes = PAGE_ALIGN(part->result_size);
	unsigned long mapped;

	mapping_set_gfp_mask(part->result->f_mapping, GFP_HIGHUSER);
	mapped = vm_mmap(part->result, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
	if (IS_ERR_VALUE(mapped))
		return -EOVERFLOW;
	*address = mapped;
	*size = bytes;
	return 0;
}
