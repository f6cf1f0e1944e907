/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A door: a file that calls go through. All descriptors of a door, wherever they are, are of one file, so
 * the kernel's own count of that file says how many refer to it.
 */
#ifndef STPLR_DOORS_DOOR_H
#define STPLR_DOORS_DOOR_H

#include <linux/workqueue.h>

#include "doors/pool.h"

struct stplr_message;

struct stplr_door {
	struct stplr_pool *pool; /* reference */
	refcount_t refs; /* of the file, of each call, and of the notice while it is queued */
	struct stplr_user *user; /* reference */
	u64 id;
	u64 procedure;
	u64 cookie;
	u32 attributes;
	bool revoked; /* for good; see stplr_door_sent() */
	spinlock_t lock; /* protects the next three, of which each alone may be read without */
	u64 data_min;
	u64 data_max;
	u64 desc_max;
	struct stplr_message *spare; /* owned */

	/* A single descriptor is left: the port's while it is queued. */
	struct stplr_item unref;
	unsigned long unref_state; /* STPLR_UNREF_... */
	atomic_t closes; /* of descriptors of this door */
	struct delayed_work count_work; /* counts those that are left; the next three are its own */
	struct file *counted; /* reference while it is to run */
	int closes_seen;
	unsigned int attempts;
};

#define STPLR_UNREF_QUEUED 0
#define STPLR_UNREF_TOLD 1
#define STPLR_UNREF_COUNTING 2

/**
 * stplr_door_init() - make what counts descriptors
 *
 * Return: 0, or -ENOMEM.
 */
int stplr_door_init(void);

/**
 * stplr_door_exit() - undo stplr_door_init(), when there is no door any more
 */
void stplr_door_exit(void);

/**
 * stplr_door_create() - STPLR_DOOR_CREATE
 * @pool: of the caller
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: a descriptor, or an error.
 */
long stplr_door_create(struct stplr_pool *pool, const struct stplr_door_create __user *user,
		       size_t size);

/**
 * stplr_door_put() - drop a reference
 * @door: the door
 */
void stplr_door_put(struct stplr_door *door);

/**
 * stplr_door_of_file() - look whether a file is a door
 * @file: the file
 *
 * Return: the door, which stays as long as the file, or NULL.
 */
struct stplr_door *stplr_door_of_file(const struct file *file);

/**
 * stplr_door_closing() - note that a reference is about to go that others may wait for
 * @file: of a door; the caller has that reference
 */
void stplr_door_closing(struct file *file);

/**
 * stplr_door_attributes() - what a door is to the caller
 * @door: the door
 *
 * Return: its attributes.
 */
u32 stplr_door_attributes(struct stplr_door *door);

/**
 * stplr_door_of_notice() - the door that a pulse is of
 * @item: the pulse
 *
 * Return: the door, with the pulse's reference.
 */
struct stplr_door *stplr_door_of_notice(struct stplr_item *item);

/**
 * stplr_door_noticed() - a notice has been taken out of the queue for good
 * @door: whose; drops its reference
 */
void stplr_door_noticed(struct stplr_door *door);

/**
 * stplr_door_sent() - look once more after a door that a call was queued for, or put back
 * @door: the door; if it was revoked meanwhile, calls that nobody has received end
 */
void stplr_door_sent(struct stplr_door *door);

/**
 * stplr_door_ioctl() - a command on a door
 * @file: of the door
 * @through: the file that the caller has, which keeps @file
 * @command: which
 * @argument: of the command
 *
 * Return: as the system call does.
 */
long stplr_door_ioctl(struct file *file, struct file *through, unsigned int command,
		      unsigned long argument);

/**
 * stplr_door_call() - STPLR_DOOR_CALL
 * @door: the door
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 * @file: through which it is called, which keeps the door
 *
 * Return: as the system call does.
 */
long stplr_door_call(struct stplr_door *door, struct stplr_door_call __user *user, size_t size,
		     struct file *file);

#endif
