// SPDX-License-Identifier: GPL-2.0
/* Whose priority a server's threads run with, on channels where they inherit. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "new.h"
#include "processor.h"
#include "raise.h"

static void a_server_runs_with_real_time_until_it_answers(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);
	uint64_t id = receive(channel);

	CHECK(runs_with(0, RAISED(SCHED_FIFO), 50));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	CHECK(runs_with(0, SCHED_OTHER, 0) && has_nice(0, 0));
	join(client);
}

static void a_server_runs_with_the_nice_value_of_its_client(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);

	OK(setpriority(PRIO_PROCESS, 0, 10));
	pid_t client = nice_client(channel, connection, -5);
	uint64_t id = receive(channel);

	CHECK(runs_with(0, RAISED(SCHED_OTHER), 0) && has_nice(0, -5));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	CHECK(runs_with(0, SCHED_OTHER, 0) && has_nice(0, 10));
	join(client);
}

/* As <linux/sched/types.h> has it, which the C library's headers do not get along with. */
struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static uint64_t slice(void)
{
	struct attributes attributes = {};

	OK(syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0));
	return attributes.runtime;
}

/* Beside its priority: how exact its timers are, and how long it likes to run at a time. */
static void all_that_was_its_own_is_given_back(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	struct attributes own = { .size = sizeof(own), .runtime = 20000000 };

	OK(syscall(SYS_sched_setattr, 0, &own, 0));
	OK(prctl(PR_SET_TIMERSLACK, 7777));
	uint64_t before = slice();

	for (int real_time = 0; real_time < 2; real_time++) {
		pid_t client = real_time ? real_time_client(channel, connection, 5) :
					   nice_client(channel, connection, -10);
		uint64_t id = receive(channel);

		CHECK(real_time ? runs_with(0, RAISED(SCHED_FIFO), 5) : has_nice(0, -10));
		CHECK(real_time || slice() == before);
		IS(0, stplr_reply(channel, id, 0, NULL, 0));
		CHECK(runs_with(0, SCHED_OTHER, 0) && has_nice(0, 0));
		IS(7777, prctl(PR_GET_TIMERSLACK));
		CHECK(slice() == before);
		join(client);
	}
}

static void nobody_is_lowered(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = nice_client(channel, connection, 10);
	uint64_t id = receive(channel);

	CHECK(runs_with(0, SCHED_OTHER, 0) && has_nice(0, 0));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
	be_real_time(60);
	client = real_time_client(channel, connection, 50);
	id = receive(channel);
	CHECK(runs_with(0, SCHED_FIFO, 60));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	CHECK(runs_with(0, SCHED_FIFO, 60));
	join(client);
}

static void elsewhere_nobody_is_raised(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);
	uint64_t id = receive(channel);

	CHECK(runs_with(0, SCHED_OTHER, 0));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

static void who_waits_in_the_queue_raises_those_who_serve(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t calm = nice_client(channel, connection, 5);
	uint64_t id = receive(channel);

	CHECK(runs_with(0, SCHED_OTHER, 0));
	pid_t urgent = real_time_client(channel, connection, 30);

	AWAIT(runs_with(0, RAISED(SCHED_FIFO), 30));
	/* It leaves the queue unreceived. */
	kill(urgent, SIGKILL);
	waitpid(urgent, NULL, 0);
	AWAIT(runs_with(0, SCHED_OTHER, 0));
	urgent = real_time_client(channel, connection, 30);
	AWAIT(runs_with(0, RAISED(SCHED_FIFO), 30));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	CHECK(runs_with(0, RAISED(SCHED_FIFO), 30)); /* for it waits still */
	join(calm);
	id = receive(channel);
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	CHECK(runs_with(0, SCHED_OTHER, 0));
	join(urgent);
}

static void a_client_that_leaves_takes_its_priority_along(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);

	receive(channel);
	CHECK(runs_with(0, RAISED(SCHED_FIFO), 50));
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	AWAIT(runs_with(0, SCHED_OTHER, 0));
}

static void receiving_the_next_ends_it_too(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);
	struct stplr_receive received;
	uint64_t id = receive(channel);

	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	CHECK(runs_with(0, SCHED_OTHER, 0));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

