/* SPDX-License-Identifier: GPL-2.0 */
/*
 * As much of the kernel as port.c, call.c and sender.c need, in user space: locks and sleeps are pthreads', a task is a
 * mutex and a condition, a signal is two flags. So the state machine runs under the sanitizers.
 */
#ifndef SHIM_H
#define SHIM_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint8_t u8;
typedef int64_t s64;
typedef int64_t ktime_t;

#define KTIME_MAX INT64_MAX
/* Declared alone: nothing here waits for a time. */
ktime_t ktime_get(void);
ktime_t ktime_add_safe(ktime_t time, ktime_t more);
#define TASK_INTERRUPTIBLE 1u
#define TASK_KILLABLE 2u
#define TASK_FREEZABLE 4u
#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v) __atomic_store_n(&(x), v, __ATOMIC_RELAXED)
#define smp_load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define smp_store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define likely(x) (x)
#define unlikely(x) (x)
#define __must_hold(lock)
#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))

struct task_struct {
	pthread_mutex_t lock;
	pthread_cond_t woken;
	bool signalled, killed;
	atomic_int refs;
};

extern _Thread_local struct task_struct *current;

static inline bool fatal_signal_pending(struct task_struct *task)
{
	pthread_mutex_lock(&task->lock);
	bool killed = task->killed;

	pthread_mutex_unlock(&task->lock);
	return killed;
}

static inline void cond_resched(void)
{
}

static inline void usleep_range(unsigned long min, unsigned long max)
{
	(void)min;
	(void)max;
	sched_yield();
}

typedef struct {
	pthread_mutex_t mutex;
} spinlock_t;

static inline void spin_lock_init(spinlock_t *lock)
{
	pthread_mutex_init(&lock->mutex, NULL);
}

static inline void spin_lock(spinlock_t *lock)
{
	pthread_mutex_lock(&lock->mutex);
}

static inline void spin_unlock(spinlock_t *lock)
{
	pthread_mutex_unlock(&lock->mutex);
}

typedef struct {
	atomic_int count;
} refcount_t;

static inline void refcount_set(refcount_t *refs, int count)
{
	atomic_store(&refs->count, count);
}

static inline void refcount_inc(refcount_t *refs)
{
	if (atomic_fetch_add(&refs->count, 1) <= 0)
		abort();
}

static inline bool refcount_dec_and_test(refcount_t *refs)
{
	int before = atomic_fetch_sub(&refs->count, 1);

	if (before <= 0)
		abort();
	return before == 1;
}

struct hlist_node {
	struct hlist_node *next, **pprev;
};

struct hlist_head {
	struct hlist_node *first;
};

#define INIT_HLIST_HEAD(head) ((head)->first = NULL)
#define INIT_HLIST_NODE(node) ((node)->next = NULL, (node)->pprev = NULL)

static inline void hlist_add_head(struct hlist_node *node, struct hlist_head *head)
{
	node->next = head->first;
	if (head->first)
		head->first->pprev = &node->next;
	head->first = node;
	node->pprev = &head->first;
}

static inline void hlist_del_init(struct hlist_node *node)
{
	if (!node->pprev)
		return;
	*node->pprev = node->next;
	if (node->next)
		node->next->pprev = node->pprev;
	INIT_HLIST_NODE(node);
}

#define hlist_entry_safe(node, type, member) ((node) ? container_of(node, type, member) : NULL)
#define hlist_for_each_entry(entry, head, member)                                                \
	for (entry = hlist_entry_safe((head)->first, __typeof__(*entry), member); entry;         \
	     entry = hlist_entry_safe(entry->member.next, __typeof__(*entry), member))

#define hlist_for_each_entry_safe(entry, after, head, member)                                    \
	for (entry = hlist_entry_safe((head)->first, __typeof__(*entry), member);                \
	     entry && ((after = entry->member.next), true);                                      \
	     entry = hlist_entry_safe(after, __typeof__(*entry), member))

static inline unsigned int hash_64(u64 value, unsigned int bits)
{
	return (unsigned int)((value * 0x61C8864680B583EBull) >> (64 - bits));
}

/* A sorted list does for a tree. */
struct rb_node {
	struct rb_node *next, *prev;
};

struct rb_root {
	struct rb_node *rb_node;
};

struct rb_root_cached {
	struct rb_node *first;
	struct rb_root rb_root; /* the same */
};

#define RB_ROOT_CACHED ((struct rb_root_cached){ NULL, { NULL } })
#define RB_EMPTY_ROOT(root) (READ_ONCE((root)->rb_node) == NULL)

static inline struct rb_node *rb_first_cached(struct rb_root_cached *root)
{
	return root->first;
}

static inline struct rb_node *rb_next(const struct rb_node *node)
{
	return node->next;
}

static inline void rb_add_cached(struct rb_node *node, struct rb_root_cached *root,
				 bool (*less)(struct rb_node *, const struct rb_node *))
{
	struct rb_node *prev = NULL, *next = root->first;

	while (next && !less(node, next)) {
		prev = next;
		next = next->next;
	}
	node->prev = prev;
	node->next = next;
	if (next)
		next->prev = node;
	if (prev)
		prev->next = node;
	else
		root->first = node;
	WRITE_ONCE(root->rb_root.rb_node, root->first);
}

static inline void rb_erase_cached(struct rb_node *node, struct rb_root_cached *root)
{
	if (node->next)
		node->next->prev = node->prev;
	if (node->prev)
		node->prev->next = node->next;
	else
		root->first = node->next;
	WRITE_ONCE(root->rb_root.rb_node, root->first);
}

#endif
