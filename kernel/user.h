/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a user may hold of the kernel's memory through this module.
 *
 * Whatever outlives the call that made it, or is as big as a caller likes, is charged to the user
 * on whose behalf it is allocated, and refused with EDQUOT beyond user_bytes. Users who may exceed
 * resource limits (CAP_SYS_RESOURCE) are counted, not refused. What runs in a user namespace counts
 * for whoever made the outermost one, unless that was root, for such users can have many numbers.
 */
#ifndef STPLR_USER_H
#define STPLR_USER_H

#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/refcount.h>
#include <linux/uidgid.h>

struct seq_file;

struct stplr_user {
	struct hlist_node node; /* protected by the lock in user.c */
	refcount_t refs;
	kuid_t uid;
	atomic_long_t bytes;
	ktime_t unanswered; /* until when nobody asks clients for pages; a guess, without a lock */
};

/* A strong reference to the account of the calling thread, or NULL without memory. */
struct stplr_user *stplr_user_get(void);

/* The same, from a likely guess without a search. */
struct stplr_user *stplr_user_get_like(struct stplr_user *guess);

void stplr_user_put(struct stplr_user *user);

/* 0 or -EDQUOT. Each charge is given back by one uncharge of the same size. */
int stplr_user_charge(struct stplr_user *user, size_t bytes);

/* The same on behalf of a user who is not the caller: root's limit is none. */
int stplr_user_charge_for(struct stplr_user *user, size_t bytes);
void stplr_user_uncharge(struct stplr_user *user, size_t bytes);

/* A line for each user. */
void stplr_user_show(struct seq_file *file);

#endif
