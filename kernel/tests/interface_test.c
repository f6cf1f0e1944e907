// SPDX-License-Identifier: GPL-2.0
/*
 * The interface as such: structures of any size from the first version's on, fields that have to be 0,
 * and the calls that are about a descriptor rather than about messages.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/ioctl.h>

#include "new.h"
#include "seen.h"

#define SIZES(type, name) _Static_assert(sizeof(struct type) == STPLR_##name##_SIZE_VER0, #type)
SIZES(stplr_channel_create, CHANNEL_CREATE);
SIZES(stplr_connect, CONNECT);
SIZES(stplr_channel_connect, CHANNEL_CONNECT);
SIZES(stplr_send, SEND);
SIZES(stplr_receive, RECEIVE);
SIZES(stplr_reply, REPLY);
SIZES(stplr_reply_receive, REPLY_RECEIVE);
SIZES(stplr_access, ACCESS);
SIZES(stplr_pulse, PULSE);
SIZES(stplr_death, DEATH);
SIZES(stplr_register, REGISTER);
SIZES(stplr_info, INFO);
_Static_assert(offsetof(struct stplr_send, status) == 56, "");
_Static_assert(offsetof(struct stplr_receive, id) == 48, "");
_Static_assert(offsetof(struct stplr_receive, gid) == 116, "");
_Static_assert(offsetof(struct stplr_reply_receive, receive) == 56, "");

/* As a program calls that knows so many bytes more of the structure, or less. */
static int call_sized(int fd, unsigned int command, const void *argument, int more)
{
	unsigned int size = (unsigned int)((int)_IOC_SIZE(command) + more);
	int result = ioctl(fd, _IOC(_IOC_DIR(command), _IOC_TYPE(command), _IOC_NR(command), size),
			   argument);

	return result < 0 ? -errno : result;
}

/* An argument of some command, with room for what a later version knows. */
union argument {
	char bytes[400];
	struct stplr_channel_create create;
	struct stplr_connect connect;
	struct stplr_channel_connect channel_connect;
	struct stplr_send send;
	struct stplr_receive receive;
	struct stplr_reply reply;
	struct stplr_reply_receive both;
	struct stplr_access access;
	struct stplr_pulse pulse;
	struct stplr_death death;
	struct stplr_register memory;
	struct stplr_info info;
};

static char page[4096] __attribute__((aligned(4096)));

struct sized {
	unsigned int command;
	int fd; /* 0: /dev/stplr, 1: a channel, 2: a connection */
	int expected; /* of an argument that is fine; 1: a descriptor */
	union argument argument;
};

static const struct sized each[] = {
	{ STPLR_CHANNEL_CREATE, 0, 1, {} },
	{ STPLR_CONNECT, 0, -ENOENT, { .connect.name = "nobody" } },
	{ STPLR_CHANNEL_CONNECT, 1, 1, {} },
	{ STPLR_SEND, 2, -ETIMEDOUT, {} },
	{ STPLR_RECEIVE, 1, -ETIMEDOUT, {} },
	{ STPLR_REPLY, 1, -ESRCH, { .reply.id = 1 } },
	{ STPLR_REPLY_RECEIVE, 1, -ETIMEDOUT, {} },
	{ STPLR_READ, 1, -ESRCH, { .access.id = 1 } },
	{ STPLR_WRITE, 1, -ESRCH, { .access.id = 1 } },
	{ STPLR_DEATH, 2, 0, {} },
	{ STPLR_REGISTER, 2, 0, { .memory.length = 1 } },
	{ STPLR_INFO, 0, 0, {} },
	{ STPLR_INFO, 1, 0, {} },
	{ STPLR_INFO, 2, 0, {} },
};

#define EACH(one) (const struct sized *one = each; one < each + sizeof(each) / sizeof(*each); one++)

static int fd_of(const struct sized *one, union argument *argument)
{
	int control = open("/dev/stplr", O_RDWR), channel = new_channel(0);

	*argument = one->argument;
	if (one->command == STPLR_DEATH)
		argument->death.channel = channel;
	if (one->command == STPLR_REGISTER)
		argument->memory.address = (uintptr_t)page;
	CHECK(control >= 0);
	return one->fd == 0 ? control : one->fd == 1 ? channel : new_connection(channel, 0);
}

static void check_result(const struct sized *one, int result)
{
	if (one->expected == 1)
		CHECK(result > 2);
	else
		IS(one->expected, result);
}