static void closing_the_channel_ends_it(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = CLIENT(channel, connection, {
		be_real_time(50);
		IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});

	receive(channel);
	CHECK(runs_with(0, RAISED(SCHED_FIFO), 50));
	close(channel);
	CHECK(runs_with(0, SCHED_OTHER, 0));
	join(client);
}

static void children_start_without_it(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);
	uint64_t id = receive(channel);
	pid_t child = fork();

	if (child == 0) {
		CHECK(runs_with(0, SCHED_OTHER, 0));
		_exit(0);
	}
	join(child);
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

static void what_is_set_meanwhile_is_undone(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);
	uint64_t id = receive(channel);

	/* Else a server could keep what it was lent. */
	be_real_time(49);
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	CHECK(runs_with(0, SCHED_OTHER, 0));
	join(client);
}

static void loans_of_two_channels_end_in_any_order(void)
{
	int channels[2], connections[2];
	pid_t clients[2];
	uint64_t ids[2];

	for (int first = 0; first < 2; first++) {
		for (int i = 0; i < 2; i++) {
			channels[i] = new_channel(STPLR_CHANNEL_INHERIT);
			connections[i] = new_connection(channels[i], 0);
			clients[i] = real_time_client(channels[i], connections[i], 20 + 10 * i);
			ids[i] = receive(channels[i]);
		}
		CHECK(runs_with(0, RAISED(SCHED_FIFO), 30));
		IS(0, stplr_reply(channels[first], ids[first], 0, NULL, 0));
		CHECK(runs_with(0, RAISED(SCHED_FIFO), first ? 20 : 30));
		IS(0, stplr_reply(channels[!first], ids[!first], 0, NULL, 0));
		CHECK(runs_with(0, SCHED_OTHER, 0));
		for (int i = 0; i < 2; i++) {
			join(clients[i]);
			close(channels[i]);
		}
	}
}

struct helper {
	int channel;
	uint64_t id;
};

static void *reply(void *argument)
{
	struct helper *helper = argument;

	IS(0, stplr_reply(helper->channel, helper->id, 0, NULL, 0));
	return NULL;
}

static void another_threads_answer_ends_it(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pid_t client = real_time_client(channel, connection, 50);
	struct helper helper = { channel, receive(channel) };
	pthread_t thread;

	OK(pthread_create(&thread, NULL, reply, &helper));
	OK(pthread_join(thread, NULL));
	CHECK(runs_with(0, SCHED_OTHER, 0));
	join(client);
}

static void one_way_messages_lend_nothing_once_they_are_received(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pid_t client = CLIENT(channel, connection, {
		be_real_time(50);
		OK(stplr_send_one_way(connection, "x", 1));
	});

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	join(client);
	AWAIT(runs_with(0, SCHED_OTHER, 0));
}

static void *wait_for_a_message(void *argument)
{
	int channel = *(int *)argument;
	struct stplr_receive received;

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	return NULL;
}

static void threads_that_end_leave_nothing(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	pthread_t thread;

	for (int i = 0; i < 50; i++) {
		OK(pthread_create(&thread, NULL, wait_for_a_message, &channel));
		OK(stplr_pulse(connection, 1, 0));
		OK(pthread_join(thread, NULL));
	}
}

enum step { STARTING, CLIENT_IS_URGENT, HOG_SPINS };

static void spin(double duration, volatile enum step *step)
{
	run_on(0);
	be_real_time(20);
	double until = now() + duration;

	*step = HOG_SPINS;
	while (now() < until)
		;
	_exit(0);
}

