// SPDX-License-Identifier: GPL-2.0
/* What those who share a channel, or who were given connections to it, do to each other: nothing. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/epoll.h>

#include "new.h"

enum { EACH = 256, ALL = 16384 };

/* Who posts and sends from here on. Root may be again. */
static void be(uid_t uid)
{
	OK(setresuid(0, 0, 0));
	OK(setresuid(uid, uid, 0));
}

/* As many as a user may have, by connections that root has made. */
static void post_all_by(uid_t uid, const int *connections)
{
	be(uid);
	for (int i = 0; i < ALL / EACH; i++)
		for (int n = 0; n < EACH; n++)
			IS(0, stplr_pulse(connections[i], 1, n));
	be(0);
}

/* The server has made connections for them; each user posts for itself, and the server for nobody. */
static void pulses_count_for_whoever_posts_them(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK | STPLR_CHANNEL_DISCONNECT);
	int given[ALL / EACH], shared = new_connection(channel, 1);
	struct stplr_send send = { .timeout_ns = 0 };
	struct stplr_receive received;

	for (int i = 0; i < ALL / EACH; i++)
		given[i] = new_connection(channel, 2);
	post_all_by(3101, given);
	be(3101);
	IS(-EAGAIN, stplr_pulse(shared, 1, 0));
	IS(-EAGAIN, stplr_send_full(shared, &send));
	be(3102);
	IS(0, stplr_pulse(shared, 1, 0));
	IS(-ETIMEDOUT, stplr_send_full(shared, &send));
	/* The server goes on to make connections, whose ends count for it. */
	be(0);
	close(new_connection(channel, 3));
	IS(0, stplr_pulse(shared, 1, 0));
	/* What is received counts no more. */
	be(3101);
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	CHECK(received.pulse && received.code == 1);
	IS(0, stplr_pulse(shared, 1, 0));
	IS(-EAGAIN, stplr_pulse(shared, 1, 0));
}

/* However many connections it was given, and whoever has made them. */
static void what_is_given_counts_with_what_is_ones_own(void)
{
	int channel = new_channel(0), given[ALL / EACH], own;

	for (int i = 0; i < ALL / EACH; i++)
		given[i] = new_connection(channel, 2);
	be(3103);
	own = new_connection(channel, 1);
	IS(0, stplr_pulse(own, 1, 0));
	for (int i = 0; i < ALL / EACH; i++)
		for (int n = 0; n < EACH - !i; n++)
			IS(0, stplr_pulse(given[i], 1, n));
	IS(-EAGAIN, stplr_pulse(given[0], 1, 0));
	IS(-EAGAIN, stplr_pulse(own, 1, 0));
	be(0);
	IS(0, stplr_pulse(own, 1, 0));
	close(channel);
}

static int the_channel;

static void *poll_alone(void *unused)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLEXCLUSIVE };
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct stplr_receive received;

	OK(epoll_ctl(set, EPOLL_CTL_ADD, the_channel, &event));
	CHECK(epoll_wait(set, &event, 1, -1) == 1);
	IS(-ESRCH, stplr_receive(the_channel, NULL, 0, 0, &received));
	close(set);
	return unused;
}

/* Also those of whom one at a time is woken for what is to be received. */
static void all_who_poll_learn_that_a_channel_is_shut_down(void)
{
	pthread_t threads[4];

	the_channel = new_channel(0);
	for (int i = 0; i < 4; i++)
		OK(pthread_create(&threads[i], NULL, poll_alone, NULL));
	nap(500);
	OK(stplr_shutdown(the_channel));
	for (int i = 0; i < 4; i++)
		OK(pthread_join(threads[i], NULL));
}

static const struct test tests[] = {
	{ "pulses count for whoever posts them", pulses_count_for_whoever_posts_them },
	{ "what is given counts with what is one's own",
	  what_is_given_counts_with_what_is_ones_own },
	{ "all who poll learn that a channel is shut down",
	  all_who_poll_learn_that_a_channel_is_shut_down },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
