// SPDX-License-Identifier: GPL-2.0
/* Doors: pools of threads, and what a library needs of them beside calls and answers. */
#define _GNU_SOURCE
#include <poll.h>

#include "door.h"
#include "seen.h"

static short state_of(int pool)
{
	struct pollfd polled = { .fd = pool, .events = POLLIN | POLLRDHUP };

	CHECK(poll(&polled, 1, 0) >= 0);
	return polled.revents;
}

static void a_server_refuses_what_is_too_much_for_it(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		char room[8];

		IS(-E2BIG, call_door(door, "a lot", 5, room, sizeof(room)));
		IS(-ESRCH, call_door(door, "a lot", 5, room, sizeof(room)));
		IS(2, call_door(door, "ab", 2, room, sizeof(room)));
	});

	IS(0, serve(&serving));
	serving.arguments.flags = STPLR_RETURN_ONLY | STPLR_RETURN_REFUSE;
	/* What would be answered does not matter. */
	IS(0, answer(&serving, (void *)8, 5));
	serving.arguments.flags = 0;
	IS(0, serve(&serving));
	/* Nor is what means something else to a kernel an errno. */
	serving.arguments.flags = STPLR_RETURN_ONLY | STPLR_RETURN_REFUSE;
	serving.arguments.refusal = 512;
	IS(-EINVAL, answer(&serving, NULL, 0));
	serving.arguments.refusal = ESRCH;
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(-EINVAL, answer(&serving, NULL, 0));
	serving.arguments.flags |= STPLR_RETURN_REFUSE;
	IS(0, answer(&serving, NULL, 0));
	serving.arguments.flags = serving.arguments.refusal = 0;
	IS(0, serve(&serving));
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, "ab", 2));
	join(client);
}

static void a_pool_tells_that_it_has_no_door(void)
{
	int pool = new_pool(), door, copy;

	CHECK(state_of(pool) == POLLRDHUP);
	door = new_door(pool);
	CHECK(!state_of(pool));
	copy = dup(door);
	close(door);
	CHECK(!state_of(pool));
	close(copy);
	CHECK(state_of(pool) == POLLRDHUP);
	new_door(pool);
	CHECK(!state_of(pool));
}

static void the_end_of_the_last_door_wakes_who_polls(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct pollfd polled = { .fd = pool, .events = POLLRDHUP };
	int ready[2];
	pid_t holder;

	OK(pipe(ready));
	holder = fork();
	if (!holder) {
		CHECK(read(ready[0], ready, 1) == 1);
		nap(50);
		_exit(0);
	}
	close(door);
	CHECK(write(ready[1], "x", 1) == 1);
	CHECK(poll(&polled, 1, 10000) == 1 && polled.revents == POLLRDHUP);
	CHECK(waitpid(holder, NULL, 0) == holder);
}

static void bad_data_is_told_of_before_bad_descriptors(void)
{
	static const size_t sizes[] = { 4, 300000 };
	int pool = new_pool(), door = new_door(pool);
	struct stplr_door_desc bad = { .fd = -1, .attributes = STPLR_DOOR_DESCRIPTOR };

	start_serving(echo, pool);
	for (size_t i = 0; i < 2; i++) {
		struct stplr_door_call arguments = { .data = 8, .size = sizes[i], .count = 1,
						     .descriptors = (uintptr_t)&bad };
		IS(-EFAULT, call_with(door, arguments));
		arguments.data = (uintptr_t)"good";
		arguments.size = 4;
		IS(-EINVAL, call_with(door, arguments));
	}
}

/* A handler may have run since the program has seen that there was no signal. */
static void a_call_that_is_not_armed_any_more_does_not_wait(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct stplr_door_call arguments = { .flags = STPLR_CALL_ARMED };

	IS(-EAGAIN, call_with(door, arguments));
	arguments.armed = 2;
	IS(-EINVAL, call_with(door, arguments));
	arguments.armed = 1;
	start_serving(echo, pool);
	IS(0, call_with(door, arguments));
	OK(ioctl(door, STPLR_DOOR_REVOKE));
	arguments.armed = 0;
	IS(-EBADF, call_with(door, arguments));
}

