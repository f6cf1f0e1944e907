// SPDX-License-Identifier: GPL-2.0
/*
 * Who is busy with a call, and waits for memory of its own meanwhile, keeps nothing from its client: neither
 * the answer of another thread, nor that the channel is shut down. Nor do any number of them keep it from
 * leaving.
 */
#define _GNU_SOURCE
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
	pthread_t thread;
	long outcome;
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
	struct reader reader = { .channel = channel, .id = received.id };

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

static void *write_from_there(void *argument)
{
	const struct reader *reader = argument;

	IS(3, stplr_write(reader->channel, reader->id, 2, held, 3));
	return NULL;
}

/* Its answer is there, but not whole, and nobody can say when it will be. */
static void a_shutdown_is_told_while_another_writes(void)
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
	struct reader reader = { .channel = channel, .id = received.id };

	OK(pthread_create(&thread, NULL, write_from_there, &reader));
	await_fault(faults);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	CHECK(waitpid(client, NULL, WNOHANG) == 0);
	IS(0, stplr_shutdown(channel));
	join(client);
	let_come(faults, held, 4096);
	OK(pthread_join(thread, NULL));
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
	struct reader reader = { .channel = channel, .id = received.id };

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

#define SIZE (300 * 1024)

/* Until it cannot any more. */
static void *read_on(void *argument)
{
	struct reader *reader = argument;
	char *mine = malloc(SIZE);

	do {
		reader->outcome = stplr_read(reader->channel, reader->id, 0, mine, SIZE);
	} while (reader->outcome == SIZE);
	free(mine);
	return NULL;
}

#define READERS 12

/* Many more than processors, so that at any time some have hold of it and do not run. */
static void start_readers(struct reader *readers, int channel, uint64_t id)
{
	for (int i = 0; i < READERS; i++) {
		readers[i].channel = channel;
		readers[i].id = id;
		OK(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]));
	}
}

/* Nothing but that the call is over has ended them. */
static void join_readers(struct reader *readers)
{
	for (int i = 0; i < READERS; i++) {
		OK(pthread_join(readers[i].thread, NULL));
		IS(-ESRCH, readers[i].outcome);
	}
}

/* What is sent lies in a region, or where it is looked for. */
static struct stplr_send big_message(int connection, bool registered, int64_t timeout_ns)
{
	char *memory = malloc(SIZE);
	struct stplr_send send = { .send = stplr_bytes(memory, SIZE), .timeout_ns = timeout_ns };

	CHECK(memory);
	memset(memory, 'x', SIZE);
	if (registered)
		send.send = stplr_registered((unsigned int)stplr_register(connection, memory, SIZE),
					     memory, SIZE);
	return send;
}

static void a_client_whose_memory_is_read_leaves(bool registered)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct reader readers[READERS];
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = big_message(connection, registered, second / 20);

		IS(-ETIMEDOUT, stplr_send_full(connection, &send));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	start_readers(readers, channel, received.id);
	join(client);
	join_readers(readers);
}

static void clients_leave_however_much_they_are_read(void)
{
	a_client_whose_memory_is_read_leaves(true);
	a_client_whose_memory_is_read_leaves(false);
}

static void a_pulse_tells_of_a_client_whose_memory_is_read(bool registered)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);
	struct reader readers[READERS];
	struct stplr_receive received, pulse;

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = big_message(connection, registered, second / 20);

		OK(stplr_send_full(connection, &send));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	start_readers(readers, channel, received.id);
	IS(0, stplr_receive(channel, NULL, 0, -1, &pulse));
	CHECK(pulse.pulse && pulse.code == STPLR_PULSE_UNBLOCK);
	/* They read on. */
	nap(20);
	for (int i = 0; i < READERS; i++)
		IS(EBUSY, pthread_tryjoin_np(readers[i].thread, NULL));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
	join_readers(readers);
}

static void pulses_tell_however_much_is_read(void)
{
	a_pulse_tells_of_a_client_whose_memory_is_read(true);
	a_pulse_tells_of_a_client_whose_memory_is_read(false);
}

static const struct test tests[] = {
	{ "an answer comes while another thread reads", answers_come_while_another_reads },
	{ "a shutdown is told while another thread receives",
	  a_shutdown_is_told_while_another_receives },
	{ "a shutdown is told while another thread writes", a_shutdown_is_told_while_another_writes },
	{ "a shutdown is told while another thread answers",
	  a_shutdown_is_told_while_another_answers },
	{ "a deferred call is answered while another thread asks whose it is",
	  a_deferred_call_is_answered_while_another_asks_whose_it_is },
	{ "clients leave however much they are read", clients_leave_however_much_they_are_read },
	{ "pulses tell however much is read", pulses_tell_however_much_is_read },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
