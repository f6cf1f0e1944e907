// SPDX-License-Identifier: GPL-2.0
/* Doors: what goes along with calls and comes back: descriptors, and results of any size; and references. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "door.h"
#include "seen.h"

static const struct stplr_door_desc none = { .fd = -1 };

static struct stplr_door_desc passed(int fd)
{
	return (struct stplr_door_desc){ .fd = fd, .attributes = STPLR_DOOR_DESCRIPTOR };
}

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

/* The answer to the call that is being served: nobody is waited for afterwards. */
static void finish(struct serving *serving)
{
	serving->arguments.flags = STPLR_RETURN_ONLY;
	IS(0, serve(serving));
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

static void a_server_does_not_end_by_its_limit_of_file_sizes(void)
{
	int pool = new_pool(), door = new_door(pool);
	size_t size = 1 << 20;
	pid_t client = CALLER(pool, {
		IS(-EOVERFLOW, call_door(door, &size, sizeof(size), NULL, 0));
		size = 1 << 10;
		IS(size, call_door(door, &size, sizeof(size), NULL, 0));
	});
	struct rlimit limit = { .rlim_cur = 1 << 19, .rlim_max = 1 << 19 };

	OK(setrlimit(RLIMIT_FSIZE, &limit));
	start_serving(fill_room, pool);
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
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, serve(&serving));
	CHECK(bytes_of(4242) >= before + 64 * 128);
	OK(kill(client, SIGCONT));
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

static void *wait_in(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };

	IS(0, serve(&serving));
	finish(&serving);
	return NULL;
}

static void the_last_thread_is_told_that_it_is(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pthread_t thread = start_serving(wait_in, pool);
	pid_t client;

	AWAIT_LINE(FOLDER "blocked", "%d ", getpid());
	client = CALLER(pool, {
		nap(100);
		IS(0, knock(door));
	});
	/* This thread came last, so it is the first to be given a call. */
	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_LAST));
	finish(&serving);
	join(client);
	client = CALLER(pool, IS(0, knock(door)));
	OK(pthread_join(thread, NULL));
	join(client);
}

static void await_unref(struct serving *serving, int door)
{
	IS(0, serve(serving));
	CHECK(serving->arguments.notes & STPLR_NOTE_UNREF);
	CHECK(!serving->arguments.next_id && serving->arguments.door == info_of(door).id);
	CHECK(serving->arguments.cookie == 5 && !serving->arguments.length);
}

static void a_door_tells_that_a_single_descriptor_is_left(void)
{
	int pool = new_pool(), door = new_door_of(pool, 5, STPLR_DOOR_UNREF), other;
	struct serving serving = { .pool = pool };
	pid_t client;

	CHECK(info_of(door).attributes == (STPLR_DOOR_LOCAL | STPLR_DOOR_UNREF));
	client = CALLER(pool, IS(0, knock(door)));
	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_UNREF));
	await_unref(&serving, door);
	join(client);
	CHECK(info_of(door).attributes == (STPLR_DOOR_LOCAL | STPLR_DOOR_IS_UNREF));
	other = dup(door);
	CHECK(info_of(door).attributes == STPLR_DOOR_LOCAL);
	/* Only once. */
	close(other);
	client = CALLER(pool, {
		nap(200);
		IS(0, knock(door));
	});
	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_UNREF));
	finish(&serving);
	join(client);
}

static void a_door_tells_so_each_time_if_it_is_to(void)
{
	int pool = new_pool(), door = new_door_of(pool, 5, STPLR_DOOR_UNREF_MULTI);
	struct serving serving = { .pool = pool };

	for (int i = 0; i < 3; i++) {
		close(dup(door));
		await_unref(&serving, door);
	}
	CHECK(info_of(door).attributes & STPLR_DOOR_UNREF_MULTI);
}

static int the_door;

static void *knock_once(void *unused)
{
	IS(0, knock(the_door));
	return unused;
}

/* Not as long as it is in a message or a call lasts, however long that is, but then. */
static void references_that_nobody_closes_count(void)
{
	int pool = new_pool(), sent, pair[2];
	struct serving serving = { .pool = pool }, other = { .pool = pool };

	the_door = new_door_of(pool, 5, STPLR_DOOR_UNREF);
	pid_t client = CALLER(pool, {
		pthread_t thread;

		OK(pthread_create(&thread, NULL, knock_once, NULL));
		AWAIT_LINE(FOLDER "blocked", "%d ", getpid());
		nap(200);
		close(the_door);
		OK(pthread_join(thread, NULL));
		pause();
	});

	IS(0, serve(&serving));
	CHECK(!(serving.arguments.notes & STPLR_NOTE_UNREF));
	sent = new_door_of(pool, 5, STPLR_DOOR_UNREF);
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	CHECK(send_door(pair[0], sent, 0));
	close(dup(sent));
	nap(4000);
	OK(close(pair[1]));
	OK(close(pair[0]));
	await_unref(&other, sent);
	finish(&serving);
	other.arguments.id = 0;
	await_unref(&other, the_door);
	OK(kill(client, SIGKILL));
}

