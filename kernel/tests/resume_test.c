// SPDX-License-Identifier: GPL-2.0
/*
 * Interruptions that no handler is run for are nothing that a program sees: whoever waits goes on, with
 * the call that it has made and the time that it has left.
 */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <time.h>

#include "old.h"
#include "stop.h"
#include "watch.h"

#define GROUPS "/tmp/resume-groups"
#define COLD GROUPS "/cold/"

/* What is sent is its number, and so is the answer. */
static pid_t client_of(int channel, int connection, int number, int64_t timeout_ns)
{
	pid_t client = CLIENT(channel, connection, {
		int got = 0;
		struct stplr_send send = { .send = stplr_bytes(&number, sizeof(number)),
					   .reply = stplr_bytes(&got, sizeof(got)),
					   .timeout_ns = timeout_ns };

		OK(stplr_send_full(connection, &send));
		CHECK(got == number && send.replied == sizeof(got));
	});

	await_blocked(client, "SEND");
	return client;
}

static uint64_t receive_of(int channel, int number)
{
	struct stplr_receive received;
	int got;

	IS(sizeof(got), stplr_receive(channel, &got, sizeof(got), second, &received));
	CHECK(got == number);
	return received.id;
}

static void answer(int channel, uint64_t id, int number)
{
	IS(sizeof(number), stplr_reply(channel, id, 0, &number, sizeof(number)));
}

static void clients_that_are_stopped_go_on(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	pid_t clients[4];
	uint64_t ids[4];

	/* Two that are received before they are stopped, two that are received meanwhile. */
	for (int i = 0; i < 4; i++) {
		clients[i] = client_of(channel, connection, i, i & 1 ? minute : forever);
		if (i < 2)
			ids[i] = receive_of(channel, i);
		stop(clients[i]);
	}
	answer(channel, ids[0], 0);
	for (int i = 2; i < 4; i++)
		ids[i] = receive_of(channel, i);
	for (int i = 0; i < 4; i++)
		go_on(clients[i]);
	for (int i = 1; i < 4; i++)
		answer(channel, ids[i], i);
	for (int i = 0; i < 4; i++)
		join(clients[i]);
}

static void long_messages_go_on_too(void)
{
	enum { SIZE = 1 << 20 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char *mine = malloc(SIZE);

	pid_t client = CLIENT(channel, connection, {
		char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		memset(memory, 's', SIZE / 2);
		IS(SIZE, stplr_send(connection, memory, SIZE, memory, SIZE, NULL));
		CHECK(memory[0] == 'r' && memory[SIZE - 1] == 'r');
	});
	await_blocked(client, "SEND");
	stop(client);
	/* Of which a half has no pages, and nobody is there to bring them. */
	IS(-ETIMEDOUT, stplr_receive(channel, mine, SIZE, 0, &received));
	go_on(client);
	IS(SIZE, stplr_receive(channel, mine, SIZE, second, &received));
	CHECK(mine[0] == 's' && mine[SIZE - 1] == 0);
	stop(client);
	memset(mine, 'r', SIZE);
	IS(SIZE, stplr_reply(channel, received.id, 0, mine, SIZE));
	go_on(client);
	join(client);
}

enum { MUCH = 1 << 16 };

/* However often somebody wanted it while its sender was stopped; memory that is registered, too. */
static void a_message_is_received_after_many_stops(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	static char mine[MUCH];

	for (int registered = 0; registered < 2; registered++) {
		pid_t client = CLIENT(channel, connection, {
			char *bytes = mmap(NULL, MUCH, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			struct stplr_send send = { .send = stplr_bytes(bytes, MUCH),
						   .timeout_ns = registered ? minute : forever };

			memset(bytes, 's', MUCH);
			if (registered) {
				long region = stplr_register(connection, bytes, MUCH);

				CHECK(region >= 0);
				send.send = stplr_registered((unsigned int)region, bytes, MUCH);
				/* It is there as long as it is registered. */
				OK(munmap(bytes, MUCH));
			}
			OK(stplr_send_full(connection, &send));
		});

		for (int i = 0; i < 10; i++) {
			await_blocked(client, "SEND");
			stop(client);
			IS(-ETIMEDOUT, stplr_receive(channel, mine, MUCH, 0, &received));
			go_on(client);
			nap(20);
		}
		IS(MUCH, stplr_receive(channel, mine, MUCH, second, &received));
		CHECK(mine[0] == 's' && mine[MUCH - 1] == 's');
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(client);
	}
}

/* The message is dropped, for its sender has left, while a stop is to come. */
static void a_receive_that_does_not_wait_ends_with_EAGAIN(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), told[2], faults, status;
	struct uffdio_zeropage page = { .range = { .len = 4096 } };
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct stplr_receive received;

	need_userfaultfd();
	CHECK(memory != MAP_FAILED);
	OK(pipe(told));
	OK(fcntl(channel, F_SETFL, O_NONBLOCK));
	pid_t sender = CLIENT(channel, connection, stplr_send(connection, "a", 1, NULL, 0, NULL));

	await_blocked(sender, "SEND");
	pid_t receiver = CLIENT(connection, 0, {
		faults = watch(memory, 4096);
		CHECK(write(told[1], &faults, sizeof(faults)) == sizeof(faults));
		IS(-EAGAIN, stplr_receive(channel, memory, 4096, minute, &received));
	});

	CHECK(read(told[0], &faults, sizeof(faults)) == sizeof(faults));
	faults = (int)syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, receiver, 0), faults, 0);
	CHECK(faults >= 0);
	await_fault(faults);
	OK(kill(sender, SIGKILL));
	CHECK(waitpid(sender, NULL, 0) == sender);
	OK(kill(receiver, SIGSTOP));
	page.range.start = (uintptr_t)memory;
	OK(ioctl(faults, UFFDIO_ZEROPAGE, &page));
	CHECK(waitpid(receiver, &status, WUNTRACED) == receiver && WIFSTOPPED(status));
	go_on(receiver);
	join(receiver);
}

