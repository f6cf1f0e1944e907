// SPDX-License-Identifier: GPL-2.0
#include "debugfs.h"

#include <linux/debugfs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>

#include "counters.h"
#include "port.h"
#include "user.h"

DEFINE_PER_CPU(struct stplr_counters, stplr_counters);

/* Protects the list. Nothing nests in it: what is read is kept by a reference. */
static DEFINE_SPINLOCK(shown_lock);
static LIST_HEAD(all);
static u32 last_number;

static struct dentry *folder;

void stplr_show(struct stplr_shown *shown, struct stplr_port *port,
		const struct stplr_shown_ops *ops)
{
	shown->port = port;
	shown->ops = ops;
	spin_lock(&shown_lock);
	port->number = ++last_number;
	list_add_tail(&shown->node, &all);
	spin_unlock(&shown_lock);
}

void stplr_hide(struct stplr_shown *shown)
{
	spin_lock(&shown_lock);
	list_del(&shown->node);
	spin_unlock(&shown_lock);
}

/* The first one from there on that can be kept; &all: there is none. */
static struct list_head *keep_locked(struct list_head *at)
{
	for (; at != &all; at = at->next) {
		struct stplr_shown *shown = list_entry(at, struct stplr_shown, node);

		if (shown->ops->get(shown))
			break;
	}
	return at;
}

/* The first line is a header, for which the list's head stands. */
static void *start(struct seq_file *file, loff_t *position)
{
	struct list_head *at = &all;
	loff_t i;

	if (!*position)
		return &all;
	spin_lock(&shown_lock);
	for (i = 0; i < *position; i++) {
		at = at->next;
		if (at == &all)
			break;
	}
	at = keep_locked(at);
	spin_unlock(&shown_lock);
	return at == &all ? NULL : at;
}

static void stop(struct seq_file *file, void *at)
{
	struct stplr_shown *shown;

	if (!at || at == &all)
		return;
	shown = list_entry(at, struct stplr_shown, node);
	shown->ops->put(shown);
}

static void *next(struct seq_file *file, void *at, loff_t *position)
{
	struct list_head *after;

	++*position;
	spin_lock(&shown_lock);
	after = keep_locked(((struct list_head *)at)->next);
	spin_unlock(&shown_lock);
	stop(file, at);
	return after == &all ? NULL : after;
}

static void count_blocked(void *context, enum stplr_blocked state, struct task_struct *who,
			  int priority, int server)
{
	((unsigned int *)context)[state]++;
}

static int show_channel(struct seq_file *file, void *at)
{
	struct stplr_shown *shown = list_entry(at, struct stplr_shown, node);
	unsigned int blocked[STPLR_RECEIVE_BLOCKED + 1] = {};

	if (at == &all) {
		seq_puts(file, "number send-blocked reply-blocked receive-blocked what\n");
		return 0;
	}
	stplr_port_blocked(shown->port, count_blocked, blocked);
	seq_printf(file, "%u %u %u %u ", shown->port->number, blocked[STPLR_SEND_BLOCKED],
		   blocked[STPLR_REPLY_BLOCKED], blocked[STPLR_RECEIVE_BLOCKED]);
	shown->ops->describe(file, shown);
	return 0;
}

static int show_connections(struct seq_file *file, void *at)
{
	struct stplr_shown *shown = list_entry(at, struct stplr_shown, node);

	if (at == &all)
		seq_puts(file, "channel label uid regions pulses-left\n");
	else if (shown->ops->connections)
		shown->ops->connections(file, shown);
	return 0;
}

struct blocked_lines {
	struct seq_file *file;
	u32 number;
};

static void show_one_blocked(void *context, enum stplr_blocked state, struct task_struct *who,
			     int priority, int server)
{
	static const char *const states[] = { "SEND", "REPLY", "RECEIVE" };
	struct blocked_lines *lines = context;

	seq_printf(lines->file, "%d %d %s %u", task_tgid_nr(who), task_pid_nr(who), states[state],
		   lines->number);
	if (state != STPLR_RECEIVE_BLOCKED)
		seq_printf(lines->file, " priority %d", priority);
	if (server)
		seq_printf(lines->file, " on %d", server);
	seq_putc(lines->file, '\n');
}

static int show_blocked(struct seq_file *file, void *at)
{
	struct stplr_shown *shown = list_entry(at, struct stplr_shown, node);
	struct blocked_lines lines = { .file = file };

	if (at == &all) {
		seq_puts(file, "pid tid blocked channel\n");
		return 0;
	}
	lines.number = shown->port->number;
	stplr_port_blocked(shown->port, show_one_blocked, &lines);
	return 0;
}

static const struct seq_operations channels_sops = { start, stop, next, show_channel };
static const struct seq_operations connections_sops = { start, stop, next, show_connections };
static const struct seq_operations blocked_sops = { start, stop, next, show_blocked };
DEFINE_SEQ_ATTRIBUTE(channels);
DEFINE_SEQ_ATTRIBUTE(connections);
DEFINE_SEQ_ATTRIBUTE(blocked);

static int counters_show(struct seq_file *file, void *unused)
{
	static const char *const names[STPLR_COUNTERS] = {
		[STPLR_COUNT_SENDS] = "sends",
		[STPLR_COUNT_RECEIVES] = "receives",
		[STPLR_COUNT_REPLIES] = "replies",
		[STPLR_COUNT_PULSES] = "pulses",
		[STPLR_COUNT_SPINS] = "spins",
		[STPLR_COUNT_INTERRUPTED] = "interrupted",
		[STPLR_COUNT_TIMED_OUT] = "timed-out",
		[STPLR_COUNT_PEER_GONE] = "peer-gone",
		[STPLR_COUNT_REFAULTS] = "refaults",
		[STPLR_COUNT_PIN_BATCHES] = "pin-batches",
		[STPLR_COUNT_ASKS] = "asks",
		[STPLR_COUNT_OVER_LIMIT] = "over-limit",
		[STPLR_COUNT_RAISES] = "raises",
	};
	int i, cpu;
	u64 sum;

	for (i = 0; i < STPLR_COUNTERS; i++) {
		sum = 0;
		for_each_possible_cpu(cpu)
			sum += per_cpu(stplr_counters, cpu).count[i];
		seq_printf(file, "%s %llu\n", names[i], sum);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

static int users_show(struct seq_file *file, void *unused)
{
	seq_puts(file, "uid bytes\n");
	stplr_user_show(file);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(users);

void stplr_debugfs_init(void)
{
	folder = debugfs_create_dir("stplr", NULL);
	debugfs_create_file("channels", 0400, folder, NULL, &channels_fops);
	debugfs_create_file("connections", 0400, folder, NULL, &connections_fops);
	debugfs_create_file("blocked", 0400, folder, NULL, &blocked_fops);
	debugfs_create_file("users", 0400, folder, NULL, &users_fops);
	debugfs_create_file("counters", 0400, folder, NULL, &counters_fops);
}

void stplr_debugfs_exit(void)
{
	debugfs_remove(folder);
}
