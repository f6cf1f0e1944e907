// SPDX-License-Identifier: GPL-2.0
/* Pulses, and in which order they and messages are received. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "new.h"
#include "seen.h"

static void pulses_are_queued_and_received(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	for (int i = 0; i < 3; i++)
		OK(stplr_pulse(connection, i, 1000000000000LL + i));
	for (int i = 0; i < 3; i++) {
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.pulse && !received.id && received.code == i);
		CHECK(received.value == 1000000000000LL + i);
	}
	IS(-EINVAL, stplr_pulse(connection, -1, 0));
}

static void pulses_of_a_connection_are_bounded(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	int count = 0, err;

	do {
		err = stplr_pulse(connection, 1, count++);
	} while (!err && count < 100000);
	IS(-EAGAIN, err);
	CHECK(count > 100 && count < 1000);
	OK(stplr_pulse(new_connection(channel, 0), 1, 0));
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	OK(stplr_pulse(connection, 1, 0));
}

static void the_urgent_go_first(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	static const int nices[] = { 10, 0, 19, 5 }, order[] = { 1, 3, 0, 2 };
	struct stplr_receive received;
	pid_t clients[4];
	int number;

	for (int i = 0; i < 4; i++) {
		clients[i] = CLIENT(channel, connection, {
			OK(setpriority(PRIO_PROCESS, 0, nices[i]));
			IS(0, stplr_send(connection, &i, sizeof(i), NULL, 0, NULL));
		});
		await_ioctl(clients[i]);
	}
	struct sched_param real_time = { .sched_priority = 10 };
	pid_t urgent = CLIENT(channel, connection, {
		OK(sched_setscheduler(0, SCHED_FIFO, &real_time));
		number = 99;
		IS(0, stplr_send(connection, &number, sizeof(number), NULL, 0, NULL));
	});

	await_ioctl(urgent);
	IS(4, stplr_receive(channel, &number, 4, second, &received));
	CHECK(number == 99 && received.priority == 50);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(urgent);
	for (int i = 0; i < 4; i++) {
		IS(4, stplr_receive(channel, &number, 4, second, &received));
		CHECK(number == order[i] && received.priority == 20 - nices[order[i]]);
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(clients[order[i]]);
	}
}

static int pulse_of(int connection, int code, int priority)
{
	struct stplr_pulse pulse = { .code = code, .priority = priority };

	return ioctl(connection, STPLR_PULSE, &pulse);
}

static void a_pulse_may_have_less_priority_than_its_sender(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	static const int asked[] = { 0, 20, 1 }, told[] = { 20, 20, 1 };
	struct stplr_receive received;

	FAILS(EINVAL, pulse_of(connection, 1, -1));
	FAILS(EINVAL, pulse_of(connection, 1, 21));
	FAILS(EINVAL, pulse_of(connection, 1, 149));
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	for (int i = 0; i < 3; i++) {
		OK(pulse_of(connection, i, asked[i]));
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.pulse && received.code == i && received.priority == told[i]);
	}
	OK(setpriority(PRIO_PROCESS, 0, 10));
	FAILS(EINVAL, pulse_of(connection, 1, 11));
	struct sched_param real_time = { .sched_priority = 10 };

	OK(sched_setscheduler(0, SCHED_FIFO, &real_time));
	FAILS(EINVAL, pulse_of(connection, 1, 51));
	OK(pulse_of(connection, 1, 50));
}

static void pulses_and_messages_stand_in_one_queue(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	/* In the order they come: code of a pulse, or -1 for a message, and the priority. */
	static const int order[][2] = { { 15, 15 }, { 12, 12 }, { -1, 12 }, { 13, 12 }, { 5, 5 } };
	unsigned int number = number_of("seen");
	struct stplr_receive received;

	OK(pulse_of(connection, 5, 5));
	OK(pulse_of(connection, 12, 12));
	pid_t client = CLIENT(channel, connection, {
		OK(setpriority(PRIO_PROCESS, 0, 8));
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	AWAIT_LINE(FOLDER "channels", "%u 1 0 0 ", number);
	OK(pulse_of(connection, 13, 12));
	OK(pulse_of(connection, 15, 15));
	for (int i = 0; i < 5; i++) {
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.priority == order[i][1]);
		CHECK(received.pulse ? received.code == order[i][0] : order[i][0] == -1);
		if (!received.pulse)
			IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	}
	join(client);
}

static void message_of_nice(int connection, int nice)
{
	OK(setpriority(PRIO_PROCESS, 0, nice));
	IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
}

static void watch_as_real_time(int connection, int channel)
{
	struct sched_param real_time = { .sched_priority = 10 }, other = {};

	OK(sched_setscheduler(0, SCHED_FIFO, &real_time));
	OK(stplr_death(connection, channel, 50));
	OK(sched_setscheduler(0, SCHED_OTHER, &other));
}