static void a_deadline_stays_where_it_was(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	int64_t soon = 500000000;
	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .timeout_ns = soon };
		double start = now();

		IS(-ETIMEDOUT, stplr_send_full(connection, &send));
		CHECK(now() - start >= 0.5);
	});

	await_blocked(client, "SEND");
	stop(client);
	nap(600);
	IS(0, waitpid(client, NULL, WNOHANG));
	go_on(client);
	join(client);
}

static void servers_that_are_stopped_go_on(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);

	for (int i = 0; i < 4; i++) {
		pid_t server = fork();

		if (server == 0) {
			struct stplr_reply_receive both = {
				.receive.timeout_ns = i & 1 ? minute : forever
			};

			if (i & 2)
				OK(stplr_reply_receive(channel, &both));
			else
				OK(stplr_receive_full(channel, &both.receive));
			IS(0, stplr_reply(channel, both.receive.id, 0, NULL, 0));
			_exit(0);
		}
		await_blocked(server, "RECEIVE");
		stop(server);
		go_on(server);
		nap(20);
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		join(server);
	}
}

static void on_channels_that_unblock_nobody_is_told(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);
	pid_t client = client_of(channel, connection, 1, forever);
	uint64_t id = receive_of(channel, 1);
	struct stplr_receive pulse;

	stop(client);
	go_on(client);
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 100000000, &pulse));
	answer(channel, id, 1);
	join(client);
}

/* One completion of a ring, a tenth of a second from now: it is work for this thread. */
static void expect_completion(void)
{
	struct io_uring_params parameters = {};
	int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
	static struct __kernel_timespec time = { .tv_nsec = 100000000 };

	if (ring < 0)
		_exit(SKIPPED);
	char *queue = mmap(NULL, parameters.sq_off.array + parameters.sq_entries * 4,
			   PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *entries = mmap(NULL, parameters.sq_entries * sizeof(*entries),
					    PROT_READ | PROT_WRITE, MAP_SHARED, ring,
					    IORING_OFF_SQES);

	CHECK((void *)queue != MAP_FAILED && (void *)entries != MAP_FAILED);
	memset(entries, 0, sizeof(*entries));
	entries->opcode = IORING_OP_TIMEOUT;
	entries->addr = (uintptr_t)&time;
	entries->len = 1;
	((unsigned int *)(queue + parameters.sq_off.array))[0] = 0;
	__atomic_store_n((unsigned int *)(queue + parameters.sq_off.tail), 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
}

static void work_for_the_thread_is_no_interruption(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), status;

	for (int timed = 0; timed < 2; timed++) {
		pid_t client = CLIENT(channel, connection, {
			char got[6];
			struct stplr_send send = { .reply = stplr_bytes(got, sizeof(got)),
						   .timeout_ns = timed ? minute : forever };

			expect_completion();
			OK(stplr_send_full(connection, &send));
			CHECK(send.replied == 6 && !memcmp(got, "answer", 6));
		});
		struct stplr_receive received;

		if (stplr_receive(channel, NULL, 0, second, &received) < 0) {
			CHECK(waitpid(client, &status, 0) == client);
			CHECK(WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED);
			SKIP("this kernel has no io_uring");
		}
		nap(300);
		IS(6, stplr_reply(channel, received.id, 0, "answer", 6));
		join(client);
	}
}

static void need_freezer(void)
{
	mkdir(GROUPS, 0700);
	if (mount("none", GROUPS, "cgroup2", 0, NULL))
		SKIP("this kernel has no cgroup v2");
	mkdir(COLD, 0700);
	if (access(COLD "cgroup.freeze", W_OK))
		SKIP("this kernel has no freezer of cgroup v2");
}

static void turn(bool cold)
{
	write_to(COLD "cgroup.freeze", cold ? "1" : "0");
	AWAIT_LINE(COLD "cgroup.events", "frozen %d", cold);
}

static void who_is_frozen_goes_on(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char number[20];

	need_freezer();
	for (int timed = 0; timed < 2; timed++) {
		pid_t client = client_of(channel, connection, timed, timed ? minute : forever);
		uint64_t id = receive_of(channel, timed);

		snprintf(number, sizeof(number), "%d", client);
		write_to(COLD "cgroup.procs", number);
		turn(true);
		turn(false);
		nap(20);
		answer(channel, id, timed);
		join(client);
	}
}

static void a_tracer_is_not_seen(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), status;
	pid_t client = client_of(channel, connection, 1, minute);
	uint64_t id = receive_of(channel, 1);

	OK(ptrace(PTRACE_SEIZE, client, NULL, NULL));
	OK(ptrace(PTRACE_INTERRUPT, client, NULL, NULL));
	CHECK(waitpid(client, &status, 0) == client && WIFSTOPPED(status));
	OK(ptrace(PTRACE_DETACH, client, NULL, NULL));
	nap(20);
	answer(channel, id, 1);
	join(client);
}

