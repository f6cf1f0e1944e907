// SPDX-License-Identifier: GPL-2.0
/*
 * Who is busy with a call, and waits for memory of its own meanwhile, keeps nothing from its client: neither
 * the answer of another thread, nor that the channel is shut down.
 */
#include <grp.h>

#include "door.h"
#include "seen.h"
#include "watch.h"

static char *held;
static int faults;

static void hold_back(void)
{
	need_userfaultfd();
	held = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(held != MAP_FAILED);
	faults = watch(held, 4096);
}

struct reader {
	int channel;
	uint64_t id;
};

static void *read_there(void *argument)
{
	const struct reader *reader = argument;

	IS(5, stplr_read(reader->channel, reader->id, 0, held, 5));
	return NULL;
}

static void an_answer_comes_while_another_reads(unsigned int flags)
{
	int channel = new_channel(flags), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pthread_t thread;

	hold_back();
	pid_t client = CLIENT(channel, connection, {
		char room[7];

		IS(7, stplr_send(connection, "hello", 5, room, 7, NULL));
		CHECK(!strcmp(room, "answer"));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	struct reader reader = { channel, received.id };

	OK(pthread_create(&thread, NULL, read_there, &reader));
	await_fault(faults);
	IS(7, stplr_reply(channel, received.id, 0, "answer", 7));
	join(client);
	let_come(faults, held, 4096);
	OK(pthread_join(thread, NULL));
	CHECK(!strcmp(held, "hello"));
}

static void answers_come_while_another_reads(void)
{
	an_answer_comes_while_another_reads(0);
	an_answer_comes_while_another_reads(STPLR_CHANNEL_UNBLOCK);
}

static void *receive_there(void *channel)
{
	struct stplr_receive received;

	IS(-ESRCH, stplr_receive(*(int *)channel, held, 5, -1, &received));
	return NULL;
}

static void a_shutdown_is_told_while_another_receives(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	pthread_t thread;

	hold_back();
	OK(pthread_create(&thread, NULL, receive_there, &channel));
	pid_t client = CLIENT(channel, connection, {
		IS(-ESRCH, stplr_send(connection, "hello", 5, NULL, 0, NULL));
	});

	await_fault(faults);
	IS(0, stplr_shutdown(channel));
	join(client);
	let_come(faults, held, 4096);
	OK(pthread_join(thread, NULL));
}

/* Reads its answer from there; whether it is given is not told to anybody. */
static void *answer_from_there(void *argument)
{
	const struct reader *reader = argument;

	IS(-ESRCH, stplr_reply(reader->channel, reader->id, 0, held, 5));
	return NULL;
}

static void a_shutdown_is_told_while_another_answers(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pthread_t thread;

	hold_back();
	pid_t client = CLIENT(channel, connection, {
		char room[5];

		IS(-ESRCH, stplr_send(connection, "hello", 5, room, 5, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	struct reader reader = { channel, received.id };

	OK(pthread_create(&thread, NULL, answer_from_there, &reader));
	await_fault(faults);
	IS(0, stplr_shutdown(channel));
	join(client);
	let_come(faults, held, 4096);
	OK(pthread_join(thread, NULL));
}

static int pool;

static void *ask_whose(void *id)
{
	struct stplr_door_cred of = { .id = *(uint64_t *)id, .groups = (uintptr_t)held,
				      .group_room = 4 };

	OK(ioctl(pool, STPLR_DOOR_CRED, &of));
	CHECK(of.group_count == 2 && ((uint32_t *)held)[1] == 20);
	return NULL;
}

static void a_deferred_call_is_answered_while_another_asks_whose_it_is(void)
{
	struct serving serving = { .pool = new_pool() };
	int door = new_door(serving.pool);
	pthread_t thread;
	uint64_t id;

	pool = serving.pool;
	hold_back();
	pid_t client = CALLER(pool, {
		gid_t groups[2] = { 10, 20 };
		char room[7];

		OK(setgroups(2, groups));
		IS(7, call_door(door, NULL, 0, room, 7));
		CHECK(!strcmp(room, "answer"));
	});
	IS(0, serve(&serving));
	id = serving.arguments.id;
	serving.arguments.flags = STPLR_RETURN_DEFER | STPLR_RETURN_ONLY;
	IS(0, serve(&serving));
	OK(pthread_create(&thread, NULL, ask_whose, &id));
	await_fault(faults);
	serving.arguments.id = id;
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, "answer", 7));
	join(client);
	let_come(faults, held, 4096);
	OK(pthread_join(thread, NULL));
}

static const struct test tests[] = {
	{ "an answer comes while another thread reads", answers_come_while_another_reads },
	{ "a shutdown is told while another thread receives",
	  a_shutdown_is_told_while_another_receives },
	{ "a shutdown is told while another thread answers",
	  a_shutdown_is_told_while_another_answers },
	{ "a deferred call is answered while another thread asks whose it is",
	  a_deferred_call_is_answered_while_another_asks_whose_it_is },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
