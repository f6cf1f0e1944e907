// SPDX-License-Identifier: GPL-2.0
/* Doors: descriptors that go along with calls and come back. */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/stat.h>

#include "door.h"
#include "seen.h"
#include "watch.h"

static const struct stplr_door_desc none = { .fd = -1 };

static bool same_file(int a, int b)
{
	struct stat first, second;

	OK(fstat(a, &first));
	OK(fstat(b, &second));
	return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

static int new_pipe(int pair[2])
{
	OK(pipe2(pair, O_CLOEXEC));
	return pair[1];
}

static int open_files(void)
{
	int count = 0;

	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void descriptors_go_along_with_a_call(void)
{
	int pool = new_pool(), door = new_door(pool), pair[2], kept;
	struct serving serving = { .pool = pool };
	char byte;
	pid_t client = CALLER(pool, {
		struct stplr_door_desc mine[2] = { passed(new_pipe(pair)), passed(door) };

		IS(0, call_with(door, (struct stplr_door_call){ .descriptors = (uintptr_t)mine,
								.count = 2 }));
		CHECK(read(pair[0], &byte, 1) == 1 && byte == 'x');
	});

	IS(0, serve(&serving));
	CHECK(serving.arguments.received_count == 2);
	kept = serving.descriptors[0].fd;
	CHECK(serving.descriptors[0].attributes == STPLR_DOOR_DESCRIPTOR);
	CHECK(!serving.descriptors[0].id && fcntl(kept, F_GETFD) == 0);
	CHECK(serving.descriptors[1].attributes == (STPLR_DOOR_DESCRIPTOR | STPLR_DOOR_LOCAL));
	CHECK(serving.descriptors[1].id == info_of(door).id);
	CHECK(same_file(serving.descriptors[1].fd, door) && serving.descriptors[1].fd != door);
	CHECK(write(kept, "x", 1) == 1);
	finish(&serving);
	join(client);
}

static void descriptors_come_back_with_a_result(void)
{
	int pool = new_pool(), door = new_door(pool), pair[2];
	struct stplr_door_desc sent[2];
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		struct stplr_door_desc got[3] = { none, none, none };
		char room[8];
		char byte = 0;

		IS(2, call_with(door, (struct stplr_door_call){
					      .room = (uintptr_t)room, .room_size = 8,
					      .received = (uintptr_t)got, .received_room = 3 }));
		CHECK(called.received_count == 2 && !memcmp(room, "ok", 2) && got[2].fd == -1);
		CHECK(got[0].attributes == STPLR_DOOR_DESCRIPTOR && fcntl(got[0].fd, F_GETFD) == 0);
		CHECK(read(got[0].fd, &byte, 1) == 1 && byte == 'y');
		CHECK(got[1].attributes == STPLR_DOOR_DESCRIPTOR && got[1].id == info_of(door).id);
		CHECK(info_of(got[1].fd).id == got[1].id);
	});

	IS(0, serve(&serving));
	CHECK(write(new_pipe(pair), "y", 1) == 1);
	sent[0] = passed(pair[0]);
	sent[1] = passed(door);
	serving.arguments.descriptors = (uintptr_t)sent;
	serving.arguments.count = 2;
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, "ok", 2));
	join(client);
}

static void a_full_table_is_whose_it_is(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct stplr_door_desc one = passed(0);
	struct rlimit limit = { .rlim_cur = 64, .rlim_max = 64 };
	struct serving serving = { .pool = pool };
	int files;
	pid_t client = CALLER(pool, {
		struct stplr_door_desc got;

		IS(-EMFILE, call_with(door, (struct stplr_door_call){
						    .descriptors = (uintptr_t)&one, .count = 1 }));
		while (open("/dev/null", O_RDONLY) >= 0)
			;
		/* Its own table. */
		IS(-EMFILE, call_with(door, (struct stplr_door_call){ .received = (uintptr_t)&got,
								      .received_room = 1 }));
	});

	OK(prlimit(client, RLIMIT_NOFILE, &limit, NULL));
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	while (open("/dev/null", O_RDONLY) >= 0)
		;
	files = open_files();
	IS(0, serve(&serving));
	CHECK(!serving.arguments.received_count && open_files() == files);
	serving.arguments.descriptors = (uintptr_t)&one;
	serving.arguments.count = 1;
	finish(&serving);
	join(client);
}

