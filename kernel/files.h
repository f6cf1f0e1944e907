/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Descriptors that go along with a message: on their way they are files.
 *
 * Who closes a file may wait for it: for a program that is its file system, or for bytes that a socket has
 * still to send. A server does not wait for files of its clients, so they are closed elsewhere, by work
 * that is apart for each user.
 */
#ifndef STPLR_FILES_H
#define STPLR_FILES_H

#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/workqueue.h>

struct file;
struct stplr_user;

/* So many closes of one user's files may be waited for before another of its has to wait. */
#define STPLR_CLOSERS 8

struct stplr_closer {
	struct work_struct work;
	bool busy; /* and has a reference to the user */
	struct stplr_user *user;
};

struct stplr_closing {
	spinlock_t lock; /* protects the list, and who is busy */
	struct list_head batches; /* that nobody is at yet */
	struct stplr_closer closers[STPLR_CLOSERS];
};

/* A descriptor that the caller was given. The file is only compared: the descriptor may be another's by now. */
struct stplr_given {
	s32 fd;
	struct file *file;
};

/* What a file on its way is charged: whoever has sent it may have closed its descriptor. */
#define STPLR_FILE_COST (sizeof(struct file) + sizeof(struct file *))

/**
 * stplr_files_init() - make what closes files elsewhere
 *
 * Return: 0, or -ENOMEM.
 */
int stplr_files_init(void);

/**
 * stplr_files_exit() - undo stplr_files_init(), when nobody has files any more
 */
void stplr_files_exit(void);

/**
 * stplr_closing_init() - get ready to close files of a user
 * @user: whose; its part for this
 */
void stplr_closing_init(struct stplr_user *user);

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
 * stplr_files_put() - undo stplr_files_get(), by whoever may wait for files to be closed
 * @files: what it returned
 * @count: how many there are
 */
void stplr_files_put(struct file **files, u32 count);

/**
 * stplr_files_leave() - the same by anybody else: they are closed elsewhere
 * @files: what stplr_files_get() returned
 * @count: how many there are
 * @user: whose they are
 * @bytes: what it is charged for them, which is given back then
 */
void stplr_files_leave(struct file **files, u32 count, struct stplr_user *user, size_t bytes);

/**
 * stplr_files_leave_anyway() - the same where nothing is charged for them yet: it is, beyond the limit or not
 * @files: what stplr_files_get() returned
 * @count: how many there are
 * @user: whose they are
 */
void stplr_files_leave_anyway(struct file **files, u32 count, struct stplr_user *user);

/**
 * stplr_files_install() - give the caller descriptors
 *
 * They are there before it is sure that the caller keeps them: what asks security modules is
 * receive_fd(), which installs at once, and the kernel has nothing else for modules.
 * @files: of what
 * @count: of how many of them
 * @owner: whose files they are
 * @user: the caller's array, in which it is told of them
 * @given: the same for stplr_files_close()
 * @peer_error: what is wrong with the files, or 0: whoever sends what may not be received is not in the
 *	way of others
 *
 * Return: 0, or what the caller has too little of. Unless it and @peer_error are 0 there are none.
 */
int stplr_files_install(struct file **files, u32 count, struct stplr_user *owner,
			s32 __user *user, struct stplr_given *given, int *peer_error);

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
 * @given: what it gave
 * @count: how many
 * @owner: whose files they are; they are closed elsewhere
 */
void stplr_files_close(const struct stplr_given *given, u32 count, struct stplr_user *owner);

#endif
