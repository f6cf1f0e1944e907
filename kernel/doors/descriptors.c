// SPDX-License-Identifier: GPL-2.0
#include "doors/descriptors.h"

#include <linux/err.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "doors/door.h"
#include "files.h"
#include "user.h"

/* Reads which they are. The caller frees them. */
static s32 *get_numbers(const struct stplr_door_desc __user *user, u32 count)
{
	s32 *fds = kmalloc_array(count, sizeof(*fds), GFP_KERNEL_ACCOUNT);
	struct stplr_door_desc one;
	int err = 0;
	u32 i;

	if (!fds)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < count; i++) {
		if (copy_from_user(&one, user + i, sizeof(one))) {
			err = -EFAULT;
			break;
		}
		if (!(one.attributes & STPLR_DOOR_DESCRIPTOR))
			err = -EINVAL;
		fds[i] = one.fd;
	}
	if (!err)
		return fds;
	kfree(fds);
	return ERR_PTR(err);
}

struct file **stplr_door_files_get(u64 user, u32 count)
{
	struct file **files;
	s32 *fds;

	if (!count)
		return NULL;
	fds = get_numbers(u64_to_user_ptr(user), count);
	if (IS_ERR(fds))
		return ERR_CAST(fds);
	files = stplr_files_hold(fds, count);
	kfree(fds);
	return files == ERR_PTR(-EBADF) ? ERR_PTR(-EINVAL) : files;
}

static bool put_one(struct file *file, s32 fd, struct stplr_door_desc __user *user)
{
	struct stplr_door *door = stplr_door_of_file(file);
	struct stplr_door_desc one = { .fd = fd, .attributes = STPLR_DOOR_DESCRIPTOR };

	if (door) {
		one.attributes |= stplr_door_attributes(door);
		one.id = door->id;
	}
	return !copy_to_user(user, &one, sizeof(one));
}

int stplr_door_files_install(struct file **files, u32 count, struct stplr_user *owner, u64 user,
			     struct stplr_door_fds *given, int *peer_error)
{
	struct stplr_door_desc __user *room = u64_to_user_ptr(user);
	s32 fd = 0;
	u32 i;

	*peer_error = 0;
	given->count = 0;
	given->fds = NULL;
	given->owner = NULL;
	if (!count)
		return 0;
	given->fds = kmalloc_array(count, sizeof(*given->fds), GFP_KERNEL_ACCOUNT);
	if (!given->fds)
		return -ENOMEM;
	/* The message may be gone before its files are. */
	refcount_inc(&owner->refs);
	given->owner = owner;
	for (i = 0; i < count; i++) {
		fd = stplr_files_install_one(files[i], NULL, 0, peer_error);
		if (fd < 0)
			break;
		given->fds[given->count++] = (struct stplr_given){ fd, files[i] };
		if (!put_one(files[i], fd, room + i)) {
			fd = -EFAULT;
			break;
		}
	}
	if (i == count)
		return 0;
	stplr_door_files_close(given);
	return *peer_error ? 0 : fd;
}

void stplr_door_files_keep(struct stplr_door_fds *given)
{
	if (!given->fds)
		return;
	stplr_user_put(given->owner);
	kfree(given->fds);
	given->fds = NULL;
}

void stplr_door_files_close(struct stplr_door_fds *given)
{
	stplr_files_close(given->fds, given->count, given->owner);
	stplr_door_files_keep(given);
}
