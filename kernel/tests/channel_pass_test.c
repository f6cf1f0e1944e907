// SPDX-License-Identifier: GPL-2.0
/* Descriptors that go along with messages of channels. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/resource.h>

#include "new.h"
#include "seen.h"

static void descriptors_go_along(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	int ends[2], more[17], got[4] = { -1, -1, -1, -1 };
	char c;

	OK(pipe(ends));
	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .timeout_ns = -1,
					   .files = (uintptr_t)ends,
					   .file_count = 2 };

		OK(stplr_send_full(connection, &send));
		send.file_count = 17;
		send.files = (uintptr_t)more;
		IS(-EINVAL, stplr_send_full(connection, &send));
		send.file_count = 1;
		more[0] = 999;
		IS(-EBADF, stplr_send_full(connection, &send));
		send.files = 8;
		IS(-EFAULT, stplr_send_full(connection, &send));
	});
	struct stplr_receive receive = { .timeout_ns = second,
					 .files = 8,
					 .file_room = 4 };

	close(ends[0]);
	close(ends[1]);
	IS(-EFAULT, stplr_receive_full(channel, &receive));
	receive.files = (uintptr_t)got;
	OK(stplr_receive_full(channel, &receive));
	CHECK(receive.file_count == 2 && got[2] == -1);
	CHECK(fcntl(got[0], F_GETFD) == FD_CLOEXEC);
	CHECK(write(got[1], "x", 1) == 1 && read(got[0], &c, 1) == 1);
	IS(0, stplr_reply(channel, receive.id, 0, NULL, 0));
	join(client);
}

static void a_connection_can_be_passed_on(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), got;
	int passed = new_connection(channel, 9);
	struct stplr_receive receive = { .timeout_ns = second,
					 .files = (uintptr_t)&got,
					 .file_room = 1 };

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .timeout_ns = -1,
					   .files = (uintptr_t)&passed,
					   .file_count = 1 };

		OK(stplr_send_full(connection, &send));
	});
	OK(stplr_receive_full(channel, &receive));
	OK(stplr_pulse(got, 3, 0));
	IS(0, stplr_reply(channel, receive.id, 0, NULL, 0));
	join(client);
}

/* Their client has left by the time they are closed for good. */
static void descriptors_of_a_full_table_are_taken_back(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), ends[2], next;
	int32_t got[4];
	struct stplr_receive receive = { .timeout_ns = second,
					 .files = (uintptr_t)got,
					 .file_room = 4 };
	struct rlimit room;
	char byte;

	OK(pipe(ends));
	pid_t client = CLIENT(channel, connection, {
		int32_t files[4] = { ends[1], ends[1], ends[1], ends[1] };
		struct stplr_send send = { .files = (uintptr_t)files,
					   .file_count = 4,
					   .timeout_ns = -1 };

		stplr_send_full(connection, &send);
	});
	AWAIT_LINE(FOLDER "blocked", "%d %d SEND ", client, client);
	close(ends[1]);
	next = dup(0);
	OK(close(next));
	OK(getrlimit(RLIMIT_NOFILE, &room));
	room.rlim_cur = (rlim_t)next + 2;
	OK(setrlimit(RLIMIT_NOFILE, &room));
	IS(-EMFILE, stplr_receive_full(channel, &receive));
	IS(next, dup(0));
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	/* Nobody has the other end any more. */
	IS(0, read(ends[0], &byte, 1));
}

static void descriptors_without_room_are_told_of(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);

	for (unsigned int room = 0; room < 4; room++) {
		pid_t client = CLIENT(channel, connection, {
			int32_t files[3] = { 0, 1, 2 };
			struct stplr_send send = { .files = (uintptr_t)files,
						   .file_count = 3,
						   .timeout_ns = -1 };

			OK(stplr_send_full(connection, &send));
		});
		int32_t got[4] = { -1, -1, -1, -1 };
		struct stplr_receive received = { .timeout_ns = second,
						  .files = (uintptr_t)got,
						  .file_room = room };

		OK(stplr_receive_full(channel, &received));
		CHECK(received.file_count == (room < 3 ? room : 3) && received.value == 3);
		for (unsigned int i = 0; i < 4; i++)
			CHECK((got[i] >= 0) == (i < received.file_count));
		for (unsigned int i = 0; i < received.file_count; i++)
			OK(close(got[i]));
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(client);
	}
}

static void what_is_open_for_nothing_goes_along(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), got;
	struct stplr_receive received = { .timeout_ns = second,
					  .files = (uintptr_t)&got,
					  .file_room = 1 };
	pid_t client = CLIENT(channel, connection, {
		int place = open("/tmp", O_PATH);
		struct stplr_send send = { .timeout_ns = -1,
					   .files = (uintptr_t)&place,
					   .file_count = 1 };

		OK(stplr_send_full(connection, &send));
	});

	close(connection);
	OK(stplr_receive_full(channel, &received));
	CHECK(received.file_count == 1 && fcntl(got, F_GETFL) & O_PATH);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	OK(close(got));
	join(client);
}

static const struct test tests[] = {
	{ "descriptors go along", descriptors_go_along },
	{ "a connection can be passed on", a_connection_can_be_passed_on },
	{ "descriptors of a full table are taken back",
	  descriptors_of_a_full_table_are_taken_back },
	{ "descriptors for which there was no room are told of",
	  descriptors_without_room_are_told_of },
	{ "what is open for nothing goes along", what_is_open_for_nothing_goes_along },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
