/* SPDX-License-Identifier: GPL-2.0 */
/* Descriptors with attributes, as doors pass them; on their way they are files. */
#ifndef STPLR_DOORS_DESCRIPTORS_H
#define STPLR_DOORS_DESCRIPTORS_H

#include <linux/types.h>

#include "include/stplr_doors.h"

struct file;
struct stplr_given;
struct stplr_user;

/**
 * stplr_door_files_get() - take files along
 * @user: address of the caller's struct stplr_door_desc
 * @count: how many there are, at most STPLR_DOOR_FILES_MAX
 *
 * Return: references to as many; NULL for none; or ERR_PTR(-EFAULT, -EINVAL, -ENOMEM).
 */
struct file **stplr_door_files_get(u64 user, u32 count);

/* Descriptors that were given to the caller, so that they can be taken back. */
struct stplr_door_fds {
	u32 count;
	struct stplr_given *fds;
	struct stplr_user *owner; /* reference; whose files they are, if there are any */
};

/**
 * stplr_door_files_install() - give the caller descriptors, open across exec
 * @files: of what
 * @count: of how many
 * @owner: whose files they are
 * @user: address of room for as many struct stplr_door_desc
 * @given: what to pass to one of the next two, if this succeeds
 * @peer_error: what is wrong with the files, or 0
 *
 * Return: 0, -EFAULT, or what the caller has too little of: -EMFILE, -ENFILE, -ENOMEM. Unless it and
 * @peer_error are 0 there are none.
 */
int stplr_door_files_install(struct file **files, u32 count, struct stplr_user *owner, u64 user,
			     struct stplr_door_fds *given, int *peer_error);

/**
 * stplr_door_files_keep() - the caller keeps them
 * @given: what was given
 */
void stplr_door_files_keep(struct stplr_door_fds *given);

/**
 * stplr_door_files_close() - the caller does not
 * @given: what was given
 */
void stplr_door_files_close(struct stplr_door_fds *given);

#endif
