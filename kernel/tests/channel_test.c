// SPDX-License-Identifier: GPL-2.0
/* What channels and connections promise: messages and replies, who answers, names, and limits. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>

#include "new.h"

static void a_message_is_received_and_answered(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 42);
	struct stplr_receive received;
	char buffer[64], reply[64];
	int64_t status;

	pid_t client = CLIENT(channel, connection, {
		IS(6, stplr_send(connection, "question", 9, reply, sizeof(reply), &status));
		CHECK(!strcmp(reply, "reply") && status == -7);
	});
	IS(9, stplr_receive(channel, buffer, sizeof(buffer), second, &received));
	CHECK(!strcmp(buffer, "question"));
	CHECK(received.id && !received.pulse && received.label == 42);
	CHECK(received.length == 9 && received.room == 64);
	CHECK(received.pid == client && received.tid == client);
	CHECK(received.uid == getuid() && received.gid == getgid());
	IS(6, stplr_reply(channel, received.id, -7, "reply", 6));
	join(client);
}

static void every_size_arrives_whole(void)
{
	static const size_t sizes[] = { 0, 1, 255, 256, 257, 16384, 16385, 65536, (1 << 20) + 7 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	size_t most = (1 << 20) + 7;
	char *buffer = malloc(most), *back = malloc(most);
	struct stplr_receive received;

	for (size_t i = 0; i < most; i++)
		buffer[i] = (char)(i * 31 + i / 253);
	pid_t client = CLIENT(channel, connection, {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			memset(back, 0, most);
			IS(sizes[i], stplr_send(connection, buffer, sizes[i], back, most, NULL));
			CHECK(!memcmp(buffer, back, sizes[i]));
		}
	});
	char *mine = malloc(most);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		memset(mine, 0, most);
		IS(sizes[i], stplr_receive(channel, mine, most, second, &received));
		IS(sizes[i], stplr_reply(channel, received.id, 0, mine, sizes[i]));
	}
	join(client);
}

static void buffers_are_one_run_of_bytes(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char a[3], b[10];
	struct stplr_part parts[3] = { stplr_part("ab", 2), stplr_part("", 0),
				       stplr_part("cdefg", 6) };
	struct stplr_part room[2] = { stplr_part(a, 3), stplr_part(b, 10) };
	struct stplr_receive receive = { .buffer = stplr_vector(room, 2), .timeout_ns = second };

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .send = stplr_vector(parts, 3),
					   .reply = stplr_vector(room, 2),
					   .timeout_ns = -1 };

		OK(stplr_send_full(connection, &send));
		CHECK(send.replied == 8 && !memcmp(a, "123", 3) && !strcmp(b, "4567"));
	});
	OK(stplr_receive_full(channel, &receive));
	CHECK(receive.length == 8 && !memcmp(a, "abc", 3) && !strcmp(b, "defg"));
	IS(8, stplr_reply(channel, receive.id, 0, "1234567", 8));
	join(client);
}

static void a_reply_is_cut_to_the_clients_room(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char room[8] = ".......";

	pid_t client = CLIENT(channel, connection, {
		IS(3, stplr_send(connection, "x", 1, room, 3, NULL));
		CHECK(!strcmp(room, "abc...."));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.length == 1 && received.room == 3);
	IS(3, stplr_reply(channel, received.id, 0, "abcdef", 6));
	join(client);
}

/* A call that has been received, of a client that expects it to fail. */
struct awaiting {
	pid_t client;
	uint64_t id;
};

static struct awaiting call_that_fails(int channel, int error)
{
	int connection = new_connection(channel, 0);
	struct stplr_receive received;
	pid_t client = CLIENT(channel, connection,
			      { IS(-error, stplr_send(connection, "x", 1, NULL, 0, NULL)); });

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	return (struct awaiting){ client, received.id };
}

static void an_error_reply_fails_the_call(void)
{
	int channel = new_channel(0);
	struct awaiting call = call_that_fails(channel, EDOM);

	OK(stplr_reply_error(channel, call.id, EDOM));
	join(call.client);
}

static void errors_of_the_kernels_own_are_no_replies(void)
{
	int channel = new_channel(0);
	struct awaiting call = call_that_fails(channel, EHWPOISON);
	struct stplr_receive received;

	/* ERESTARTSYS and its kind, and what the module itself says of a page that takes time. */
	for (int error = 512; error <= 4096; error++)
		IS(-EINVAL, stplr_reply_error(channel, call.id, error));
	OK(stplr_reply_error(channel, call.id, EHWPOISON));
	join(call.client);
	/* It has not come again. */
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
}

