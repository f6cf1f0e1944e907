/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The first interface: a thread's handle, and the port behind it.
 *
 * A mailbox belongs to the thread that took the handle, until that thread gives it back or ends, or
 * the file is released for good. Threads find each other's mailbox by device and task.
 */
#ifndef STPLR_MAILBOX_H
#define STPLR_MAILBOX_H

#include <linux/list.h>
#include <linux/types.h>

#include "debugfs.h"
#include "exit.h"
#include "port.h"
#include "user.h"

struct file;
struct pid;
struct stplr_message;

/* One open of one device by one process, whoever else has the descriptor. */
struct stplr_open {
	struct hlist_node node; /* in the table of opens, protected by its lock */
	int minor;
	struct pid *tgid; /* reference */
	struct stplr_user *user; /* reference */
	struct list_head mailboxes; /* protected by the lock in mailbox.c */
};

struct stplr_mailbox {
	struct stplr_port port;
	struct stplr_shown shown;
	struct hlist_node node, by_uuid; /* in the tables; read under RCU */
	struct list_head sibling; /* in open->mailboxes */
	const struct stplr_open *open; /* while registered; compared, never followed */
	struct stplr_watch watch;
	struct rcu_head rcu;
	refcount_t refs; /* one while registered, one for each call in progress */
	bool registered;
	struct stplr_user *user; /* who is charged; a reference */
	struct task_struct *task; /* reference, so that no later thread looks like it */
	int minor;
	u64 uuid;
	int tid; /* for people to read */
	struct stplr_message *spare; /* owned */
};

/**
 * stplr_mailbox_own() - the mailbox of the calling thread
 * @open: of its process
 * @uuid: what is to name it
 *
 * Return: the mailbox with a reference, or ERR_PTR(-EBADR, -ENODEV).
 */
struct stplr_mailbox *stplr_mailbox_own(struct stplr_open *open, u64 uuid);

/**
 * stplr_mailbox_other() - the mailbox of another thread
 * @open: of the calling process
 * @pid: of the other's, in the caller's namespace
 * @tid: of the other, likewise
 *
 * Return: the mailbox with a reference, or ERR_PTR(-ENODEV).
 */
struct stplr_mailbox *stplr_mailbox_other(struct stplr_open *open, s32 pid, s32 tid);

/**
 * stplr_mailbox_drop() - drop a reference
 * @mailbox: the mailbox
 */
void stplr_mailbox_drop(struct stplr_mailbox *mailbox);

/**
 * stplr_mailbox_get() - STPLR_HANDLE_GET
 * @open: of the calling process
 * @argument: of the program
 *
 * Return: as the system call does.
 */
long stplr_mailbox_get(struct stplr_open *open, void __user *argument);

/**
 * stplr_mailbox_put() - STPLR_HANDLE_PUT
 * @open: of the calling process
 * @argument: of the program
 *
 * Return: as the system call does.
 */
long stplr_mailbox_put(struct stplr_open *open, void __user *argument);

/**
 * stplr_mailbox_release_all() - end all mailboxes of an open, which is released
 * @open: that
 */
void stplr_mailbox_release_all(struct stplr_open *open);

/**
 * stplr_mailbox_send() - STPLR_MSG_SEND
 * @open: of the calling process
 * @argument: of the program
 * @file: of the node
 *
 * Return: as the system call does.
 */
long stplr_mailbox_send(struct stplr_open *open, void __user *argument, struct file *file);

/**
 * stplr_mailbox_send_receive() - STPLR_MSG_SEND_RECEIVE
 * @open: of the calling process
 * @argument: of the program
 * @file: of the node
 *
 * Return: as the system call does.
 */
long stplr_mailbox_send_receive(struct stplr_open *open, void __user *argument, struct file *file);

/**
 * stplr_mailbox_receive() - STPLR_MSG_RECEIVE
 * @open: of the calling process
 * @argument: of the program
 *
 * Return: as the system call does.
 */
long stplr_mailbox_receive(struct stplr_open *open, void __user *argument);

/**
 * stplr_mailbox_reply() - STPLR_MSG_REPLY
 * @open: of the calling process
 * @argument: of the program
 *
 * Return: as the system call does.
 */
long stplr_mailbox_reply(struct stplr_open *open, void __user *argument);

#endif
