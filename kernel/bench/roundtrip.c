// SPDX-License-Identifier: GPL-2.0
/*
 * Round trips between two processes, by every way in turn, several times over: the median of each
 * repetition, and ratios to a pair of pipes and to a Unix stream socket of the same repetition. A
 * bare futex, without any bytes, shows what of that is waking and switching. Channels and doors are there
 * twice: threads that sleep at once, as the others' do, and threads that spin for a while before.
 *
 * Usage: roundtrip [REPETITIONS]. Messages and replies have the same size; the first and the last bytes of each are
 * written and checked. Fails if one of the ways does, and goes on with the others.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <linux/futex.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../include/stplr_doors.h"
#include "../lib/libstplr.h"

#define MUST(condition)                                                                          \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			perror(#condition);                                                      \
			_exit(1);                                                                \
		}                                                                                \
	} while (0)

#define WAYS 8
#define REPETITIONS_MAX 32

/* Descriptors of the two sides: [0] to read from, [1] to write to; or what the way needs. */
struct link {
	int client[2], server[2];
	pid_t server_pid;
	int ready[2], result[2];
	unsigned int spin_us;
};

struct way {
	const char *name;
	void (*open)(struct link *link);
	void (*client)(struct link *link, char *buffer, size_t size);
	void (*serve)(struct link *link, char *buffer, size_t size);
	void (*start_client)(struct link *link);
	bool spins;
};

/* What a client sends as its nth message, and what is answered. */
static void stamp(char *buffer, size_t size, uint64_t number)
{
	memcpy(buffer, &number, sizeof(number));
	memcpy(buffer + size - sizeof(number), &number, sizeof(number));
}

static bool is_stamped(const char *buffer, size_t size, uint64_t number)
{
	return !memcmp(buffer, &number, sizeof(number)) &&
	       !memcmp(buffer + size - sizeof(number), &number, sizeof(number));
}

/* By the server, of each message. */
static void turn_over(char *buffer, size_t size)
{
	static uint64_t number;

	MUST(is_stamped(buffer, size, ++number));
	stamp(buffer, size, ~number);
}

static void read_all(int fd, char *to, size_t size)
{
	while (size) {
		ssize_t got = read(fd, to, size);

		MUST(got > 0);
		to += got;
		size -= (size_t)got;
	}
}

static void write_all(int fd, const char *from, size_t size)
{
	while (size) {
		ssize_t put = write(fd, from, size);

		MUST(put > 0);
		from += put;
		size -= (size_t)put;
	}
}

static void open_pipes(struct link *link)
{
	int there[2], back[2];

	MUST(!pipe(there) && !pipe(back));
	link->client[0] = back[0];
	link->client[1] = there[1];
	link->server[0] = there[0];
	link->server[1] = back[1];
}

static void open_sockets(struct link *link)
{
	int ends[2];

	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	link->client[0] = link->client[1] = ends[0];
	link->server[0] = link->server[1] = ends[1];
}

static void stream_client(struct link *link, char *buffer, size_t size)
{
	write_all(link->client[1], buffer, size);
	read_all(link->client[0], buffer, size);
}

static void stream_serve(struct link *link, char *buffer, size_t size)
{
	for (;;) {
		read_all(link->server[0], buffer, size);
		turn_over(buffer, size);
		write_all(link->server[1], buffer, size);
	}
}

/* Whose turn it is. */
static unsigned int *turn;

static void open_futex(struct link *link)
{
	turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(turn != MAP_FAILED);
}

