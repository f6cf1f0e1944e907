// SPDX-License-Identifier: GPL-2.0
/* What a server writes, piece by piece, and then replies: the last of it is what the client finds. */
#include <pthread.h>
#include <sys/mman.h>

#include "new.h"

#define SIZE 65536
#define LEFT_MAX (2 * SIZE + 65536)

static char *new_room(void)
{
	char *room = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(room != MAP_FAILED);
	return room;
}

/* From one place to another, all the same byte. */
static bool has(const char *bytes, size_t from, size_t to, char byte)
{
	for (size_t i = from; i < to; i++)
		if (bytes[i] != byte)
			return false;
	return true;
}

static uint64_t receive(int channel)
{
	struct stplr_receive received;

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	return received.id;
}

static void write_to_client(int channel, uint64_t id, size_t from, size_t to, char byte)
{
	char *bytes = malloc(to - from);

	memset(bytes, byte, to - from);
	IS(to - from, stplr_write(channel, id, from, bytes, to - from));
	free(bytes);
}

/* The reply goes straight to the client's pages if it is long; what was left before it is older. */
static void reply_over_what_was_written(bool registered)
{
	static const size_t lengths[] = { 200, 300, 4096, 8192, SIZE };
	static const size_t places[] = { 0, 150, 4000, 9000 };
	const size_t count = sizeof(lengths) / sizeof(*lengths);
	const size_t spots = sizeof(places) / sizeof(*places);
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *bytes = malloc(SIZE);

	memset(bytes, 'r', SIZE);
	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();
		int number = registered ? stplr_register(connection, room, SIZE) : 0;
		struct stplr_send send = { .timeout_ns = -1 };

		CHECK(number >= 0);
		send.reply = registered ? stplr_registered(number, room, SIZE) :
					  stplr_bytes(room, SIZE);
		for (size_t i = 0; i < count * spots; i++) {
			size_t length = lengths[i / spots], place = places[i % spots];
			size_t written = place + 100 > length ? place + 100 : length;

			memset(room, 0, SIZE);
			OK(stplr_send_full(connection, &send));
			IS(written, send.replied);
			CHECK(has(room, 0, length, 'r'));
			if (place > length)
				CHECK(has(room, length, place, 0));
			if (place + 100 > length)
				CHECK(has(room, place > length ? place : length, place + 100, 'w'));
			CHECK(has(room, written, SIZE, 0));
		}
	});
	for (size_t i = 0; i < count * spots; i++) {
		size_t length = lengths[i / spots], place = places[i % spots];
		uint64_t id = receive(channel);

		write_to_client(channel, id, place, place + 100, 'w');
		IS(length, stplr_reply(channel, id, 0, bytes, length));
	}
	join(client);
}

static void a_reply_goes_over_what_was_written(void)
{
	reply_over_what_was_written(false);
	reply_over_what_was_written(true);
}

static void pieces_lie_over_each_other_in_their_order(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();

		IS(20000, stplr_send(connection, NULL, 0, room, SIZE, NULL));
		CHECK(has(room, 0, 100, 'a') && has(room, 100, 150, 'd') && has(room, 150, 5000, 'b'));
		CHECK(has(room, 5000, 6000, 'c') && has(room, 6000, 7000, 'e'));
		CHECK(has(room, 7000, 20000, 'c') && has(room, 20000, SIZE, 0));
	});
	uint64_t id = receive(channel);

	write_to_client(channel, id, 0, 200, 'a');
	write_to_client(channel, id, 100, 5000, 'b');
	write_to_client(channel, id, 5000, 20000, 'c');
	write_to_client(channel, id, 100, 150, 'd');
	write_to_client(channel, id, 6000, 7000, 'e');
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

static void one_place_can_be_written_for_ever(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();

		IS(16, stplr_send(connection, NULL, 0, room, SIZE, NULL));
		CHECK(has(room, 0, 8, 'p') && has(room, 8, 16, 'z'));
	});
	uint64_t id = receive(channel);

	write_to_client(channel, id, 0, 16, 'p');
	for (int i = 0; i < 20000; i++)
		IS(8, stplr_write(channel, id, 8, i < 19999 ? "aaaaaaaa" : "zzzzzzzz", 8));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

