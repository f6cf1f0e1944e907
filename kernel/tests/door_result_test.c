// SPDX-License-Identifier: GPL-2.0
/* Doors: arguments and results of any size, and for whom they count. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/resource.h>

#include "door.h"
#include "seen.h"
#include "watch.h"

/* Sends back as many bytes as the first word of the call says, for ever. */
static void *fill_room(void *pool)
{
	static uint8_t bytes[8 << 20];
	struct serving serving = { .pool = (int)(intptr_t)pool };
	long err = serve(&serving);

	while (!err) {
		size_t size;

		memcpy(&size, serving.data, sizeof(size));
		for (size_t i = 0; i < size; i++)
			bytes[i] = (uint8_t)(i * 13 + i / 4096);
		err = answer(&serving, bytes, size);
	}
	return NULL;
}

static void check_bytes(const uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		CHECK(bytes[i] == (uint8_t)(i * 13 + i / 4096));
}

static void a_result_without_room_is_mapped(void)
{
	static const size_t sizes[] = { 1, 9, 4096, 4097, 65536, 1000001, 8 << 20 };
	int pool = new_pool(), door = new_door(pool);
	uint8_t room[8];

	start_serving(fill_room, pool);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		size_t size = sizes[i], pages = (size + 4095) / 4096 * 4096;
		uint8_t *bytes;

		IS(size, call_door(door, &size, sizeof(size), i ? room : NULL, i ? sizeof(room) : 0));
		bytes = (uint8_t *)(uintptr_t)called.mapped;
		CHECK(bytes && called.mapped_size == pages);
		check_bytes(bytes, size);
		/* The caller's own pages, zero beyond the end. */
		for (size_t at = size; at < pages; at++)
			CHECK(!bytes[at]);
		memset(bytes, 1, pages);
		OK(munmap(bytes, pages));
	}
}

static void a_result_of_just_the_room_is_not_mapped(void)
{
	static uint8_t room[1 << 20];
	int pool = new_pool(), door = new_door(pool);

	start_serving(fill_room, pool);
	for (size_t size = 1; size <= sizeof(room); size *= 8) {
		memset(room, 0, sizeof(room));
		IS(size, call_door(door, &size, sizeof(size), room, size));
		CHECK(!called.mapped && !called.mapped_size);
		check_bytes(room, size);
	}
}

static void a_result_that_cannot_be_mapped_is_EOVERFLOW(void)
{
	int pool = new_pool(), door = new_door(pool);
	size_t size = 1 << 20;

	start_serving(fill_room, pool);
	join(CALLER(pool, {
		struct rlimit limit = { .rlim_cur = 1 << 19, .rlim_max = 1 << 19 };

		OK(setrlimit(RLIMIT_AS, &limit));
		IS(-EOVERFLOW, call_door(door, &size, sizeof(size), NULL, 0));
	}));
	join(CALLER(pool, {
		IS(size, call_door(door, &size, sizeof(size), NULL, 0));
		check_bytes((uint8_t *)(uintptr_t)called.mapped, size);
	}));
}

/* It does not end by that, and the client waits for what it can be given. */
static void a_server_is_told_of_its_limit_of_file_sizes(void)
{
	enum { SIZE = 1 << 20 };
	static uint8_t bytes[SIZE];
	int pool = new_pool(), door = new_door(pool);
	struct rlimit limit = { .rlim_cur = SIZE / 2, .rlim_max = SIZE / 2 };
	struct serving serving = { .pool = pool };
	struct stplr_door_desc one = passed(0);
	uint64_t id;
	pid_t client = CALLER(pool, { IS(SIZE / 2, knock(door)); });

	OK(setrlimit(RLIMIT_FSIZE, &limit));
	IS(0, serve(&serving));
	id = serving.arguments.id;
	serving.arguments.flags = STPLR_RETURN_ONLY;
	for (unsigned int count = 0; count < 2; count++) {
		serving.arguments.id = id;
		serving.arguments.descriptors = (uintptr_t)&one;
		serving.arguments.count = count;
		IS(-EFBIG, answer(&serving, bytes, SIZE / 2 + 1));
	}
	serving.arguments.id = id;
	serving.arguments.count = 0;
	IS(0, answer(&serving, bytes, SIZE / 2));
	join(client);
}

static void use_little(void)
{
	write_to(PARAMETERS "user_bytes", "524288");
}

static void put_back(void)
{
	write_to(PARAMETERS "user_bytes", "67108864");
}