static void give_turn(unsigned int to)
{
	__atomic_store_n(turn, to, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void await_turn(unsigned int mine)
{
	while (__atomic_load_n(turn, __ATOMIC_SEQ_CST) != mine)
		syscall(SYS_futex, turn, FUTEX_WAIT, !mine, NULL, NULL, 0);
}

static void futex_client(struct link *link, char *buffer, size_t size)
{
	give_turn(1);
	await_turn(0);
}

static void futex_serve(struct link *link, char *buffer, size_t size)
{
	for (;;) {
		await_turn(1);
		give_turn(0);
	}
}

static struct stplr_handle handle;
static int node;

static void open_nothing(struct link *link)
{
}

static void start_old(struct link *link)
{
	node = open("/dev/stplr-0", O_RDWR);
	MUST(node >= 0 && !ioctl(node, STPLR_HANDLE_GET, &handle));
}

static void old_client(struct link *link, char *buffer, size_t size)
{
	struct stplr_msg out = { buffer, (__u32)size }, in = { buffer, (__u32)size };
	struct stplr_msg_send_receive call = { handle, link->server_pid, link->server_pid,
					       { &out, 1 }, { &in, 1 } };

	MUST(!ioctl(node, STPLR_MSG_SEND_RECEIVE, &call));
}

static void old_serve(struct link *link, char *buffer, size_t size)
{
	start_old(link);
	MUST(write(link->ready[1], "x", 1) == 1);
	for (;;) {
		struct stplr_msg msg = { buffer, (__u32)size };
		struct stplr_msg_receive from = { .handle = handle, .rmsgs = { &msg, 1 } };

		MUST(!ioctl(node, STPLR_MSG_RECEIVE, &from));
		struct stplr_msg_reply reply = { handle, from.pid, from.tid, { &msg, 1 } };

		turn_over(buffer, size);
		MUST(!ioctl(node, STPLR_MSG_REPLY, &reply));
	}
}

static void open_channel(struct link *link)
{
	struct stplr_channel_create create = { .spin_us = link->spin_us };

	link->server[0] = stplr_channel_create_full(&create);
	/* Where there is none its server says so. */
	link->client[0] = stplr_channel_connect(link->server[0], 0);
}

static void channel_client(struct link *link, char *buffer, size_t size)
{
	MUST(stplr_send(link->client[0], buffer, size, buffer, size, NULL) == (ssize_t)size);
}

static void channel_serve(struct link *link, char *buffer, size_t size)
{
	struct stplr_reply_receive both = { .receive = { .buffer = stplr_bytes(buffer, size),
							 .timeout_ns = -1 } };

	for (;;) {
		MUST(!stplr_reply_receive(link->server[0], &both));
		turn_over(buffer, size);
		both.reply.id = both.receive.id;
		both.reply.buffer = stplr_bytes(buffer, size);
	}
}

/* Which descriptor the server's door is, for the client to take from there. */
static int *door_number;
static int door;

static void open_door(struct link *link)
{
	door_number = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(door_number != MAP_FAILED);
}

static void start_door(struct link *link)
{
	int server = (int)syscall(SYS_pidfd_open, link->server_pid, 0);

	door = (int)syscall(SYS_pidfd_getfd, server, *door_number, 0);
	MUST(door >= 0);
}

static void door_client(struct link *link, char *buffer, size_t size)
{
	struct stplr_door_call call = { .data = (uintptr_t)buffer, .size = size,
					.room = (uintptr_t)buffer, .room_size = size };

	MUST(!ioctl(door, STPLR_DOOR_CALL, &call) && call.replied == size);
}

static void door_serve(struct link *link, char *buffer, size_t size)
{
	struct stplr_pool_create make = { .spin_us = link->spin_us };
	struct stplr_door_create create = {};
	struct stplr_door_return both = { .room = (uintptr_t)buffer, .room_size = size };
	int pool = ioctl(open("/dev/door", O_RDWR), STPLR_POOL_CREATE, &make);

	*door_number = ioctl(pool, STPLR_DOOR_CREATE, &create);
	MUST(*door_number >= 0 && write(link->ready[1], "x", 1) == 1);
	for (;;) {
		MUST(!ioctl(pool, STPLR_DOOR_RETURN, &both));
		turn_over(buffer, size);
		both.id = both.next_id;
		both.data = (uintptr_t)buffer;
		both.size = size;
	}
}

static const struct way ways[WAYS] = {
	{ "pipe pair", open_pipes, stream_client, stream_serve, NULL, false },
	{ "unix stream", open_sockets, stream_client, stream_serve, NULL, false },
	{ "bare futex", open_futex, futex_client, futex_serve, NULL, false },
	{ "stplr 0.0.7", open_nothing, old_client, old_serve, start_old, false },
	{ "stplr channel", open_channel, channel_client, channel_serve, NULL, false },
	{ "spins, channel", open_channel, channel_client, channel_serve, NULL, true },
	{ "stplr door", open_door, door_client, door_serve, start_door, false },
	{ "spins, door", open_door, door_client, door_serve, start_door, true },
};

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static void pin(bool one_cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	if (one_cpu)
		MUST(!sched_setaffinity(0, sizeof(set), &set));
}

/* The client's loop, in a process of its own; its median goes to the pipe. */
static void measure(const struct way *way, struct link *link, size_t size, int rounds)
{
	bool carries = way->client != futex_client;
	char *buffer = calloc(1, size);
	double *times = calloc((size_t)rounds, sizeof(*times));
	struct timespec before, after;
	uint64_t number = 0;

	if (way->start_client)
		way->start_client(link);
	for (int i = -rounds / 10; i < rounds; i++) {
		stamp(buffer, size, ++number);
		clock_gettime(CLOCK_MONOTONIC, &before);
		way->client(link, buffer, size);
		clock_gettime(CLOCK_MONOTONIC, &after);
		MUST(!carries || is_stamped(buffer, size, ~number));
		if (i >= 0)
			times[i] = (double)(after.tv_sec - before.tv_sec) * 1e6 +
				   (double)(after.tv_nsec - before.tv_nsec) / 1e3;
	}
	qsort(times, (size_t)rounds, sizeof(*times), by_value);
	MUST(write(link->result[1], &times[rounds / 2], sizeof(double)) == sizeof(double));
}

/* What is forked ends with who waits for it. */
static pid_t fork_mortal(void)
{
	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0)
		MUST(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	return child;
}

/* The writing end is a child's, so that its end is seen. */
static bool is_ready(struct link *link)
{
	char c;

	close(link->ready[1]);
	link->ready[1] = -1;
	return read(link->ready[0], &c, 1) == 1;
}

/* Until the client is through, or the server: then the client waits in vain. */
static bool is_through(pid_t client)
{
	int status;
	pid_t first = waitpid(-1, &status, 0);

	if (first != client)
		kill(client, SIGKILL);
	if (first != client)
		waitpid(client, NULL, 0);
	return first == client && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void close_all(const struct link *link)
{
	const int *fds[] = { link->client, link->server, link->ready, link->result };

	for (size_t i = 0; i < 8; i++)
		if (fds[i / 2][i % 2] >= 0 && (i % 2 == 0 || fds[i / 2][1] != fds[i / 2][0]))
			close(fds[i / 2][i % 2]);
}

static unsigned int spin_us(void)
{
	const char *spin = getenv("ROUNDTRIP_SPIN");

	return spin ? (unsigned int)atoi(spin) : 200;
}

/* Negative: it has failed, and said why. */
static double median_of(const struct way *way, size_t size, int rounds, bool one_cpu)
{
	struct link link = { .client = { -1, -1 }, .server = { -1, -1 },
			     .spin_us = way->spins ? spin_us() : 0 };
	double median = -1;
	pid_t server, client;

	MUST(!pipe(link.result) && !pipe(link.ready));
	way->open(&link);
	fflush(stdout);
	server = fork_mortal();
	if (server == 0) {
		pin(one_cpu);
		way->serve(&link, calloc(1, size), size);
	}
	link.server_pid = server;
	if (!way->start_client || is_ready(&link)) {
		client = fork_mortal();
		if (client == 0) {
			pin(one_cpu);
			measure(way, &link, size, rounds);
			_exit(0);
		}
		if (!is_through(client) ||
		    read(link.result[0], &median, sizeof(median)) != sizeof(median))
			median = -1;
	}
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	close_all(&link);
	return median;
}

static bool failed;

static void print_ratios(double values[][REPETITIONS_MAX], int way, int base, int repetitions)
{
	double ratios[REPETITIONS_MAX];

	for (int i = 0; i < repetitions; i++)
		ratios[i] = values[way][i] / values[base][i];
	qsort(ratios, (size_t)repetitions, sizeof(double), by_value);
	printf("  x %s %.2f (%.2f-%.2f)", base ? "unix" : "pipe", ratios[repetitions / 2],
	       ratios[0], ratios[repetitions - 1]);
}

static void print_row(size_t size, bool one_cpu, double values[][REPETITIONS_MAX], int way,
		      int repetitions)
{
	double sorted[REPETITIONS_MAX];

	memcpy(sorted, values[way], sizeof(sorted));
	qsort(sorted, (size_t)repetitions, sizeof(double), by_value);
	if (sorted[0] < 0) {
		printf("not ok - %s, %zu B\n", ways[way].name, size);
		failed = true;
		return;
	}
	printf("# %7zu B %s %-14s %9.1f us (%.1f-%.1f)", size, one_cpu ? "one cpu" : "free   ",
	       ways[way].name, sorted[repetitions / 2], sorted[0], sorted[repetitions - 1]);
	print_ratios(values, way, 0, repetitions);
	print_ratios(values, way, 1, repetitions);
	printf("\n");
}

static void compare(size_t size, bool one_cpu, int repetitions)
{
	int rounds = size > 500000 ? 30 : size > 10000 ? 200 : 1000;
	static double values[WAYS][REPETITIONS_MAX];

	for (int i = 0; i < repetitions; i++)
		for (int way = 0; way < WAYS; way++)
			values[way][i] = i && values[way][i - 1] < 0 ?
						 -1 :
						 median_of(&ways[way], size, rounds, one_cpu);
	for (int way = 0; way < WAYS; way++)
		print_row(size, one_cpu, values, way, repetitions);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 64, 4096, 65536, 1 << 20 };
	int repetitions = argc > 1 ? atoi(argv[1]) : 7;

	if (repetitions < 1 || repetitions > REPETITIONS_MAX)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	/* The guest's command line becomes environment: one size spares the time for the others. */
	const char *only = getenv("ROUNDTRIP_SIZE");

	/* Where there is one alone, there is nothing to choose. */
	for (int one_cpu = 1; one_cpu >= (sysconf(_SC_NPROCESSORS_ONLN) < 2); one_cpu--)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
			if (!only || (size_t)atol(only) == sizes[i])
				compare(sizes[i], one_cpu, repetitions);
	return failed;
}
