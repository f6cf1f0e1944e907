// SPDX-License-Identifier: GPL-2.0
/* What the first interface promises, and that none of its predecessor's faults came along. */
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

#include "old.h"

_Static_assert(STPLR_VERSION == 0x800c692a, "IOR 42, 12 bytes");
_Static_assert(STPLR_HANDLE_GET == 0x8008692b, "IOR 43, 8 bytes");
_Static_assert(STPLR_HANDLE_PUT == 0x4008692c, "IOW 44, 8 bytes");
_Static_assert(STPLR_MSG_SEND == 0xc020692d, "IOWR 45, 32 bytes");
_Static_assert(STPLR_MSG_SEND_RECEIVE == 0xc030692e, "IOWR 46, 48 bytes");
_Static_assert(STPLR_MSG_RECEIVE == 0xc028692f, "IOWR 47, 40 bytes");
_Static_assert(STPLR_MSG_REPLY == 0xc0206930, "IOWR 48, 32 bytes");
_Static_assert(sizeof(struct stplr_msg) == 16 && offsetof(struct stplr_msg, buflen) == 8, "");
_Static_assert(sizeof(struct stplr_msgs) == 16 && offsetof(struct stplr_msgs, count) == 8, "");
_Static_assert(offsetof(struct stplr_msg_send, smsgs) == 16, "");
_Static_assert(offsetof(struct stplr_msg_send_receive, rmsgs) == 32, "");
_Static_assert(offsetof(struct stplr_msg_receive, reply_required) == 16, "");
_Static_assert(offsetof(struct stplr_msg_receive, rmsgs) == 24, "");
_Static_assert(offsetof(struct stplr_msg_reply, rmsgs) == 16, "");

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void version_is_0_0_7(void)
{
	struct stplr_version version = {};
	int fd = open("/dev/stplr-0", O_RDWR);

	OK(ioctl(fd, STPLR_VERSION, &version));
	CHECK(version.major == 0 && version.minor == 0 && version.micro == 7);
	FAILS(EFAULT, ioctl(fd, STPLR_VERSION, NULL));
}

static void a_process_opens_a_node_once(void)
{
	int fd = open("/dev/stplr-0", O_RDWR);

	CHECK(fd >= 0);
	FAILS(EBUSY, open("/dev/stplr-0", O_RDWR));
	CHECK(open("/dev/stplr-1", O_RDWR) >= 0);
	pid_t child = fork();
	if (child == 0) {
		CHECK(open("/dev/stplr-0", O_RDWR) >= 0);
		_exit(0);
	}
	join(child);
	close(fd);
	CHECK(open("/dev/stplr-0", O_RDWR) >= 0);
}