/* How long calls take while somebody of a priority between client and server keeps the processor. */
static double time_of_calls_beside_a_hog(unsigned int flags, double hog_seconds)
{
	int channel = new_channel(flags), connection = new_connection(channel, 0), result[2];
	volatile enum step *step = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double taken;

	CHECK(step != MAP_FAILED);
	OK(pipe(result));
	pid_t server = fork();

	if (server == 0) {
		struct stplr_reply_receive both = { .receive = { .timeout_ns = -1 } };

		run_on(0);
		OK(setpriority(PRIO_PROCESS, 0, 10));
		for (;;) {
			OK(stplr_reply_receive(channel, &both));
			both.reply.id = both.receive.id;
		}
	}
	await_ioctl(server);
	pid_t client = CLIENT(channel, connection, {
		run_on(0);
		be_real_time(50);
		*step = CLIENT_IS_URGENT;
		AWAIT(*step == HOG_SPINS);
		double start = now();

		for (int i = 0; i < 20; i++)
			IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		taken = now() - start;
		CHECK(write(result[1], &taken, sizeof(taken)) == sizeof(taken));
	});
	AWAIT(*step == CLIENT_IS_URGENT);
	pid_t hog = fork();

	if (hog == 0)
		spin(hog_seconds, step);
	CHECK(read(result[0], &taken, sizeof(taken)) == sizeof(taken));
	kill(hog, SIGKILL);
	waitpid(hog, NULL, 0);
	join(client);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	close(channel);
	return taken;
}

static void set(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	CHECK(file && fputs(text, file) >= 0);
	OK(fclose(file));
}

/* Whether real time gets all there is of processor 0, or leaves the usual 5 % to the others. */
static void let_real_time_have_all(bool all)
{
	const char *fair_server = "/sys/kernel/debug/sched/fair_server/cpu0/runtime";

	/* What newer kernels have in its place. */
	if (all && !access(fair_server, F_OK))
		set(fair_server, "0");
	set("/proc/sys/kernel/sched_rt_runtime_us", all ? "-1" : "950000");
	if (!all && !access(fair_server, F_OK))
		set(fair_server, "50000000");
}

static void who_is_in_between_does_not_keep_the_urgent_waiting(void)
{
	const double hog = 3;

	let_real_time_have_all(true);
	double without = time_of_calls_beside_a_hog(0, hog);
	double with = time_of_calls_beside_a_hog(STPLR_CHANNEL_INHERIT, hog);

	let_real_time_have_all(false);
	printf("# 20 calls beside a hog: %.3f s, inheriting %.3f s\n", without, with);
	CHECK(with < 1);
	/* Else the hog was none, and this has shown nothing. */
	CHECK(without > 2);
}

/* It has no memory for the message, which another receives. */
static void who_cannot_receive_a_call_does_not_run_for_it(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pid_t server = getpid();

	CLIENT(channel, connection, {
		be_real_time(50);
		await_ioctl(server);
		stplr_send(connection, "hello", 5, NULL, 0, NULL);
	});
	IS(-EFAULT, stplr_receive(channel, (void *)16, 5, second, &received));
	pid_t other = fork();

	if (other == 0) {
		receive(channel);
		CHECK(runs_with(0, RAISED(SCHED_FIFO), 50) && runs_with(server, SCHED_OTHER, 0));
		_exit(0);
	}
	join(other);
}

/* Beside somebody of a priority between it and the client, until it is killed. */
static pid_t slow_receiver(int channel)
{
	pid_t server = fork();

	if (server == 0) {
		struct stplr_receive received;

		run_on(0);
		OK(setpriority(PRIO_PROCESS, 0, 10));
		IS(0, stplr_receive(channel, NULL, 0, -1, &received));
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		pause();
	}
	await_ioctl(server);
	return server;
}

/* It is told to nobody, but that another waits: who receives it then runs for its sender at once. */
static void who_is_given_a_call_back_runs_for_it(void)
{
	int channel = new_channel(STPLR_CHANNEL_INHERIT), connection = new_connection(channel, 0);
	volatile enum step *step = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t server = slow_receiver(channel), first = getpid(), hog;
	struct stplr_receive received;
	bool answered_beside_it;

	CHECK(step != MAP_FAILED);
	let_real_time_have_all(true);
	hog = fork();
	if (hog == 0)
		spin(3, step);
	run_on(1);
	pid_t client = CLIENT(channel, connection, {
		be_real_time(50);
		AWAIT(*step == HOG_SPINS);
		await_ioctl(first);
		IS(0, stplr_send(connection, "hello", 5, NULL, 0, NULL));
	});
	/* The last that waits is the first that is given the message. */
	IS(-EFAULT, stplr_receive(channel, (void *)16, 5, -1, &received));
	join(client);
	answered_beside_it = waitpid(hog, NULL, WNOHANG) == 0;
	kill(hog, SIGKILL);
	kill(server, SIGKILL);
	let_real_time_have_all(false);
	CHECK(answered_beside_it);
}

