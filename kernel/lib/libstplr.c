// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR Apache-2.0
#include "libstplr.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CONTROL "/dev/stplr"

static int call(int fd, unsigned long command, const void *argument)
{
	int result = ioctl(fd, command, argument);

	return result < 0 ? -errno : result;
}

/* By way of the control node, which is open only meanwhile. */
static int control(unsigned long command, const void *argument)
{
	int fd = open(CONTROL, O_RDWR | O_CLOEXEC), result;

	if (fd < 0)
		return -errno;
	result = call(fd, command, argument);
	close(fd);
	return result;
}

static int set_name(char *to, const char *name)
{
	size_t length = strlen(name);

	if (length >= STPLR_NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(to, name, length);
	return 0;
}

int stplr_channel_create(const char *name, unsigned int mode, unsigned int flags)
{
	struct stplr_channel_create create = { .flags = flags, .mode = mode };
	int err = name ? set_name(create.name, name) : 0;

	return err ? err : control(STPLR_CHANNEL_CREATE, &create);
}

int stplr_channel_create_full(const struct stplr_channel_create *create)
{
	return control(STPLR_CHANNEL_CREATE, create);
}

int stplr_shutdown(int channel)
{
	return call(channel, STPLR_SHUTDOWN, NULL);
}

int stplr_post(int channel, int priority, int code, int64_t value)
{
	struct stplr_pulse pulse = { .code = code, .priority = priority, .value = value };

	return call(channel, STPLR_POST, &pulse);
}

int stplr_info(int fd, struct stplr_info *info)
{
	return call(fd, STPLR_INFO, info);
}

int stplr_connect(const char *name)
{
	struct stplr_connect connect = { "" };
	int err = set_name(connect.name, name);

	return err ? err : control(STPLR_CONNECT, &connect);
}

int stplr_channel_connect(int channel, uint64_t label)
{
	struct stplr_channel_connect connect = { .label = label };

	return call(channel, STPLR_CHANNEL_CONNECT, &connect);
}

int stplr_send_full(int connection, struct stplr_send *send)
{
	return call(connection, STPLR_SEND, send);
}

ssize_t stplr_send(int connection, const void *message, size_t length, void *reply, size_t room,
		   int64_t *status)
{
	struct stplr_send send = { .send = stplr_bytes(message, length),
				   .reply = stplr_bytes(reply, room),
				   .timeout_ns = STPLR_FOREVER };
	int err;

	if (length > STPLR_BYTES_MAX || room > STPLR_BYTES_MAX)
		return -EMSGSIZE;
	err = stplr_send_full(connection, &send);
	if (err)
		return err;
	if (status)
		*status = send.status;
	return (ssize_t)send.replied;
}

int stplr_send_one_way(int connection, const void *message, size_t length)
{
	struct stplr_send send = { .send = stplr_bytes(message, length),
				   .timeout_ns = STPLR_FOREVER,
				   .flags = STPLR_SEND_ONE_WAY };

	if (length > STPLR_BYTES_MAX)
		return -EMSGSIZE;
	return stplr_send_full(connection, &send);
}

int stplr_receive_full(int channel, struct stplr_receive *receive)
{
	return call(channel, STPLR_RECEIVE, receive);
}

ssize_t stplr_receive(int channel, void *buffer, size_t length, int64_t timeout_ns,
		      struct stplr_receive *received)
{
	int err;

	if (length > STPLR_BYTES_MAX)
		return -EMSGSIZE;
	memset(received, 0, sizeof(*received));
	received->buffer = stplr_bytes(buffer, length);
	received->timeout_ns = timeout_ns;
	err = stplr_receive_full(channel, received);
	if (err)
		return err;
	return (ssize_t)(received->length < length ? received->length : length);
}

ssize_t stplr_reply(int channel, uint64_t id, int64_t status, const void *reply, size_t length)
{
	struct stplr_reply arguments = { .id = id,
					 .status = status,
					 .buffer = stplr_bytes(reply, length) };

	if (length > STPLR_BYTES_MAX)
		return -EMSGSIZE;
	return call(channel, STPLR_REPLY, &arguments);
}

int stplr_reply_error(int channel, uint64_t id, int error)
{
	struct stplr_reply arguments = { .id = id, .error = error };

	return call(channel, STPLR_REPLY, &arguments);
}

int stplr_reply_receive(int channel, struct stplr_reply_receive *both)
{
	return call(channel, STPLR_REPLY_RECEIVE, both);
}

ssize_t stplr_read(int channel, uint64_t id, uint64_t offset, void *to, size_t length)
{
	struct stplr_access access = { .id = id,
				       .offset = offset,
				       .buffer = stplr_bytes(to, length) };

	if (length > STPLR_BYTES_MAX)
		return -EMSGSIZE;
	return call(channel, STPLR_READ, &access);
}

ssize_t stplr_write(int channel, uint64_t id, uint64_t offset, const void *from, size_t length)
{
	struct stplr_access access = { .id = id,
				       .offset = offset,
				       .buffer = stplr_bytes(from, length) };

	if (length > STPLR_BYTES_MAX)
		return -EMSGSIZE;
	return call(channel, STPLR_WRITE, &access);
}

int stplr_pulse_priority(int connection, int priority, int code, int64_t value)
{
	struct stplr_pulse pulse = { .code = code, .priority = priority, .value = value };

	return call(connection, STPLR_PULSE, &pulse);
}

int stplr_pulse(int connection, int code, int64_t value)
{
	return stplr_pulse_priority(connection, 0, code, value);
}

int stplr_death(int connection, int channel, int64_t value)
{
	struct stplr_death death = { .channel = channel, .value = value };

	return call(connection, STPLR_DEATH, &death);
}

int stplr_register(int connection, void *address, size_t length)
{
	struct stplr_register memory = { .address = (uint64_t)(uintptr_t)address,
					 .length = length };

	return call(connection, STPLR_REGISTER, &memory);
}

int stplr_unregister(int connection, unsigned int number)
{
	int result = ioctl(connection, STPLR_UNREGISTER, (unsigned long)number);

	return result < 0 ? -errno : 0;
}
