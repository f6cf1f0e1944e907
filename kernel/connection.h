/* SPDX-License-Identifier: GPL-2.0 */
/* A client's end of a channel, as a file. */
#ifndef STPLR_CONNECTION_H
#define STPLR_CONNECTION_H

#include "channel.h"

/* A descriptor of a new connection; takes the reference to the channel, also when it fails. */
long stplr_connection_create(struct stplr_channel *channel, u64 label);

/* A label for a connection that nobody chose one for. */
u64 stplr_connection_label(void);

/* Tells all who asked for it that the channel is gone. Called once, when it is closed. */
void stplr_connection_mourn(struct stplr_channel *channel);

/* A line for each connection, for debugfs. */
void stplr_connection_show(struct seq_file *file, struct stplr_channel *channel);

#endif
