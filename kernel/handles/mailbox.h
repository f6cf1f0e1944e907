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

/* The mailbox of the calling thread, with a reference, if that is what uuid names; -EBADR, -ENODEV. */
struct stplr_mailbox *stplr_mailbox_own(struct stplr_open *open, u64 uuid);

/* That of another thread, with a reference; -ENODEV. */
struct stplr_mailbox *stplr_mailbox_other(struct stplr_open *open, s32 pid, s32 tid);
void stplr_mailbox_drop(struct stplr_mailbox *mailbox);

long stplr_mailbox_get(struct stplr_open *open, void __user *argument);
long stplr_mailbox_put(struct stplr_open *open, void __user *argument);
void stplr_mailbox_release_all(struct stplr_open *open);

/* exchange.c */
long stplr_mailbox_send(struct stplr_open *open, void __user *argument, struct file *file);
long stplr_mailbox_send_receive(struct stplr_open *open, void __user *argument, struct file *file);
long stplr_mailbox_receive(struct stplr_open *open, void __user *argument);
long stplr_mailbox_reply(struct stplr_open *open, void __user *argument);

#endif
