/* SPDX-License-Identifier: GPL-2.0 */
/* Descriptors that go along with a message: on their way they are files. */
#ifndef STPLR_FILES_H
#define STPLR_FILES_H

#include <linux/types.h>

struct file;

/**
 * stplr_files_get() - take files along
 * @user: the caller's array of descriptors
 * @count: how many it has
 *
 * Return: references to as many, or ERR_PTR(-EINVAL, -EFAULT, -ENOMEM, -EBADF).
 */
struct file **stplr_files_get(const s32 __user *user, u32 count);

/**
 * stplr_files_hold() - the same with descriptors that are known already
 * @fds: the descriptors
 * @count: how many there are
 *
 * Return: references to as many, or ERR_PTR(-ENOMEM, -EBADF).
 */
struct file **stplr_files_hold(const s32 *fds, u32 count);

/**
 * stplr_files_put() - undo stplr_files_get()
 * @files: what it returned
 * @count: how many there are
 */
void stplr_files_put(struct file **files, u32 count);

/**
 * stplr_files_install() - give the caller descriptors
 * @files: of what
 * @count: of how many of them
 * @user: the caller's array, in which it is told of them
 * @fds: the same for stplr_files_close()
 * @peer_error: what is wrong with the files, or 0: whoever sends what may not be received is not in the
 *	way of others
 *
 * Return: 0, or what the caller has too little of. Unless it and @peer_error are 0 there are none.
 */
int stplr_files_install(struct file **files, u32 count, s32 __user *user, s32 *fds,
			int *peer_error);

/**
 * stplr_files_install_one() - give the caller one of them
 * @file: of what
 * @user: where it is told of it, or NULL
 * @flags: O_CLOEXEC or 0
 * @peer_error: gets what is wrong with the file, if something is
 *
 * Return: the descriptor, or an error, which is the caller's unless *peer_error is set.
 */
s32 stplr_files_install_one(struct file *file, s32 __user *user, unsigned int flags,
			    int *peer_error);

/**
 * stplr_files_close() - undo stplr_files_install()
 * @fds: what it gave
 * @count: how many
 */
void stplr_files_close(const s32 *fds, u32 count);

#endif
