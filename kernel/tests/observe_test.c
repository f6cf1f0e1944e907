// SPDX-License-Identifier: GPL-2.0
/* What root can see of the module in debugfs, by its tracepoints and in the log. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "new.h"
#include "old.h"
#include "processor.h"
#include "seen.h"

#define TRACING "/sys/kernel/tracing/"

static void channels_are_listed(void)
{
	int channel = stplr_channel_create("seen", 0600, STPLR_CHANNEL_UNBLOCK |
							 STPLR_CHANNEL_DISCONNECT |
							 STPLR_CHANNEL_INHERIT);
	unsigned int number = number_of("seen");

	CHECK(lines(FOLDER "channels", "%u 0 0 0 channel uid 0 unblock disconnect inherit name seen",
		    number) == 1);
	int connection = new_connection(channel, 0);

	close(channel);
	CHECK(lines(FOLDER "channels", "closed name seen") == 1);
	close(connection);
	CHECK(lines(FOLDER "channels", "name seen") == 0);
	/* What a name contains does not break the lines. */
	channel = stplr_channel_create("a b\nc", 0600, 0);
	CHECK(lines(FOLDER "channels", "name a\\040b\\012c") == 1);
}

static void connections_are_listed(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 1234567);
	unsigned int number = number_of("seen");
	static char memory[4096];

	CHECK(lines(FOLDER "connections", "%u 1234567 0 0 256", number) == 1);
	OK(stplr_pulse(connection, 1, 1));
	CHECK(stplr_register(connection, memory, sizeof(memory)) == 0);
	CHECK(lines(FOLDER "connections", "%u 1234567 0 1 255", number) == 1);
	close(connection);
	CHECK(lines(FOLDER "connections", "1234567") == 0);
}

static void the_blocked_are_listed_and_on_whom(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection, {
		OK(setpriority(PRIO_PROCESS, 0, 3));
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	AWAIT_LINE(FOLDER "blocked", "%d %d SEND %u priority 17", client, client, number);
	CHECK(lines(FOLDER "channels", "%u 1 0 0 ", number) == 1);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(lines(FOLDER "blocked", "%d %d REPLY %u priority 17 on %d", client, client, number,
		    getpid()) == 1);
	CHECK(lines(FOLDER "channels", "%u 0 1 0 ", number) == 1);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
	CHECK(lines(FOLDER "blocked", "%d %d ", client, client) == 0);

	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		_exit(0);
	}
	AWAIT_LINE(FOLDER "blocked", "%d %d RECEIVE %u", server, server, number);
	CHECK(lines(FOLDER "channels", "%u 0 0 1 ", number) == 1);
	OK(stplr_pulse(connection, 1, 1));
	join(server);
	CHECK(lines(FOLDER "channels", "%u 0 0 0 ", number) == 1);
}

static void handles_are_listed_too(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();

		OK(old_call(&client, parent, parent, NULL, 0, NULL, 0));
		_exit(0);
	}
	struct stplr_msg_receive from;

	CHECK(lines(FOLDER "channels", "handle of %d on node 0", parent) == 1);
	AWAIT_LINE(FOLDER "blocked", "%d %d SEND ", child, child);
	OK(old_receive(&me, NULL, 0, &from));
	AWAIT_LINE(FOLDER "blocked", "%d %d REPLY ", child, child);
	OK(old_reply(&me, child, child, NULL, 0));
	join(child);
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	CHECK(lines(FOLDER "channels", "handle of %d ", parent) == 0);
}

static void a_crowd_is_listed_whole(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");
	pid_t clients[256];

	for (int i = 0; i < 256; i++)
		clients[i] = CLIENT(channel, connection, {
			IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		});
	AWAIT_LINE(FOLDER "channels", "%u 256 0 0 ", number);
	CHECK(lines(FOLDER "blocked", " SEND %u ", number) == 256);
	close(channel);
	for (int i = 0; i < 256; i++)
		join(clients[i]);
	CHECK(lines(FOLDER "channels", "%u 0 0 0 ", number) == 1);
}