static void ids_cannot_be_forged_or_used_twice(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection,
			      { IS(0, stplr_send(connection, "x", 1, NULL, 0, NULL)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	IS(-ESRCH, stplr_reply(channel, received.id + 2, 0, NULL, 0));
	IS(-ESRCH, stplr_reply(channel, 0, 0, NULL, 0));
	IS(-ESRCH, stplr_reply(new_channel(0), received.id, 0, NULL, 0));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

static void only_the_process_that_received_may_answer(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char byte;

	pid_t client = CLIENT(channel, connection,
			      { IS(0, stplr_send(connection, "x", 1, NULL, 0, NULL)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	pid_t thief = fork();

	if (thief == 0) {
		IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
		IS(-ESRCH, stplr_read(channel, received.id, 0, &byte, 1));
		IS(-ESRCH, stplr_write(channel, received.id, 0, &byte, 1));
		_exit(0);
	}
	join(thief);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

struct answer {
	int channel;
	uint64_t id;
};

static void *answer(void *argument)
{
	struct answer *what = argument;

	IS(2, stplr_reply(what->channel, what->id, 0, "ok", 2));
	return NULL;
}

static void another_thread_may_answer(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pthread_t thread;
	char room[2];

	pid_t client = CLIENT(channel, connection,
			      { IS(2, stplr_send(connection, "x", 1, room, 2, NULL)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	struct answer what = { channel, received.id };

	OK(pthread_create(&thread, NULL, answer, &what));
	OK(pthread_join(thread, NULL));
	join(client);
}

static void reply_and_receive_is_one_call(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	int number;

	pid_t client = CLIENT(channel, connection, {
		for (int i = 0; i < 100; i++) {
			int got = 0;

			IS(sizeof(got), stplr_send(connection, &i, sizeof(i), &got, sizeof(got),
						   NULL));
			CHECK(got == i * 2);
		}
	});
	struct stplr_reply_receive both = { .receive = { .buffer = stplr_bytes(&number, 4),
							 .timeout_ns = second } };

	for (int i = 0; i < 100; i++) {
		OK(stplr_reply_receive(channel, &both));
		CHECK(number == i);
		number *= 2;
		both.reply.id = both.receive.id;
		both.reply.buffer = stplr_bytes(&number, 4);
	}
	IS(4, stplr_reply(channel, both.reply.id, 0, &number, 4));
	join(client);
	/* A client that is gone keeps nobody from receiving. */
	both.receive.timeout_ns = 0;
	IS(-ETIMEDOUT, stplr_reply_receive(channel, &both));
	both.reply.error = -1;
	IS(-EINVAL, stplr_reply_receive(channel, &both));
}

static void a_receive_times_out(void)
{
	int channel = new_channel(0);
	struct stplr_receive received;
	double start = now();

	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, second / 100, &received));
	CHECK(now() - start >= 0.1 && now() - start < 2);
}

static void a_send_times_out_before_and_after_it_is_received(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_send send = { .timeout_ns = second / 50 };
	struct stplr_receive received;

	IS(-ETIMEDOUT, stplr_send_full(connection, &send));
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	pid_t client = CLIENT(channel, connection,
			      { IS(-ETIMEDOUT, stplr_send_full(connection, &send)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	join(client);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

/* As a signal handler leaves it. */
static void a_disarmed_wait_is_none_and_says_why(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive receive = { .timeout_ns = STPLR_DISARMED };
	struct stplr_send send = { .timeout_ns = STPLR_DISARMED };
	struct stplr_reply_receive both = { .receive.timeout_ns = STPLR_DISARMED };

	IS(-EINTR, stplr_receive_full(channel, &receive));
	IS(-EINTR, stplr_reply_receive(channel, &both));
	IS(-EINTR, stplr_send_full(connection, &send));
	/* What is there is received all the same. */
	OK(stplr_pulse(connection, 5, 6));
	IS(0, stplr_receive_full(channel, &receive));
	CHECK(receive.pulse && receive.code == 5);
}

static void one_way_messages_end_when_they_are_received(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char buffer[8];

	pid_t client = CLIENT(channel, connection,
			      { OK(stplr_send_one_way(connection, "hello", 6)); });
	IS(6, stplr_receive(channel, buffer, 8, second, &received));
	CHECK(!received.id && !received.pulse && !strcmp(buffer, "hello"));
	join(client);
}

static void names_are_guarded_by_their_mode(void)
{
	int channel = stplr_channel_create("open", 0666, 0);
	int closed = stplr_channel_create("closed", 0600, 0);
	struct stplr_receive received;

	CHECK(channel >= 0 && closed >= 0);
	IS(-EADDRINUSE, stplr_channel_create("open", 0666, 0));
	IS(-ENOENT, stplr_connect("nobody"));
	IS(-EINVAL, stplr_connect(""));
	IS(-EINVAL, stplr_channel_create("x", 07777, 0));
	IS(-EINVAL, stplr_channel_create("x", 0, 8));
	OK(chmod("/dev/stplr", 0666));
	pid_t client = CLIENT(channel, channel, {
		OK(setgid(1000));
		OK(setuid(1000));
		IS(-EACCES, stplr_connect("closed"));
		int connection = stplr_connect("open");

		CHECK(connection >= 0);
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.uid == 1000 && received.gid == 1000);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
	close(channel);
	IS(-ENOENT, stplr_connect("open"));
	CHECK(stplr_channel_create("open", 0, 0) >= 0);
}

static void names_of_users_are_theirs_to_take(void)
{
	OK(chmod("/dev/stplr", 0666));
	pid_t child = fork();

	if (child == 0) {
		OK(setgid(1000));
		OK(setuid(1000));
		CHECK(stplr_channel_create("1000/mine", 0600, 0) >= 0);
		IS(-EACCES, stplr_channel_create("nobody's", 0600, 0));
		IS(-EACCES, stplr_channel_create("/1000", 0600, 0));
		IS(-EACCES, stplr_channel_create("0/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("00/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("10000/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("4294968296/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("100000000000000000001000/clock", 0600, 0));
		_exit(0);
	}
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(stplr_channel_create("0/clock", 0600, 0) >= 0);
	CHECK(stplr_channel_create("1000/by-root", 0600, 0) >= 0);
}

static void who_does_not_block_is_told(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	struct stplr_reply_receive both = { .receive.timeout_ns = -1 };

	OK(fcntl(channel, F_SETFL, O_NONBLOCK));
	IS(-EAGAIN, stplr_receive(channel, NULL, 0, -1, &received));
	IS(-EAGAIN, stplr_receive(channel, NULL, 0, second, &received));
	IS(-EAGAIN, stplr_reply_receive(channel, &both));
	pid_t client = CLIENT(channel, connection, {
		OK(fcntl(connection, F_SETFL, O_NONBLOCK));
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	struct pollfd waiting = { .fd = channel, .events = POLLIN };

	CHECK(poll(&waiting, 1, 10000) == 1);
	IS(0, stplr_receive(channel, NULL, 0, -1, &received));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

static void what_a_user_takes_is_bounded(void)
{
	FILE *limit = fopen("/sys/module/stplr/parameters/user_bytes", "w");

	CHECK(limit);
	fprintf(limit, "65536\n");
	fclose(limit);
	OK(chmod("/dev/stplr", 0666));
	pid_t child = fork();

	if (child == 0) {
		int err = 0, count = 0, channels[200];

		OK(setuid(1000));
		while (count < 200 && (channels[count] = stplr_channel_create(NULL, 0, 0)) >= 0)
			count++;
		err = count < 200 ? channels[count] : 0;
		IS(-EDQUOT, err);
		CHECK(count > 10);
		while (count--)
			close(channels[count]);
		CHECK(stplr_channel_create(NULL, 0, 0) >= 0);
		_exit(0);
	}
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	limit = fopen("/sys/module/stplr/parameters/user_bytes", "w");
	fprintf(limit, "67108864\n");
	fclose(limit);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *serve(void *argument)
{
	int channel = *(int *)argument;
	struct stplr_receive received;
	char buffer[600];

	for (;;) {
		ssize_t length = stplr_receive(channel, buffer, sizeof(buffer), -1, &received);

		CHECK(length >= 0);
		if (received.pulse)
			return NULL;
		IS(length, stplr_reply(channel, received.id, 0, buffer, (size_t)length));
	}
}

static void many_clients_and_many_threads(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	pthread_t threads[4];
	pid_t clients[64];

	for (int i = 0; i < 4; i++)
		OK(pthread_create(&threads[i], NULL, serve, &channel));
	for (int i = 0; i < 64; i++)
		clients[i] = CLIENT(channel, connection, {
			char sent[600];
			char got[600];

			for (int n = 0; n < 25; n++) {
				size_t length = (size_t)(n * 24);

				memset(sent, i + n, sizeof(sent));
				IS(length, stplr_send(connection, sent, length, got, 600, NULL));
				CHECK(!memcmp(sent, got, length));
			}
		});
	for (int i = 0; i < 64; i++)
		join(clients[i]);
	for (int i = 0; i < 4; i++)
		OK(stplr_pulse(connection, 1, 0));
	for (int i = 0; i < 4; i++)
		OK(pthread_join(threads[i], NULL));
}

static const struct test tests[] = {
	{ "a message is received and answered", a_message_is_received_and_answered },
	{ "every size arrives whole on a channel", every_size_arrives_whole },
	{ "buffers are one run of bytes", buffers_are_one_run_of_bytes },
	{ "a reply is cut to the client's room", a_reply_is_cut_to_the_clients_room },
	{ "an error reply fails the call", an_error_reply_fails_the_call },
	{ "errors of the kernel's own are no replies", errors_of_the_kernels_own_are_no_replies },
	{ "ids cannot be forged or used twice", ids_cannot_be_forged_or_used_twice },
	{ "only the process that received may answer", only_the_process_that_received_may_answer },
	{ "another thread of it may answer", another_thread_may_answer },
	{ "reply and receive is one call", reply_and_receive_is_one_call },
	{ "a receive times out", a_receive_times_out },
	{ "a send times out before and after it is received",
	  a_send_times_out_before_and_after_it_is_received },
	{ "a disarmed wait is none, and says why", a_disarmed_wait_is_none_and_says_why },
	{ "one-way messages end when they are received",
	  one_way_messages_end_when_they_are_received },
	{ "names are guarded by their mode", names_are_guarded_by_their_mode },
	{ "names of users are theirs to take", names_of_users_are_theirs_to_take },
	{ "who does not block is told that nothing is there", who_does_not_block_is_told },
	{ "what a user takes is bounded", what_a_user_takes_is_bounded },
	{ "many clients and many threads", many_clients_and_many_threads },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