static void references_of_many_processes_count(void)
{
	int pool = new_pool(), door = new_door_of(pool, 5, STPLR_DOOR_UNREF), pair[2];
	struct serving serving = { .pool = pool };
	pid_t children[8];
	char byte;

	new_pipe(pair);
	for (int i = 0; i < 8; i++)
		children[i] = CALLER(pool, {
			close(pair[1]);
			CHECK(read(pair[0], &byte, 1) == 0);
		});
	close(dup(door));
	nap(100);
	CHECK(info_of(door).attributes == (STPLR_DOOR_LOCAL | STPLR_DOOR_UNREF));
	close(pair[1]);
	await_unref(&serving, door);
	for (int i = 0; i < 8; i++)
		join(children[i]);
}

static void a_door_without_descriptors_is_gone(void)
{
	int pool = new_pool();
	long before = settled_bytes_of(0);

	for (int i = 0; i < 100; i++) {
		int door = new_door_of(pool, 5, STPLR_DOOR_UNREF);

		close(dup(door));
		close(door);
	}
	do
		nap(20);
	while (settled_bytes_of(0) > before);
}

/* Two processes serve each other's calls: a thread is server and client at once. */
static void *forward(void *pair)
{
	const int *ends = pair;
	struct serving serving = { .pool = ends[0] };
	char room[16];
	long err = serve(&serving);

	while (!err) {
		long length = call_door(ends[1], serving.data, serving.arguments.length, room,
					sizeof(room));

		CHECK(length >= 0);
		err = answer(&serving, room, (size_t)length);
	}
	return NULL;
}

static void a_thread_is_server_and_client_at_once(void)
{
	int first = new_pool(), second = new_pool();
	int ends[2] = { first, new_door(second) }, door = new_door(first);
	pthread_t thread;
	char room[16] = "";

	start_serving(echo, second);
	OK(pthread_create(&thread, NULL, forward, ends));
	for (int i = 0; i < 100; i++)
		IS(3, call_door(door, "abc", 4 - 1, room, sizeof(room)));
	CHECK(!strcmp(room, "abc"));
}

#define CROWD 8

static void many_threads_serve_many_clients(void)
{
	int pool = new_pool(), door = new_door(pool);
	pid_t clients[CROWD];

	for (int i = 0; i < 4; i++)
		start_serving(echo, pool);
	for (int i = 0; i < CROWD; i++)
		clients[i] = CALLER(pool, {
			uint8_t sent[600];
			uint8_t room[600];

			for (int k = 0; k < 200; k++) {
				memset(sent, i * 16 + k, sizeof(sent));
				IS(sizeof(sent), call_door(door, sent, sizeof(sent), room, sizeof(room)));
				CHECK(!memcmp(sent, room, sizeof(sent)));
			}
		});
	for (int i = 0; i < CROWD; i++)
		join(clients[i]);
}

static const struct test tests[] = {
	{ "descriptors go along with a call", descriptors_go_along_with_a_call },
	{ "descriptors come back with a result", descriptors_come_back_with_a_result },
	{ "a full table is whose it is", a_full_table_is_whose_it_is },
	{ "more descriptors than there is room for are refused",
	  more_descriptors_than_there_is_room_for_are_refused },
	{ "many descriptors pass", many_descriptors_pass },
	{ "a result without room is mapped", a_result_without_room_is_mapped },
	{ "a result of just the room is not mapped", a_result_of_just_the_room_is_not_mapped },
	{ "a result that cannot be mapped is EOVERFLOW",
	  a_result_that_cannot_be_mapped_is_EOVERFLOW },
	{ "a server does not end by its limit of file sizes",
	  a_server_does_not_end_by_its_limit_of_file_sizes },
	{ "a result counts for the client while it is on its way",
	  a_result_counts_for_the_client_while_it_is_on_its_way },
	{ "a result that fails does not count", a_result_that_fails_does_not_count },
	{ "descriptors on their way back count", what_is_on_its_way_back_counts },
	{ "what a thread has no room for it reads", what_a_thread_has_no_room_for_it_reads },
	{ "the last thread is told that it is", the_last_thread_is_told_that_it_is },
	{ "a door tells that a single descriptor is left",
	  a_door_tells_that_a_single_descriptor_is_left },
	{ "a door tells so each time if it is to", a_door_tells_so_each_time_if_it_is_to },
	{ "references that nobody closes count", references_that_nobody_closes_count },
	{ "references of many processes count", references_of_many_processes_count },
	{ "a door without descriptors is gone", a_door_without_descriptors_is_gone },
	{ "a thread is server and client at once", a_thread_is_server_and_client_at_once },
	{ "many threads serve many clients", many_threads_serve_many_clients },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(tests[0]));
}