/* Its id is in serving->arguments.id then. */
static long defer(struct serving *serving)
{
	long err;

	serving->arguments.flags = STPLR_RETURN_ONLY | STPLR_RETURN_DEFER;
	err = serve(serving);
	serving->arguments.flags = 0;
	return err;
}

static long answer_only(struct serving *serving, uint64_t id, const void *data, size_t size)
{
	serving->arguments.flags = STPLR_RETURN_ONLY;
	serving->arguments.id = id;
	return answer(serving, data, size);
}

static void deferred_calls_are_answered_in_any_order(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	struct stplr_door_cred cred = {};
	pid_t clients[3];
	uint64_t ids[3];

	for (int i = 0; i < 3; i++) {
		clients[i] = CALLER(pool, {
			char room[8];

			IS(2, call_door(door, "ab", 2, room, sizeof(room)));
			CHECK(room[0] == 'x' && room[1] == '0' + i);
		});
		serving.arguments.id = 0;
		IS(0, serve(&serving));
		ids[i] = serving.arguments.id;
		IS(0, defer(&serving));
		cred.id = ids[i];
		OK(ioctl(pool, STPLR_DOOR_CRED, &cred));
		CHECK(cred.pid == clients[i]);
	}
	for (int i = 2; i >= 0; i--) {
		char text[2] = { 'x', '0' + i };

		/* What fails leaves it waiting. */
		IS(-EFAULT, answer_only(&serving, ids[i], (void *)8, 5));
		IS(0, answer_only(&serving, ids[i], text, 2));
		join(clients[i]);
		FAILS(EINVAL, ioctl(pool, STPLR_DOOR_CRED, &cred));
		cred.id = i ? ids[i - 1] : 0;
	}
}

static void *defer_one(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };

	IS(0, serve(&serving));
	IS(0, defer(&serving));
	return (void *)(uintptr_t)serving.arguments.id;
}

static void a_deferred_call_outlives_its_thread(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		IS(0, knock(door));
		IS(-EDOM, knock(door));
	});
	void *id;

	OK(pthread_join(start_serving(defer_one, pool), &id));
	nap(20);
	/* The answer, and the wait for the next call. */
	serving.arguments.id = (uintptr_t)id;
	IS(0, serve(&serving));
	IS(0, defer(&serving));
	serving.arguments.flags = STPLR_RETURN_ONLY | STPLR_RETURN_REFUSE;
	serving.arguments.refusal = EDOM;
	IS(0, serve(&serving));
	join(client);
}

static void who_leaves_a_deferred_call_is_told_of_without_a_thread(void)
{
	int pool = new_pool(), quiet = new_door_of(pool, 0, STPLR_DOOR_NO_CANCEL);
	struct serving serving = { .pool = pool };
	struct stplr_door_notice notice = { .tid = 1 };
	struct pollfd polled = { .fd = pool, .events = POLLIN };
	pid_t client = CALLER(pool, knock(quiet));

	IS(0, serve(&serving));
	IS(0, defer(&serving));
	OK(kill(client, SIGKILL));
	CHECK(poll(&polled, 1, 10000) == 1);
	OK(ioctl(pool, STPLR_POOL_NOTICE, &notice));
	CHECK(notice.id == serving.arguments.id && !notice.tid);
	FAILS(EAGAIN, ioctl(pool, STPLR_POOL_NOTICE, &notice));
	/* Passed over, once and again. */
	IS(0, answer_only(&serving, serving.arguments.id, NULL, 0));
	IS(0, answer_only(&serving, serving.arguments.id, NULL, 0));
	/* One that nobody asks for is forgotten with its call. */
	client = CALLER(pool, knock(quiet));
	serving.arguments.id = 0;
	serving.arguments.flags = 0;
	IS(0, serve(&serving));
	IS(0, defer(&serving));
	OK(kill(client, SIGKILL));
	CHECK(poll(&polled, 1, 10000) == 1);
	IS(0, answer_only(&serving, serving.arguments.id, NULL, 0));
	CHECK(poll(&polled, 1, 0) == 0);
}

