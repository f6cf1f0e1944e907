// SPDX-License-Identifier: GPL-2.0
#include "exit.h"

#include <linux/hashtable.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/spinlock.h>
#include <linux/tracepoint.h>
#include <linux/workqueue.h>

#include "compat.h"

/* Raw, for the probe runs with preemption off. Protects the table and the list. */
static DEFINE_RAW_SPINLOCK(watch_lock);
static DEFINE_HASHTABLE(watches, 8);
static LIST_HEAD(dead);
static atomic_t watched;

static struct tracepoint *exit_tracepoint;

static void bury(struct work_struct *work)
{
	struct stplr_watch *watch;

	for (;;) {
		raw_spin_lock(&watch_lock);
		watch = list_first_entry_or_null(&dead, struct stplr_watch, dead);
		if (watch)
			list_del_init(&watch->dead);
		raw_spin_unlock(&watch_lock);
		if (!watch)
			return;
		watch->died(watch);
	}
}

static DECLARE_WORK(bury_work, bury);

static bool collect_locked(const void *key)
{
	struct stplr_watch *watch;
	struct hlist_node *next;
	bool any = false;

	hash_for_each_possible_safe(watches, watch, next, node, (unsigned long)key) {
		if (watch->key != key)
			continue;
		hash_del(&watch->node);
		list_add_tail(&watch->dead, &dead);
		atomic_dec(&watched);
		any = true;
	}
	return any;
}

static void on_exit(STPLR_EXIT_PROBE_ARGS)
{
	bool any;

	if (!atomic_read(&watched))
		return;
	raw_spin_lock(&watch_lock);
	any = collect_locked(task);
	/* The kernel has counted this thread out already. */
	if (!atomic_read(&task->signal->live))
		any |= collect_locked(task->signal);
	raw_spin_unlock(&watch_lock);
	if (any)
		queue_work(system_unbound_wq, &bury_work);
}

static void find_tracepoint(struct tracepoint *tracepoint, void *found)
{
	if (!strcmp(tracepoint->name, "sched_process_exit"))
		*(struct tracepoint **)found = tracepoint;
}

int stplr_exit_init(void)
{
	for_each_kernel_tracepoint(find_tracepoint, &exit_tracepoint);
	if (!exit_tracepoint)
		return -EOPNOTSUPP;
	return tracepoint_probe_register(exit_tracepoint, on_exit, NULL);
}

void stplr_exit_exit(void)
{
	tracepoint_probe_unregister(exit_tracepoint, on_exit, NULL);
	tracepoint_synchronize_unregister();
	flush_work(&bury_work);
}

void stplr_exit_watch(struct stplr_watch *watch, const void *key,
		      void (*died)(struct stplr_watch *watch))
{
	watch->key = key;
	watch->died = died;
	INIT_LIST_HEAD(&watch->dead);
	raw_spin_lock(&watch_lock);
	hash_add(watches, &watch->node, (unsigned long)key);
	atomic_inc(&watched);
	raw_spin_unlock(&watch_lock);
}

bool stplr_exit_unwatch(struct stplr_watch *watch)
{
	bool alive = true;

	raw_spin_lock(&watch_lock);
	if (hash_hashed(&watch->node)) {
		hash_del(&watch->node);
		atomic_dec(&watched);
	} else if (!list_empty(&watch->dead)) {
		list_del_init(&watch->dead);
	} else {
		alive = false;
	}
	raw_spin_unlock(&watch_lock);
	return alive;
}
