// SPDX-License-Identifier: GPL-2.0
/*
 * What execve(2) ends and what goes on. A server that starts a program starts this one anew, with
 * what it is to do as its arguments.
 */
#include <sys/mman.h>

#include "new.h"
#include "old.h"
#include "seen.h"

/* From the server to the test and back; they stay open over execve(). */
static int told[2], go[2];

static void open_pipes(void)
{
	OK(pipe(told));
	OK(pipe(go));
}

static void tell(int number)
{
	CHECK(write(told[1], &number, sizeof(number)) == sizeof(number));
}

static int hear(void)
{
	int number;

	CHECK(read(told[0], &number, sizeof(number)) == sizeof(number));
	return number;
}

static void let_go(void)
{
	CHECK(write(go[1], "x", 1) == 1);
}

static void await_go(void)
{
	char c;

	CHECK(read(go[0], &c, 1) == 1);
}

/* What the new program does is the first argument; the others are its numbers. */
static void start_anew(const char *what, int fd, uint64_t id, pid_t owed)
{
	char numbers[4][24];

	snprintf(numbers[0], sizeof(numbers[0]), "%d", told[1]);
	snprintf(numbers[1], sizeof(numbers[1]), "%d", fd);
	snprintf(numbers[2], sizeof(numbers[2]), "%llu", (unsigned long long)id);
	snprintf(numbers[3], sizeof(numbers[3]), "%d", owed);
	execl("/proc/self/exe", "exec_test", what, numbers[0], numbers[1], numbers[2], numbers[3],
	      NULL);
	CHECK(false);
}

/* The new program: says that it is there, and stays. */
static void stay(void)
{
	tell(0);
	pause();
}

/* The new program: answers what the one before it received. */
static void answer(int channel, uint64_t id)
{
	IS(2, stplr_reply(channel, id, 0, "ok", 2));
}

/* The new program: goes on with its handle, owing one answer, for two messages more. */
static void go_on(int fd, uint64_t uuid, pid_t owed)
{
	struct party me = { .fd = fd, .handle = { uuid }, .pid = getpid(), .tid = my_tid() };
	struct stplr_msg_receive from;
	struct stplr_handle another;

	CHECK(me.pid == me.tid);
	FAILS(EBUSY, open("/dev/stplr-0", O_RDWR));
	FAILS(EBUSY, ioctl(fd, STPLR_HANDLE_GET, &another));
	OK(old_reply(&me, owed, owed, NULL, 0));
	for (int i = 0; i < 2; i++) {
		OK(old_receive(&me, NULL, 0, &from));
		OK(old_reply(&me, from.pid, from.tid, NULL, 0));
	}
	OK(ioctl(fd, STPLR_HANDLE_PUT, &me.handle));
}

static int be_the_new_program(char **arguments)
{
	int fd = atoi(arguments[3]), owed = atoi(arguments[5]);
	uint64_t id = strtoull(arguments[4], NULL, 10);

	told[1] = atoi(arguments[2]);
	if (!strcmp(arguments[1], "stay"))
		stay();
	else if (!strcmp(arguments[1], "answer"))
		answer(fd, id);
	else
		go_on(fd, id, owed);
	return 0;
}

static void is_there_still(pid_t process)
{
	IS(0, waitpid(process, NULL, WNOHANG));
}

static void a_channel_is_closed(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");
	struct stplr_receive received;
	pid_t clients[2];

	open_pipes();
	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		await_go();
		start_anew("stay", -1, 0, 0);
	}
	for (int i = 0; i < 2; i++)
		clients[i] = CLIENT(channel, connection, {
			IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		});
	close(channel);
	/* One whose message was received and one whose was not. */
	AWAIT_LINE(FOLDER "channels", "%u 1 1 0 ", number);
	let_go();
	for (int i = 0; i < 2; i++)
		join(clients[i]);
	hear();
	is_there_still(server);
}

static void a_connection_is_closed(void)
{
	int channel = new_channel(STPLR_CHANNEL_DISCONNECT);
	int connection = new_connection(channel, 77);
	struct stplr_receive received;

	open_pipes();
	pid_t client = CLIENT(channel, connection, { start_anew("stay", -1, 0, 0); });

	close(connection);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.pulse && received.code == STPLR_PULSE_DISCONNECT && received.value == 77);
	hear();
	is_there_still(client);
}

static void who_keeps_the_channel_may_answer(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char room[2];

	open_pipes();
	pid_t client = CLIENT(channel, connection, {
		IS(2, stplr_send(connection, NULL, 0, room, 2, NULL));
		CHECK(!memcmp(room, "ok", 2));
	});
	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		OK(fcntl(channel, F_SETFD, 0));
		start_anew("answer", channel, received.id, 0);
	}
	join(server);
	join(client);
}

