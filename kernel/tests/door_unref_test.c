// SPDX-License-Identifier: GPL-2.0
/* Doors: references to a door, and that it is told when a single one is left. */
#define _GNU_SOURCE
#include "door.h"
#include "seen.h"

static void await_unref(struct serving *serving, int door)
{
	IS(0, serve(serving));
	CHECK(serving->arguments.notes & STPLR_NOTE_UNREF);
	CHECK(!serving->arguments.next_id && serving->arguments.door == info_of(door).id);
	CHECK(serving->arguments.cookie == 5 && !serving->arguments.length);
}

static void a_door_tells_that_a_single_descriptor_is_left(void)
{
	int pool = new_pool(), door = new_door_of(pool, 5, STPLR_DOOR_UNREF), other;
	struct serving serving = { .pool = pool };
	pid_t client;

	CHECK(info_of(door).attributes == (STPLR_DOOR_LOCAL | STPLR_DOOR_UNREF));
	client = CALLER(pool, IS(0, knock(door)));
	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_UNREF));
	await_unref(&serving, door);
	join(client);
	CHECK(info_of(door).attributes == (STPLR_DOOR_LOCAL | STPLR_DOOR_IS_UNREF));
	other = dup(door);
	CHECK(info_of(door).attributes == STPLR_DOOR_LOCAL);
	/* Only once. */
	close(other);
	client = CALLER(pool, {
		nap(200);
		IS(0, knock(door));
	});
	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_UNREF));
	finish(&serving);
	join(client);
}

static void a_door_tells_so_each_time_if_it_is_to(void)
{
	int pool = new_pool(), door = new_door_of(pool, 5, STPLR_DOOR_UNREF_MULTI);
	struct serving serving = { .pool = pool };

	for (int i = 0; i < 3; i++) {
		close(dup(door));
		await_unref(&serving, door);
	}
	CHECK(info_of(door).attributes & STPLR_DOOR_UNREF_MULTI);
}

static int the_door;

static void *knock_once(void *unused)
{
	IS(0, knock(the_door));
	return unused;
}

/* Not as long as it is in a message or a call lasts, however long that is, but then. */
static void references_that_nobody_closes_count(void)
{
	int pool = new_pool(), sent, pair[2];
	struct serving serving = { .pool = pool }, other = { .pool = pool };

	the_door = new_door_of(pool, 5, STPLR_DOOR_UNREF);
	pid_t client = CALLER(pool, {
		pthread_t thread;

		OK(pthread_create(&thread, NULL, knock_once, NULL));
		AWAIT_LINE(FOLDER "blocked", "%d ", getpid());
		nap(200);
		close(the_door);
		OK(pthread_join(thread, NULL));
		pause();
	});

	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_UNREF));
	sent = new_door_of(pool, 5, STPLR_DOOR_UNREF);
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	CHECK(send_door(pair[0], sent, 0));
	close(dup(sent));
	nap(4000);
	OK(close(pair[1]));
	OK(close(pair[0]));
	await_unref(&other, sent);
	finish(&serving);
	other.arguments.id = 0;
	await_unref(&other, the_door);
	OK(kill(client, SIGKILL));
}

static void references_of_many_processes_count(void)
{
	int pool = new_pool(), door = new_door_of(pool, 5, STPLR_DOOR_UNREF), pair[2];
	struct serving serving = { .pool = pool };
	pid_t children[8];
	char byte;

	OK(pipe2(pair, O_CLOEXEC));
	for (int i = 0; i < 8; i++)
		children[i] = CALLER(pool, {
			close(pair[1]);
			CHECK(read(pair[0], &byte, 1) == 0);
		});
	close(dup(door));
	nap(100);
	CHECK(info_of(door).attributes == (STPLR_DOOR_LOCAL | STPLR_DOOR_UNREF));
	close(pair[1]);
	await_unref(&serving, door);
	for (int i = 0; i < 8; i++)
		join(children[i]);
}

/*
 * Also when the module has been counting for long, and looks seldom. A machine may be busy at one time, but not
 * at each.
 */
static void the_last_but_one_is_seen_to_go_at_once(void)
{
	int pool = new_pool(), door = new_door_of(pool, 5, STPLR_DOOR_UNREF_MULTI);
	struct serving serving = { .pool = pool };
	double start;

	for (int i = 0; i < 4; i++) {
		int second_one = dup(door), third = dup(door);

		close(third);
		/* It has looked 2.6 seconds after that, or a little later, and would once more 1.3 seconds later. */
		nap(3000);
		start = now();
		close(second_one);
		await_unref(&serving, door);
		if (now() - start < 0.4)
			return;
		printf("# after %.3f s\n", now() - start);
	}
	CHECK(!"it is told of at once");
}

static void a_door_without_descriptors_is_gone(void)
{
	int pool = new_pool();
	long before = settled_bytes_of(0);

	for (int i = 0; i < 100; i++) {
		int door = new_door_of(pool, 5, STPLR_DOOR_UNREF);

		close(dup(door));
		close(door);
	}
	do
		nap(20);
	while (settled_bytes_of(0) > before);
}

/* Not even what waits to be received. */
static void a_revoked_door_tells_nothing(void)
{
	int pool = new_pool(), door = new_door_of(pool, 6, 0);
	int told = new_door_of(pool, 5, STPLR_DOOR_UNREF_MULTI);
	int untold = new_door_of(pool, 5, STPLR_DOOR_UNREF_MULTI);
	struct serving serving = { .pool = pool };

	close(dup(told));
	nap(300);
	OK(ioctl(told, STPLR_DOOR_REVOKE));
	OK(ioctl(untold, STPLR_DOOR_REVOKE));
	close(dup(untold));
	pid_t client = CALLER(pool, {
		nap(300);
		IS(0, knock(door));
	});
	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_UNREF) && serving.arguments.next_id);
	finish(&serving);
	join(client);
}

static const struct test tests[] = {
	{ "a door tells that a single descriptor is left",
	  a_door_tells_that_a_single_descriptor_is_left },
	{ "a door tells so each time if it is to", a_door_tells_so_each_time_if_it_is_to },
	{ "references that nobody closes count", references_that_nobody_closes_count },
	{ "references of many processes count", references_of_many_processes_count },
	{ "the last but one is seen to go at once", the_last_but_one_is_seen_to_go_at_once },
	{ "a revoked door tells nothing", a_revoked_door_tells_nothing },
	{ "a door without descriptors is gone", a_door_without_descriptors_is_gone },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
