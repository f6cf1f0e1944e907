/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR Apache-2.0 */
/*
 * The calls of stplr.ko with types, for C and C++. Thin: each is one system call, but for
 * stplr_channel_create() and stplr_connect(), which open and close /dev/stplr around theirs.
 *
 * All return a negative errno on failure; descriptors, numbers of bytes or 0 otherwise. Structures
 * and what they mean are in stplr.h. Every call has a page in section 3 of the manual.
 */
#ifndef LIBSTPLR_H
#define LIBSTPLR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "stplr.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STPLR_FOREVER ((int64_t)-1)

/* Bytes in one run, for the structures of stplr.h. */
static inline struct stplr_buffer stplr_bytes(const void *address, size_t length)
{
	struct stplr_buffer buffer = { (uint64_t)(uintptr_t)address, (__u32)length, 0 };

	return buffer;
}

/* One of several buffers. */
static inline struct stplr_part stplr_part(const void *address, size_t length)
{
	struct stplr_part part = { (uint64_t)(uintptr_t)address, (__u32)length, 0 };

	return part;
}

/* Bytes in count buffers. */
static inline struct stplr_buffer stplr_vector(const struct stplr_part *buffers, unsigned int count)
{
	struct stplr_buffer buffer = { (uint64_t)(uintptr_t)buffers, 0, count };

	return buffer;
}

/* Bytes in registered memory. */
static inline struct stplr_buffer stplr_registered(unsigned int number, const void *address,
						   size_t length)
{
	struct stplr_buffer buffer = { (uint64_t)(uintptr_t)address, (__u32)length,
				       STPLR_REGION + number };

	return buffer;
}

/* A channel; name may be NULL. mode says who may connect by that name. */
int stplr_channel_create(const char *name, unsigned int mode, unsigned int flags);

/* The same with everything that there is. */
int stplr_channel_create_full(const struct stplr_channel_create *create);

/* Closes it for all, though the descriptor stays. */
int stplr_shutdown(int channel);

/* Queues a pulse at the channel itself. priority is at most the caller's; 0 is the caller's. */
int stplr_post(int channel, int priority, int code, int64_t value);

/* What a descriptor is; -ENOTTY: none of this module's. */
int stplr_info(int fd, struct stplr_info *info);

/* A connection by name. */
int stplr_connect(const char *name);

/* A connection to a channel that one has, to be given away. */
int stplr_channel_connect(int channel, uint64_t label);

/* Sends and waits for the reply. Returns its length; status may be NULL. */
ssize_t stplr_send(int connection, const void *message, size_t length, void *reply, size_t room,
		   int64_t *status);

/* The same with everything that there is. 0 on success. */
int stplr_send_full(int connection, struct stplr_send *send);

/* Waits until the message has been received, not for a reply. */
int stplr_send_one_way(int connection, const void *message, size_t length);

/* Receives a message or a pulse; what it is, received tells. Returns the bytes in buffer. */
ssize_t stplr_receive(int channel, void *buffer, size_t length, int64_t timeout_ns,
		      struct stplr_receive *received);

/* The same with everything that there is. 0 on success. */
int stplr_receive_full(int channel, struct stplr_receive *receive);

/* Answers. Returns the bytes that the client gets. */
ssize_t stplr_reply(int channel, uint64_t id, int64_t status, const void *reply, size_t length);

/* Lets the client's call fail with error, an errno. */
int stplr_reply_error(int channel, uint64_t id, int error);

/* Answers and receives the next in one system call. 0 on success. */
int stplr_reply_receive(int channel, struct stplr_reply_receive *both);

/* The memory of a client whose message was received and not answered. Return bytes. */
ssize_t stplr_read(int channel, uint64_t id, uint64_t offset, void *to, size_t length);
ssize_t stplr_write(int channel, uint64_t id, uint64_t offset, const void *from, size_t length);

/* Queues a pulse with the caller's priority. */
int stplr_pulse(int connection, int code, int64_t value);

/* The same with a priority of at most the caller's; 0 is the caller's. */
int stplr_pulse_priority(int connection, int priority, int code, int64_t value);

/* Asks for a pulse to channel when the connection's server is gone. */
int stplr_death(int connection, int channel, int64_t value);

/* Pins memory for messages and replies of this connection. Returns its number. */
int stplr_register(int connection, void *address, size_t length);
int stplr_unregister(int connection, unsigned int number);

#ifdef __cplusplus
}
#endif

#endif