static void a_thread_inherits_from_so_many_channels(void)
{
	enum { MOST = 64 };
	struct stplr_receive received;
	int channels[MOST + 1];

	for (int i = 0; i <= MOST; i++) {
		channels[i] = new_channel(STPLR_CHANNEL_INHERIT);
		IS(i < MOST ? -ETIMEDOUT : -EDQUOT,
		   stplr_receive(channels[i], NULL, 0, 0, &received));
	}
	IS(-ETIMEDOUT, stplr_receive(channels[3], NULL, 0, 0, &received));
	close(channels[7]);
	IS(-ETIMEDOUT, stplr_receive(channels[MOST], NULL, 0, 0, &received));
	/* Others inherit for themselves. */
	pid_t other = fork();

	if (other == 0) {
		IS(-ETIMEDOUT, stplr_receive(channels[MOST], NULL, 0, 0, &received));
		_exit(0);
	}
	join(other);
}

static pid_t heir_of(int channel, int told, bool refused)
{
	pid_t heir = fork();

	if (heir == 0) {
		struct stplr_receive received;

		IS(refused ? -EDQUOT : -ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(write(told, "", 1) == 1);
		pause();
	}
	return heir;
}

static void from_a_channel_so_many_threads_inherit(void)
{
	enum { MOST = 256 };
	int channel = new_channel(STPLR_CHANNEL_INHERIT), told[2];
	pid_t heirs[MOST];
	char byte;

	OK(pipe(told));
	for (int i = 0; i < MOST; i++)
		heirs[i] = heir_of(channel, told[1], false);
	for (int i = 0; i < MOST; i++)
		CHECK(read(told[0], &byte, 1) == 1);
	heir_of(channel, told[1], true);
	CHECK(read(told[0], &byte, 1) == 1);
	OK(kill(heirs[7], SIGKILL));
	CHECK(waitpid(heirs[7], NULL, 0) == heirs[7]);
	/* Its end is dealt with a little later. */
	struct stplr_receive received;
	int got;

	while ((got = stplr_receive(channel, NULL, 0, 0, &received)) == -EDQUOT)
		nap(2);
	IS(-ETIMEDOUT, got);
}

static const struct test tests[] = {
	{ "a server runs with its client's real-time priority until it answers",
	  a_server_runs_with_real_time_until_it_answers },
	{ "a server runs with the nice value of its client",
	  a_server_runs_with_the_nice_value_of_its_client },
	{ "all that was its own is given back", all_that_was_its_own_is_given_back },
	{ "nobody is lowered", nobody_is_lowered },
	{ "elsewhere nobody is raised", elsewhere_nobody_is_raised },
	{ "who waits in the queue raises those who serve",
	  who_waits_in_the_queue_raises_those_who_serve },
	{ "a client that leaves takes its priority along",
	  a_client_that_leaves_takes_its_priority_along },
	{ "receiving the next ends it, too", receiving_the_next_ends_it_too },
	{ "closing the channel ends it", closing_the_channel_ends_it },
	{ "children start without it", children_start_without_it },
	{ "what is set meanwhile is undone", what_is_set_meanwhile_is_undone },
	{ "loans of two channels end in any order", loans_of_two_channels_end_in_any_order },
	{ "another thread's answer ends it", another_threads_answer_ends_it },
	{ "one-way messages lend nothing once they are received",
	  one_way_messages_lend_nothing_once_they_are_received },
	{ "threads that end leave nothing", threads_that_end_leave_nothing },
	{ "who cannot receive a call does not run for it",
	  who_cannot_receive_a_call_does_not_run_for_it },
	{ "who is given a call back runs for it", who_is_given_a_call_back_runs_for_it },
	{ "a thread inherits from so many channels, and others from theirs",
	  a_thread_inherits_from_so_many_channels },
	{ "from a channel so many threads inherit", from_a_channel_so_many_threads_inherit },
	{ "who is in between does not keep the urgent waiting",
	  who_is_in_between_does_not_keep_the_urgent_waiting },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
