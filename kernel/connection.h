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
	struct stplr_budget *budgets[STPLR_BUDGETS]; /* references: its own, its user's */
	struct stplr_regions *regions; /* reference */
	u64 label;
	struct stplr_message *spare; /* owned */
	struct stplr_pulse_item *goodbye; /* kept ready for the release, if the channel wants it */

	struct list_head sibling; /* in channel->connections, under channel->lock */
	struct list_head death_notice; /* in channel->death_notices, under channel->lock */
	struct stplr_channel *told; /* reference: who gets the death pulse, or NULL */
	struct stplr_pulse_item *death;
};

/* A descriptor of a new connection; takes the reference to the channel, also when it fails. */
long stplr_connection_create(struct stplr_channel *channel, u64 label);

/* A label for a connection that nobody chose one for. */
u64 stplr_connection_label(void);

/* send.c */
long stplr_connection_send(struct stplr_connection *connection, struct stplr_send __user *user,
			   struct file *file);

/* To be queued when something happens, and counted as if it were. Fails as stplr_pulse_new() does. */
struct stplr_pulse_item *stplr_connection_pulse(struct stplr_connection *connection, s32 code,
						s64 value);

/* Tells all who asked for it that the channel is gone. Called once, when it is closed. */
void stplr_connection_send_death_notices(struct stplr_channel *channel);

/* A line for each connection, for debugfs. */
void stplr_connection_show(struct seq_file *file, struct stplr_channel *channel);

#endif