static void more_descriptors_than_there_is_room_for_are_refused(void)
{
	int pool = new_pool(), door = new_door(pool), files;
	struct stplr_door_desc five[5];
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		for (int i = 0; i < 5; i++)
			five[i] = passed(0);
		IS(-E2BIG, call_with(door, (struct stplr_door_call){
						   .descriptors = (uintptr_t)five, .count = 5 }));
		files = open_files();
		IS(-EOVERFLOW, call_with(door, (struct stplr_door_call){
						       .received = (uintptr_t)five,
						       .received_room = 4 }));
		IS(-EFAULT, call_with(door, (struct stplr_door_call){ .received = 16,
								      .received_room = 5 }));
		CHECK(open_files() == files);
	});

	for (int i = 0; i < 5; i++)
		five[i] = passed(0);
	IS(0, serve(&serving));
	for (int i = 0; i < 2; i++) {
		serving.arguments.descriptors = (uintptr_t)five;
		serving.arguments.count = 5;
		if (i)
			finish(&serving);
		else
			IS(0, serve(&serving));
	}
	join(client);
}

static void many_descriptors_pass(void)
{
	static struct stplr_door_desc many[STPLR_DOOR_FILES_MAX], room[STPLR_DOOR_FILES_MAX];
	int pool = new_pool(), door = new_door(pool);
	struct rlimit limit = { .rlim_cur = 4000, .rlim_max = 4000 };
	struct stplr_door_return arguments = { .received = (uintptr_t)room,
					       .received_room = STPLR_DOOR_FILES_MAX };

	OK(setrlimit(RLIMIT_NOFILE, &limit));
	for (int i = 0; i < STPLR_DOOR_FILES_MAX; i++)
		many[i] = passed(0);
	pid_t client = CALLER(pool, {
		IS(0, call_with(door, (struct stplr_door_call){
					      .descriptors = (uintptr_t)many,
					      .count = STPLR_DOOR_FILES_MAX,
					      .received = (uintptr_t)room,
					      .received_room = STPLR_DOOR_FILES_MAX }));
		CHECK(called.received_count == STPLR_DOOR_FILES_MAX);
		CHECK(same_file(room[1023].fd, 0));
	});

	OK(ioctl(pool, STPLR_DOOR_RETURN, &arguments));
	CHECK(arguments.received_count == STPLR_DOOR_FILES_MAX && same_file(room[1023].fd, 0));
	arguments.id = arguments.next_id;
	arguments.descriptors = (uintptr_t)many;
	arguments.count = STPLR_DOOR_FILES_MAX;
	arguments.flags = STPLR_RETURN_ONLY;
	OK(ioctl(pool, STPLR_DOOR_RETURN, &arguments));
	join(client);
}

/* Descriptors as well. */
static void what_is_on_its_way_back_counts(void)
{
	int pool = new_pool(), door = new_door(pool), status;
	struct serving serving = { .pool = pool };
	struct stplr_door_desc many[64], room[64];
	long before;

	for (int i = 0; i < 64; i++)
		many[i] = passed(0);
	pid_t client = CALLER(pool, {
		OK(setresuid(4242, 4242, 4242));
		IS(0, call_with(door, (struct stplr_door_call){ .received = (uintptr_t)room,
								.received_room = 64 }));
		CHECK(called.received_count == 64);
	});
	IS(0, serve(&serving));
	OK(kill(client, SIGSTOP));
	CHECK(waitpid(client, &status, WUNTRACED) == client && WIFSTOPPED(status));
	before = bytes_of(4242);
	serving.arguments.descriptors = (uintptr_t)many;
	serving.arguments.count = 64;
	finish(&serving);
	CHECK(bytes_of(4242) >= before + 64 * 128);
	OK(kill(client, SIGCONT));
	join(client);
}

struct half_held {
	int pool;
	struct stplr_door_return *arguments;
};

static void *receive_in_vain(void *argument)
{
	const struct half_held *held = argument;

	FAILS(EFAULT, ioctl(held->pool, STPLR_DOOR_RETURN, held->arguments));
	return NULL;
}

