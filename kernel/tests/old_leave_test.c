// SPDX-License-Identifier: GPL-2.0
/*
 * The first interface: who leaves a call or is interrupted in it, and that none of its predecessor's faults
 * came along.
 */
#include <sys/time.h>

#include "old.h"

/* The predecessor left the sender in the queue: use after free at the next receive. */
static void an_interrupted_sender_leaves_the_queue(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg s = { "gone", 4 };

		handle_signal(SIGUSR1, 0);
		FAILS(EINTR, old_send(&client, parent, parent, &s, 1));
		_exit(0);
	}
	await_ioctl(child);
	kill(child, SIGUSR1);
	join(child);

	pid_t second = fork();
	if (second == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg s = { "here", 4 };

		OK(old_send(&client, parent, parent, &s, 1));
		_exit(0);
	}
	char got[5] = "";
	struct stplr_msg r = { got, 4 };
	struct stplr_msg_receive from;

	OK(old_receive(&me, &r, 1, &from));
	CHECK(from.pid == second && !strcmp(got, "here"));
	join(second);
}

static void a_killed_sender_leaves_the_queue(void)
{
	struct party me = enter();
	pid_t parent = getpid();
	char *big = malloc(1 << 20);

	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (child == 0) {
			close(me.fd);
			struct party client = enter();
			struct stplr_msg s = { big, i & 1 ? 4 : 1 << 20 };

			old_send(&client, parent, parent, &s, 1);
			_exit(0);
		}
		nap(i & 3 ? 0 : 20);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	struct itimerval timer = { .it_value.tv_usec = 100000 };
	char got[5];
	struct stplr_msg r = { got, 4 };
	struct stplr_msg_receive from;

	handle_signal(SIGALRM, 0);
	setitimer(ITIMER_REAL, &timer, NULL);
	FAILS(EINTR, old_receive(&me, &r, 1, &from));
}

/* With SA_RESTART the predecessor sent a delivered message a second time. */
static void a_delivered_message_is_not_sent_again(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg s = { "once", 4 }, r = { malloc(4), 4 };

		handle_signal(SIGUSR1, SA_RESTART);
		FAILS(EINTR, old_call(&client, parent, parent, &s, 1, &r, 1));
		_exit(0);
	}
	char got[5] = "";
	struct stplr_msg r = { got, 4 };
	struct stplr_msg_receive from;

	OK(old_receive(&me, &r, 1, &from));
	kill(child, SIGUSR1);
	join(child);
	FAILS(ENODEV, old_reply(&me, from.pid, from.tid, &r, 1));

	struct itimerval timer = { .it_value.tv_usec = 100000 };

	handle_signal(SIGALRM, 0);
	setitimer(ITIMER_REAL, &timer, NULL);
	FAILS(EINTR, old_receive(&me, &r, 1, &from));
}

static void an_undelivered_message_is_sent_again(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg s = { "late", 4 };

		handle_signal(SIGUSR1, SA_RESTART);
		OK(old_send(&client, parent, parent, &s, 1));
		_exit(0);
	}
	await_ioctl(child);
	kill(child, SIGUSR1);
	nap(50);
	char got[5] = "";
	struct stplr_msg r = { got, 4 };
	struct stplr_msg_receive from;

	OK(old_receive(&me, &r, 1, &from));
	CHECK(!strcmp(got, "late"));
	join(child);
}

/* The predecessor's flush dropped live threads when any copy was closed. */
static void closing_a_copy_of_the_descriptor_changes_nothing(void)
{
	pid_t server = echo_server(64);
	struct party me = enter();
	char got[8] = "";
	struct stplr_msg s = { "still", 6 }, r = { got, 8 };

	close(dup(me.fd));
	pid_t child = fork();

	if (child == 0) {
		close(me.fd);
		_exit(0);
	}
	join(child);
	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(!strcmp(got, "still"));
}

static void clients_of_a_server_that_dies_are_told(bool received)
{
	int ready[2];
	char c;

	OK(pipe(ready));
	pid_t server = fork();

	if (server == 0) {
		struct party me = enter();
		struct stplr_msg_receive from;

		(void)!write(ready[1], "x", 1);
		if (received)
			OK(old_receive(&me, NULL, 0, &from));
		pause();
	}
	CHECK(read(ready[0], &c, 1) == 1);
	pid_t client = fork();

	if (client == 0) {
		struct party me = enter();

		FAILS(ENODEV, old_call(&me, server, server, NULL, 0, NULL, 0));
		_exit(0);
	}
	await_ioctl(client);
	double start = now();

	kill(server, SIGKILL);
	join(client);
	CHECK(now() - start < 1);
	waitpid(server, NULL, 0);
}