static void what_happens_is_counted(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_send briefly = { .timeout_ns = 1000000 };
	struct stplr_receive received;
	char *memory = calloc(1, 100000);
	long before[9] = { counter("sends"), counter("receives"), counter("replies"),
			   counter("pulses"), counter("timed-out"), counter("interrupted"),
			   counter("peer-gone"), counter("pin-batches"), counter("refaults") };

	pid_t client = CLIENT(channel, connection, {
		IS(0, stplr_send(connection, memory, 100000, NULL, 0, NULL));
		IS(-ETIMEDOUT, stplr_send_full(connection, &briefly));
		handle_signal(SIGALRM, 0);
		alarm(1);
		IS(-EINTR, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		OK(stplr_pulse(connection, 1, 1));
		IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	char *mine = malloc(100000);

	/* Its pages are not there yet. */
	long got;
	while ((got = stplr_read(channel, received.id, 0, mine, 100000)) == -EAGAIN)
		nap(2);
	IS(100000, got);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	do {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		if (!received.pulse)
			nap(50); /* let it go */
	} while (!received.pulse);
	await_ioctl(client);
	close(channel);
	join(client);
	CHECK(counter("sends") - before[0] >= 4);
	CHECK(counter("receives") - before[1] >= 1);
	CHECK(counter("replies") - before[2] == 1);
	CHECK(counter("pulses") - before[3] == 1);
	CHECK(counter("timed-out") - before[4] == 1);
	CHECK(counter("interrupted") - before[5] == 1);
	CHECK(counter("peer-gone") - before[6] == 1);
	CHECK(counter("pin-batches") - before[7] >= 1);
	CHECK(counter("refaults") - before[8] == 0);
}

/* Whoever serves a file decides when a page of it comes; so the sender is to wait for it itself. */
static void memory_of_files_is_not_reached_into(void)
{
	enum { SIZE = 64 * 4096 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *expected = malloc(SIZE), *mine = calloc(1, SIZE);
	struct stplr_receive received;
	const char *folder = "/tmp/files";

	for (int i = 0; i < SIZE; i++)
		expected[i] = (char)(i * 31 + i / 253);
	OK(mkdir(folder, 0700));
	OK(mount("files", folder, "ramfs", 0, NULL));
	int file = open("/tmp/files/one", O_CREAT | O_EXCL | O_RDWR, 0600);

	CHECK(file >= 0 && write(file, expected, SIZE) == SIZE);
	long before = counter("pin-batches");

	pid_t client = CLIENT(channel, connection, {
		char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		CHECK(memory != MAP_FAILED);
		OK(madvise(memory, SIZE, MADV_RANDOM));
		IS(0, stplr_send(connection, memory, SIZE, NULL, 0, NULL));
	});
	IS(SIZE, stplr_receive(channel, mine, SIZE, second, &received));
	CHECK(!memcmp(mine, expected, SIZE));
	CHECK(counter("pin-batches") == before);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);

	/* A reply to there waits for the client to fetch it. */
	client = CLIENT(channel, connection, {
		char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		CHECK(memory != MAP_FAILED);
		memset(memory, 0, SIZE);
		IS(SIZE, stplr_send(connection, "x", 1, memory, SIZE, NULL));
		CHECK(!memcmp(memory, expected, SIZE));
	});
	IS(1, stplr_receive(channel, mine, SIZE, second, &received));
	IS(SIZE, stplr_reply(channel, received.id, 0, expected, SIZE));
	join(client);
	close(file);
	OK(umount(folder));
	OK(rmdir(folder));
}

static void what_users_hold_is_listed(void)
{
	long before = settled_bytes_of(0);
	int channel = new_channel(0), connection = new_connection(channel, 0);

	CHECK(bytes_of(0) > before);
	close(connection);
	close(channel);
	CHECK(bytes_of(0) == before);
}

static void it_is_for_root_alone(void)
{
	static const char *const names[] = { "channels", "connections", "blocked", "users",
					     "counters" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		char path[80];
		struct stat status;

		snprintf(path, sizeof(path), FOLDER "%s", names[i]);
		OK(stat(path, &status));
		CHECK((status.st_mode & 0777) == 0400);
	}
	OK(setuid(1000));
	CHECK(!fopen(FOLDER "blocked", "r"));
}

static void tracepoints_tell_of_each_step(void)
{
	if (access(TRACING "events/stplr", F_OK))
		SKIP("this kernel cannot trace");
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");
	struct stplr_receive received;

	write_to(TRACING "trace", "");
	write_to(TRACING "events/stplr/enable", "1");
	pid_t client = CLIENT(channel, connection, {
		IS(-EDOM, stplr_send(connection, "1234567", 7, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	OK(stplr_reply_error(channel, received.id, EDOM));
	join(client);
	write_to(TRACING "events/stplr/enable", "0");
	CHECK(lines(TRACING "trace", "stplr_send: channel=%u priority=20 length=7 wants_reply=1",
		    number) == 1);
	CHECK(lines(TRACING "trace", "stplr_receive: channel=%u client=%d length=7", number,
		    client) == 1);
	CHECK(lines(TRACING "trace", "stplr_reply: channel=%u client=%d outcome=-%d length=0",
		    number, client, EDOM) == 1);

	/* Switched off, nothing is told. */
	write_to(TRACING "trace", "");
	client = CLIENT(channel, connection, {
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
	CHECK(lines(TRACING "trace", "stplr_") == 0);
}

/*
 * How many waits of so many round trips end before the thread sleeps, with what all channels may spin
 * for, and what this one asks for.
 */
static long spins_of(int round_trips, int client_processor, const char *all, __u32 asked)
{
	struct stplr_channel_create create = { .spin_us = asked };
	int channel = stplr_channel_create_full(&create), connection = new_connection(channel, 0);
	struct stplr_receive received;
	long before = counter("spins");

	write_to(PARAMETERS "spin_us", all);
	pid_t client = CLIENT(channel, connection, {
		run_on(client_processor);
		for (int i = 0; i < round_trips; i++)
			IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	run_on(0);
	for (int i = 0; i < round_trips; i++) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	}
	join(client);
	close(connection);
	close(channel);
	return counter("spins") - before;
}

static void threads_spin_before_they_sleep(void)
{
	enum { round_trips = 500 };

	/* Such waits get shorter with practice, but an emulated machine is slow and interrupted. */
	CHECK(spins_of(round_trips, 1, "1000", 0) > 0);
	CHECK(spins_of(round_trips, 1, "0", 200) > 0);
	/* Unless somebody asks for it, nobody spins. */
	CHECK(spins_of(round_trips, 1, "0", 0) == 0);
	/*
	 * Whoever spins on the only processor there is keeps the other from it. Some may spin while
	 * the other starts up.
	 */
	CHECK(spins_of(round_trips, 0, "1000", 0) < round_trips / 10);
}

/* It would be for nothing, and costs both their time. */
static void nobody_is_asked_for_what_is_not_mapped(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	long asks = counter("asks");
	void *room = malloc(80000);

	pid_t client = CLIENT(channel, connection, {
		IS(-EFAULT, stplr_send(connection, (void *)8, 80000, NULL, 0, NULL));
		IS(-EFAULT, stplr_send(connection, NULL, 0, (void *)8, 80000, NULL));
	});
	IS(0, stplr_receive(channel, room, 80000, second, &received));
	stplr_reply(channel, received.id, 0, room, 80000);
	join(client);
	CHECK(counter("asks") == asks);
}

/* The kernel's log from here on. */
static int open_log(void)
{
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);

	CHECK(log >= 0 && lseek(log, 0, SEEK_END) >= 0);
	return log;
}

/* What the module has said, in text. */
static void read_log(int log, char *text, size_t room)
{
	char record[1024];
	ssize_t length;

	text[0] = 0;
	while ((length = read(log, record, sizeof(record) - 1)) > 0) {
		record[length] = 0;
		char *said = strstr(record, ";stplr: ");

		if (said)
			strncat(text, said + 1, room - strlen(text) - 1);
	}
	CHECK(length < 0 && errno == EAGAIN);
}

static int occurrences(const char *text, const char *what)
{
	int count = 0;

	for (; (text = strstr(text, what)); text++)
		count++;
	return count;
}

/* Something of each kind that channels have to tell of. */
static void use_a_channel(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection, {
		IS(-EFAULT, stplr_send(connection, (void *)8, 80000, NULL, 0, NULL));
		IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, malloc(8), 8, second, &received));
		_exit(0);
	}
	join(server);
	join(client);
	close(channel);
	close(connection);
	close(stplr_channel_create("new\nline", 0600, 0));
}

struct line {
	const char *text;
	int level, count;
};

/* At each level it says what belongs there and to those below, and nothing else. */
static void it_says_more_at_each_level(void (*use)(void), const struct line *expected, int count)
{
	static char text[8192];

	for (int level = 0; level <= 4; level++) {
		char number[2] = { (char)('0' + level), 0 };
		int log, sum = 0;

		write_to(PARAMETERS "debug", number);
		log = open_log();
		use();
		read_log(log, text, sizeof(text));
		close(log);
		for (int i = 0; i < count; i++) {
			int wanted = level >= expected[i].level ? expected[i].count : 0;

			IS(wanted, occurrences(text, expected[i].text));
			sum += wanted;
		}
		IS(sum, occurrences(text, "stplr: "));
	}
}

static void of_channels_it_says_what_is_asked_for(void)
{
	static const struct line expected[] = {
		{ ": nothing from ", 1, 1 },
		{ "channel seen: created", 2, 1 },
		{ "channel seen: closed", 2, 1 },
		{ "channel seen: a server has ended", 3, 1 },
		{ ": received from ", 4, 1 },
		/* Nobody writes lines of their own. What is read here shows the backslash as \x5c. */
		{ "channel new\\x5cnline: created", 2, 1 },
		{ "channel new\\x5cnline: closed", 2, 1 },
	};

	it_says_more_at_each_level(use_a_channel, expected, 7);
}

static void *receive_one(void *argument)
{
	struct party *me = argument;
	struct stplr_msg room = { malloc(80000), 80000 };
	struct stplr_msg_receive from;

	OK(ioctl(me->fd, STPLR_HANDLE_GET, &me->handle));
	__atomic_store_n(&me->tid, my_tid(), __ATOMIC_SEQ_CST);
	OK(old_receive(me, &room, 1, &from));
	free(room.msgbuf);
	return NULL;
}

/* The same of handles. */
static void use_a_handle(void)
{
	struct party me = enter(), server = me;
	struct stplr_msg bad = { (void *)8, 80000 };
	pthread_t thread;

	OK(pthread_create(&thread, NULL, receive_one, &server));
	while (__atomic_load_n(&server.tid, __ATOMIC_SEQ_CST) == me.tid)
		nap(2);
	FAILS(EFAULT, old_send(&me, me.pid, server.tid, &bad, 1));
	FAILS(ENODEV, old_call(&me, me.pid, server.tid, NULL, 0, NULL, 0));
	OK(pthread_join(thread, NULL));
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	close(me.fd);
}

static void of_handles_it_says_what_is_asked_for(void)
{
	static const struct line expected[] = {
		{ ": nothing from ", 1, 1 },
		{ "node 0: opened by ", 2, 1 },
		{ "node 0: closed", 2, 1 },
		{ ": taken by ", 2, 2 },
		{ ": its thread has ended", 3, 1 },
		{ ": received from ", 4, 1 },
	};

	it_says_more_at_each_level(use_a_handle, expected, 6);
}

static void put_back(void)
{
	write_to(PARAMETERS "debug", "0");
	write_to(PARAMETERS "spin_us", "0");
}

static const struct test tests[] = {
	{ "channels are listed", channels_are_listed },
	{ "connections are listed", connections_are_listed },
	{ "the blocked are listed, and on whom", the_blocked_are_listed_and_on_whom },
	{ "handles are listed, too", handles_are_listed_too },
	{ "a crowd is listed whole", a_crowd_is_listed_whole },
	{ "what happens is counted", what_happens_is_counted },
	{ "threads on different processors spin before they sleep", threads_spin_before_they_sleep },
	{ "nobody is asked for what is not mapped", nobody_is_asked_for_what_is_not_mapped },
	{ "memory of files is not reached into", memory_of_files_is_not_reached_into },
	{ "what users hold is listed", what_users_hold_is_listed },
	{ "it is for root alone", it_is_for_root_alone },
	{ "tracepoints tell of each step", tracepoints_tell_of_each_step },
	{ "of channels the log says what is asked for", of_channels_it_says_what_is_asked_for },
	{ "of handles the log says what is asked for", of_handles_it_says_what_is_asked_for },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