/* While a descriptor is there and it is not sure yet that it stays, another thread closes it and opens another. */
static void what_is_not_the_calls_any_more_is_not_taken_back(void)
{
	const size_t page = 4096, before = offsetof(struct stplr_door_return, next_id);
	int pool = new_pool(), door = new_door(pool), pair[2], faults;
	struct stplr_door_desc mine = passed(0), got = none;
	struct half_held held = { .pool = pool };
	pthread_t thread;

	need_userfaultfd();
	CALLER(pool, call_with(door, (struct stplr_door_call){ .descriptors = (uintptr_t)&mine,
							       .count = 1 }));
	char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	held.arguments = (void *)(memory + page - before);
	memset(held.arguments, 0, before);
	held.arguments->received = (uintptr_t)&got;
	held.arguments->received_room = 1;
	faults = watch(memory + page, page);
	OK(pthread_create(&thread, NULL, receive_in_vain, &held));
	await_fault(faults);
	CHECK(same_file(got.fd, 0));
	new_pipe(pair);
	CHECK(dup2(pair[1], got.fd) == got.fd);
	fail_fault(faults, memory + page, page);
	OK(pthread_join(thread, NULL));
	CHECK(same_file(got.fd, pair[1]));
}

static void what_is_open_for_nothing_passes(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	struct stplr_door_desc back;
	pid_t client = CALLER(pool, {
		struct stplr_door_desc mine = passed(open("/tmp", O_PATH)), got = none;

		IS(0, call_with(door, (struct stplr_door_call){
					      .descriptors = (uintptr_t)&mine, .count = 1,
					      .received = (uintptr_t)&got, .received_room = 1 }));
		CHECK(got.attributes == STPLR_DOOR_DESCRIPTOR && same_file(got.fd, mine.fd));
	});

	IS(0, serve(&serving));
	CHECK(serving.descriptors[0].attributes == STPLR_DOOR_DESCRIPTOR);
	CHECK(fcntl(serving.descriptors[0].fd, F_GETFL) & O_PATH);
	back = passed(serving.descriptors[0].fd);
	serving.arguments.descriptors = (uintptr_t)&back;
	serving.arguments.count = 1;
	finish(&serving);
	join(client);
}

/* The data comes first, as over shared memory; the client waits on for a good answer. */
static void of_a_bad_answer_the_first_fault_is_told(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	const struct stplr_door_desc bad = { .fd = -1, .attributes = STPLR_DOOR_DESCRIPTOR };
	pid_t client = CALLER(pool, {
		char room[2];

		IS(2, call_door(door, NULL, 0, room, sizeof(room)));
		CHECK(!memcmp(room, "ok", 2));
	});
	uint64_t id;

	IS(0, serve(&serving));
	id = serving.arguments.id;
	for (int good = 0; good < 2; good++)
		for (size_t size = 1; size <= 8192; size *= 8192) {
			serving.arguments.id = id;
			serving.arguments.descriptors = (uintptr_t)&bad;
			serving.arguments.count = 1;
			serving.arguments.flags = STPLR_RETURN_ONLY;
			IS(good ? -EINVAL : -EFAULT,
			   answer(&serving, good ? serving.data : (void *)8, size));
		}
	serving.arguments.id = id;
	serving.arguments.descriptors = 0;
	serving.arguments.count = 0;
	IS(0, answer(&serving, "ok", 2));
	join(client);
}

static const struct test tests[] = {
	{ "descriptors go along with a call", descriptors_go_along_with_a_call },
	{ "descriptors come back with a result", descriptors_come_back_with_a_result },
	{ "a full table is whose it is", a_full_table_is_whose_it_is },
	{ "more descriptors than there is room for are refused",
	  more_descriptors_than_there_is_room_for_are_refused },
	{ "many descriptors pass", many_descriptors_pass },
	{ "descriptors on their way back count", what_is_on_its_way_back_counts },
	{ "what is not the call's any more is not taken back",
	  what_is_not_the_calls_any_more_is_not_taken_back },
	{ "what is open for nothing passes", what_is_open_for_nothing_passes },
	{ "of a bad answer the first fault is told", of_a_bad_answer_the_first_fault_is_told },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
