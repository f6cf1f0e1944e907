/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What can be seen in debugfs, below stplr/, by root:
 *
 *   channels     every channel and every handle of the first interface, with who waits there
 *   connections  every connection
 *   blocked      every thread that is blocked, and on whom
 *   users        what each user holds
 *   counters     what happened since the module was loaded
 *
 * For people to read; programs should not rely on its form. Ids are those of the first pid
 * namespace. Without debugfs all of this is nothing.
 */
#ifndef STPLR_DEBUGFS_H
#define STPLR_DEBUGFS_H

#include <linux/list.h>

struct seq_file;
struct stplr_port;
struct stplr_shown;

struct stplr_shown_ops {
	/* A reference to the owner; false: it is on its way out. put is called without locks. */
	bool (*get)(struct stplr_shown *shown);
	void (*put)(struct stplr_shown *shown);
	/* One line's beginning: what kind, which name, whose. */
	void (*describe)(struct seq_file *file, struct stplr_shown *shown);
	/* A line for each connection. Optional. */
	void (*connections)(struct seq_file *file, struct stplr_shown *shown);
};

/* Part of what owns a port. */
struct stplr_shown {
	struct list_head node; /* under the lock in debugfs.c */
	struct stplr_port *port;
	const struct stplr_shown_ops *ops;
};

/**
 * stplr_show() - show what owns a port, and number the port
 * @shown: part of the owner
 * @port: its port
 * @ops: how it is shown
 */
void stplr_show(struct stplr_shown *shown, struct stplr_port *port,
		const struct stplr_shown_ops *ops);

/**
 * stplr_hide() - undo stplr_show(); by the owner, whose last reference is gone
 * @shown: part of the owner
 */
void stplr_hide(struct stplr_shown *shown);

/**
 * stplr_debugfs_init() - make the files; what cannot be shown is not
 */
void stplr_debugfs_init(void);

/**
 * stplr_debugfs_exit() - take the files away
 */
void stplr_debugfs_exit(void);

#endif