/* Answers at once whatever it is told of. */
static void *answer_who_has_left(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };
	struct pollfd polled = { .fd = serving.pool, .events = POLLIN };
	struct stplr_door_notice notice;

	for (;;) {
		CHECK(poll(&polled, 1, -1) == 1);
		while (!ioctl(serving.pool, STPLR_POOL_NOTICE, &notice))
			IS(0, answer_only(&serving, notice.id, NULL, 0));
	}
	return NULL;
}

/* At whichever moment: the answer finds what stands for the call, which goes with that. */
static void who_leaves_while_it_is_deferred_leaves_nothing(void)
{
	int pool = new_pool(), door = new_door_of(pool, 0, STPLR_DOOR_NO_CANCEL);
	struct serving serving = { .pool = pool };
	long before = 0;

	start_serving(answer_who_has_left, pool);
	for (int round = 0; round < 200; round++) {
		pid_t client = CALLER(pool, knock(door));
		long err;

		serving.arguments.id = 0;
		IS(0, serve(&serving));
		OK(kill(client, SIGKILL));
		for (volatile int delay = 0; delay < round * 100; delay++)
			;
		err = defer(&serving);
		CHECK(!err || err == -ESRCH);
		CHECK(waitpid(client, NULL, 0) == client);
		if (!round)
			before = settled_bytes_of(0);
	}
	while (settled_bytes_of(0) > before)
		nap(20);
}

static void only_ones_own_call_can_be_deferred(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client;

	IS(-ESRCH, defer(&serving));
	serving.arguments.flags = STPLR_RETURN_DEFER;
	IS(-EINVAL, serve(&serving));
	serving.arguments.flags = STPLR_RETURN_DEFER | STPLR_RETURN_ONLY | STPLR_RETURN_REFUSE;
	IS(-EINVAL, serve(&serving));
	serving.arguments.flags = 0;
	client = CALLER(pool, IS(0, knock(door)));
	IS(0, serve(&serving));
	IS(0, defer(&serving));
	IS(-ESRCH, defer(&serving));
	IS(0, answer_only(&serving, serving.arguments.id, NULL, 0));
	join(client);
}

static void deferred_calls_end_with_their_pool(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t clients[2];

	for (int i = 0; i < 2; i++) {
		clients[i] = CALLER(pool, IS(-EINTR, knock(door)));
		serving.arguments.id = 0;
		IS(0, serve(&serving));
		IS(0, defer(&serving));
	}
	close(door);
	close(pool);
	join(clients[0]);
	join(clients[1]);
}

struct answering {
	int pool;
	uint64_t id;
};

static void *answer_badly(void *argument)
{
	struct answering *it = argument;
	struct serving serving = { .pool = it->pool };

	for (int i = 0; i < 200; i++)
		answer_only(&serving, it->id, (void *)8, 5);
	return NULL;
}

/* Who fails and who is told that there is no such call must not give up the same thing. */
static void many_threads_may_answer_a_deferred_call(void)
{
	int pool = new_pool(), door = new_door(pool);

	for (int round = 0; round < 20; round++) {
		struct serving serving = { .pool = pool };
		struct answering it = { .pool = pool };
		pthread_t threads[3];
		pid_t client = CALLER(pool, knock(door));

		IS(0, serve(&serving));
		IS(0, defer(&serving));
		it.id = serving.arguments.id;
		for (int i = 0; i < 3; i++)
			OK(pthread_create(&threads[i], NULL, answer_badly, &it));
		OK(kill(client, SIGKILL));
		for (int i = 0; i < 3; i++)
			OK(pthread_join(threads[i], NULL));
		IS(0, answer_only(&serving, it.id, NULL, 0));
	}
}