/* However busy a server is, and whatever is less urgent than that, it learns who has gone. */
static void what_has_ended_is_told_in_turn(void)
{
	int channel = stplr_channel_create("seen", 0600, STPLR_CHANNEL_DISCONNECT);
	int connection = new_connection(channel, 0);
	/* In the order they come: code of a pulse, or 0 for a message, and the priority. */
	static const int order[][2] = { { STPLR_PULSE_DEATH, 50 }, { 0, 20 },
					{ STPLR_PULSE_DISCONNECT, 20 }, { STPLR_PULSE_DEATH, 20 },
					{ 0, 20 }, { 0, 10 } };
	unsigned int number = number_of("seen");
	struct stplr_receive received;
	pid_t clients[3];

	clients[0] = CLIENT(channel, connection, { message_of_nice(connection, 10); });
	AWAIT_LINE(FOLDER "channels", "%u 1 0 0 ", number);
	clients[1] = CLIENT(channel, connection, { message_of_nice(connection, 0); });
	AWAIT_LINE(FOLDER "channels", "%u 2 0 0 ", number);

	int gone = new_connection(channel, 7), servers[2] = { new_channel(0), new_channel(0) };
	int watched = new_connection(servers[0], 0);

	OK(setpriority(PRIO_PROCESS, 0, 15));
	OK(stplr_death(watched, channel, 20));
	watch_as_real_time(new_connection(servers[1], 0), channel);
	close(gone);
	close(servers[0]);
	close(servers[1]);
	clients[2] = CLIENT(channel, connection, { message_of_nice(connection, 0); });
	AWAIT_LINE(FOLDER "channels", "%u 3 0 0 ", number);
	for (int i = 0; i < 6; i++) {
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		IS(order[i][0], received.pulse ? received.code : 0);
		IS(order[i][1], received.priority);
		if (!received.pulse)
			IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	}
	for (int i = 0; i < 3; i++)
		join(clients[i]);
}

static void poll_tells_of_messages_and_of_the_end(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct pollfd at_server = { .fd = channel, .events = POLLIN };
	struct pollfd at_client = { .fd = connection, .events = 0 };
	struct stplr_receive received;

	IS(0, poll(&at_server, 1, 0));
	IS(0, poll(&at_client, 1, 0));
	pid_t client = CLIENT(channel, connection, {
		nap(100);
		OK(stplr_pulse(connection, 1, 1));
		IS(1, poll(&at_client, 1, 5000));
		CHECK(at_client.revents & POLLHUP);
	});
	IS(1, poll(&at_server, 1, 5000));
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	IS(0, poll(&at_server, 1, 0));
	nap(50);
	close(channel);
	join(client);
	IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	IS(-ESRCH, stplr_pulse(connection, 1, 1));
}

/* More than a receiver passes over in one call, on whatever machine. */
enum { UNREADABLE = 100 };

static int bad_connection;

static void *send_unreadable(void *unused)
{
	IS(-EFAULT, stplr_send(bad_connection, (void *)0x10000, 8192, NULL, 0, NULL));
	return NULL;
}

static void send_all_unreadable(void)
{
	pthread_t threads[UNREADABLE];

	for (int i = 0; i < UNREADABLE; i++)
		OK(pthread_create(&threads[i], NULL, send_unreadable, NULL));
	for (int i = 0; i < UNREADABLE; i++)
		OK(pthread_join(threads[i], NULL));
}

/* Who polls for edges, and receives until there is nothing, looks again only if it is told to. */
static void who_is_behind_unreadable_ones_is_told_of_again(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int channel = stplr_channel_create("seen", 0600, 0), epoll = epoll_create1(0);
	int connection = new_connection(channel, 0), gave_up = 0;
	unsigned int number = number_of("seen");
	struct stplr_receive received;
	char buffer[8192];
	long length;

	bad_connection = connection;
	pid_t bad = CLIENT(channel, connection, { send_all_unreadable(); });

	AWAIT_LINE(FOLDER "channels", "%u %u 0 0 ", number, UNREADABLE);
	pid_t good = CLIENT(channel, connection, {
		IS(0, stplr_send(connection, "good", 4, NULL, 0, NULL));
	});

	AWAIT_LINE(FOLDER "channels", "%u %u 0 0 ", number, UNREADABLE + 1);
	OK(fcntl(channel, F_SETFL, O_NONBLOCK));
	OK(epoll_ctl(epoll, EPOLL_CTL_ADD, channel, &event));
	IS(1, epoll_wait(epoll, &event, 1, 0));
	while ((length = stplr_receive(channel, buffer, sizeof(buffer), 0, &received)) == -EAGAIN) {
		gave_up++;
		IS(1, epoll_wait(epoll, &event, 1, 0));
	}
	CHECK(length == 4 && gave_up);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(good);
	join(bad);
	/* And of nothing it is not told. */
	IS(-EAGAIN, stplr_receive(channel, buffer, sizeof(buffer), 0, &received));
	IS(0, epoll_wait(epoll, &event, 1, 0));
}

static void a_pulse_that_cannot_be_told_keeps_its_place(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	struct stplr_receive *fixed = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(fixed != MAP_FAILED);
	*fixed = (struct stplr_receive){ .timeout_ns = 0 };
	OK(mprotect(fixed, 4096, PROT_READ));
	for (int i = 0; i < 3; i++)
		IS(0, stplr_pulse(connection, 1, i));
	for (int i = 0; i < 3; i++) {
		IS(-EFAULT, stplr_receive_full(channel, fixed));
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.pulse && received.value == i);
	}
}

static const struct test tests[] = {
	{ "pulses are queued and received", pulses_are_queued_and_received },
	{ "pulses of a connection are bounded", pulses_of_a_connection_are_bounded },
	{ "the urgent go first", the_urgent_go_first },
	{ "a pulse may have less priority than its sender, not more",
	  a_pulse_may_have_less_priority_than_its_sender },
	{ "pulses and messages stand in one queue", pulses_and_messages_stand_in_one_queue },
	{ "what has ended is told in turn", what_has_ended_is_told_in_turn },
	{ "poll tells of messages and of the end", poll_tells_of_messages_and_of_the_end },
	{ "who is behind unreadable ones is told of again",
	  who_is_behind_unreadable_ones_is_told_of_again },
	{ "a pulse that cannot be told of keeps its place",
	  a_pulse_that_cannot_be_told_keeps_its_place },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
