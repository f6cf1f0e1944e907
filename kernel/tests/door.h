/* SPDX-License-Identifier: GPL-2.0 */
/* Doors of the module, as tests use them. */
#ifndef DOOR_H
#define DOOR_H

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/ioctl.h>

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

static inline pthread_t start(void *(*run)(void *), int pool)
{
	pthread_t thread;

	OK(pthread_create(&thread, NULL, run, (void *)(intptr_t)pool));
	return thread;
}

/* A process that has only the door: BODY runs there. */
#define CALLER(pool, ...) CLIENT(pool, 0, __VA_ARGS__)

#endif