static void what_a_later_version_adds_has_to_be_zero(void)
{
	union argument argument;

	for EACH(one) {
		int fd = fd_of(one, &argument);
		unsigned int size = _IOC_SIZE(one->command);

		check_result(one, call_sized(fd, one->command, &argument, 100));
		fd = fd_of(one, &argument);
		argument.bytes[size + 99] = 1;
		if (one->command == STPLR_INFO) {
			IS(0, call_sized(fd, one->command, &argument, 100));
			CHECK(!argument.bytes[size + 99]);
		} else {
			IS(-E2BIG, call_sized(fd, one->command, &argument, 100));
		}
	}
}

static void less_than_the_first_version_is_refused(void)
{
	union argument argument;

	for EACH(one) {
		int fd = fd_of(one, &argument);

		IS(-EINVAL, call_sized(fd, one->command, &argument, -1));
		IS(-EINVAL, call_sized(fd, one->command, &argument, -8));
		check_result(one, call_sized(fd, one->command, &argument, 0));
	}
}

/* A message goes there and back between programs of a later version. */
static void a_later_version_is_served(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 5);
	union argument argument = {};
	char got[8] = "";

	pid_t client = CLIENT(channel, connection, {
		union argument mine = { .send = { .send = stplr_bytes("there", 5),
						  .reply = stplr_bytes(got, 4),
						  .timeout_ns = -1 } };

		IS(0, call_sized(connection, STPLR_SEND, &mine, 16));
		CHECK(mine.send.replied == 4 && mine.send.status == 9 && !memcmp(got, "back", 4));
		CHECK(!mine.bytes[sizeof(mine.send)]);
		IS(0, stplr_send_one_way(connection, NULL, 0));
	});
	argument.receive.buffer = stplr_bytes(got, 8);
	argument.receive.timeout_ns = -1;
	IS(0, call_sized(channel, STPLR_RECEIVE, &argument, 16));
	CHECK(argument.receive.length == 5 && argument.receive.label == 5);
	CHECK(!argument.bytes[sizeof(argument.receive)]);
	union argument both = { .both = { .reply = { .id = argument.receive.id,
						     .status = 9,
						     .buffer = stplr_bytes("back", 4) },
					  .receive.timeout_ns = -1 } };

	IS(0, call_sized(channel, STPLR_REPLY_RECEIVE, &both, 16));
	CHECK(!both.both.receive.id && both.both.receive.label == 5);
	join(client);
}

static void reserved_fields_have_to_be_zero(void)
{
	int control = open("/dev/stplr", O_RDWR), channel = new_channel(0);
	int connection = new_connection(channel, 0);
	struct stplr_part part = { .reserved = 1 };

	struct stplr_channel_create create = { .reserved = 1 };
	FAILS(EINVAL, ioctl(control, STPLR_CHANNEL_CREATE, &create));
	create = (struct stplr_channel_create){ .flags = 8 };
	FAILS(EINVAL, ioctl(control, STPLR_CHANNEL_CREATE, &create));
	struct stplr_send send = { .flags = 2 };
	FAILS(EINVAL, ioctl(connection, STPLR_SEND, &send));
	send = (struct stplr_send){ .send = stplr_vector(&part, 1) };
	FAILS(EINVAL, ioctl(connection, STPLR_SEND, &send));
	struct stplr_receive receive = { .reserved = 1 };
	FAILS(EINVAL, ioctl(channel, STPLR_RECEIVE, &receive));
	receive = (struct stplr_receive){ .buffer = stplr_vector(&part, 1) };
	FAILS(EINVAL, ioctl(channel, STPLR_RECEIVE, &receive));
	for (int i = 0; i < 3; i++) {
		struct stplr_reply reply = { .id = 1, .reserved = i == 0,
					     .reserved_too = { i == 1, i == 2 } };
		struct stplr_reply_receive both = { .reply = reply };

		FAILS(EINVAL, ioctl(channel, STPLR_REPLY, &reply));
		FAILS(EINVAL, ioctl(channel, STPLR_REPLY_RECEIVE, &both));
	}
	struct stplr_reply_receive both = { .receive.reserved = 1 };
	FAILS(EINVAL, ioctl(channel, STPLR_REPLY_RECEIVE, &both));
	struct stplr_death death = { .channel = channel, .reserved = 1 };
	FAILS(EINVAL, ioctl(connection, STPLR_DEATH, &death));
}

