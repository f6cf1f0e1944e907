/* SPDX-License-Identifier: GPL-2.0 */
/* A client's end of a channel, as a file. */
#ifndef STPLR_CONNECTION_H
#define STPLR_CONNECTION_H

#include "channel.h"
#include "pulse.h"

struct stplr_message;
struct stplr_regions;

struct stplr_connection {
	struct stplr_channel *channel; /* reference */
	struct stplr_user *user; /* reference */
	struct stplr_budget *budgets[STPLR_BUDGETS]; /* references: its own, its maker's */
	struct stplr_regions *regions; /* reference */
	u64 label;
	struct stplr_message *spare; /* owned */
	struct stplr_pulse_item *goodbye; /* kept ready for the release, if the channel wants it */

	struct list_head sibling; /* in channel->connections, under channel->lock */
	struct list_head deaths; /* who is told of the channel's, under channel->lock */
	int death_count;
};

/**
 * stplr_connection_create() - make a connection
 * @channel: to which; takes the caller's reference, also when it fails
 * @label: what the server is told with each message
 *
 * Return: a descriptor, or an error.
 */
long stplr_connection_create(struct stplr_channel *channel, u64 label);

/**
 * stplr_connection_label() - a label for a connection that nobody chose one for
 *
 * Return: a number that no other such connection has.
 */
u64 stplr_connection_label(void);

/**
 * stplr_connection_label_is_free() - whether a server may choose a label
 * @label: the label
 *
 * Return: false for those that stplr_connection_label() may give.
 */
bool stplr_connection_label_is_free(u64 label);

/**
 * stplr_connection_send() - send what a program passes, and wait
 * @connection: the connection
 * @user: the program's arguments
 * @size: how many bytes of them it knows
 * @file: of the connection
 *
 * Return: as the system call does.
 */
long stplr_connection_send(struct stplr_connection *connection, struct stplr_send __user *user,
			   size_t size, struct file *file);

/**
 * stplr_connection_pulse() - a pulse to be queued when something happens, and counted as if it were
 * @connection: for whose channel; counts for the caller's user
 * @code: of the pulse
 * @value: of the pulse
 *
 * Return: as stplr_pulse_new().
 */
struct stplr_pulse_item *stplr_connection_pulse(struct stplr_connection *connection, s32 code,
						s64 value);

/**
 * stplr_connection_send_death_notices() - tell all who asked for it that a channel is gone
 * @channel: the channel, whose port is closed
 */
void stplr_connection_send_death_notices(struct stplr_channel *channel);

/**
 * stplr_connection_show() - write a line for each connection, for debugfs
 * @file: where
 * @channel: whose
 */
void stplr_connection_show(struct seq_file *file, struct stplr_channel *channel);

#endif
