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

#include "user.h"

struct file;
struct pid;

/* One open of one device by one process, whoever else has the descriptor. */
struct stplr_open {
	struct hlist_node node; /* in the table of opens, protected by its lock */
	int minor;
	struct pid *tgid; /* reference */
	struct stplr_user *user; /* reference */
	struct list_head mailboxes; /* protected by the lock in mailbox.c */
};

long stplr_mailbox_get(struct stplr_open *open, void __user *argument);
long stplr_mailbox_put(struct stplr_open *open, void __user *argument);
void stplr_mailbox_release_all(struct stplr_open *open);

long stplr_mailbox_send(struct stplr_open *open, void __user *argument, struct file *file);
long stplr_mailbox_send_receive(struct stplr_open *open, void __user *argument, struct file *file);
long stplr_mailbox_receive(struct stplr_open *open, void __user *argument);
long stplr_mailbox_reply(struct stplr_open *open, void __user *argument);

#endif