static void a_thread_takes_one_handle(void)
{
	struct party me = enter();
	struct stplr_handle second;

	FAILS(EBUSY, ioctl(me.fd, STPLR_HANDLE_GET, &second));
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	FAILS(ENODEV, ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	OK(ioctl(me.fd, STPLR_HANDLE_GET, &second));
	CHECK(second.uuid != me.handle.uuid);
	FAILS(EFAULT, ioctl(me.fd, STPLR_HANDLE_PUT, NULL));
}

static void *use_others_handle(void *argument)
{
	struct party me = *(struct party *)argument;
	struct stplr_msg_receive from;

	FAILS(EBADR, old_send(&me, me.pid, me.tid, NULL, 0));
	FAILS(EBADR, old_receive(&me, NULL, 0, &from));
	FAILS(EBADR, old_reply(&me, me.pid, me.tid, NULL, 0));
	FAILS(EBADR, ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	return NULL;
}

static void another_thread_may_not_use_a_handle(void)
{
	struct party me = enter();
	pthread_t thread;

	OK(pthread_create(&thread, NULL, use_others_handle, &me));
	OK(pthread_join(thread, NULL));
}

static void a_child_may_not_use_its_parents_handle(void)
{
	struct party me = enter();
	struct stplr_handle handle;
	pid_t child = fork();

	if (child == 0) {
		FAILS(EBADR, ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
		FAILS(EBADR, ioctl(me.fd, STPLR_HANDLE_GET, &handle));
		FAILS(EBADR, old_send(&me, me.pid, me.tid, NULL, 0));
		_exit(0);
	}
	join(child);
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
}

static void what_is_unknown_is_enodev(void)
{
	struct party me = enter(), nobody = me;
	struct stplr_msg_receive from;

	nobody.handle.uuid++;
	FAILS(ENODEV, old_send(&me, me.pid, 999999, NULL, 0));
	FAILS(ENODEV, old_send(&me, 1, me.tid, NULL, 0));
	FAILS(ENODEV, old_send(&me, -1, -1, NULL, 0));
	FAILS(ENODEV, old_send(&nobody, me.pid, me.tid, NULL, 0));
	FAILS(ENODEV, old_receive(&nobody, NULL, 0, &from));
	FAILS(ENODEV, old_reply(&me, 1, 1, NULL, 0));
}

static void an_unknown_ioctl_fails_at_once(void)
{
	struct party me = enter();
	double start = now();

	FAILS(ENOTTY, ioctl(me.fd, _IO('i', 99), 0));
	CHECK(now() - start < 0.5);
}

static void a_round_trip_of(size_t size)
{
	pid_t server = echo_server(size + 100);
	struct party me = enter();
	char *sent = malloc(size), *got = calloc(1, size + 50);
	struct stplr_msg s = { sent, (__u32)size }, r = { got, (__u32)size + 50 };

	fill(sent, size, 7);
	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(s.buflen == size && r.buflen == size);
	CHECK(filled(got, size, 7));
}

static void every_size_arrives_whole(void)
{
	static const size_t sizes[] = { 0, 1, 64, 255, 256, 257, 4095, 4096, 4097, 16383, 16384,
					16385, 65536, 1 << 20, (4 << 20) + 13 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		pid_t child = fork();

		if (child == 0) {
			a_round_trip_of(sizes[i]);
			_exit(0);
		}
		join(child);
	}
}

static void buffers_pair_up_by_index(size_t unit)
{
	int go[2];
	char c;

	OK(pipe(go));
	pid_t parent = getpid();
	struct party me = enter();
	pid_t child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		char *a = malloc(unit), *b = malloc(unit * 2), *c3 = malloc(unit);
		struct stplr_msg s[3] = { { a, (__u32)unit },
					  { b, (__u32)unit * 2 },
					  { c3, (__u32)unit } };
		struct stplr_msg r[2] = { { c3, (__u32)unit }, { b, 5 } };

		fill(a, unit, 1);
		fill(b, unit * 2, 2);
		fill(c3, unit, 3);
		OK(old_call(&client, parent, parent, s, 3, r, 2));
		CHECK(s[0].buflen == unit && s[1].buflen == unit && s[2].buflen == 0);
		CHECK(r[0].buflen == 3 && !memcmp(c3, "abc", 3));
		CHECK(r[1].buflen == 0);
		(void)!write(go[1], "x", 1);
		_exit(0);
	}
	char *x = calloc(1, unit * 3), *y = calloc(1, unit);
	struct stplr_msg r[2] = { { x, (__u32)unit * 3 }, { y, (__u32)unit } };
	struct stplr_msg_receive from;

	OK(old_receive(&me, r, 2, &from));
	CHECK(from.pid == child && from.tid == child && from.reply_required);
	CHECK(r[0].buflen == unit && filled(x, unit, 1));
	CHECK(r[1].buflen == unit && filled(y, unit, 2));
	struct stplr_msg reply = { "abc", 3 };

	OK(old_reply(&me, from.pid, from.tid, &reply, 1));
	CHECK(reply.buflen == 3);
	CHECK(read(go[0], &c, 1) == 1);
	join(child);
}

static void small_buffers_pair_up(void)
{
	buffers_pair_up_by_index(20);
}

static void big_buffers_pair_up(void)
{
	buffers_pair_up_by_index(40001);
}

/* Each of which is replied to apart. */
static void many_buffers_pair_up(void)
{
	enum { COUNT = 400 };
	static char room[COUNT][8], bytes[COUNT][4];
	static struct stplr_msg theirs[COUNT], mine[COUNT];
	struct party me = enter();
	struct stplr_msg_receive from;
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();

		for (int i = 0; i < COUNT; i++)
			theirs[i] = (struct stplr_msg){ room[i], sizeof(room[i]) };
		OK(old_call(&client, parent, parent, NULL, 0, theirs, COUNT));
		for (int i = 0; i < COUNT; i++)
			CHECK(theirs[i].buflen == 4 && filled(room[i], 4, (unsigned int)i));
		_exit(0);
	}
	OK(old_receive(&me, NULL, 0, &from));
	for (int i = 0; i < COUNT; i++) {
		fill(bytes[i], 4, (unsigned int)i);
		mine[i] = (struct stplr_msg){ bytes[i], 4 };
	}
	OK(old_reply(&me, child, child, mine, COUNT));
	join(child);
}

static void more_buffers_at_the_receiver_get_nothing(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg s = { "12345", 5 };

		OK(old_send(&client, parent, parent, &s, 1));
		CHECK(s.buflen == 5);
		_exit(0);
	}
	char a[8] = "", b[8] = "untouch";
	struct stplr_msg r[2] = { { a, 8 }, { b, 8 } };
	struct stplr_msg_receive from;

	OK(old_receive(&me, r, 2, &from));
	CHECK(!from.reply_required);
	CHECK(r[0].buflen == 5 && r[1].buflen == 0 && !strcmp(b, "untouch"));
	join(child);
}

