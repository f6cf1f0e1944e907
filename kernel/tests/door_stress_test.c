// SPDX-License-Identifier: GPL-2.0
/*
 * Crowds of servers and clients of doors that are interrupted, killed and lied to, whose doors are passed
 * on while they end. What they prove is that the kernel has nothing to complain of, that the module can
 * be unloaded afterwards, and that those who behave are served throughout.
 */
#include "crowd.h"
#include "door.h"

static int crowd_pool;

/* Serves some calls, well or badly, and may end in the middle of one. */
static void *misbehaving_thread(void *argument)
{
	char *buffer = malloc(MOST);
	struct stplr_door_desc got[4] = {};
	struct stplr_door_return arguments = {};

	let_fail(true);
	while (dice(200)) {
		struct stplr_door_desc sent = { .fd = (int)dice(20),
						.attributes = STPLR_DOOR_DESCRIPTOR };

		arguments.data = (uintptr_t)(dice(20) ? buffer : some_memory());
		arguments.size = some_size();
		arguments.descriptors = (uintptr_t)&sent;
		arguments.count = dice(10) == 0;
		arguments.flags = dice(10) == 0;
		arguments.room = (uintptr_t)(dice(20) ? buffer : some_memory());
		arguments.room_size = some_size();
		arguments.received = (uintptr_t)got;
		arguments.received_room = dice(3);
		if (ioctl(crowd_pool, STPLR_DOOR_RETURN, &arguments)) {
			if (dice(2))
				arguments.id = 0;
			continue;
		}
		if (arguments.flags)
			continue;
		arguments.id = arguments.next_id;
		for (unsigned int i = 0; i < arguments.received_count && i < 4; i++)
			close(got[i].fd);
		if (dice(5) == 0) {
			struct stplr_access access = { .id = arguments.id, .offset = dice(MOST),
						       .buffer = some_buffer() };
			struct stplr_door_cred cred = { .id = arguments.id };

			ioctl(crowd_pool, STPLR_READ, &access);
			ioctl(crowd_pool, STPLR_DOOR_CRED, &cred);
		}
	}
	free(buffer);
	return argument;
}

static void misbehaving_server(int socket)
{
	struct stplr_pool_create make = { .spin_us = dice(2) * 50 };
	int device = open("/dev/door", O_RDWR);

	crowd_pool = ioctl(device, STPLR_POOL_CREATE, &make);
	be_interrupted();
	for (;;) {
		struct stplr_door_create create = { .attributes = dice(2) ? STPLR_DOOR_UNREF_MULTI : 0 };
		struct stplr_door_notice notice;
		int door = ioctl(crowd_pool, STPLR_DOOR_CREATE, &create);

		if (door >= 0) {
			send_door(socket, door, MSG_DONTWAIT);
			start_thread(misbehaving_thread);
			usleep(dice(3000));
			if (dice(3) == 0)
				ioctl(door, STPLR_DOOR_REVOKE);
			close(door);
		}
		ioctl(crowd_pool, STPLR_POOL_NOTICE, &notice);
		if (dice(20) == 0)
			fork_and_end();
		if (dice(100) == 0) {
			close(crowd_pool);
			crowd_pool = ioctl(device, STPLR_POOL_CREATE, &make);
		}
	}
}

static void misbehaving_client(int socket)
{
	int door = -1;

	be_interrupted();
	for (;;) {
		struct stplr_door_desc got[2], sent = { .fd = door, .attributes = STPLR_DOOR_DESCRIPTOR };
		struct stplr_door_call call = { .data = (uintptr_t)some_memory(),
						.size = some_size(),
						.room = (uintptr_t)some_memory(),
						.room_size = some_size(),
						.descriptors = (uintptr_t)&sent,
						.received = (uintptr_t)got,
						.count = dice(5) == 0,
						.received_room = dice(3) };
		int fresh = receive_door(socket, MSG_DONTWAIT);

		if (fresh >= 0) {
			close(door);
			door = fresh;
		}
		if (ioctl(door, STPLR_DOOR_CALL, &call)) {
			usleep(dice(200));
			continue;
		}
		if (call.mapped_size)
			munmap((void *)(uintptr_t)call.mapped, call.mapped_size);
		for (unsigned int i = 0; i < call.received_count; i++)
			close(got[i].fd);
		if (dice(30) == 0)
			fork_and_end();
	}
}

static void good_client(int door, double end)
{
	for (long long i = 0; now() < end; i++) {
		long long got = 0;

		IS(sizeof(i), call_door(door, &i, sizeof(i), &got, sizeof(got)));
		CHECK(got == i);
	}
}

static void a_crowd_of_doors_with(worker *server, worker *client)
{
	double end = now() + seconds();
	int door, pair[2];
	pid_t good = serving_process(&door, echo_for_ever), behaves;

	OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	behaves = CLIENT(pair[0], 0, good_client(door, end));
	a_crowd(server, pair[0], client, pair[1]);
	join(behaves);
	kill(good, SIGKILL);
}

static void a_crowd_of_doors(void)
{
	a_crowd_of_doors_with(misbehaving_server, misbehaving_client);
}

static void short_server(int socket)
{
	be_short_of_memory();
	misbehaving_server(socket);
}

static void short_client(int socket)
{
	be_short_of_memory();
	misbehaving_client(socket);
}

static void a_crowd_of_doors_while_memory_runs_short(void)
{
	if (!let_memory_run_short())
		SKIP("this kernel cannot let allocations fail");
	a_crowd_of_doors_with(short_server, short_client);
}

static const struct test tests[] = {
	{ "a crowd of doors", a_crowd_of_doors },
	{ "a crowd of doors while memory runs short", a_crowd_of_doors_while_memory_runs_short },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