/* What is wrong with the second half is found out before the first half is done. */
static void nothing_is_answered_where_nothing_can_be_received(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	struct stplr_part bad = { .reserved = 1 };

	pid_t client = CLIENT(channel, connection,
			      { IS(7, stplr_send(connection, NULL, 0, page, 7, NULL)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	struct stplr_reply_receive both = { .reply = { .id = received.id } };
	both.receive.buffer = stplr_vector(&bad, 1);
	IS(-EINVAL, stplr_reply_receive(channel, &both));
	both.receive.buffer = (struct stplr_buffer){ 8, 0, 2 };
	IS(-EFAULT, stplr_reply_receive(channel, &both));
	IS(7, stplr_reply(channel, received.id, 0, "7 bytes", 7));
	join(client);
}

/* Also where the kernel names it: for who is to unblock its client. */
static void a_server_may_choose_its_ids(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);
	struct stplr_receive received = { .timeout_ns = -1, .wanted_id = 4711 }, pulse;

	handle_signal(SIGUSR1, 0);
	pid_t client = CLIENT(channel, connection, {
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		IS(2, stplr_send(connection, NULL, 0, page, 2, NULL));
	});
	IS(0, stplr_receive_full(channel, &received));
	CHECK(received.id == 4711);
	IS(0, stplr_reply(channel, 4711, 0, NULL, 0));
	IS(-ESRCH, stplr_reply(channel, 4711, 0, NULL, 0));
	IS(0, stplr_receive_full(channel, &received));
	OK(kill(client, SIGUSR1));
	IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
	CHECK(pulse.pulse && pulse.code == STPLR_PULSE_UNBLOCK && pulse.value == 4711);
	IS(2, stplr_write(channel, 4711, 0, "ab", 2));
	IS(0, stplr_reply(channel, 4711, 0, NULL, 0));
	join(client);
}

static void a_descriptor_tells_what_it_is(void)
{
	int control = open("/dev/stplr", O_RDWR);
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), other = new_channel(0);
	int connection = new_connection(channel, 77);
	struct stplr_info of_channel, of_other, of_connection, info;

	IS(0, stplr_info(control, &info));
	CHECK(info.kind == STPLR_KIND_CONTROL && info.interface == STPLR_INTERFACE);
	IS(0, stplr_info(channel, &of_channel));
	CHECK(of_channel.kind == STPLR_KIND_CHANNEL && of_channel.interface == STPLR_INTERFACE);
	CHECK(of_channel.flags == STPLR_CHANNEL_UNBLOCK && of_channel.number);
	IS(0, stplr_info(other, &of_other));
	CHECK(of_other.number != of_channel.number && !of_other.flags);
	IS(0, stplr_info(connection, &of_connection));
	CHECK(of_connection.kind == STPLR_KIND_CONNECTION && of_connection.label == 77);
	CHECK(of_connection.number == of_channel.number);
	CHECK(of_connection.flags == STPLR_CHANNEL_UNBLOCK);
	IS(-ENOTTY, stplr_info(open("/dev/null", O_RDWR), &info));
}

/* Nobody who connects by name is taken for a connection that the server has made. */
static void labels_of_the_kernel_are_no_servers(void)
{
	int channel = stplr_channel_create("named", 0600, 0);
	struct stplr_info first, next;

	CHECK(channel >= 0);
	IS(0, stplr_info(stplr_connect("named"), &first));
	IS(0, stplr_info(stplr_connect("named"), &next));
	CHECK(next.label != first.label);
	CHECK(first.label > STPLR_LABELS && next.label > STPLR_LABELS);
	CHECK((int64_t)first.label > 0 && (int64_t)next.label > 0);
	IS(-EINVAL, stplr_channel_connect(channel, first.label));
	IS(-EINVAL, stplr_channel_connect(channel, next.label + 1));
	IS(-EINVAL, stplr_channel_connect(channel, STPLR_LABELS));
	IS(-EINVAL, stplr_channel_connect(channel, INT64_MAX));
	close(new_connection(channel, STPLR_LABELS - 1));
	close(new_connection(channel, 1ULL << 63));
	close(new_connection(channel, UINT64_MAX));
	close(new_connection(channel, 0));
}

static void *receive_until_shut(void *channel)
{
	struct stplr_receive received;

	IS(-ESRCH, stplr_receive(*(int *)channel, NULL, 0, -1, &received));
	return NULL;
}

static void a_shutdown_ends_what_waits_and_comes(void)
{
	int told = new_channel(0), channel = new_channel(0);
	int connection = new_connection(channel, 0), idle = new_connection(channel, 0);
	struct pollfd polled = { .fd = idle };
	struct stplr_receive received;
	pthread_t receiver;

	IS(0, stplr_death(idle, told, 3));
	/* One client is REPLY-blocked, one SEND-blocked, and all of them have the channel as well. */
	pid_t owed = fork();
	if (owed == 0) {
		IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		_exit(0);
	}
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	pid_t queued = fork();
	if (queued == 0) {
		IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		_exit(0);
	}
	await_ioctl(queued);
	IS(0, stplr_shutdown(channel));
	join(owed);
	join(queued);
	CHECK(poll(&polled, 1, 0) == 1);
	CHECK(polled.revents & POLLHUP);
	struct stplr_receive death;
	IS(0, stplr_receive(told, NULL, 0, second, &death));
	CHECK(death.pulse && death.code == STPLR_PULSE_DEATH && death.value == 3);
	IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	IS(-ESRCH, stplr_pulse(connection, 1, 1));
	IS(-ESRCH, stplr_receive(channel, NULL, 0, -1, &received));
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
	IS(-ESRCH, stplr_post(channel, 0, 1, 1));
	IS(0, stplr_shutdown(channel));
	IS(-ENOTTY, ioctl(connection, STPLR_SHUTDOWN) ? -errno : 0);
	/* And who receives. */
	int another = new_channel(STPLR_CHANNEL_INHERIT);
	OK(pthread_create(&receiver, NULL, receive_until_shut, &another));
	AWAIT_LINE(FOLDER "blocked", "RECEIVE");
	IS(0, stplr_shutdown(another));
	OK(pthread_join(receiver, NULL));
}

static void a_shutdown_frees_the_name(void)
{
	int channel = stplr_channel_create("shut", 0600, 0), connection;

	CHECK(channel >= 0);
	IS(-EADDRINUSE, stplr_channel_create("shut", 0600, 0));
	IS(0, stplr_shutdown(channel));
	IS(-ENOENT, stplr_connect("shut"));
	int again = stplr_channel_create("shut", 0600, 0);
	CHECK(again >= 0);
	connection = stplr_connect("shut");
	CHECK(connection >= 0);
	/* The first has nothing to do with it any more, not even in its end. */
	close(channel);
	CHECK(stplr_connect("shut") >= 0);
}

static void a_channel_can_be_posted_to(void)
{
	int channel = new_channel(STPLR_CHANNEL_DISCONNECT), posted = 0;
	struct stplr_receive received;

	IS(0, stplr_post(channel, 0, 4, 5));
	IS(0, stplr_post(channel, 1, 6, 7));
	IS(-EINVAL, stplr_post(channel, 0, -1, 0));
	IS(-EINVAL, stplr_post(channel, 1000, 0, 0));
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	CHECK(received.pulse && received.code == 4 && received.value == 5);
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	CHECK(received.code == 6 && received.value == 7 && received.priority == 1);
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	/* However many, it is bounded, and what was received makes room. */
	while (!stplr_post(channel, 0, 1, 1))
		CHECK(++posted <= 16384);
	IS(16384, posted);
	IS(-EAGAIN, stplr_post(channel, 0, 1, 1));
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	IS(0, stplr_post(channel, 0, 1, 1));
}

static void channels_say_how_long_threads_look(void)
{
	struct stplr_channel_create create = { .spin_us = 50 };
	struct stplr_info info;
	int channel = stplr_channel_create_full(&create);

	IS(0, stplr_info(channel, &info));
	IS(50, info.spin_us);
	/* Who says nothing gets none, as things are, and nobody gets more than there is. */
	IS(0, stplr_info(new_channel(0), &info));
	IS(0, info.spin_us);
	create.spin_us = 1000000;
	IS(0, stplr_info(stplr_channel_create_full(&create), &info));
	IS(200, info.spin_us);
}

static const struct test tests[] = {
	{ "what a later version adds has to be zero", what_a_later_version_adds_has_to_be_zero },
	{ "less than the first version is refused", less_than_the_first_version_is_refused },
	{ "a later version is served", a_later_version_is_served },
	{ "reserved fields have to be zero", reserved_fields_have_to_be_zero },
	{ "nothing is answered where nothing can be received",
	  nothing_is_answered_where_nothing_can_be_received },
	{ "a server may choose its ids", a_server_may_choose_its_ids },
	{ "a descriptor tells what it is", a_descriptor_tells_what_it_is },
	{ "the kernel's labels are no server's to give", labels_of_the_kernel_are_no_servers },
	{ "a shutdown ends what waits and what comes", a_shutdown_ends_what_waits_and_comes },
	{ "a shutdown frees the name", a_shutdown_frees_the_name },
	{ "a channel can be posted to", a_channel_can_be_posted_to },
	{ "channels say how long threads look", channels_say_how_long_threads_look },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