static void a_result_counts_for_the_client_while_it_is_on_its_way(void)
{
	int pool = new_pool(), door = new_door(pool);
	long before = settled_bytes_of(4242);
	size_t size = 1 << 20;

	start_serving(fill_room, pool);
	use_little();
	join(CALLER(pool, {
		OK(setresuid(4242, 4242, 4242));
		IS(-EOVERFLOW, call_door(door, &size, sizeof(size), NULL, 0));
		size = 1 << 18;
		IS(size, call_door(door, &size, sizeof(size), NULL, 0));
		/* What is mapped is the client's memory like any other. */
		IS(size, call_door(door, &size, sizeof(size), NULL, 0));
		IS(size, call_door(door, &size, sizeof(size), NULL, 0));
	}));
	/* It keeps a message of whoever called last, to be used again. */
	close(door);
	IS(before, settled_bytes_of(4242));
}

enum { HELD = 1 << 20 };

static char *held_memory;
static long held_before;

static void *answer_with_held_memory(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };
	struct stplr_door_desc two[2] = { passed(0), passed(0) };

	IS(0, serve(&serving));
	held_before = bytes_of(4242);
	serving.arguments.descriptors = (uintptr_t)two;
	serving.arguments.count = 2;
	IS(-EFAULT, answer(&serving, held_memory, HELD));
	return NULL;
}

/* However long it takes: nothing that a server does with its own memory is held by its client. */
static void a_result_counts_for_its_server_while_it_is_made(void)
{
	int pool = new_pool(), door = new_door(pool), faults;
	pthread_t thread;

	need_userfaultfd();
	pid_t client = CALLER(pool, {
		OK(setresuid(4242, 4242, 4242));
		IS(-EINTR, knock(door));
	});

	held_memory = mmap(NULL, HELD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(held_memory != MAP_FAILED);
	faults = watch(held_memory, HELD);
	thread = start_serving(answer_with_held_memory, pool);
	await_fault(faults);
	IS(held_before, bytes_of(4242));
	fail_fault(faults, held_memory, HELD);
	OK(pthread_join(thread, NULL));
	join(client);
}

/* A server that cannot give its answer gives another, and the client holds that alone. */
static void a_result_that_fails_does_not_count(void)
{
	enum { SIZE = 1 << 20 };
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	char *bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct stplr_door_desc two[2] = { passed(0), passed(0) };
	uint64_t id;
	long before;

	CHECK(bytes != MAP_FAILED);
	OK(munmap(bytes + SIZE / 2, SIZE / 2));
	pid_t client = CALLER(pool, {
		OK(setresuid(4242, 4242, 4242));
		IS(SIZE / 2, knock(door));
	});
	IS(0, serve(&serving));
	id = serving.arguments.id;
	before = bytes_of(4242);
	serving.arguments.flags = STPLR_RETURN_ONLY;
	for (int i = 0; i < 3; i++) {
		serving.arguments.id = id;
		serving.arguments.descriptors = (uintptr_t)two;
		serving.arguments.count = 2;
		IS(-EFAULT, answer(&serving, bytes, SIZE));
		IS(before, bytes_of(4242));
	}
	serving.arguments.id = id;
	serving.arguments.count = 0;
	IS(0, answer(&serving, bytes, SIZE / 2));
	join(client);
}

static void what_a_thread_has_no_room_for_it_reads(void)
{
	static uint8_t sent[100000], got[100000];
	int pool = new_pool(), door = new_door(pool);
	struct stplr_access access = { .offset = 8192, .buffer = { .address = (uintptr_t)got,
								   .length = sizeof(got) } };
	struct serving serving = { .pool = pool };

	for (size_t i = 0; i < sizeof(sent); i++)
		sent[i] = (uint8_t)(i * 7 + i / 4096);
	pid_t client = CALLER(pool, IS(0, call_door(door, sent, sizeof(sent), NULL, 0)));

	IS(0, serve(&serving));
	CHECK(serving.arguments.length == sizeof(sent) && !memcmp(serving.data, sent, 8192));
	access.id = serving.arguments.id;
	IS(sizeof(sent) - 8192, ioctl(pool, STPLR_READ, &access));
	CHECK(!memcmp(got, sent + 8192, sizeof(sent) - 8192));
	access.id++;
	FAILS(ESRCH, ioctl(pool, STPLR_READ, &access));
	finish(&serving);
	join(client);
}

static const struct test tests[] = {
	{ "a result without room is mapped", a_result_without_room_is_mapped },
	{ "a result of just the room is not mapped", a_result_of_just_the_room_is_not_mapped },
	{ "a result that cannot be mapped is EOVERFLOW",
	  a_result_that_cannot_be_mapped_is_EOVERFLOW },
	{ "a server is told of its limit of file sizes",
	  a_server_is_told_of_its_limit_of_file_sizes },
	{ "a result counts for the client while it is on its way",
	  a_result_counts_for_the_client_while_it_is_on_its_way },
	{ "a result counts for its server while it is made",
	  a_result_counts_for_its_server_while_it_is_made },
	{ "a result that fails does not count", a_result_that_fails_does_not_count },
	{ "what a thread has no room for it reads", what_a_thread_has_no_room_for_it_reads },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(tests[0]));
}
