/* SPDX-License-Identifier: GPL-2.0 */
/* Doors of the module, as tests use them. */
#ifndef DOOR_H
#define DOOR_H

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "../include/stplr_doors.h"
#include "new.h"

static inline int new_pool(void)
{
	struct stplr_pool_create arguments = {};
	int device = open("/dev/door", O_RDWR | O_CLOEXEC), pool;

	CHECK(device >= 0);
	pool = ioctl(device, STPLR_POOL_CREATE, &arguments);
	CHECK(pool >= 0);
	close(device);
	return pool;
}

static inline int new_door_of(int pool, uint64_t cookie, unsigned int attributes)
{
	struct stplr_door_create arguments = { .procedure = 7, .cookie = cookie,
					       .attributes = attributes };
	int door = ioctl(pool, STPLR_DOOR_CREATE, &arguments);

	CHECK(door >= 0);
	return door;
}

static inline int new_door(int pool)
{
	return new_door_of(pool, 1, 0);
}

static inline struct stplr_door_desc passed(int fd)
{
	return (struct stplr_door_desc){ .fd = fd, .attributes = STPLR_DOOR_DESCRIPTOR };
}

/* What the last call brought. */
static _Thread_local struct stplr_door_call called;

/* The bytes that came back, or -errno. */
static inline long call_with(int door, struct stplr_door_call arguments)
{
	int result = ioctl(door, STPLR_DOOR_CALL, &arguments);

	called = arguments;
	return result < 0 ? -errno : (long)arguments.replied;
}

static inline long call_door(int door, const void *data, size_t size, void *room, size_t room_size)
{
	return call_with(door, (struct stplr_door_call){ .data = (uintptr_t)data, .size = size,
							 .room = (uintptr_t)room,
							 .room_size = room_size });
}

/* A call without data whose result does not matter. */
static inline long knock(int door)
{
	return call_door(door, NULL, 0, NULL, 0);
}

static inline struct stplr_door_info info_of(int door)
{
	struct stplr_door_info info;

	OK(ioctl(door, STPLR_DOOR_INFO, &info));
	return info;
}

static inline long set_param(int door, unsigned int which, uint64_t value)
{
	struct stplr_door_set arguments = { .which = which, .value = value };

	return ioctl(door, STPLR_DOOR_SET, &arguments) < 0 ? -errno : 0;
}

/* A thread's side: what it answers, and what it has got. */
struct serving {
	int pool;
	struct stplr_door_return arguments;
	struct stplr_door_desc descriptors[4];
	char data[8192];
};

/* Answers, if there is something to answer, and waits. 0 or -errno. */
static inline long serve(struct serving *serving)
{
	struct stplr_door_return *arguments = &serving->arguments;

	arguments->room = (uintptr_t)serving->data;
	arguments->room_size = sizeof(serving->data);
	arguments->received = (uintptr_t)serving->descriptors;
	arguments->received_room = 4;
	if (ioctl(serving->pool, STPLR_DOOR_RETURN, arguments) < 0)
		return -errno;
	arguments->id = arguments->next_id;
	arguments->data = 0;
	arguments->size = 0;
	arguments->descriptors = 0;
	arguments->count = 0;
	return 0;
}

static inline long answer(struct serving *serving, const void *data, size_t size)
{
	serving->arguments.data = (uintptr_t)data;
	serving->arguments.size = size;
	return serve(serving);
}

/* The answer to the call that is being served: nobody is waited for afterwards. */
static inline void finish(struct serving *serving)
{
	serving->arguments.flags = STPLR_RETURN_ONLY;
	IS(0, serve(serving));
}

/* A thread that sends back what it gets, until the pool ends. */
static inline void *echo(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };
	char copy[sizeof(serving.data)];
	long err = serve(&serving);

	while (!err) {
		memcpy(copy, serving.data, serving.arguments.length);
		err = answer(&serving, copy, serving.arguments.length);
	}
	IS(-ESRCH, err);
	return NULL;
}

static inline pthread_t start_serving(void *(*run)(void *), int pool)
{
	pthread_t thread;

	OK(pthread_create(&thread, NULL, run, (void *)(intptr_t)pool));
	return thread;
}

union door_control {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr header;
};

static inline bool send_door(int socket, int door, int flags)
{
	char byte = 0;
	struct iovec piece = { &byte, 1 };
	union door_control control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)),
						   .cmsg_level = SOL_SOCKET,
						   .cmsg_type = SCM_RIGHTS } };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };

	memcpy(CMSG_DATA(&control.header), &door, sizeof(door));
	return sendmsg(socket, &message, flags) == 1;
}

/* -1 where there is none. */
static inline int receive_door(int socket, int flags)
{
	char byte;
	struct iovec piece = { &byte, 1 };
	union door_control control = {};
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int door = -1;

	if (recvmsg(socket, &message, flags) == 1 && message.msg_controllen)
		memcpy(&door, CMSG_DATA(&control.header), sizeof(door));
	return door;
}

/* A server in a process of its own, which goes on with its pool by what is passed; and its door. */
static inline pid_t serving_process(int *door, void (*then)(int pool))
{
	int pair[2];
	pid_t server;

	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	server = fork();
	CHECK(server >= 0);
	if (server == 0) {
		int pool = new_pool();

		CHECK(send_door(pair[0], new_door(pool), 0));
		close(pair[1]);
		then(pool);
		_exit(0);
	}
	close(pair[0]);
	*door = receive_door(pair[1], 0);
	CHECK(*door >= 0);
	return server;
}

static inline void echo_for_ever(int pool)
{
	echo((void *)(intptr_t)pool);
}

/* A process that has only the door: BODY runs there. */
#define CALLER(pool, ...) CLIENT(pool, 0, __VA_ARGS__)

#endif