static void what_a_server_leaves_is_bounded(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), pieces = 0;
	ssize_t got;

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();
		int64_t status;

		IS(3, stplr_send(connection, NULL, 0, room, SIZE, &status));
		CHECK(status == 7 && room[0] == 'x' && !room[1] && room[2] == 'x');
		CHECK(has(room, 3, SIZE, 0));
		IS(-EIO, stplr_send(connection, NULL, 0, room, SIZE, NULL));
	});
	uint64_t id = receive(channel);

	/* In turns, so that none lies in the one before. */
	while ((got = stplr_write(channel, id, pieces % 2 ? 0 : 2, "x", 1)) == 1)
		CHECK(++pieces < LEFT_MAX);
	IS(-ENOBUFS, got);
	CHECK(pieces > 500);
	IS(1, stplr_write(channel, id, pieces % 2 ? 2 : 0, "x", 1));
	IS(-ENOBUFS, stplr_write(channel, id, 100, "x", 1));
	IS(0, stplr_reply(channel, id, 7, NULL, 0));
	/* Nothing of that concerns the next. */
	id = receive(channel);
	IS(1, stplr_write(channel, id, 1, "x", 1));
	IS(0, stplr_reply_error(channel, id, EIO));
	join(client);
}

static uint64_t receive_and_leave_all_there_may_be(int channel)
{
	uint64_t id = receive(channel);

	for (int i = 0; stplr_write(channel, id, i % 2 ? 0 : 2, "x", 1) == 1; i++)
		CHECK(i < LEFT_MAX);
	return id;
}

/* The server goes on; a reply that leaves nothing of all that to be copied is as good as any. */
static void after_too_much_was_left(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *bytes = malloc(SIZE);

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();

		IS(-ENOBUFS, stplr_send(connection, NULL, 0, room, SIZE, NULL));
		memset(room, 0, SIZE);
		IS(SIZE, stplr_send(connection, NULL, 0, room, SIZE, NULL));
		CHECK(has(room, 0, SIZE, 'r'));
	});
	memset(bytes, 'r', SIZE);
	IS(0, stplr_reply(channel, receive_and_leave_all_there_may_be(channel), 0, bytes, 300));
	IS(SIZE, stplr_reply(channel, receive_and_leave_all_there_may_be(channel), 0, bytes, SIZE));
	join(client);
}

/* What fails takes nothing away of what was written. */
static void a_reply_that_cannot_be_read_leaves_what_was_written(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *half = new_room();

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();

		IS(500, stplr_send(connection, NULL, 0, room, SIZE, NULL));
		CHECK(has(room, 0, 100, 'a') && has(room, 400, 500, 'b'));
	});
	uint64_t id = receive(channel);

	OK(munmap(half + SIZE / 2, SIZE / 2));
	write_to_client(channel, id, 0, 100, 'a');
	write_to_client(channel, id, 400, 500, 'b');
	IS(-EFAULT, stplr_reply(channel, id, 0, half, SIZE));
	IS(-EFAULT, stplr_reply(channel, id, 0, half + SIZE / 2 - 450, 460));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

/* In the last piece, or over it. */
static void a_write_that_cannot_be_read_leaves_what_was_written(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *half = new_room(), *end = half + SIZE / 2;

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();

		IS(500, stplr_send(connection, NULL, 0, room, SIZE, NULL));
		CHECK(has(room, 0, 100, 'a') && has(room, 100, 400, 0) && has(room, 400, 500, 'b'));
	});
	uint64_t id = receive(channel);

	OK(munmap(end, SIZE / 2));
	write_to_client(channel, id, 0, 100, 'a');
	IS(-EFAULT, stplr_write(channel, id, 10, end - 40, 80));
	write_to_client(channel, id, 400, 500, 'b');
	IS(-EFAULT, stplr_write(channel, id, 410, end - 40, 80));
	IS(-EFAULT, stplr_write(channel, id, 450, end - 60, 80));
	IS(-EFAULT, stplr_write(channel, id, 50, half, SIZE - 50));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

/* In their order, and more than are left as pieces of their own. */
static void records_can_fill_the_room(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();

		IS(SIZE, stplr_send(connection, NULL, 0, room, SIZE, NULL));
		for (size_t i = 0; i < SIZE; i += 16)
			CHECK(has(room, i, i + 16, (char)(i / 16)));
	});
	uint64_t id = receive(channel);

	for (size_t i = 0; i < SIZE; i += 16)
		write_to_client(channel, id, i, i + 16, (char)(i / 16));
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

