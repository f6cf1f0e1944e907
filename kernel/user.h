/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a user may hold of the kernel's memory through this module.
 *
 * Whatever outlives the call that made it, or is as big as a caller likes, is charged to the user
 * on whose behalf it is allocated, and refused with EDQUOT beyond user_bytes. Users who may exceed
 * resource limits (CAP_SYS_RESOURCE) are counted, not refused. What runs in a user namespace counts
 * for whoever made the outermost one, unless that was root, for such users can have many numbers.
 * Uncharged are the few bytes of an entry in a list whose length something that is charged bounds, as of
 * who is to be told of the end of a connection's channel, or of users who have pulses in its queue.
 */
#ifndef STPLR_USER_H
#define STPLR_USER_H

#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/refcount.h>
#include <linux/uidgid.h>

#include "files.h"

struct seq_file;

struct stplr_user {
	struct hlist_node node; /* protected by the lock in user.c */
	refcount_t refs;
	kuid_t uid;
	atomic_long_t bytes;
	struct stplr_closing closing;
	ktime_t unanswered; /* until when nobody asks clients for pages; a guess, without a lock */
};

/**
 * stplr_user_get_charged() - get the account of the calling thread, and charge it
 * @user: gets the account, with a reference, if this succeeds
 * @guess: which one that may be, or NULL; spares a search
 * @bytes: as for stplr_user_charge()
 *
 * Return: 0, -ENOMEM, -EDQUOT.
 */
int stplr_user_get_charged(struct stplr_user **user, struct stplr_user *guess, size_t bytes);

/**
 * stplr_user_get() - get the account of the calling thread
 *
 * Return: the account with a reference, or NULL: there is no memory.
 */
struct stplr_user *stplr_user_get(void);

/**
 * stplr_user_is_caller() - look whose an account is
 * @user: the account
 *
 * Return: whether the calling thread is charged there.
 */
bool stplr_user_is_caller(const struct stplr_user *user);

/**
 * stplr_user_put() - drop a reference
 * @user: the account
 */
void stplr_user_put(struct stplr_user *user);

/**
 * stplr_user_charge() - count what the calling thread's user holds
 * @user: its account
 * @bytes: how much more; given back by one stplr_user_uncharge() of the same size
 *
 * Return: 0 or -EDQUOT.
 */
int stplr_user_charge(struct stplr_user *user, size_t bytes);

/**
 * stplr_user_charge_for() - the same on behalf of a user who is not the caller: root's limit is none
 * @user: its account
 * @bytes: how much more
 *
 * Return: 0 or -EDQUOT.
 */
int stplr_user_charge_for(struct stplr_user *user, size_t bytes);

/**
 * stplr_user_charge_anyway() - the same for what is there already, beyond the limit or not
 * @user: its account
 * @bytes: how much more
 */
void stplr_user_charge_anyway(struct stplr_user *user, size_t bytes);

/**
 * stplr_user_uncharge() - give back what was charged
 * @user: the account
 * @bytes: how much
 */
void stplr_user_uncharge(struct stplr_user *user, size_t bytes);

/* Undoes stplr_user_get_charged(). */
static inline void stplr_user_put_charged(struct stplr_user *user, size_t bytes)
{
	stplr_user_uncharge(user, bytes);
	stplr_user_put(user);
}

/**
 * stplr_user_show() - write a line for each user, for debugfs
 * @file: where
 */
void stplr_user_show(struct seq_file *file);

#endif
