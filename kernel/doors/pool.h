/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A pool: the port where threads of one process wait for calls of its doors, as a file.
 *
 *   /dev/door ──> pool ──> door, door, ...       descriptors; each keeps what it comes from
 *                  │ │
 *             port │ └── servers: the threads that have waited here, each with at most one call;
 *                  │              and one for each call that has been deferred
 *
 * The pool ends with the last descriptor, with its creator's process, or when that executes another
 * program; then its doors are revoked. A process that has inherited the descriptor can do nothing with
 * it but close it. Each server's thread is watched: a call that it has ends with it.
 *
 * Locking: pool->lock protects the servers, port.lock the notices. The latter nests in the former.
 */
#ifndef STPLR_DOORS_POOL_H
#define STPLR_DOORS_POOL_H

#include <linux/hashtable.h>
#include <linux/refcount.h>
#include <linux/wait.h>

#include "debugfs.h"
#include "exit.h"
#include "include/stplr_doors.h"
#include "port.h"
#include "user.h"

struct file;

struct stplr_pool {
	struct stplr_port port;
	struct stplr_shown shown;
	refcount_t refs; /* of the file, the watch, each door and each server */
	atomic_t doors; /* that can be called, or are being called */
	struct stplr_user *user; /* reference */
	const void *process; /* the creator, by its key */
	struct mm_struct *mm; /* mmgrab; compared: the creator has another once it has executed */
	struct task_struct *task; /* reference: no other process is known by the same key */
	struct pid *tgid; /* reference */
	struct stplr_watch watch; /* of the process, as long as it runs this program */
	wait_queue_head_t listeners; /* who polls for notices, or for the end of the last door */
	struct list_head notices; /* servers whose client has left */
	spinlock_t lock;
	unsigned int server_count;
	DECLARE_HASHTABLE(servers, 6); /* by thread */
	DECLARE_HASHTABLE(deferred, 6); /* by call */
};

/*
 * A thread that has waited in a pool. As the replier of a call it names who may answer. One without a thread
 * stands for all of them, until the call that it is for has been answered.
 */
struct stplr_server {
	struct hlist_node node; /* in pool->servers or pool->deferred */
	struct stplr_watch watch; /* of the thread */
	struct stplr_pool *pool; /* reference */
	struct task_struct *task; /* reference, or NULL */
	u64 call; /* that was deferred */
	struct list_head notice; /* in pool->notices, under port.lock, like the next */
	u64 aborted; /* the call that this is about */
};

/**
 * stplr_pool_create() - STPLR_POOL_CREATE
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: a descriptor, or an error.
 */
long stplr_pool_create(const struct stplr_pool_create __user *user, size_t size);

/**
 * stplr_pool_put() - drop a reference
 * @pool: the pool
 */
void stplr_pool_put(struct stplr_pool *pool);

/**
 * stplr_pool_lost() - a door is gone, and its reference with it
 * @pool: what it was made on
 */
void stplr_pool_lost(struct stplr_pool *pool);

/**
 * stplr_pool_mine() - look who the caller is
 * @pool: the pool
 *
 * Return: whether it is the pool's creator, still running the same program.
 */
bool stplr_pool_mine(const struct stplr_pool *pool);

/**
 * stplr_pool_server() - the calling thread as one of a pool, which it is from now on
 * @pool: the pool, of the caller
 *
 * Return: it, which stays as long as the thread and the pool; or ERR_PTR(-ENOMEM, -EDQUOT).
 */
struct stplr_server *stplr_pool_server(struct stplr_pool *pool);

/**
 * stplr_pool_known_server() - the calling thread, if it is one of a pool
 * @pool: the pool, of the caller
 *
 * Return: it, or NULL, which is the replier of no call.
 */
struct stplr_server *stplr_pool_known_server(struct stplr_pool *pool);

/**
 * stplr_pool_defer() - take a call away from its thread
 * @pool: the pool
 * @call: its id
 * @server: the thread that has it; NULL: none
 *
 * Return: 0, -ENOMEM, -EDQUOT; -ESRCH: it has no such call.
 */
int stplr_pool_defer(struct stplr_pool *pool, u64 call, struct stplr_server *server);

/**
 * stplr_pool_claim() - begin to answer a call of the calling thread, or one that was deferred
 * @pool: the pool
 * @id: the call's id
 * @server: the calling thread
 * @deferred: who stands for it, if it was deferred, else NULL; to be given back, either way, by
 * stplr_pool_deferred_end(), or by stplr_pool_deferred_again() when the call has been unclaimed
 *
 * Return: the call with a reference, or NULL.
 */
struct stplr_call *stplr_pool_claim(struct stplr_pool *pool, u64 id, struct stplr_server *server,
				    struct stplr_server **deferred);

/**
 * stplr_pool_deferred_again() - the call still waits for its answer
 * @deferred: as stplr_pool_claim() gave it
 */
void stplr_pool_deferred_again(struct stplr_server *deferred);

/**
 * stplr_pool_deferred_end() - the call has been answered
 * @deferred: as stplr_pool_claim() gave it
 */
void stplr_pool_deferred_end(struct stplr_server *deferred);

/**
 * stplr_pool_borrow() - begin to read of a call of the calling thread, or of one that was deferred
 * @pool: the pool
 * @id: the call's id
 * @server: the calling thread
 *
 * Return: as stplr_port_borrow().
 */
struct stplr_call *stplr_pool_borrow(struct stplr_pool *pool, u64 id, struct stplr_server *server);

/**
 * stplr_pool_return() - STPLR_DOOR_RETURN
 * @pool: the pool
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: as the system call does.
 */
long stplr_pool_return(struct stplr_pool *pool, struct stplr_door_return __user *user, size_t size);

/**
 * stplr_pool_cred() - STPLR_DOOR_CRED
 * @pool: the pool
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 *
 * Return: as the system call does.
 */
long stplr_pool_cred(struct stplr_pool *pool, struct stplr_door_cred __user *user, size_t size);

#endif