static void a_queued_client_is_told_of_the_servers_death(void)
{
	clients_of_a_server_that_dies_are_told(false);
}

static void a_received_client_is_told_of_the_servers_death(void)
{
	clients_of_a_server_that_dies_are_told(true);
}

static void *server_thread(void *argument)
{
	struct party me = *(struct party *)argument;
	struct stplr_msg_receive from;

	me.tid = my_tid();
	OK(ioctl(me.fd, STPLR_HANDLE_GET, &me.handle));
	__atomic_store_n(&((struct party *)argument)->tid, me.tid, __ATOMIC_SEQ_CST);
	OK(old_receive(&me, NULL, 0, &from));
	return NULL;
}

static void the_end_of_a_server_thread_is_told_too(void)
{
	struct party me = enter(), server = me;
	pid_t parent = getpid();
	pthread_t thread;

	OK(pthread_create(&thread, NULL, server_thread, &server));
	while (__atomic_load_n(&server.tid, __ATOMIC_SEQ_CST) == me.tid)
		nap(2);
	pid_t tid = server.tid, child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();

		FAILS(ENODEV, old_call(&client, parent, tid, NULL, 0, NULL, 0));
		_exit(0);
	}
	join(child);
	OK(pthread_join(thread, NULL));
	FAILS(ENODEV, old_send(&me, parent, tid, NULL, 0));
}

static void giving_the_handle_back_ends_the_calls(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();

		FAILS(ENODEV, old_call(&client, parent, parent, NULL, 0, NULL, 0));
		_exit(0);
	}
	struct stplr_msg_receive from;

	OK(old_receive(&me, NULL, 0, &from));
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	join(child);
}

/* Anyone could complete anyone's call. */
static void only_the_receiver_may_reply(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		char got[4] = "";
		struct stplr_msg r = { got, 3 };

		OK(old_call(&client, parent, parent, NULL, 0, &r, 1));
		CHECK(!strcmp(got, "yes"));
		_exit(0);
	}
	struct stplr_msg no = { "no!", 3 }, yes = { "yes", 3 };
	struct stplr_msg_receive from;

	await_ioctl(child);
	FAILS(ENODEV, old_reply(&me, child, child, &no, 1)); /* not received yet */
	OK(old_receive(&me, NULL, 0, &from));
	pid_t thief = fork();

	if (thief == 0) {
		close(me.fd);
		struct party other = enter();

		FAILS(ENODEV, old_reply(&other, child, child, &no, 1));
		_exit(0);
	}
	join(thief);
	FAILS(ENODEV, old_reply(&me, child + 1, child, &no, 1));
	OK(old_reply(&me, child, child, &yes, 1));
	FAILS(ENODEV, old_reply(&me, child, child, &yes, 1));
	join(child);
}

static void a_handle_survives_its_parents_copy_of_the_descriptor(void)
{
	/* A descriptor that outlives its process keeps nobody from opening the node anew. */
	int go[2];
	char c;

	OK(pipe(go));
	pid_t middle = fork();

	if (middle == 0) {
		struct party me = enter();

		if (fork() == 0) {
			close(go[1]);
			(void)!read(go[0], &c, 1);
			_exit(me.fd < 0);
		}
		_exit(0);
	}
	join(middle);
	struct party me = enter();

	FAILS(ENODEV, old_send(&me, middle, middle, NULL, 0));
	close(go[1]);
}

static void processes_come_and_go(void)
{
	struct party me = enter();

	for (int i = 0; i < 200; i++) {
		pid_t child = fork();

		if (child == 0) {
			close(me.fd);
			enter();
			_exit(0);
		}
		join(child);
	}
}

static const struct test tests[] = {
	{ "an interrupted sender leaves the queue", an_interrupted_sender_leaves_the_queue },
	{ "a killed sender leaves the queue", a_killed_sender_leaves_the_queue },
	{ "a delivered message is not sent again", a_delivered_message_is_not_sent_again },
	{ "an undelivered message is sent again", an_undelivered_message_is_sent_again },
	{ "closing a copy of the descriptor changes nothing",
	  closing_a_copy_of_the_descriptor_changes_nothing },
	{ "a queued client is told of the server's death",
	  a_queued_client_is_told_of_the_servers_death },
	{ "a received client is told of the server's death",
	  a_received_client_is_told_of_the_servers_death },
	{ "the end of a server's thread is told too", the_end_of_a_server_thread_is_told_too },
	{ "giving the handle back ends the calls", giving_the_handle_back_ends_the_calls },
	{ "only the receiver may reply", only_the_receiver_may_reply },
	{ "a descriptor that outlives its process blocks nobody",
	  a_handle_survives_its_parents_copy_of_the_descriptor },
	{ "processes come and go", processes_come_and_go },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