static void messages_come_in_the_order_they_were_sent(void)
{
	struct party me = enter();
	pid_t parent = getpid(), children[5];

	for (int i = 0; i < 5; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			close(me.fd);
			struct party client = enter();
			struct stplr_msg s = { &i, sizeof(i) };

			OK(old_send(&client, parent, parent, &s, 1));
			_exit(0);
		}
		await_ioctl(children[i]);
	}
	for (int i = 0; i < 5; i++) {
		int got = -1;
		struct stplr_msg r = { &got, sizeof(got) };
		struct stplr_msg_receive from;

		OK(old_receive(&me, &r, 1, &from));
		CHECK(got == i && from.pid == children[i]);
		join(children[i]);
	}
}

static void on_signal(int number)
{
}

static void handle_signal(int number, int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };

	OK(sigaction(number, &action, NULL));
}

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

static void a_bad_pointer_is_efault(void)
{
	pid_t server = echo_server(1 << 17);
	struct party me = enter();
	char good[8] = "x", *big = malloc(1 << 17);
	struct stplr_msg bad = { (void *)8, 8 }, fine = { good, 8 }, kernel = { (void *)~0UL, 8 };
	struct stplr_msg bad_big = { (void *)8, 1 << 17 }, fine_big = { big, 1 << 17 };
	struct stplr_msg wild = { (void *)0xffff888000000000UL, 1 << 17 };

	fill(big, 1 << 17, 0);
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_SEND, NULL));
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_SEND_RECEIVE, 8));
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_RECEIVE, ~0UL));
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_REPLY, NULL));
	for (int i = 0; i < 3; i++) {
		FAILS(EFAULT, old_send(&me, server, server, &bad, 1));
		FAILS(EFAULT, old_send(&me, server, server, &kernel, 1));
		FAILS(EFAULT, old_send(&me, server, server, (void *)16, 1));
		FAILS(EFAULT, old_send(&me, server, server, &bad_big, 1));
		FAILS(EFAULT, old_send(&me, server, server, &wild, 1));
		fine.buflen = 8;
		bad.buflen = 8;
		FAILS(EFAULT, old_call(&me, server, server, &fine, 1, &bad, 1));
		bad_big.buflen = 1 << 17;
		FAILS(EFAULT, old_call(&me, server, server, &fine_big, 1, &bad_big, 1));
		fine.buflen = 8;
		fine_big.buflen = 1 << 17;
		bad.buflen = 8;
	}
	OK(old_call(&me, server, server, &fine, 1, &fine, 1));
	OK(old_call(&me, server, server, &fine_big, 1, &fine_big, 1));
}

static void a_receivers_bad_pointer_loses_no_message(size_t size)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		char *buffer = malloc(size);
		struct stplr_msg s = { buffer, (__u32)size };

		fill(buffer, size, 5);
		OK(old_send(&client, parent, parent, &s, 1));
		_exit(0);
	}
	char *got = calloc(1, size);
	struct stplr_msg bad = { (void *)8, (__u32)size }, r = { got, (__u32)size };
	struct stplr_msg_receive from;

	for (int i = 0; i < 3; i++) {
		FAILS(EFAULT, old_receive(&me, &bad, 1, &from));
		FAILS(EFAULT, old_receive(&me, (void *)16, 1, &from));
		bad.buflen = (__u32)size;
	}
	OK(old_receive(&me, &r, 1, &from));
	CHECK(from.pid == child && filled(got, size, 5));
	join(child);
}

static void a_bad_pointer_loses_no_small_message(void)
{
	a_receivers_bad_pointer_loses_no_message(100);
}

static void a_bad_pointer_loses_no_big_message(void)
{
	a_receivers_bad_pointer_loses_no_message(100000);
}

