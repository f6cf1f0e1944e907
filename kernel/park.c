// SPDX-License-Identifier: GPL-2.0
#include "park.h"

#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/restart_block.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/thread_info.h>
#include <linux/tracepoint.h>

#include <asm/syscall.h>

#include "compat.h"
#include "exit.h"

/*
 * A thread that may come back by way of this module's code, so the module stays until it is known that
 * it does not: the thread has come back, or has begun something else here, or has ended, or runs
 * another program.
 */
struct parked {
	struct hlist_node by_thread, by_file;
	struct stplr_watch watch; /* of the thread, as long as it runs this program */
	struct task_struct *task; /* reference: whoever ends a call may still wake its sender */
	const void *table; /* its descriptors; compared, never followed, as is the file */
	struct file *file;
	void *what; /* NULL once it has been dropped */
	const struct stplr_parked_ops *ops;
	long number; /* of the system call that it began with */
};

atomic_t stplr_parked_count;

/* Protects both tables, and what. Nothing nests in it but what exit.c has. */
static DEFINE_SPINLOCK(parked_lock);
static DEFINE_HASHTABLE(by_thread, 8);
static DEFINE_HASHTABLE(by_file, 8);

static struct tracepoint *fork_tracepoint, *exec_tracepoint;

bool stplr_interruption_passes(void)
{
	/* The caller's own, which stays. */
	struct sighand_struct *hands = rcu_dereference_raw(current->sighand);
	bool passes = true;
	sigset_t ready;
	int number;

	if (fatal_signal_pending(current))
		return false;
	spin_lock_irq(&hands->siglock);
	sigorsets(&ready, &current->pending.signal, &current->signal->shared_pending.signal);
	sigandnsets(&ready, &ready, &current->blocked);
	for (number = 1; number <= _NSIG && passes; number++) {
		__sighandler_t handler = hands->action[number - 1].sa.sa_handler;

		if (sigismember(&ready, number))
			passes = handler == SIG_DFL || handler == SIG_IGN;
	}
	spin_unlock_irq(&hands->siglock);
	return passes;
}

static struct parked *find_locked(const struct task_struct *task)
{
	struct parked *parked;

	hash_for_each_possible(by_thread, parked, by_thread, (unsigned long)task)
		if (parked->task == task)
			return parked;
	return NULL;
}

/* What was parked becomes the caller's; NULL: somebody else has dropped it. */
static void *take_locked(struct parked *parked)
{
	void *what = parked->what;

	parked->what = NULL;
	if (what)
		hash_del(&parked->by_file);
	return what;
}

static void forget_locked(struct parked *parked)
{
	hash_del(&parked->by_thread);
	atomic_dec(&stplr_parked_count);
}

/* Or executes another program, which may be here already. */
static void thread_died(struct stplr_watch *watch)
{
	struct parked *parked = container_of(watch, struct parked, watch);
	void *what;

	spin_lock(&parked_lock);
	what = take_locked(parked);
	forget_locked(parked);
	spin_unlock(&parked_lock);
	if (what)
		parked->ops->drop(what);
	put_task_struct(parked->task);
	kfree(parked);
	/* This runs in a queue that is emptied before the module goes. */
	module_put(THIS_MODULE);
}

/* By the thread, which has unwatched it, while something else keeps the module. */
static void dispose(struct parked *parked)
{
	put_task_struct(parked->task);
	kfree(parked);
	module_put(THIS_MODULE);
}

/*
 * As a thread that has nothing to come back for. The function for that is not for modules, but the first
 * of all threads never has anything.
 */
static void forget_restart(struct restart_block *block)
{
	block->fn = init_task.restart_block.fn;
}

static long restart(struct restart_block *block)
{
	const struct stplr_parked_ops *ops = NULL;
	struct parked *parked;
	void *what = NULL;
	bool known;
	long result;

	forget_restart(block);
	spin_lock(&parked_lock);
	parked = find_locked(current);
	if (parked) {
		ops = parked->ops;
		what = take_locked(parked);
		if (what)
			forget_locked(parked);
	}
	spin_unlock(&parked_lock);
	/* What else there is stays until the thread is seen elsewhere: it keeps the module. */
	if (!what)
		return -EINTR;
	/* It may be to begin anew, which what the thread has come back by cannot; or be parked again. */
	known = stplr_set_syscall(parked->number);
	/* The file, which is put on the way out of the kernel, keeps it here. */
	WARN_ON_ONCE(!stplr_exit_unwatch(&parked->watch));
	dispose(parked);
	result = ops->resume(what);
	return result == -ERESTARTSYS && !known ? -EINTR : result;
}

