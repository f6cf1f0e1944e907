// SPDX-License-Identifier: GPL-2.0
/* Threads of which nothing urgent is wanted by themselves, children of raised threads, and raises that stay. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>

#include "raise.h"
#include "stop.h"

static void be(int policy, int nice)
{
	struct sched_param parameters = {};

	OK(sched_setscheduler(0, policy, &parameters));
	OK(setpriority(PRIO_PROCESS, 0, nice));
}

static void who_runs_when_nobody_else_does_is_raised_by_anybody(void)
{
	static const int nices[] = { 0, 19, -5 };

	for (int i = 0; i < 3; i++) {
		int channel = new_channel(STPLR_CHANNEL_INHERIT);
		int connection = new_connection(channel, 0);
		pid_t client = nice_client(channel, connection, nices[i]);

		be(SCHED_IDLE, 0);
		uint64_t id = receive(channel);

		CHECK(runs_with(0, RAISED(SCHED_OTHER), 0) && has_nice(0, nices[i]));
		IS(0, stplr_reply(channel, id, 0, NULL, 0));
		CHECK(runs_with(0, SCHED_IDLE, 0) && has_nice(0, 0));
		be(SCHED_OTHER, 0);
		join(client);
	}
}

static void and_raises_nobody(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	struct stplr_receive received = { .timeout_ns = second };
	pid_t client = CLIENT(channel, connection, {
		be(SCHED_IDLE, 0);
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});

	be(SCHED_OTHER, 19);
	OK(stplr_receive_full(channel, &received));
	IS(1, received.priority);
	CHECK(runs_with(0, SCHED_OTHER, 0) && has_nice(0, 19));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

/* One process and one thread. */
static void *runs_with_own(void *own)
{
	const int *policy_and_nice = own;

	CHECK(runs_with(0, policy_and_nice[0], 0));
	CHECK(has_nice((pid_t)syscall(SYS_gettid), policy_and_nice[1]));
	return NULL;
}

typedef pid_t start_client(int channel, int connection, int priority);

static void children_start_with(int policy, int nice, start_client *start, int priority)
{
	/* From which nothing is inherited before the first message is received. */
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	int own[] = { policy, nice };
	pid_t client = start(channel, connection, priority);
	pthread_t thread;

	be(policy, nice);
	uint64_t id = receive(channel);

	CHECK(sched_getscheduler(0) & SCHED_RESET_ON_FORK);
	pid_t child = fork();

	if (child == 0) {
		runs_with_own(own);
		_exit(0);
	}
	OK(pthread_create(&thread, NULL, runs_with_own, own));
	OK(pthread_join(thread, NULL));
	join(child);
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	CHECK(runs_with(0, policy, 0) && has_nice(0, nice));
	be(SCHED_OTHER, 0);
	join(client);
}

static void children_start_with_what_is_their_parents_own(void)
{
	children_start_with(SCHED_OTHER, 10, nice_client, 0);
	children_start_with(SCHED_OTHER, 10, real_time_client, 50);
	children_start_with(SCHED_OTHER, -5, nice_client, -10);
	children_start_with(SCHED_BATCH, 3, real_time_client, 50);
	children_start_with(SCHED_IDLE, 0, nice_client, 0);
	children_start_with(SCHED_IDLE, 5, real_time_client, 50);
}

static void later_children_start_as_ever(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = nice_client(channel, connection, -10);
	uint64_t id = receive(channel);

	CHECK(has_nice(0, -10));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
	OK(setpriority(PRIO_PROCESS, 0, 7));
	pid_t child = fork();

	if (child == 0) {
		CHECK(runs_with(0, SCHED_OTHER, 0) && has_nice(0, 7));
		_exit(0);
	}
	join(child);
	be_real_time(3);
	child = fork();
	if (child == 0) {
		CHECK(runs_with(0, SCHED_FIFO, 3));
		_exit(0);
	}
	join(child);
}

/* Of two steps that are one call the first is not done if the second cannot be. */
static void who_cannot_receive_has_not_answered(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);
	struct stplr_reply_receive both = { .reply.id = receive(channel),
					    .receive.timeout_ns = second };

	both.receive.buffer.count = 2000;
	IS(-EINVAL, stplr_reply_receive(channel, &both));
	CHECK(runs_with(0, RAISED(SCHED_FIFO), 50));
	IS(0, stplr_reply(channel, both.reply.id, 0, NULL, 0));
	CHECK(runs_with(0, SCHED_OTHER, 0));
	join(client);
}

enum { MOST = 64 };

struct busy {
	int channel;
	uint64_t id;
};

/* By a thread that inherits from as many channels as one may. */
static void *answer_and_receive(void *argument)
{
	struct busy *busy = argument;
	struct stplr_reply_receive both = { .reply.id = busy->id };
	struct stplr_receive received;

	for (int i = 0; i < MOST; i++)
		IS(-ETIMEDOUT, stplr_receive(new_channel(STPLR_CHANNEL_INHERIT), NULL, 0, 0, &received));
	IS(-EDQUOT, stplr_reply_receive(busy->channel, &both));
	return NULL;
}

static void nor_has_who_may_not_inherit(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = nice_client(channel, connection, 0);
	struct busy busy = { channel, receive(channel) };
	pthread_t thread;

	OK(pthread_create(&thread, NULL, answer_and_receive, &busy));
	OK(pthread_join(thread, NULL));
	IS(0, stplr_reply(channel, busy.id, 0, NULL, 0));
	join(client);
}

/* Be its sender stopped, which so does not see that it has been received. */
static void what_wants_no_answer_lends_nothing_once_it_is_received(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	struct stplr_receive received;

	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	pid_t client = CLIENT(channel, connection, {
		be_real_time(50);
		IS(0, stplr_send_one_way(connection, NULL, 0));
	});

	AWAIT(runs_with(0, RAISED(SCHED_FIFO), 50));
	stop(client);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(!received.id && runs_with(0, SCHED_OTHER, 0));
	go_on(client);
	join(client);
}

static const struct test tests[] = {
	{ "who runs when nobody else does is raised by anybody",
	  who_runs_when_nobody_else_does_is_raised_by_anybody },
	{ "and raises nobody", and_raises_nobody },
	{ "children start with what is their parent's own",
	  children_start_with_what_is_their_parents_own },
	{ "later children start as ever", later_children_start_as_ever },
	{ "who cannot receive has not answered", who_cannot_receive_has_not_answered },
	{ "nor has who may not inherit", nor_has_who_may_not_inherit },
	{ "what wants no answer lends nothing once it is received",
	  what_wants_no_answer_lends_nothing_once_it_is_received },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