static void a_repliers_bad_pointer_can_be_mended(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		char got[4] = "";
		struct stplr_msg r = { got, 3 };

		OK(old_call(&client, parent, parent, NULL, 0, &r, 1));
		CHECK(r.buflen == 3 && !strcmp(got, "yes"));
		_exit(0);
	}
	struct stplr_msg bad = { (void *)8, 3 }, good = { "yes", 3 };
	struct stplr_msg_receive from;

	OK(old_receive(&me, NULL, 0, &from));
	FAILS(EFAULT, old_reply(&me, from.pid, from.tid, &bad, 1));
	bad.buflen = 3;
	OK(old_reply(&me, from.pid, from.tid, &good, 1));
	join(child);
}

static void a_huge_count_is_refused(void)
{
	pid_t server = echo_server(64);
	struct party me = enter();
	struct stplr_msg s = { "x", 1 }, *many = calloc(1025, sizeof(s));
	struct stplr_msg huge[2] = { { many, 0x7ffff000 }, { many, 1 } };
	struct stplr_msg_receive from;

	FAILS(EINVAL, old_send(&me, server, server, &s, ~0U));
	FAILS(EINVAL, old_send(&me, server, server, many, 1025));
	FAILS(EINVAL, old_receive(&me, &s, 0x80000000U, &from));
	FAILS(EMSGSIZE, old_send(&me, server, server, huge, 2));
	OK(old_send(&me, server, server, many, 1024));
}

static void zero_lengths_are_messages(void)
{
	pid_t server = echo_server(64);
	struct party me = enter();
	struct stplr_msg s[2] = { { NULL, 0 }, { (void *)8, 0 } }, r = { NULL, 0 };

	OK(old_call(&me, server, server, s, 2, &r, 1));
	OK(old_call(&me, server, server, NULL, 0, NULL, 0));
	OK(old_send(&me, server, server, s, 1));
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

/* Memory whose pages never come: whoever touches it waits for ever. */
static void *memory_that_never_comes(size_t size)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	size = (size + 4095) & ~4095UL;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (unsigned long)memory, size },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };

	if (fd < 0)
		SKIP("this kernel has no userfaultfd");
	OK(ioctl(fd, UFFDIO_API, &api));
	OK(ioctl(fd, UFFDIO_REGISTER, &range));
	return memory;
}

static void a_reply_of(size_t size)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg r = { memory_that_never_comes(size), (__u32)size };

		OK(old_call(&client, parent, parent, NULL, 0, &r, 1));
		_exit(0);
	}
	struct stplr_msg reply = { calloc(1, size), (__u32)size };
	struct stplr_msg_receive from;

	OK(old_receive(&me, NULL, 0, &from));
	double start = now();

	OK(old_reply(&me, from.pid, from.tid, &reply, 1));
	CHECK(now() - start < 1);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void a_small_reply_does_not_wait_for_the_client(void)
{
	a_reply_of(100);
}

static void a_big_reply_does_not_wait_for_the_client(void)
{
	a_reply_of(1 << 20);
}

static void a_client_cannot_stall_a_receiver(void)
{
	struct party me = enter();
	pid_t parent = getpid(), children[2];

	for (int i = 0; i < 2; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			close(me.fd);
			struct party client = enter();
			size_t size = 1 << 20;
			char *buffer = i ? calloc(1, size) : memory_that_never_comes(size);
			struct stplr_msg s = { buffer, (__u32)size };

			OK(old_send(&client, parent, parent, &s, 1));
			_exit(0);
		}
		await_ioctl(children[i]);
	}
	struct stplr_msg r = { malloc(1 << 20), 1 << 20 };
	struct stplr_msg_receive from;
	double start = now();

	OK(old_receive(&me, &r, 1, &from));
	CHECK(from.pid == children[1] && now() - start < 1);
	join(children[1]);
	kill(children[0], SIGKILL);
	waitpid(children[0], NULL, 0);
}

static void pages_that_were_dropped_are_sent(void)
{
	size_t size = 1 << 20;
	char path[] = "/tmp/pagesXXXXXX", *got = malloc(size);
	int fd = mkstemp(path);
	pid_t server = echo_server(size);
	struct party me = enter();

	fill(got, size, 3);
	CHECK(write(fd, got, size) == (ssize_t)size);
	memset(got, 0, size);
	char *mapped = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	struct stplr_msg s = { mapped, (__u32)size }, r = { got, (__u32)size };

	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(filled(got, size, 3));
}

