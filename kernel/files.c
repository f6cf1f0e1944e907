// SPDX-License-Identifier: GPL-2.0
#include "files.h"

#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "include/stplr.h"
#include "user.h"

/* How many descriptors are taken back together. */
#define TAKEN 16

/* Files; and what becomes of them where they are closed elsewhere. */
struct batch {
	struct list_head node;
	bool flush; /* they were descriptors */
	size_t bytes; /* charged for them */
	u32 count;
	struct file *files[];
};

/* One for each of a user's closers: only as many users as a queue takes work of could fill it. */
static struct workqueue_struct *closing[STPLR_CLOSERS];

int stplr_files_init(void)
{
	int i;

	for (i = 0; i < STPLR_CLOSERS; i++) {
		closing[i] = alloc_workqueue("stplr_files%d", WQ_UNBOUND, WQ_MAX_ACTIVE, i);
		if (!closing[i]) {
			stplr_files_exit();
			return -ENOMEM;
		}
	}
	return 0;
}

void stplr_files_exit(void)
{
	int i;

	for (i = 0; i < STPLR_CLOSERS && closing[i]; i++)
		destroy_workqueue(closing[i]);
}

/* The last reference goes here and nowhere else: the kernel's own work for that is one for all files. */
static void close_batch(struct batch *batch)
{
	u32 i;

	for (i = 0; i < batch->count; i++) {
		struct file *file = batch->files[i];

		if (batch->flush) {
			get_file(file);
			filp_close(file, NULL);
		}
		__fput_sync(file);
	}
	kfree(batch);
}

/* The next that nobody is at. NULL: there is none, and the caller is not busy any more. */
static struct batch *next_batch(struct stplr_closer *closer)
{
	struct stplr_closing *of_user = &closer->user->closing;
	struct batch *batch;

	spin_lock(&of_user->lock);
	batch = list_first_entry_or_null(&of_user->batches, struct batch, node);
	if (batch)
		list_del(&batch->node);
	else
		closer->busy = false;
	spin_unlock(&of_user->lock);
	return batch;
}

static void close_batches(struct work_struct *work)
{
	struct stplr_closer *closer = container_of(work, struct stplr_closer, work);
	struct stplr_user *user = closer->user;
	struct batch *batch;

	while ((batch = next_batch(closer))) {
		const size_t bytes = batch->bytes;

		close_batch(batch);
		stplr_user_uncharge(user, bytes);
	}
	stplr_user_put(user);
	/* This runs in a queue that is emptied before the module goes. */
	module_put(THIS_MODULE);
}

void stplr_closing_init(struct stplr_user *user)
{
	struct stplr_closing *of_user = &user->closing;
	int i;

	spin_lock_init(&of_user->lock);
	INIT_LIST_HEAD(&of_user->batches);
	for (i = 0; i < STPLR_CLOSERS; i++) {
		INIT_WORK(&of_user->closers[i].work, close_batches);
		of_user->closers[i].busy = false;
		of_user->closers[i].user = user;
	}
}

static struct stplr_closer *find_idle_locked(struct stplr_closing *of_user)
{
	int i;

	for (i = 0; i < STPLR_CLOSERS; i++)
		if (!of_user->closers[i].busy)
			return &of_user->closers[i];
	return NULL;
}

/* The user is there for as long as there is work; and so is the module, which would have to wait for it. */
static void close_elsewhere(struct batch *batch, struct stplr_user *user)
{
	struct stplr_closing *of_user = &user->closing;
	struct stplr_closer *closer;

	spin_lock(&of_user->lock);
	list_add_tail(&batch->node, &of_user->batches);
	closer = find_idle_locked(of_user);
	if (closer) {
		closer->busy = true;
		refcount_inc(&user->refs);
		__module_get(THIS_MODULE);
		queue_work(closing[closer - of_user->closers], &closer->work);
	}
	spin_unlock(&of_user->lock);
}

static struct batch *batch_of(struct file **files)
{
	return container_of(files, struct batch, files[0]);
}

void stplr_files_put(struct file **files, u32 count)
{
	while (count--)
		fput(files[count]);
	kfree(batch_of(files));
}

void stplr_files_leave(struct file **files, u32 count, struct stplr_user *user, size_t bytes)
{
	struct batch *batch = batch_of(files);

	batch->flush = false;
	batch->bytes = bytes;
	batch->count = count;
	close_elsewhere(batch, user);
}

void stplr_files_leave_anyway(struct file **files, u32 count, struct stplr_user *user)
{
	const size_t bytes = sizeof(struct batch) + count * STPLR_FILE_COST;

	stplr_user_charge_anyway(user, bytes);
	stplr_files_leave(files, count, user, bytes);
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
	struct batch *batch;
	struct file **files;
	u32 i;

	batch = kmalloc(struct_size(batch, files, count), GFP_KERNEL_ACCOUNT);
	if (!batch)
		return ERR_PTR(-ENOMEM);
	files = batch->files;
	for (i = 0; i < count; i++) {
		files[i] = fget_raw(fds[i]);
		if (!files[i]) {
			stplr_files_put(files, i);
			return ERR_PTR(-EBADF);
		}
	}
	return files;
}

/*
 * Up to TAKEN of them. What is taken has to go somewhere, so there has to be room for it; and it is the
 * owner's until it is closed, whatever that may hold.
 */
static void take_back(const struct stplr_given *given, u32 count, struct stplr_user *owner)
{
	struct batch *batch;

	batch = kmalloc(struct_size(batch, files, TAKEN), GFP_KERNEL | __GFP_NOFAIL);
	batch->flush = true;
	batch->count = 0;
	while (count--)
		/* Another thread may have closed it, and opened something else there. */
		if (stplr_take_fd(given[count].fd, given[count].file))
			batch->files[batch->count++] = given[count].file;
	batch->bytes = sizeof(*batch) + batch->count * STPLR_FILE_COST;
	stplr_user_charge_anyway(owner, batch->bytes);
	close_elsewhere(batch, owner);
}

void stplr_files_close(const struct stplr_given *given, u32 count, struct stplr_user *owner)
{
	u32 i;

	for (i = 0; i < count; i += TAKEN)
		take_back(given + i, min_t(u32, count - i, TAKEN), owner);
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

int stplr_files_install(struct file **files, u32 count, struct stplr_user *owner,
			s32 __user *user, struct stplr_given *given, int *peer_error)
{
	s32 fd;
	u32 i;

	*peer_error = 0;
	for (i = 0; i < count; i++) {
		fd = stplr_files_install_one(files[i], user + i, O_CLOEXEC, peer_error);
		if (fd < 0) {
			stplr_files_close(given, i, owner);
			return *peer_error ? 0 : fd;
		}
		given[i] = (struct stplr_given){ fd, files[i] };
	}
	return 0;
}
