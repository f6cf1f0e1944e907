// SPDX-License-Identifier: GPL-2.0
/* The death of a process is learned of by all that wait for it, whatever was let go of before. */
#define _GNU_SOURCE
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "new.h"
#include "processor.h"

#define CHANNELS 4

struct row {
	int channel[CHANNELS], connection[CHANNELS];
	pid_t client[CHANNELS];
};

/* Receives one message on each of these, then gives some of them up, and says so. */
static void serve(struct row *row, unsigned int given_up, int told)
{
	struct stplr_receive received;
	char byte;

	for (int i = 0; i < CHANNELS; i++) {
		IS(1, stplr_receive(row->channel[i], &byte, 1, second, &received));
		CHECK(received.id);
	}
	for (int i = 0; i < CHANNELS; i++)
		if (given_up & 1u << i)
			close(row->channel[i]);
	CHECK(write(told, "", 1) == 1);
	for (;;)
		pause();
}

/*
 * All channels but those that are given up stay open here, so that only the death of their server
 * can free the clients.
 */
static void server_dies_after_giving_up(unsigned int given_up)
{
	struct row row;
	int told[2];
	pid_t server;
	char byte;

	OK(pipe(told));
	for (int i = 0; i < CHANNELS; i++) {
		row.channel[i] = new_channel(0);
		row.connection[i] = new_connection(row.channel[i], (uint64_t)i);
	}
	server = fork();
	if (server == 0)
		serve(&row, given_up, told[1]);
	for (int i = 0; i < CHANNELS; i++)
		row.client[i] = CLIENT(row.channel[i], row.connection[i], {
			for (int other = 0; other < CHANNELS; other++)
				if (other != i)
					close(row.channel[other]);
			IS(-ESRCH, stplr_send(row.connection[i], "m", 1, NULL, 0, NULL));
		});
	for (int i = 0; i < CHANNELS; i++)
		if (given_up & 1u << i)
			close(row.channel[i]);
	CHECK(read(told[0], &byte, 1) == 1);
	for (int i = 0; i < CHANNELS; i++)
		if (given_up & 1u << i)
			join(row.client[i]);
	OK(kill(server, SIGKILL));
	CHECK(waitpid(server, NULL, 0) == server);
	for (int i = 0; i < CHANNELS; i++) {
		if (given_up & 1u << i)
			continue;
		join(row.client[i]);
		close(row.channel[i]);
	}
	for (int i = 0; i < CHANNELS; i++)
		close(row.connection[i]);
	close(told[0]);
	close(told[1]);
}

static void every_client_of_a_dead_server_is_freed(void)
{
	for (unsigned int given_up = 0; given_up < 1u << CHANNELS; given_up++)
		server_dies_after_giving_up(given_up);
}

/* Processes that come, serve and end one after another, many at a time: no watch meets the next. */
static void many_servers_come_and_go(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char byte;

	for (int round = 0; round < 30; round++) {
		pid_t client = CLIENT(channel, connection,
				      IS(-ESRCH, stplr_send(connection, "m", 1, NULL, 0, NULL)));
		pid_t server = fork();

		if (server == 0) {
			IS(1, stplr_receive(channel, &byte, 1, second, &received));
			_exit(0);
		}
		join(server);
		join(client);
	}
}

/* Takes the processor from whoever tells of a death there, at the first that it hears of. */
static pid_t start_hog(int channel, int told)
{
	pid_t hog = fork();

	if (hog == 0) {
		struct stplr_receive death;

		close(channel);
		run_on(1);
		be_greedy();
		IS(0, stplr_receive(told, NULL, 0, -1, &death));
		for (;;)
			;
	}
	await_ioctl(hog);
	return hog;
}

/* Closes a channel of whose end many are told, and does not get to the end of it. Holds the last descriptor. */
static void close_slowly(int channel, const int *connections, int count, int told, int done,
			 volatile bool *closed)
{
	CHECK(!*closed);
	for (int i = 0; i < count; i++)
		IS(0, stplr_death(connections[i], told, i));
	run_on(1);
	run_as(SCHED_IDLE, 0);
	CHECK(write(done, "", 1) == 1);
	close(channel);
	*closed = true;
	for (;;)
		pause();
}

static void nobodys_news_wait_for_anothers(void)
{
	enum { COUNT = 8000 };
	int channel = new_channel(0), told = new_channel(0), done[2];
	static int connections[COUNT];
	struct stplr_receive received;
	pid_t server, closer, hog;
	char byte;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP("there is one processor only");
	volatile bool *closed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				     -1, 0);
	struct rlimit files = { COUNT + 200, COUNT + 200 };

	CHECK(closed != MAP_FAILED);
	*closed = false; /* the page is there: nobody waits for whoever brings it */
	OK(setrlimit(RLIMIT_NOFILE, &files));
	OK(pipe(done));
	for (int i = 0; i < COUNT; i++)
		connections[i] = new_connection(channel, 0);
	run_on(0);
	/* It has received, so its end is news, of the channel that is being closed. */
	server = fork();
	if (server == 0) {
		IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
		close(channel);
		CHECK(write(done[1], "", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(done[0], &byte, 1) == 1);
	hog = start_hog(channel, told);
	closer = fork();
	if (closer == 0)
		close_slowly(channel, connections, COUNT, told, done[1], closed);
	close(channel);
	CHECK(read(done[0], &byte, 1) == 1);
	/* It is in there once its first pulse is gone, and the hog has its processor. */
	nap(200);
	OK(kill(server, SIGKILL));
	CHECK(waitpid(server, NULL, 0) == server);
	server_dies_after_giving_up(0);
	CHECK(!*closed);
	kill(hog, SIGKILL);
	kill(closer, SIGKILL);
	CHECK(waitpid(closer, NULL, 0) == closer);
}

int main(void)
{
	static const struct test tests[] = {
		{ "every client of a dead server is freed, whatever that had given up before",
		  every_client_of_a_dead_server_is_freed },
		{ "servers come and go, and free their clients", many_servers_come_and_go },
		{ "nobody's news wait for what another has left behind",
		  nobodys_news_wait_for_anothers },
	};

	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