/*
 * A handler may fork before its thread is seen here again. The child has inherited by which function its
 * parent comes back, but nothing is parked for it, so nothing would keep the module for it. It has not run yet.
 */
static void on_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	if (child->restart_block.fn == restart)
		forget_restart(&child->restart_block);
}

/* A handler may execute another program, which has nothing to come back for either. */
static void on_exec(void *data, struct task_struct *task, pid_t before, struct linux_binprm *binary)
{
	if (task->restart_block.fn == restart)
		forget_restart(&task->restart_block);
}

int stplr_park_init(void)
{
	int err;

	fork_tracepoint = stplr_find_tracepoint("sched_process_fork");
	exec_tracepoint = stplr_find_tracepoint("sched_process_exec");
	if (!fork_tracepoint || !exec_tracepoint)
		return -EOPNOTSUPP;
	err = tracepoint_probe_register(fork_tracepoint, on_fork, NULL);
	if (err)
		return err;
	err = tracepoint_probe_register(exec_tracepoint, on_exec, NULL);
	if (!err)
		return 0;
	tracepoint_probe_unregister(fork_tracepoint, on_fork, NULL);
	tracepoint_synchronize_unregister();
	return err;
}

void stplr_park_exit(void)
{
	tracepoint_probe_unregister(exec_tracepoint, on_exec, NULL);
	tracepoint_probe_unregister(fork_tracepoint, on_fork, NULL);
	tracepoint_synchronize_unregister();
}

long stplr_park(void *what, struct file *file, const struct stplr_parked_ops *ops)
{
	struct parked *parked = kzalloc(sizeof(*parked), GFP_KERNEL_ACCOUNT);

	if (!parked) {
		ops->drop(what);
		return -EINTR;
	}
	__module_get(THIS_MODULE);
	parked->task = get_task_struct(current);
	parked->table = current->files;
	parked->file = file;
	parked->what = what;
	parked->ops = ops;
	parked->number = syscall_get_nr(current, current_pt_regs());
	spin_lock(&parked_lock);
	hash_add(by_thread, &parked->by_thread, (unsigned long)current);
	hash_add(by_file, &parked->by_file, (unsigned long)file);
	atomic_inc(&stplr_parked_count);
	spin_unlock(&parked_lock);
	stplr_exit_watch(&parked->watch, stplr_exit_thread_program(current), thread_died);
	return set_restart_fn(&current->restart_block, restart);
}

void stplr_unpark_slow(void)
{
	struct parked *parked;
	void *what = NULL;

	/*
	 * Nobody but the thread itself adds an entry of its own, so as long as there is one it finds the bucket
	 * filled, whoever else comes and goes there: what others have parked is no reason to take the lock.
	 */
	if (likely(hlist_empty(&by_thread[hash_min((unsigned long)current,
						   HASH_BITS(by_thread))])))
		return;
	spin_lock(&parked_lock);
	parked = find_locked(current);
	/* What it had parked before exec is left to thread_died(). */
	if (parked && !stplr_exit_unwatch(&parked->watch))
		parked = NULL;
	if (parked) {
		what = take_locked(parked);
		forget_locked(parked);
	}
	spin_unlock(&parked_lock);
	if (!parked)
		return;
	if (current->restart_block.fn == restart)
		forget_restart(&current->restart_block);
	if (what)
		parked->ops->drop(what);
	dispose(parked);
}

static struct parked *find_of_file_locked(const struct file *file, const void *table)
{
	struct parked *parked;

	hash_for_each_possible(by_file, parked, by_file, (unsigned long)file)
		if (parked->file == file && parked->table == table)
			return parked;
	return NULL;
}

static int is_same(const void *file, struct file *other, unsigned int fd)
{
	return other == file;
}

/* The descriptor that is being closed is out of the table already, unless the table is nobody's any more. */
static bool has_another(struct file *file, struct files_struct *table)
{
	bool parked;

	spin_lock(&parked_lock);
	parked = find_of_file_locked(file, table);
	spin_unlock(&parked_lock);
	return parked && atomic_read(&table->count) && iterate_fd(table, 0, is_same, file);
}

int stplr_unpark_file(struct file *file, fl_owner_t owner)
{
	const struct stplr_parked_ops *ops;
	struct parked *parked;
	void *what;

	if (likely(!atomic_read(&stplr_parked_count)) || has_another(file, owner))
		return 0;
	do {
		what = NULL;
		spin_lock(&parked_lock);
		parked = find_of_file_locked(file, owner);
		if (parked) {
			ops = parked->ops;
			what = take_locked(parked);
		}
		spin_unlock(&parked_lock);
		if (what)
			ops->drop(what);
	} while (what);
	return 0;
}
