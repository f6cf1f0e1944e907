// SPDX-License-Identifier: GPL-2.0
#include "exit.h"

#include <linux/hashtable.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/spinlock.h>
#include <linux/tracepoint.h>
#include <linux/workqueue.h>

#include "compat.h"

/* Raw, for the probe runs with preemption off. Protects the table and the rings. */
static DEFINE_RAW_SPINLOCK(watch_lock);
static DEFINE_HASHTABLE(leaders, 10);
static atomic_t led; /* how many leaders there are */

static struct workqueue_struct *endings;
static struct tracepoint *exit_tracepoint, *exec_tracepoint;

/* Of all that watched the same, the leader last, for the work is part of it. */
static void run_watches(struct work_struct *work)
{
	struct stplr_watch *leader = container_of(work, struct stplr_watch, work), *watch;

	do {
		raw_spin_lock(&watch_lock);
		watch = list_empty(&leader->ring) ? leader : list_next_entry(leader, ring);
		list_del_init(&watch->ring);
		raw_spin_unlock(&watch_lock);
		watch->died(watch);
	} while (watch != leader);
}

static struct stplr_watch *find_leader_locked(const void *key)
{
	struct stplr_watch *watch;

	hash_for_each_possible(leaders, watch, leader, (unsigned long)key)
		if (watch->key == key)
			return watch;
	return NULL;
}

/* Takes what watches key out of the table. Returns the leader, or NULL. */
static struct stplr_watch *take_out_locked(const void *key)
{
	struct stplr_watch *leader = find_leader_locked(key);

	if (!leader)
		return NULL;
	hash_del(&leader->leader);
	atomic_dec(&led);
	leader->ended = true;
	return leader;
}

/* Whose owners have ended; nobody else does away with such leaders. */
struct ended {
	struct stplr_watch *leaders[4];
	unsigned int count;
};

static void end_locked(struct ended *ended, const void *key)
{
	struct stplr_watch *leader = take_out_locked(key);

	if (leader)
		ended->leaders[ended->count++] = leader;
}

static void tell(const struct ended *ended)
{
	unsigned int i;

	for (i = 0; i < ended->count; i++)
		queue_work(endings, &ended->leaders[i]->work);
}

static void on_exit(STPLR_EXIT_PROBE_ARGS)
{
	struct ended ended = {};

	if (!atomic_read(&led))
		return;
	raw_spin_lock(&watch_lock);
	end_locked(&ended, task);
	end_locked(&ended, stplr_exit_thread_program(task));
	/* The kernel has counted this thread out already. */
	if (!atomic_read(&task->signal->live)) {
		end_locked(&ended, task->signal);
		end_locked(&ended, stplr_exit_program(task));
	}
	raw_spin_unlock(&watch_lock);
	tell(&ended);
}

/* All other threads are gone, and nothing of the new program has run. */
static void on_exec(void *data, struct task_struct *task, pid_t before, struct linux_binprm *binary)
{
	struct ended ended = {};

	if (!atomic_read(&led))
		return;
	raw_spin_lock(&watch_lock);
	end_locked(&ended, stplr_exit_thread_program(task));
	end_locked(&ended, stplr_exit_program(task));
	raw_spin_unlock(&watch_lock);
	tell(&ended);
}

struct search {
	const char *name;
	struct tracepoint *found;
};

static void look_at_tracepoint(struct tracepoint *tracepoint, void *what)
{
	struct search *search = what;

	if (!strcmp(tracepoint->name, search->name))
		search->found = tracepoint;
}

struct tracepoint *stplr_find_tracepoint(const char *name)
{
	struct search search = { .name = name };

	for_each_kernel_tracepoint(look_at_tracepoint, &search);
	return search.found;
}

int stplr_exit_init(void)
{
	int err;

	exit_tracepoint = stplr_find_tracepoint("sched_process_exit");
	exec_tracepoint = stplr_find_tracepoint("sched_process_exec");
	if (!exit_tracepoint || !exec_tracepoint)
		return -EOPNOTSUPP;
	endings = alloc_workqueue("stplr", WQ_UNBOUND, 0);
	if (!endings)
		return -ENOMEM;
	err = tracepoint_probe_register(exit_tracepoint, on_exit, NULL);
	if (err)
		goto destroy;
	err = tracepoint_probe_register(exec_tracepoint, on_exec, NULL);
	if (!err)
		return 0;
	tracepoint_probe_unregister(exit_tracepoint, on_exit, NULL);
	tracepoint_synchronize_unregister();
destroy:
	destroy_workqueue(endings);
	return err;
}

void stplr_exit_exit(void)
{
	tracepoint_probe_unregister(exec_tracepoint, on_exec, NULL);
	tracepoint_probe_unregister(exit_tracepoint, on_exit, NULL);
	tracepoint_synchronize_unregister();
	destroy_workqueue(endings);
}

void stplr_exit_watch(struct stplr_watch *watch, const void *key,
		      void (*died)(struct stplr_watch *watch))
{
	struct stplr_watch *leader;

	watch->key = key;
	watch->died = died;
	watch->ended = false;
	INIT_WORK(&watch->work, run_watches);
	INIT_LIST_HEAD(&watch->ring);
	INIT_HLIST_NODE(&watch->leader);
	raw_spin_lock(&watch_lock);
	leader = find_leader_locked(key);
	if (leader) {
		list_add_tail(&watch->ring, &leader->ring);
	} else {
		hash_add(leaders, &watch->leader, (unsigned long)key);
		atomic_inc(&led);
	}
	raw_spin_unlock(&watch_lock);
}

/* Its place is for the next of the ring. */
static void resign_locked(struct stplr_watch *watch)
{
	if (list_empty(&watch->ring))
		atomic_dec(&led);
	else
		hlist_add_behind(&list_next_entry(watch, ring)->leader, &watch->leader);
	hash_del(&watch->leader);
}

bool stplr_exit_unwatch(struct stplr_watch *watch)
{
	bool leads, uncalled;

	raw_spin_lock(&watch_lock);
	leads = hash_hashed(&watch->leader);
	uncalled = leads || (!watch->ended && !list_empty(&watch->ring));
	if (leads)
		resign_locked(watch);
	if (uncalled)
		list_del_init(&watch->ring);
	raw_spin_unlock(&watch_lock);
	return uncalled;
}
