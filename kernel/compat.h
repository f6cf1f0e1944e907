/* SPDX-License-Identifier: GPL-2.0 */
/* What differs between the kernels that this module supports, 6.1 and later, and their compilers. */
#ifndef STPLR_COMPAT_H
#define STPLR_COMPAT_H

#include <linux/anon_inodes.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fsnotify_backend.h>
#include <linux/mm.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>
#include <linux/uaccess.h>
#include <linux/version.h>

/*
 * Wake flags live in the scheduler's private header; wait queues pass them through. WF_SYNC: the
 * waker is about to sleep, so unless another processor idles this one is the place for the other.
 * WF_CURRENT_CPU, from 6.6: this one in any case.
 */
#define STPLR_WAKE_SYNC 0x10
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define STPLR_WAKE_HANDOFF (STPLR_WAKE_SYNC | 0x40)
#else
#define STPLR_WAKE_HANDOFF STPLR_WAKE_SYNC
#endif

static inline long stplr_pin_remote(struct mm_struct *mm, unsigned long start, unsigned long nr,
				    unsigned int flags, struct page **pages)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	return pin_user_pages_remote(mm, start, nr, flags, pages, NULL);
#else
	return pin_user_pages_remote(mm, start, nr, flags, pages, NULL, NULL);
#endif
}

/*
 * An address without what its process has in bits that the processor passes over, as maps know it, with mmap_lock
 * held. Whatever copies or takes pages sees to that itself, and the copies need those bits to compare.
 */
static inline u64 stplr_untagged(struct mm_struct *mm, u64 address)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	return untagged_addr_remote(mm, address);
#else
	return untagged_addr(address);
#endif
}

/* To read from at once: pages that are shared with other processes stay shared. */
static inline long stplr_get_remote(struct mm_struct *mm, unsigned long start, unsigned long nr,
				    unsigned int flags, struct page **pages)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	return get_user_pages_remote(mm, start, nr, flags, pages, NULL);
#else
	return get_user_pages_remote(mm, start, nr, flags, pages, NULL, NULL);
#endif
}

/* Of the calling process. Does not let go of mmap_lock. */
static inline long stplr_pin_own(unsigned long start, unsigned long nr, unsigned int flags,
				 struct page **pages)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	return pin_user_pages(start, nr, flags, pages);
#else
	return pin_user_pages(start, nr, flags, pages, NULL);
#endif
}

/*
 * Which system call the thread is in, and begins anew if it is to; its arguments stay. False: where the number
 * is kept is not known here.
 */
static inline bool stplr_set_syscall(long number)
{
#ifdef CONFIG_X86
	current_pt_regs()->orig_ax = number;
	return true;
#else
	return false;
#endif
}

/*
 * Takes a descriptor of the caller's away, and what it has of the file, without a flush: filp_close() is to come.
 * False: it is of no such file. Meanwhile it is one that somebody is about to use.
 */
static inline bool stplr_take_fd(unsigned int fd, const struct file *file)
{
	struct files_struct *files = current->files;
	bool is_there;

	spin_lock(&files->file_lock);
	is_there = files_lookup_fd_locked(files, fd) == file;
	if (is_there)
		rcu_assign_pointer(files_fdtable(files)->fd[fd], NULL);
	spin_unlock(&files->file_lock);
	if (is_there)
		put_unused_fd(fd);
	return is_there;
}

/* Tells the program of it at to, if that is not NULL; where the kernel lets modules do so, before it can be used. */
static inline int stplr_receive_fd(struct file *file, int __user *to, unsigned int flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	return receive_fd(file, to, flags);
#else
	int fd = receive_fd(file, flags);

	if (fd < 0 || !to || !put_user(fd, to))
		return fd;
	/* The caller has a reference, so nothing is closed by this; and there is nothing to flush. */
	if (stplr_take_fd(fd, file))
		fput(file);
	return -EFAULT;
#endif
}

/*
 * A descriptor of a file with an inode of its own, which security modules label. The file, and with it
 * priv, is there for nobody before this returns.
 */
static inline int stplr_anon_fd(const char *name, const struct file_operations *operations, void *priv)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	int fd = get_unused_fd_flags(O_CLOEXEC);
	struct file *file;

	if (fd < 0)
		return fd;
	file = anon_inode_create_getfile(name, operations, priv, O_RDWR, NULL);
	if (IS_ERR(file)) {
		put_unused_fd(fd);
		return PTR_ERR(file);
	}
	fd_install(fd, file);
	return fd;
#else
	return anon_inode_getfd_secure(name, operations, priv, O_RDWR | O_CLOEXEC, NULL);
#endif
}

/* Whether the caller owns an open file, or may do as if. */
static inline bool stplr_owns(const struct file *file)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	return inode_owner_or_capable(file_mnt_idmap(file), file_inode(file));
#else
	return inode_owner_or_capable(file_mnt_user_ns((struct file *)file), file_inode(file));
#endif
}

/* That an inode is made, read and changed now. */
static inline void stplr_init_times(struct inode *inode)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	simple_inode_init_ts(inode);
#else
	inode->i_atime = inode->i_mtime = inode->i_ctime = current_time(inode);
#endif
}

#ifdef CONFIG_FSNOTIFY
/* A group's mark on an inode, with a reference, or NULL. */
static inline struct fsnotify_mark *stplr_find_mark(struct inode *inode,
						    struct fsnotify_group *group)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	return fsnotify_find_mark(inode, FSNOTIFY_OBJ_TYPE_INODE, group);
#else
	return fsnotify_find_mark(&inode->i_fsnotify_marks, group);
#endif
}
#endif

static inline struct class *stplr_class_create(const char *name)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	return class_create(name);
#else
	return class_create(THIS_MODULE, name);
#endif
}

/* The slice that a thread has asked for by sched_setattr(2), or 0. */
static inline u64 stplr_own_slice(const struct task_struct *task)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	return task->se.custom_slice ? READ_ONCE(task->se.slice) : 0;
#else
	return 0;
#endif
}

/* Since 6.16 the probe is told in addition whether the whole process is gone. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define STPLR_EXIT_PROBE_ARGS void *data, struct task_struct *task, bool group_dead
#else
#define STPLR_EXIT_PROBE_ARGS void *data, struct task_struct *task
#endif

/* What shmem_file_setup() takes: no flags. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
#define STPLR_NO_VMA_FLAGS EMPTY_VMA_FLAGS
#else
#define STPLR_NO_VMA_FLAGS 0
#endif

#endif
