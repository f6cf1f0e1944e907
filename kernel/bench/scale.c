// SPDX-License-Identifier: GPL-2.0
/*
 * How times grow: with the size of a message, beside one copy of as many bytes by the kernel to a
 * program; and with the number of threads that are blocked. Of an answer that is the answer and the wake-up of
 * its client, which runs later.
 *
 * Usage: scale [REPETITIONS]. Medians in microseconds, on one processor.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../lib/libstplr.h"

#define MUST(condition)                                                                          \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			perror(#condition);                                                      \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

#define MOST (1 << 20)
#define SENDERS_MAX 256
#define TURNS 5
#define INLINE 256 /* up to so many bytes nothing goes by registered memory */
#define PATIENCE_NS 10000000000LL /* a client that does not come by then has failed */

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static double median(double *times, int count)
{
	qsort(times, (size_t)count, sizeof(*times), by_value);
	return times[count / 2];
}

static char *touched(void)
{
	char *memory = mmap(NULL, MOST, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	MUST(memory != MAP_FAILED);
	memset(memory, 1, MOST);
	return memory;
}

/* What is forked ends with who measures. */
static pid_t fork_mortal(void)
{
	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0)
		MUST(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	return child;
}

/* A client that sends one way for as long as it lives. */
static void send_for_ever(int connection, size_t size, bool registered)
{
	char *memory = touched();
	struct stplr_send send = { .send = stplr_bytes(memory, size),
				   .timeout_ns = STPLR_FOREVER,
				   .flags = STPLR_SEND_ONE_WAY };

	if (registered) {
		MUST(stplr_register(connection, memory, MOST) == 0);
		send.send = stplr_registered(0, memory, size);
	}
	while (!stplr_send_full(connection, &send))
		;
	exit(0);
}

/* From one message to the next: both sides, two switches and the copy. */
static double message_us(size_t size, bool registered, int repetitions)
{
	int channel = stplr_channel_create(NULL, 0, 0);
	int connection = stplr_channel_connect(channel, 0);
	double *times = calloc((size_t)repetitions, sizeof(*times)), before, result;
	char *memory = touched();
	struct stplr_receive received;

	MUST(channel >= 0 && connection >= 0);
	pid_t client = fork_mortal();

	if (client == 0)
		send_for_ever(connection, size, registered);
	for (int i = -10; i < repetitions; i++) {
		before = now_us();
		MUST(stplr_receive(channel, memory, size, PATIENCE_NS, &received) ==
		     (ssize_t)size);
		if (i >= 0)
			times[i] = now_us() - before;
	}
	result = median(times, repetitions);
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	close(channel);
	close(connection);
	munmap(memory, MOST);
	free(times);
	return result;
}

/* A read of a file in memory: hardly more than the copy. */
static double copy_us(size_t size, int repetitions)
{
	double *times = calloc((size_t)repetitions, sizeof(*times)), before, result;
	char *memory = touched();
	int fd = memfd_create("copy", 0);

	MUST(fd >= 0 && write(fd, memory, size) == (ssize_t)size);
	for (int i = 0; i < repetitions; i++) {
		before = now_us();
		MUST(pread(fd, memory, size, 0) == (ssize_t)size);
		times[i] = now_us() - before;
	}
	result = median(times, repetitions);
	close(fd);
	munmap(memory, MOST);
	free(times);
	return result;
}

static void sizes(int repetitions)
{
	static const size_t all[] = { 256,   1024,  2048,  4096,   8192,
				      16384, 32768, 65536, 262144, MOST };

	/* The guest's command line becomes environment: one size spares the time for the others. */
	const char *only = getenv("SCALE_SIZE");

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		double message[TURNS], registered[TURNS], copy[TURNS], ratio[TURNS], middle;

		if (only && (size_t)atol(only) != all[i])
			continue;
		for (int turn = 0; turn < TURNS; turn++) {
			message[turn] = message_us(all[i], false, repetitions);
			registered[turn] = all[i] > INLINE ?
						   message_us(all[i], true, repetitions) :
						   0;
			copy[turn] = copy_us(all[i], repetitions);
			ratio[turn] = message[turn] / copy[turn];
		}
		printf("# %7zu B  message %8.1f", all[i], median(message, TURNS));
		if (all[i] > INLINE)
			printf("  registered %8.1f", median(registered, TURNS));
		else
			printf("  registered        -");
		printf("  copy %8.1f", median(copy, TURNS));
		middle = median(ratio, TURNS);
		printf("  message / copy %.2f (%.2f-%.2f)\n", middle, ratio[0], ratio[TURNS - 1]);
		fflush(stdout);
	}
}

static void call_for_ever(int connection)
{
	while (stplr_send(connection, "x", 1, NULL, 0, NULL) >= 0)
		;
	exit(0);
}

/* A client that is woken would send its next message within the time of the answer. */
static void run_before_clients(bool before)
{
	struct sched_param parameters = { .sched_priority = before };

	MUST(!sched_setscheduler(0, before ? SCHED_FIFO : SCHED_OTHER, &parameters));
}

/* Receives from all, then answers all in another order, round after round. */
static void senders(int count, int rounds)
{
	int channel = stplr_channel_create(NULL, 0, 0);
	int connection = stplr_channel_connect(channel, 0);
	double *receive = calloc((size_t)(count * rounds), sizeof(*receive));
	double *reply = calloc((size_t)(count * rounds), sizeof(*reply)), before;
	uint64_t ids[SENDERS_MAX];
	pid_t clients[SENDERS_MAX];
	struct stplr_receive received;

	for (int i = 0; i < count; i++) {
		clients[i] = fork_mortal();
		if (clients[i] == 0) {
			close(channel);
			call_for_ever(connection);
		}
	}
	run_before_clients(true);
	for (int round = 0; round < rounds; round++) {
		/* Let them all queue. */
		usleep(20000 + 1000 * (useconds_t)count);
		for (int i = 0; i < count; i++) {
			before = now_us();
			MUST(stplr_receive(channel, NULL, 0, PATIENCE_NS, &received) == 0);
			receive[round * count + i] = now_us() - before;
			ids[i] = received.id;
		}
		for (int i = 0; i < count; i++) {
			int which = (i * 97 + round) % count;

			before = now_us();
			MUST(stplr_reply(channel, ids[which], 0, NULL, 0) == 0);
			reply[round * count + i] = now_us() - before;
		}
	}
	run_before_clients(false);
	printf("# %3d senders  receive %6.1f  reply and wake %6.1f\n", count,
	       median(receive, count * rounds), median(reply, count * rounds));
	fflush(stdout);
	close(channel);
	for (int i = 0; i < count; i++) {
		kill(clients[i], SIGKILL);
		waitpid(clients[i], NULL, 0);
	}
	close(connection);
	free(receive);
	free(reply);
}

int main(int argc, char **argv)
{
	int repetitions = argc > 1 ? atoi(argv[1]) : 40;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	MUST(!sched_setaffinity(0, sizeof(set), &set));
	sizes(repetitions);
	/* Of one alone each step would be the first after a pause, for which an emulator is cold. */
	senders(4, 128);
	senders(16, 64);
	senders(64, 16);
	senders(SENDERS_MAX, 4);
	return 0;
}
