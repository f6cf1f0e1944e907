// SPDX-License-Identifier: GPL-2.0
#include "doors/fs.h"

#include <linux/capability.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/fs_parser.h>
#include <linux/kdev_t.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/stat.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>

#include "compat.h"
#include "doors/door.h"
#include "include/stplr_doors.h"
#include "park.h"

/* What is asked for when it is mounted. */
struct wanted {
	struct file *door; /* reference */
	umode_t mode;
	kuid_t uid;
	kgid_t gid;
};

enum option { OPTION_FD, OPTION_MODE, OPTION_UID, OPTION_GID };

static const struct fs_parameter_spec options[] = {
	fsparam_u32("fd", OPTION_FD),
	fsparam_u32oct("mode", OPTION_MODE),
	fsparam_u32("uid", OPTION_UID),
	fsparam_u32("gid", OPTION_GID),
	{}
};

/*
 * The door's own file. It is the superblock's, which an open file keeps, even where it has been unmounted
 * meanwhile; so however many have it open, it is one reference of the door.
 */
static struct file *door_of(const struct file *file)
{
	return file_inode(file)->i_sb->s_fs_info;
}

static long forward(struct file *file, unsigned int command, unsigned long argument)
{
	return stplr_door_ioctl(door_of(file), file, command, argument);
}

static void show_fdinfo(struct seq_file *to, struct file *file)
{
	struct file *door = door_of(file);

	door->f_op->show_fdinfo(to, door);
}

static const struct file_operations file_operations = {
	.owner = THIS_MODULE,
	.flush = stplr_unpark_file,
	.unlocked_ioctl = forward,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = show_fdinfo,
	.llseek = noop_llseek,
};

const struct file *stplr_doorfs_behind(const struct file *file)
{
	return file->f_op == &file_operations ? door_of(file) : file;
}

static int show_options(struct seq_file *to, struct dentry *root)
{
	const struct inode *inode = d_inode(root);

	seq_printf(to, ",mode=%o,uid=%u,gid=%u", inode->i_mode & 0777,
		   from_kuid_munged(&init_user_ns, inode->i_uid),
		   from_kgid_munged(&init_user_ns, inode->i_gid));
	return 0;
}

static const struct super_operations super_operations = {
	.statfs = simple_statfs,
	.show_options = show_options,
};

/* A file, and no directory: it is the root, and can be mounted over files alone. */
static int fill(struct super_block *super, struct fs_context *context)
{
	struct wanted *wanted = context->fs_private;
	struct inode *inode;

	super->s_magic = STPLR_DOORFS_MAGIC;
	super->s_blocksize = PAGE_SIZE;
	super->s_blocksize_bits = PAGE_SHIFT;
	super->s_op = &super_operations;
	super->s_time_gran = 1;
	super->s_maxbytes = 0; /* nothing is written, nor made longer */
	super->s_iflags |= SB_I_NODEV | SB_I_NOEXEC;
	super->s_fs_info = get_file(wanted->door);
	inode = new_inode(super);
	if (!inode)
		return -ENOMEM;
	inode->i_ino = 1;
	inode->i_mode = S_IFREG | wanted->mode;
	inode->i_uid = wanted->uid;
	inode->i_gid = wanted->gid;
	inode->i_rdev = MKDEV(0, STPLR_DOORFS_MINOR);
	inode->i_fop = &file_operations;
	stplr_init_times(inode);
	super->s_root = d_make_root(inode);
	return super->s_root ? 0 : -ENOMEM;
}

static int get_tree(struct fs_context *context)
{
	struct wanted *wanted = context->fs_private;

	if (!wanted->door)
		return invalfc(context, "fd=, the descriptor of a door, is missing");
	return get_tree_nodev(context, fill);
}

static int take_door(struct fs_context *context, unsigned int fd)
{
	struct wanted *wanted = context->fs_private;
	struct file *file = fget(fd);
	const struct file *door;

	if (!file)
		return -EBADF;
	door = stplr_doorfs_behind(file);
	if (!stplr_door_of_file(door)) {
		fput(file);
		return invalfc(context, "fd= is no door of the kernel");
	}
	if (wanted->door) {
		stplr_door_closing(wanted->door);
		fput(wanted->door);
	}
	wanted->door = get_file((struct file *)door);
	fput(file);
	return 0;
}

static int parse(struct fs_context *context, struct fs_parameter *parameter)
{
	struct wanted *wanted = context->fs_private;
	struct fs_parse_result result;
	int option = fs_parse(context, options, parameter, &result);

	if (option >= 0 && context->purpose == FS_CONTEXT_FOR_RECONFIGURE)
		return invalfc(context, "a door that is mounted stays as it is");
	switch (option) {
	case OPTION_FD:
		return take_door(context, result.uint_32);
	case OPTION_MODE:
		if (result.uint_32 & ~0777u)
			return invalfc(context, "mode= has permissions alone");
		wanted->mode = result.uint_32;
		return 0;
	case OPTION_UID:
		wanted->uid = make_kuid(context->user_ns, result.uint_32);
		return uid_valid(wanted->uid) ? 0 : invalfc(context, "uid= is no user here");
	case OPTION_GID:
		wanted->gid = make_kgid(context->user_ns, result.uint_32);
		return gid_valid(wanted->gid) ? 0 : invalfc(context, "gid= is no group here");
	default:
		return option;
	}
}

static void free_wanted(struct fs_context *context)
{
	struct wanted *wanted = context->fs_private;

	if (!wanted)
		return;
	if (wanted->door) {
		stplr_door_closing(wanted->door);
		fput(wanted->door);
	}
	kfree(wanted);
}

static const struct fs_context_operations context_operations = {
	.parse_param = parse,
	.get_tree = get_tree,
	.free = free_wanted,
};

/* For root of the whole system alone: FS_USERNS_MOUNT is not set, and nobody else is to get this far. */
static int init_context(struct fs_context *context)
{
	struct wanted *wanted;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	wanted = kzalloc(sizeof(*wanted), GFP_KERNEL_ACCOUNT);
	if (!wanted)
		return -ENOMEM;
	wanted->mode = 0600;
	wanted->uid = GLOBAL_ROOT_UID;
	wanted->gid = GLOBAL_ROOT_GID;
	context->fs_private = wanted;
	context->ops = &context_operations;
	return 0;
}

static void kill_super(struct super_block *super)
{
	struct file *door = super->s_fs_info;

	kill_anon_super(super);
	if (!door)
		return;
	stplr_door_closing(door);
	fput(door);
}

/* Without an alias: whoever has a door to mount has the module. */
static struct file_system_type type = {
	.owner = THIS_MODULE,
	.name = "doorfs",
	.init_fs_context = init_context,
	.parameters = options,
	.kill_sb = kill_super,
};

int stplr_doorfs_init(void)
{
	return register_filesystem(&type);
}

void stplr_doorfs_exit(void)
{
	unregister_filesystem(&type);
}