/* A reply that could not be read to its end has said nothing. */
static void a_reply_that_failed_half_way_is_none(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_part half[2] = { stplr_part("good bytes", 10), stplr_part((void *)8, 10) };

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();

		for (int i = 0; i < 3; i++)
			IS(i, stplr_send(connection, NULL, 0, room, SIZE, NULL));
	});
	for (int i = 0; i < 3; i++) {
		uint64_t id = receive(channel);
		struct stplr_reply_receive both = { .reply = { .id = id } };

		both.reply.buffer = stplr_vector(half, 2);
		for (int times = 0; times < 5; times++)
			IS(-EFAULT, stplr_reply_receive(channel, &both));
		IS(i, stplr_reply(channel, id, 0, "ok", (size_t)i));
	}
	join(client);
}

/* Nothing of an answer that was not given is in the next. */
static void an_answer_that_was_refused_is_none(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_part overlong = stplr_part(NULL, ~0U);
	const struct stplr_buffer refused[] = { { 8, 0, 1 },
						{ (uintptr_t)&overlong, 0, 1 },
						{ 0, ~0U, 0 },
						stplr_vector(NULL, ~0U) };
	const size_t count = sizeof(refused) / sizeof(*refused);
	char *bytes = malloc(1000);

	memset(bytes, 'r', 1000);
	pid_t client = CLIENT(channel, connection, {
		for (size_t i = 0; i < count; i++) {
			char *room = new_room();

			IS(3, stplr_send(connection, NULL, 0, room, SIZE, NULL));
			CHECK(has(room, 0, 3, 'b') && has(room, 3, SIZE, 0));
		}
	});
	for (size_t i = 0; i < count; i++) {
		uint64_t id = receive(channel);
		struct stplr_reply_receive both = { .reply = { .id = id } };

		both.receive.buffer = refused[i];
		for (size_t length = 100; length <= 1000; length += 900) {
			both.reply.buffer = stplr_bytes(bytes, length);
			CHECK(stplr_reply_receive(channel, &both) < 0);
		}
		IS(3, stplr_reply(channel, id, 0, "bbb", 3));
	}
	join(client);
}

static volatile bool stopped;

static void *remap(void *unused)
{
	while (!stopped) {
		char *memory = mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

		if (memory != MAP_FAILED)
			munmap(memory, 1 << 22);
	}
	return unused;
}

/* The server never waits for the lock of that memory, and the client does not pay for it. */
static void a_client_that_maps_all_the_time_is_served(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *mine = new_room();
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection, {
		char *room = new_room();
		pthread_t thread;

		OK(pthread_create(&thread, NULL, remap, NULL));
		for (int i = 0; i < 300; i++) {
			memset(room, 'a' + i % 20, SIZE);
			IS(SIZE, stplr_send(connection, room, SIZE, room, SIZE, NULL));
			CHECK(has(room, 0, SIZE, (char)('b' + i % 20)));
		}
		stopped = true;
		OK(pthread_join(thread, NULL));
	});
	for (int i = 0; i < 300; i++) {
		IS(SIZE, stplr_receive(channel, mine, SIZE, second, &received));
		CHECK(has(mine, 0, SIZE, (char)('a' + i % 20)));
		memset(mine, 'b' + i % 20, SIZE);
		IS(SIZE, stplr_reply(channel, received.id, 0, mine, SIZE));
	}
	join(client);
}

int main(void)
{
	static const struct test tests[] = {
		{ "a reply goes over what was written before", a_reply_goes_over_what_was_written },
		{ "pieces lie over each other in their order",
		  pieces_lie_over_each_other_in_their_order },
		{ "one place can be written for ever", one_place_can_be_written_for_ever },
		{ "what a server leaves for the client to copy is bounded",
		  what_a_server_leaves_is_bounded },
		{ "who left too much can still answer", after_too_much_was_left },
		{ "records can fill the room one by one", records_can_fill_the_room },
		{ "a reply that cannot be read leaves what was written",
		  a_reply_that_cannot_be_read_leaves_what_was_written },
		{ "a write that cannot be read leaves what was written",
		  a_write_that_cannot_be_read_leaves_what_was_written },
		{ "a reply that failed half-way is none", a_reply_that_failed_half_way_is_none },
		{ "an answer that was refused is none", an_answer_that_was_refused_is_none },
		{ "a client that maps memory all the time is served",
		  a_client_that_maps_all_the_time_is_served },
	};

	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
