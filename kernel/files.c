// SPDX-License-Identifier: GPL-2.0
#include "files.h"

#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "include/stplr.h"

void stplr_files_put(struct file **files, u32 count)
{
	while (count--)
		fput(files[count]);
	kfree(files);
}

struct file **stplr_files_get(const s32 __user *user, u32 count)
{
	s32 fds[STPLR_FILES_MAX];

	if (count > STPLR_FILES_MAX)
		return ERR_PTR(-EINVAL);
	if (copy_from_user(fds, user, count * sizeof(*fds)))
		return ERR_PTR(-EFAULT);
	return stplr_files_hold(fds, count);
}

struct file **stplr_files_hold(const s32 *fds, u32 count)
{
	struct file **files;
	u32 i;

	files = kmalloc_array(count, sizeof(*files), GFP_KERNEL_ACCOUNT);
	if (!files)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < count; i++) {
		files[i] = fget(fds[i]);
		if (!files[i]) {
			stplr_files_put(files, i);
			return ERR_PTR(-EBADF);
		}
	}
	return files;
}

void stplr_files_close(const s32 *fds, u32 count)
{
	while (count--)
		close_fd(fds[count]);
}

/* What the caller has too little of, or no memory for; all else is that it may not have the file. */
static bool is_callers(int err)
{
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -EFAULT;
}

s32 stplr_files_install_one(struct file *file, s32 __user *user, unsigned int flags,
			    int *peer_error)
{
	s32 fd = stplr_receive_fd(file, user, flags);

	if (fd < 0 && !is_callers(fd))
		*peer_error = fd;
	return fd;
}

int stplr_files_install(struct file **files, u32 count, s32 __user *user, s32 *fds,
			int *peer_error)
{
	u32 i;

	*peer_error = 0;
	for (i = 0; i < count; i++) {
		fds[i] = stplr_files_install_one(files[i], user + i, O_CLOEXEC, peer_error);
		if (fds[i] >= 0)
			continue;
		stplr_files_close(fds, i);
		return *peer_error ? 0 : fds[i];
	}
	return 0;
}
