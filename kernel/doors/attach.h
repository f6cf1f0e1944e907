/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Doors that are attached to files: whoever may open the file may have a descriptor of the door.
 *
 * An attachment is a mark on the inode, as inotify has them, in which the kernel keeps the inode for as
 * long, and which it takes away when the file is deleted or its file system unmounted. Nothing of the
 * file is changed.
 */
#ifndef STPLR_DOORS_ATTACH_H
#define STPLR_DOORS_ATTACH_H

#include <linux/errno.h>
#include <linux/types.h>

#include "include/stplr_doors.h"

struct file;

#ifdef CONFIG_FSNOTIFY

/**
 * stplr_attach_init() - make what attachments belong to
 *
 * Return: 0, or an error.
 */
int stplr_attach_init(void);

/**
 * stplr_attach_exit() - undo stplr_attach_init(), when nothing is attached any more
 */
void stplr_attach_exit(void);

/**
 * stplr_door_attach() - STPLR_DOOR_ATTACH
 * @door: the file of a door
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: as the system call does.
 */
long stplr_door_attach(struct file *door, const struct stplr_door_path __user *user, size_t size);

/**
 * stplr_door_detach() - STPLR_DOOR_DETACH
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: as the system call does.
 */
long stplr_door_detach(const struct stplr_door_path __user *user, size_t size);

/**
 * stplr_door_open() - STPLR_DOOR_OPEN
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: a descriptor, or an error.
 */
long stplr_door_open(const struct stplr_door_path __user *user, size_t size);

#else

static inline int stplr_attach_init(void)
{
	return 0;
}

static inline void stplr_attach_exit(void)
{
}

static inline long stplr_door_attach(struct file *door, const struct stplr_door_path __user *user,
				     size_t size)
{
	return -EOPNOTSUPP;
}

static inline long stplr_door_detach(const struct stplr_door_path __user *user, size_t size)
{
	return -EOPNOTSUPP;
}

static inline long stplr_door_open(const struct stplr_door_path __user *user, size_t size)
{
	return -EOPNOTSUPP;
}

#endif

#endif