static void const_buffers_can_be_sent_of(size_t size)
{
	char *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pid_t server = echo_server(size);
	struct party me = enter();
	char *got = malloc(size);
	struct stplr_msg s = { page, (__u32)size }, r = { got, (__u32)size };

	fill(page, size, 9);
	OK(mprotect(page, size, PROT_READ));
	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(filled(got, size, 9));
}

static void small_const_buffers_can_be_sent(void)
{
	const_buffers_can_be_sent_of(4096);
}

static void big_const_buffers_can_be_sent(void)
{
	const_buffers_can_be_sent_of(256 * 1024);
}

static void a_const_array_can_be_sent(void)
{
	static const struct stplr_msg s = { "const", 6 };
	pid_t server = echo_server(64);
	struct party me = enter();
	char got[8];
	struct stplr_msg r = { got, 8 };

	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(!strcmp(got, "const"));
}

static void sending_to_oneself_is_edeadlk(void)
{
	struct party me = enter();

	FAILS(EDEADLK, old_send(&me, me.pid, me.tid, NULL, 0));
}

static void *sender_thread(void *argument)
{
	struct party me = *(struct party *)argument;

	OK(ioctl(me.fd, STPLR_HANDLE_GET, &me.handle));
	for (int i = 0; i < 200; i++) {
		struct stplr_msg s = { &i, sizeof(i) }, r = { &(int){ 0 }, sizeof(i) };

		OK(old_call(&me, me.pid, me.tid, &s, 1, &r, 1));
		CHECK(*(int *)r.msgbuf == i + 1);
	}
	return NULL;
}