/* Of a process that has its descriptor twice: one thread waits, the other closes one of both. */
struct twice {
	int fd, copy;
	bool receives;
	int told[2], tells[2];
};

static void *wait_with_one(void *argument)
{
	struct twice *twice = argument;
	pid_t thread = my_tid();
	struct stplr_send send = { .timeout_ns = minute };
	struct stplr_receive received = { .timeout_ns = minute };

	CHECK(write(twice->tells[1], &thread, sizeof(thread)) == sizeof(thread));
	if (twice->receives)
		OK(stplr_receive_full(twice->fd, &received));
	else
		OK(stplr_send_full(twice->fd, &send));
	return NULL;
}

static void be_two_threads(struct twice *twice)
{
	pthread_t thread;
	char byte;

	twice->copy = dup(twice->fd);
	CHECK(twice->copy >= 0);
	OK(pthread_create(&thread, NULL, wait_with_one, twice));
	CHECK(read(twice->told[0], &byte, 1) == 1);
	OK(close(twice->copy));
	CHECK(write(twice->tells[1], "x", 1) == 1);
	OK(pthread_join(thread, NULL));
	_exit(0);
}

static void closing_a_copy_ends_nothing(bool receives)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), status;
	struct twice twice = { .fd = receives ? channel : connection, .receives = receives };
	struct stplr_receive received;
	pid_t process, thread;
	char byte;

	OK(pipe(twice.told));
	OK(pipe(twice.tells));
	process = fork();
	if (process == 0) {
		close(receives ? connection : channel);
		be_two_threads(&twice);
	}
	CHECK(read(twice.tells[0], &thread, sizeof(thread)) == sizeof(thread));
	AWAIT_LINE(FOLDER "blocked", "%d %d %s ", process, thread, receives ? "RECEIVE" : "SEND");
	if (!receives)
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
	OK(ptrace(PTRACE_SEIZE, thread, NULL, NULL));
	OK(ptrace(PTRACE_INTERRUPT, thread, NULL, NULL));
	CHECK(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status));
	CHECK(write(twice.told[1], "x", 1) == 1);
	CHECK(read(twice.tells[0], &byte, 1) == 1);
	OK(ptrace(PTRACE_DETACH, thread, NULL, NULL));
	if (receives)
		OK(stplr_pulse(connection, 1, 0));
	else
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(process);
}

static void a_copy_of_a_descriptor_can_be_closed(void)
{
	closing_a_copy_ends_nothing(false);
	closing_a_copy_ends_nothing(true);
}

static void who_has_a_handle_goes_on(void)
{
	struct party me = enter();
	struct stplr_msg_receive from;
	pid_t client = fork();

	if (client == 0) {
		close(me.fd);
		struct party mine = enter();

		OK(old_call(&mine, getppid(), getppid(), NULL, 0, NULL, 0));
		_exit(0);
	}
	OK(old_receive(&me, NULL, 0, &from));
	await_blocked(client, "REPLY");
	stop(client);
	go_on(client);
	nap(20);
	OK(old_reply(&me, client, client, NULL, 0));
	join(client);
}

static void put_back(void)
{
	FILE *freeze = fopen(COLD "cgroup.freeze", "w");

	if (freeze) {
		fputs("0", freeze);
		fclose(freeze);
	}
	for (int i = 0; i < 500 && rmdir(COLD) && errno == EBUSY; i++)
		nap(10);
	umount2(GROUPS, MNT_DETACH);
	rmdir(GROUPS);
}

static const struct test tests[] = {
	{ "clients that are stopped go on", clients_that_are_stopped_go_on },
	{ "so do they with long messages", long_messages_go_on_too },
	{ "a message is received after many stops", a_message_is_received_after_many_stops },
	{ "a receive that does not wait ends with EAGAIN, also after a stop",
	  a_receive_that_does_not_wait_ends_with_EAGAIN },
	{ "a deadline stays where it was", a_deadline_stays_where_it_was },
	{ "servers that are stopped go on", servers_that_are_stopped_go_on },
	{ "of a stop nobody is told", on_channels_that_unblock_nobody_is_told },
	{ "work for the thread is no interruption", work_for_the_thread_is_no_interruption },
	{ "who is frozen goes on", who_is_frozen_goes_on },
	{ "a tracer is not seen", a_tracer_is_not_seen },
	{ "a wait stays while a copy of its descriptor is closed", a_copy_of_a_descriptor_can_be_closed },
	{ "who has a handle goes on", who_has_a_handle_goes_on },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
