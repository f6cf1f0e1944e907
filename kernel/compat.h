/* SPDX-License-Identifier: GPL-2.0 */
/* What differs between the kernels that this module supports, 6.1 and later, and their compilers. */
#ifndef STPLR_COMPAT_H
#define STPLR_COMPAT_H

#include <linux/device.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/sched.h>
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

static inline int stplr_receive_fd(struct file *file, unsigned int flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	return receive_fd(file, NULL, flags);
#else
	return receive_fd(file, flags);
#endif
}

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

/*
 * For a variable whose every word that counts is written before it is read. Kernels that clear all
 * of the stack (INIT_STACK_ALL) would clear it first, word by word.
 */
#if __has_attribute(__uninitialized__)
#define STPLR_UNSET __attribute__((__uninitialized__))
#else
#define STPLR_UNSET
#endif

/* Since 6.16 the probe is told in addition whether the whole process is gone. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define STPLR_EXIT_PROBE_ARGS void *data, struct task_struct *task, bool group_dead
#else
#define STPLR_EXIT_PROBE_ARGS void *data, struct task_struct *task
#endif

#endif
