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
static DEFINE_HASHTABLE(leaders, 10);
static LIST_HEAD(dead);
static atomic_t led; /* how many leaders there are */

static struct tracepoint *exit_tracepoint;

static void bury(struct work_struct *work)
{
	struct stplr_watch *watch;

	for (;;) {
		raw_spin_lock(&watch_lock);
		watch = list_first_entry_or_null(&dead, struct stplr_watch, ring);
		if (watch)
			list_del_init(&watch->ring);
		raw_spin_unlock(&watch_lock);
		if (!watch)
			return;
		watch->died(watch);
	}
}

static DECLARE_WORK(bury_work, bury);

static struct stplr_watch *find_leader_locked(const void *key)
{
	struct stplr_watch *watch;

	hash_for_each_possible(leaders, watch, leader, (unsigned long)key)
		if (watch->key == key)
			return watch;
	return NULL;
}

static bool collect_locked(const void *key)
{
	struct stplr_watch *leader = find_leader_locked(key);
	LIST_HEAD(ring);

	if (!leader)
		return false;
	hash_del(&leader->leader);
	atomic_dec(&led);
	list_add_tail(&ring, &leader->ring);
	list_splice_tail(&ring, &dead);
	return true;
}

static void on_exit(STPLR_EXIT_PROBE_ARGS)
{
	bool any;

	if (!atomic_read(&led))
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
	struct stplr_watch *leader;

	watch->key = key;
	watch->died = died;
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
	uncalled = leads || !list_empty(&watch->ring);
	if (leads)
		resign_locked(watch);
	list_del_init(&watch->ring);
	raw_spin_unlock(&watch_lock);
	return uncalled;
}
