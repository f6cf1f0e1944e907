// SPDX-License-Identifier: GPL-2.0
#include "doors/attach.h"

#include <linux/dcache.h>
#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fsnotify_backend.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "doors/door.h"
#include "doors/fs.h"
#include "files.h"
#include "user.h"
#include "words.h"

struct attachment {
	struct fsnotify_mark mark;
	struct file *door; /* reference */
	struct stplr_user *user; /* reference: whose it is */
};

/* With the inode that it keeps, of which a file system's own part may be as large as the kernel's. */
#define COST (sizeof(struct attachment) + 2 * sizeof(struct inode))

static struct fsnotify_group *attachments;

static struct attachment *attachment_of(struct fsnotify_mark *mark)
{
	return container_of(mark, struct attachment, mark);
}

/* No event is asked for. */
static int ignore(struct fsnotify_mark *mark, u32 mask, struct inode *inode, struct inode *dir,
		  const struct qstr *name, u32 cookie)
{
	return 0;
}

static void free_attachment(struct fsnotify_mark *mark)
{
	struct attachment *attachment = attachment_of(mark);

	stplr_door_closing(attachment->door);
	fput(attachment->door);
	stplr_user_put_charged(attachment->user, COST);
	kfree(attachment);
}

static const struct fsnotify_ops ops = {
	.handle_inode_event = ignore,
	.free_mark = free_attachment,
};

int stplr_attach_init(void)
{
	attachments = fsnotify_alloc_group(&ops, 0);
	return PTR_ERR_OR_ZERO(attachments);
}

void stplr_attach_exit(void)
{
	/* The last of them may be on its way out still. */
	fsnotify_wait_marks_destroyed();
	fsnotify_put_group(attachments);
}

/*
 * The file that a program means, with a reference. It need not be open for anything where it is not to be
 * opened in the end: a descriptor of the door is for who may.
 */
static struct file *get_path(const struct stplr_door_path __user *user, size_t size, u32 flags,
			     bool unopened, struct stplr_door_path *arguments)
{
	int err = stplr_get_sized(arguments, user, size, STPLR_DOOR_PATH_SIZE_VER0);
	struct file *file;

	if (err)
		return ERR_PTR(err);
	if (arguments->flags & ~flags)
		return ERR_PTR(-EINVAL);
	unopened |= !!(arguments->flags & STPLR_DOOR_LOOK);
	file = unopened ? fget_raw(arguments->fd) : fget(arguments->fd);
	if (!file)
		return ERR_PTR(-EBADF);
	if (S_ISREG(file_inode(file)->i_mode))
		return file;
	fput(file);
	return ERR_PTR(-EINVAL);
}

static struct attachment *attachment_new(struct file *door)
{
	struct attachment *attachment = kzalloc(sizeof(*attachment), GFP_KERNEL_ACCOUNT);
	int err;

	if (!attachment)
		return ERR_PTR(-ENOMEM);
	err = stplr_user_get_charged(&attachment->user, NULL, COST);
	if (err) {
		kfree(attachment);
		return ERR_PTR(err);
	}
	attachment->door = get_file(door);
	fsnotify_init_mark(&attachment->mark, attachments);
	return attachment;
}

/*
 * Files of proc, and of a control group, go with what they are about and not by being deleted: no mark on them
 * would ever go, nor its door, nor the module. Their file systems have it in common that nothing of theirs can
 * be a program, whatever they are mounted with. So with files of a mount of the kernel's own that count as
 * linked all the same (memfd_secret(2)): what has no name is not deleted.
 */
static bool is_of_kernel(const struct file *path)
{
	const struct inode *inode = file_inode(path);

	return inode->i_sb->s_iflags & SB_I_NOEXEC || (inode->i_sb->s_flags & SB_NOUSER && inode->i_nlink);
}

/*
 * Whether it is in a folder that nothing is deleted from, as files are of the control file system of FUSE, which go
 * with what they are about, too. What has been deleted goes with its last descriptor; what is the root of its
 * file system goes with that.
 */
static bool is_for_good(const struct file *path)
{
	struct dentry *entry = path->f_path.dentry, *folder;
	bool keeps;

	if (!file_inode(path)->i_nlink || IS_ROOT(entry))
		return false;
	folder = dget_parent(entry);
	keeps = !d_inode(folder)->i_op->unlink;
	dput(folder);
	return keeps;
}

static long attach(struct file *door, struct file *path)
{
	struct attachment *attachment;
	int err;

	/* A door that is mounted is one already. */
	if (stplr_doorfs_behind(path) != path)
		return -EBUSY;
	if (is_of_kernel(path))
		return -EINVAL;
	if (!stplr_owns(path))
		return -EPERM;
	if (!(path->f_mode & FMODE_WRITE))
		return -EACCES;
	if (is_for_good(path))
		return -EINVAL;
	attachment = attachment_new(door);
	if (IS_ERR(attachment))
		return PTR_ERR(attachment);
	err = fsnotify_add_inode_mark(&attachment->mark, file_inode(path), 0);
	/* If that has succeeded the inode has another reference. */
	fsnotify_put_mark(&attachment->mark);
	return err == -EEXIST ? -EBUSY : err;
}

long stplr_door_attach(struct file *door, const struct stplr_door_path __user *user, size_t size)
{
	struct stplr_door_path arguments;
	struct file *path = get_path(user, size, 0, false, &arguments);
	long err;

	if (IS_ERR(path))
		return PTR_ERR(path);
	err = attach(door, path);
	fput(path);
	return err;
}

long stplr_door_detach(const struct stplr_door_path __user *user, size_t size)
{
	struct stplr_door_path arguments;
	struct file *path = get_path(user, size, 0, true, &arguments);
	struct fsnotify_mark *mark;
	long err = 0;

	if (IS_ERR(path))
		return PTR_ERR(path);
	mark = stplr_find_mark(file_inode(path), attachments);
	if (!mark)
		err = -EINVAL;
	else if (!stplr_owns(path))
		err = -EPERM;
	else
		fsnotify_destroy_mark(mark, attachments);
	if (mark)
		fsnotify_put_mark(mark);
	fput(path);
	return err;
}

long stplr_door_open(const struct stplr_door_path __user *user, size_t size)
{
	struct stplr_door_path arguments;
	struct file *path = get_path(user, size, STPLR_DOOR_CLOEXEC | STPLR_DOOR_LOOK, false,
				     &arguments);
	struct fsnotify_mark *mark;
	int peer_error;
	long fd = 0;

	if (IS_ERR(path))
		return PTR_ERR(path);
	mark = stplr_find_mark(file_inode(path), attachments);
	fput(path);
	if (!mark)
		return -ENXIO;
	if (!(arguments.flags & STPLR_DOOR_LOOK))
		fd = stplr_files_install_one(attachment_of(mark)->door, NULL,
					     arguments.flags & STPLR_DOOR_CLOEXEC ? O_CLOEXEC : 0,
					     &peer_error);
	fsnotify_put_mark(mark);
	return fd;
}