static void threads_of_one_process_can_talk(void)
{
	struct party me = enter();
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		OK(pthread_create(&threads[i], NULL, sender_thread, &me));
	for (int i = 0; i < 4 * 200; i++) {
		int number;
		struct stplr_msg msg = { &number, sizeof(number) };
		struct stplr_msg_receive from;

		OK(old_receive(&me, &msg, 1, &from));
		number++;
		OK(old_reply(&me, from.pid, from.tid, &msg, 1));
	}
	for (int i = 0; i < 4; i++)
		OK(pthread_join(threads[i], NULL));
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

static void no_32_bit_calls(int number)
{
	SKIP("this kernel has no 32-bit calls");
}

/* Call 54 of the 32-bit table is ioctl. */
static long ioctl_32(int fd, unsigned long command, void *argument)
{
	long result;

	asm volatile("int $0x80" : "=a"(result)
		     : "a"(54L), "b"((long)fd), "c"((long)command), "d"((long)argument)
		     : "memory", "r8", "r9", "r10", "r11");
	return (int)result;
}

/* What is on the second interface is the same for them. */
static void a_32_bit_server_serves(int channel, int connection, char *low)
{
	struct stplr_receive *received = (struct stplr_receive *)low;
	struct stplr_reply *reply = (struct stplr_reply *)(low + 256);
	struct stplr_part *parts = (struct stplr_part *)(low + 512);
	int32_t status;
	pid_t client = fork();

	if (client == 0) {
		char got[5];
		struct stplr_send send = { .send = { (uintptr_t)"hello", 5, 0 },
					   .reply = { (uintptr_t)got, 5, 0 },
					   .timeout_ns = -1 };

		OK(ioctl(connection, STPLR_SEND, &send));
		CHECK(send.replied == 5 && !memcmp(got, "lloje", 5));
		_exit(0);
	}
	memset(low, 0, 4096);
	parts[0].address = (uintptr_t)low + 1024;
	parts[0].length = 2;
	parts[1].address = (uintptr_t)low + 1100;
	parts[1].length = 100;
	received->buffer.address = (uintptr_t)parts;
	received->buffer.count = 2;
	received->timeout_ns = -1;
	CHECK(ioctl_32(channel, STPLR_RECEIVE, received) == 0);
	CHECK(received->length == 5 && !memcmp(low + 1024, "he", 2));
	CHECK(!memcmp(low + 1100, "llo", 3));
	memcpy(low + 1103, "je", 2);
	reply->id = received->id;
	reply->buffer.address = (uintptr_t)low + 1100;
	reply->buffer.length = 5;
	CHECK(ioctl_32(channel, STPLR_REPLY, reply) == 5);
	CHECK(waitpid(client, &status, 0) == client && status == 0);
}

static void a_32_bit_call_is_refused(void)
{
	void *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	int fd = open("/dev/stplr-0", O_RDWR), control = open("/dev/stplr", O_RDWR);
	struct stplr_channel_create create = {};
	struct stplr_channel_connect connect = {};
	int channel = ioctl(control, STPLR_CHANNEL_CREATE, &create);
	int connection = ioctl(channel, STPLR_CHANNEL_CONNECT, &connect);

	CHECK(connection >= 0);
	signal(SIGSEGV, no_32_bit_calls);
	if (ioctl_32(fd, STPLR_VERSION, low) == -ENOSYS)
		SKIP("this kernel has no 32-bit calls");
	CHECK(ioctl_32(fd, STPLR_VERSION, low) == -ENOTTY);
	CHECK(ioctl_32(fd, STPLR_HANDLE_GET, low) == -ENOTTY);
	CHECK(ioctl_32(fd, STPLR_MSG_RECEIVE, low) == -ENOTTY);
	CHECK(ioctl_32(control, STPLR_CHANNEL_CREATE, low) >= 0);
	CHECK(ioctl_32(connection, STPLR_UNREGISTER, NULL) == -ENOENT);
	a_32_bit_server_serves(channel, connection, low);
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
	{ "the version is 0.0.7", version_is_0_0_7 },
	{ "a process opens a node once", a_process_opens_a_node_once },
	{ "a thread takes one handle", a_thread_takes_one_handle },
	{ "another thread may not use a handle", another_thread_may_not_use_a_handle },
	{ "a child may not use its parent's handle", a_child_may_not_use_its_parents_handle },
	{ "what is unknown is ENODEV", what_is_unknown_is_enodev },
	{ "an unknown ioctl fails at once", an_unknown_ioctl_fails_at_once },
	{ "every size arrives whole", every_size_arrives_whole },
	{ "small buffers pair up by index", small_buffers_pair_up },
	{ "big buffers pair up by index", big_buffers_pair_up },
	{ "many buffers pair up", many_buffers_pair_up },
	{ "surplus buffers get nothing", more_buffers_at_the_receiver_get_nothing },
	{ "messages come in the order they were sent", messages_come_in_the_order_they_were_sent },
	{ "an interrupted sender leaves the queue", an_interrupted_sender_leaves_the_queue },
	{ "a killed sender leaves the queue", a_killed_sender_leaves_the_queue },
	{ "a delivered message is not sent again", a_delivered_message_is_not_sent_again },
	{ "an undelivered message is sent again", an_undelivered_message_is_sent_again },
	{ "closing a copy of the descriptor changes nothing",
	  closing_a_copy_of_the_descriptor_changes_nothing },
	{ "a bad pointer is EFAULT", a_bad_pointer_is_efault },
	{ "a receiver's bad pointer loses no small message", a_bad_pointer_loses_no_small_message },
	{ "a receiver's bad pointer loses no big message", a_bad_pointer_loses_no_big_message },
	{ "a replier's bad pointer can be mended", a_repliers_bad_pointer_can_be_mended },
	{ "a huge count is refused", a_huge_count_is_refused },
	{ "zero lengths are messages", zero_lengths_are_messages },
	{ "a queued client is told of the server's death",
	  a_queued_client_is_told_of_the_servers_death },
	{ "a received client is told of the server's death",
	  a_received_client_is_told_of_the_servers_death },
	{ "the end of a server's thread is told too", the_end_of_a_server_thread_is_told_too },
	{ "giving the handle back ends the calls", giving_the_handle_back_ends_the_calls },
	{ "only the receiver may reply", only_the_receiver_may_reply },
	{ "a small reply does not wait for the client",
	  a_small_reply_does_not_wait_for_the_client },
	{ "a big reply does not wait for the client", a_big_reply_does_not_wait_for_the_client },
	{ "a client cannot stall a receiver", a_client_cannot_stall_a_receiver },
	{ "pages of a file are sent", pages_that_were_dropped_are_sent },
	{ "small const buffers can be sent", small_const_buffers_can_be_sent },
	{ "big const buffers can be sent", big_const_buffers_can_be_sent },
	{ "a const array can be sent", a_const_array_can_be_sent },
	{ "sending to oneself is EDEADLK", sending_to_oneself_is_edeadlk },
	{ "threads of one process can talk", threads_of_one_process_can_talk },
	{ "a descriptor that outlives its process blocks nobody",
	  a_handle_survives_its_parents_copy_of_the_descriptor },
	{ "a 32-bit call is refused, and one of the second interface is not",
	  a_32_bit_call_is_refused },
	{ "processes come and go", processes_come_and_go },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