static void what_was_received_is_owed_until_the_process_ends(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");
	struct stplr_receive received;

	open_pipes();
	/* The channel lives on here. */
	pid_t client = CLIENT(channel, connection, {
		IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		start_anew("stay", -1, 0, 0);
	}
	hear();
	CHECK(lines(FOLDER "channels", "%u 0 1 0 ", number) == 1);
	kill(server, SIGKILL);
	join(client);
}

static void *send_and_wait(void *argument)
{
	stplr_send(*(int *)argument, NULL, 0, NULL, 0, NULL);
	return NULL;
}

static void threads_that_wait_leave(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");
	struct stplr_receive received;
	pthread_t thread;

	open_pipes();
	pid_t client = CLIENT(channel, connection, {
		for (int i = 0; i < 2; i++)
			OK(pthread_create(&thread, NULL, send_and_wait, &connection));
		await_go();
		start_anew("stay", -1, 0, 0);
	});
	AWAIT_LINE(FOLDER "channels", "%u 2 0 0 ", number);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.pid == client && received.tid != client);
	let_go();
	hear();
	CHECK(lines(FOLDER "channels", "%u 0 0 0 ", number) == 1);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

/* A client of the first interface in a child, whose call fails so, or is answered. */
static pid_t old_client(pid_t pid, pid_t tid, int error)
{
	pid_t child = fork();

	if (child == 0) {
		struct party me = enter();

		if (error)
			FAILS(error, old_call(&me, pid, tid, NULL, 0, NULL, 0));
		else
			OK(old_call(&me, pid, tid, NULL, 0, NULL, 0));
		_exit(0);
	}
	return child;
}

/* A client of each state; until they are there. */
static void two_clients(pid_t clients[2], pid_t pid, pid_t tid, int error)
{
	clients[0] = old_client(pid, tid, error);
	AWAIT_LINE(FOLDER "blocked", "%d %d REPLY ", clients[0], clients[0]);
	clients[1] = old_client(pid, tid, error);
	AWAIT_LINE(FOLDER "blocked", "%d %d SEND ", clients[1], clients[1]);
}

/* Receives one message, and goes on in the new program when it is told to. */
static void receive_and_start_anew(const struct party *me)
{
	struct stplr_msg_receive from;

	OK(old_receive(me, NULL, 0, &from));
	await_go();
	start_anew("go on", me->fd, me->handle.uuid, from.pid);
}

static void receive_and_stay(const struct party *me)
{
	struct stplr_msg_receive from;

	OK(old_receive(me, NULL, 0, &from));
	pause();
}

static void a_handle_goes_on(void)
{
	pid_t clients[3];

	open_pipes();
	pid_t server = fork();

	if (server == 0) {
		struct party me = enter();

		tell(0);
		receive_and_start_anew(&me);
	}
	hear();
	two_clients(clients, server, server, 0);
	let_go();
	clients[2] = old_client(server, server, 0);
	for (int i = 0; i < 3; i++)
		join(clients[i]);
	join(server);
}

static void a_node_that_is_closed_ends_the_calls(void)
{
	pid_t clients[2];

	open_pipes();
	pid_t server = fork();

	if (server == 0) {
		struct party me = enter();
		struct stplr_msg_receive from;

		OK(fcntl(me.fd, F_SETFD, FD_CLOEXEC));
		tell(0);
		OK(old_receive(&me, NULL, 0, &from));
		await_go();
		start_anew("stay", -1, 0, 0);
	}
	hear();
	two_clients(clients, server, server, ENODEV);
	let_go();
	for (int i = 0; i < 2; i++)
		join(clients[i]);
	hear();
	is_there_still(server);
}

struct second_thread {
	struct party me;
	bool starts_anew;
};

static void *second_thread(void *argument)
{
	struct second_thread *thread = argument;
	struct party me = thread->me;

	me.tid = my_tid();
	OK(ioctl(me.fd, STPLR_HANDLE_GET, &me.handle));
	tell(me.tid);
	if (thread->starts_anew)
		receive_and_start_anew(&me);
	else
		receive_and_stay(&me);
	return NULL;
}

/* Two threads with handles, of which one starts the program. */
static void the_thread_that_starts_it_keeps_its_handle(bool is_the_first)
{
	pid_t kept[2], ended[2];

	open_pipes();
	pid_t server = fork();

	if (server == 0) {
		struct second_thread other = { enter(), !is_the_first };
		pthread_t thread;

		OK(pthread_create(&thread, NULL, second_thread, &other));
		if (is_the_first)
			receive_and_start_anew(&other.me);
		else
			receive_and_stay(&other.me);
	}
	pid_t tid = hear();

	two_clients(kept, server, is_the_first ? server : tid, 0);
	two_clients(ended, server, is_the_first ? tid : server, ENODEV);
	let_go();
	for (int i = 0; i < 2; i++) {
		join(ended[i]);
		join(kept[i]);
	}
	/* It is known by the number of the process now, whichever it had. */
	join(old_client(server, tid, ENODEV));
	join(old_client(server, server, 0));
	join(server);
}

static void the_first_thread_keeps_its_handle(void)
{
	the_thread_that_starts_it_keeps_its_handle(true);
}

static void another_thread_keeps_its_handle(void)
{
	the_thread_that_starts_it_keeps_its_handle(false);
}

static const struct test tests[] = {
	{ "execve closes a channel, and its clients are told", a_channel_is_closed },
	{ "execve closes a connection, and its server is told", a_connection_is_closed },
	{ "a program that keeps the channel may answer", who_keeps_the_channel_may_answer },
	{ "what was received is owed until the process ends",
	  what_was_received_is_owed_until_the_process_ends },
	{ "threads that wait leave when another starts a program", threads_that_wait_leave },
	{ "a handle goes on in the new program", a_handle_goes_on },
	{ "a node that execve closes ends the calls", a_node_that_is_closed_ends_the_calls },
	{ "of two threads with handles the first keeps its own",
	  the_first_thread_keeps_its_handle },
	{ "of two threads with handles the one that starts a program keeps its own",
	  another_thread_keeps_its_handle },
};

int main(int count, char **arguments)
{
	if (count > 1)
		return be_the_new_program(arguments);
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
