/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Learns that a thread, a process or the program that it runs has ended, which no file tells: descriptors
 * may have been inherited or passed on, or stay open over exec, and outlive whoever used them.
 *
 * The kernel's own tracepoints for exits and for exec are the only hooks that modules have for these. The
 * probes only take what was watched out of a table, at once however much it is; the rest happens in a work
 * item, which may sleep. Each thread, process or program that has ended has a work item of its own, so
 * that nobody's news wait for what another has left behind.
 */
#ifndef STPLR_EXIT_H
#define STPLR_EXIT_H

#include <linux/list.h>
#include <linux/sched.h>
#include <linux/workqueue.h>

struct tracepoint;

struct stplr_watch {
	struct hlist_node leader; /* in the table, if it is there for all that watch the same */
	struct list_head ring; /* of those, without a head */
	struct work_struct work; /* of a leader whose owner has ended */
	bool ended; /* it is such a leader */
	const void *key;
	void (*died)(struct stplr_watch *watch); /* may sleep */
};

/**
 * stplr_find_tracepoint() - find one of the kernel's own, which modules know by name alone
 * @name: its name
 *
 * Return: the tracepoint, or NULL.
 */
struct tracepoint *stplr_find_tracepoint(const char *name);

/**
 * stplr_exit_init() - begin to learn of ends
 *
 * Return: 0, or an error.
 */
int stplr_exit_init(void);

/**
 * stplr_exit_exit() - undo stplr_exit_init(), when nothing is watched any more
 */
void stplr_exit_exit(void);

/* Keys of the calling thread and of its process; */
static inline const void *stplr_exit_thread(void)
{
	return current;
}

static inline const void *stplr_exit_process(void)
{
	return current->signal;
}

/* and of either until it executes another program. Of the former two no key is odd. */
static inline const void *stplr_exit_thread_program(const struct task_struct *task)
{
	return (const char *)task + 1;
}

static inline const void *stplr_exit_program(const struct task_struct *task)
{
	return (const char *)task->signal + 1;
}

/**
 * stplr_exit_watch() - have died called once the owner of a key has ended
 * @watch: unless this is unwatched before
 * @key: whose owner is alive
 * @died: what is called, in a work item
 */
void stplr_exit_watch(struct stplr_watch *watch, const void *key,
		      void (*died)(struct stplr_watch *watch));

/**
 * stplr_exit_unwatch() - undo stplr_exit_watch()
 * @watch: as there
 *
 * Return: true if died has not been called and will not be: whatever it were to do is the caller's.
 */
bool stplr_exit_unwatch(struct stplr_watch *watch);

#endif
