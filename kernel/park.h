/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Waits that go on after an interruption which no program sees: a stop and its end, the freezer of
 * version 2 control groups, a tracer, work for the thread that is done on the way out of the kernel
 * (io_uring, live patches).
 *
 * The thread has to leave the kernel for these, and comes back by restart_syscall(2). What it waits for
 * stays as it is meanwhile and is parked here: a call goes on to be received and answered.
 *
 *   parked ── the thread comes back ─────────────────────────────────> resume
 *        └─── it does something else, for a handler was run after
 *             all; it ends; it has no descriptor of the file any more > drop
 *
 * A parked wait holds its file, as a thread does that waits in the kernel.
 */
#ifndef STPLR_PARK_H
#define STPLR_PARK_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/types.h>

struct file;

/**
 * stplr_park_init() - see to it that children inherit nothing of this
 *
 * Return: 0, or an error.
 */
int stplr_park_init(void);

/**
 * stplr_park_exit() - undo stplr_park_init(), when nothing is parked any more
 */
void stplr_park_exit(void);

struct stplr_parked_ops {
	/* By the thread. Returns as the system call does, and puts the file. */
	long (*resume)(void *what);
	/* By anybody, without locks. Puts the file. */
	void (*drop)(void *what);
};

/**
 * stplr_interruption_passes() - look what has interrupted the calling thread
 *
 * Return: true if it is something that no handler is run for. It may still turn out that one is.
 */
bool stplr_interruption_passes(void);

/**
 * stplr_park() - park what the calling thread waits for
 * @what: that, for the operations
 * @file: which it is about; a reference to it belongs to @what
 * @ops: what becomes of it
 *
 * Return: what the system call has to return then. Where there is no memory for it, it is dropped, and
 * that is -EINTR.
 */
long stplr_park(void *what, struct file *file, const struct stplr_parked_ops *ops);

extern atomic_t stplr_parked_count;

/**
 * stplr_unpark_slow() - stplr_unpark() where somebody has parked something
 */
void stplr_unpark_slow(void);

/* By a thread that begins anything: what it has parked it does not come back for. */
static inline void stplr_unpark(void)
{
	if (unlikely(atomic_read(&stplr_parked_count)))
		stplr_unpark_slow();
}

/**
 * stplr_unpark_file() - drop what is parked by threads that have lost the file; a file's flush
 * @file: a descriptor of it is being closed, maybe not the last one
 * @owner: in which table
 *
 * Return: 0.
 */
int stplr_unpark_file(struct file *file, fl_owner_t owner);

#endif