static void *wait_in(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };

	IS(0, serve(&serving));
	finish(&serving);
	return NULL;
}

static void the_last_thread_is_told_that_it_is(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pthread_t thread = start_serving(wait_in, pool);
	pid_t client;

	AWAIT_LINE(FOLDER "blocked", "%d ", getpid());
	client = CALLER(pool, {
		nap(100);
		IS(0, knock(door));
	});
	/* This thread came last, so it is the first to be given a call. */
	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_LAST));
	finish(&serving);
	join(client);
	client = CALLER(pool, IS(0, knock(door)));
	OK(pthread_join(thread, NULL));
	join(client);
}

/* Two processes serve each other's calls: a thread is server and client at once. */
static void *forward(void *pair)
{
	const int *ends = pair;
	struct serving serving = { .pool = ends[0] };
	char room[16];
	long err = serve(&serving);

	while (!err) {
		long length = call_door(ends[1], serving.data, serving.arguments.length, room,
					sizeof(room));

		CHECK(length >= 0);
		err = answer(&serving, room, (size_t)length);
	}
	return NULL;
}

static void a_thread_is_server_and_client_at_once(void)
{
	int first = new_pool(), second = new_pool();
	int ends[2] = { first, new_door(second) }, door = new_door(first);
	pthread_t thread;
	char room[16] = "";

	start_serving(echo, second);
	OK(pthread_create(&thread, NULL, forward, ends));
	for (int i = 0; i < 100; i++)
		IS(3, call_door(door, "abc", 4 - 1, room, sizeof(room)));
	CHECK(!strcmp(room, "abc"));
}

#define CROWD 8

static void many_threads_serve_many_clients(void)
{
	int pool = new_pool(), door = new_door(pool);
	pid_t clients[CROWD];

	for (int i = 0; i < 4; i++)
		start_serving(echo, pool);
	for (int i = 0; i < CROWD; i++)
		clients[i] = CALLER(pool, {
			uint8_t sent[600];
			uint8_t room[600];

			for (int k = 0; k < 200; k++) {
				memset(sent, i * 16 + k, sizeof(sent));
				IS(sizeof(sent), call_door(door, sent, sizeof(sent), room, sizeof(room)));
				CHECK(!memcmp(sent, room, sizeof(sent)));
			}
		});
	for (int i = 0; i < CROWD; i++)
		join(clients[i]);
}

static const struct test tests[] = {
	{ "a call that is not armed any more does not wait",
	  a_call_that_is_not_armed_any_more_does_not_wait },
	{ "a server refuses what is too much for it", a_server_refuses_what_is_too_much_for_it },
	{ "a pool tells that it has no door", a_pool_tells_that_it_has_no_door },
	{ "the end of the last door wakes who polls", the_end_of_the_last_door_wakes_who_polls },
	{ "bad data is told of before bad descriptors", bad_data_is_told_of_before_bad_descriptors },
	{ "deferred calls are answered in any order",
	  deferred_calls_are_answered_in_any_order },
	{ "a deferred call outlives its thread", a_deferred_call_outlives_its_thread },
	{ "who leaves a deferred call is told of without a thread",
	  who_leaves_a_deferred_call_is_told_of_without_a_thread },
	{ "who leaves while it is deferred leaves nothing",
	  who_leaves_while_it_is_deferred_leaves_nothing },
	{ "only one's own call can be deferred", only_ones_own_call_can_be_deferred },
	{ "deferred calls end with their pool", deferred_calls_end_with_their_pool },
	{ "many threads may answer a deferred call", many_threads_may_answer_a_deferred_call },
	{ "the last thread is told that it is", the_last_thread_is_told_that_it_is },
	{ "a thread is server and client at once", a_thread_is_server_and_client_at_once },
	{ "many threads serve many clients", many_threads_serve_many_clients },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(tests[0]));
}
