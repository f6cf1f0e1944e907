// SPDX-License-Identifier: GPL-2.0
/* Doors: calls with more data than a thread has room for, whose memory is not at hand when it reads the rest. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "door.h"
#include "stop.h"

/* More than by one page, less and more than a sender sends by way of the kernel at its second attempt. */
static const size_t sizes[] = { 20000, 300000, 3000000 };

static uint8_t letter(size_t i)
{
	return (uint8_t)(i * 7 + i / 4096);
}

static uint8_t *new_data(size_t size)
{
	uint8_t *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(data != MAP_FAILED);
	for (size_t i = 0; i < size; i++)
		data[i] = letter(i);
	return data;
}

/* What the thread had no room for; bytes, or -errno. */
static long read_rest(struct serving *serving, uint8_t *to)
{
	const size_t had = sizeof(serving->data);
	struct stplr_access access = {
		.id = serving->arguments.id,
		.offset = had,
		.buffer = { .address = (uintptr_t)(to + had),
			    .length = (uint32_t)(serving->arguments.length - had) },
	};
	long got = ioctl(serving->pool, STPLR_READ, &access);

	return got < 0 ? -errno : got;
}

/* That it all comes this time. */
static void receive_all(struct serving *serving, size_t size)
{
	static uint8_t got[4 << 20];

	IS(0, serve(serving));
	CHECK(serving->arguments.length == size);
	memcpy(got, serving->data, sizeof(serving->data));
	IS(size - sizeof(serving->data), read_rest(serving, got));
	for (size_t i = 0; i < size; i++)
		CHECK(got[i] == letter(i));
}

static long give_back(struct serving *serving)
{
	long err;

	serving->arguments.flags = STPLR_RETURN_ONLY | STPLR_RETURN_AGAIN;
	err = serve(serving);
	serving->arguments.flags = 0;
	return err;
}

static void a_call_that_is_given_back_comes_again(void)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		int pool = new_pool(), door = new_door(pool);
		struct serving serving = { .pool = pool };
		size_t size = sizes[i];
		pid_t client = CALLER(pool, {
			struct stplr_door_desc file = passed(0);
			char room[8];

			IS(4, call_with(door, (struct stplr_door_call){
						      .data = (uintptr_t)new_data(size),
						      .size = size,
						      .room = (uintptr_t)room,
						      .room_size = sizeof(room),
						      .descriptors = (uintptr_t)&file,
						      .count = 1 }));
		});
		uint64_t first;

		IS(0, serve(&serving));
		first = serving.arguments.id;
		CHECK(serving.arguments.received_count == 1);
		IS(0, give_back(&serving));
		/* It is over; nobody hears of a second word about it. */
		serving.arguments.id = first;
		IS(0, give_back(&serving));
		serving.arguments.id = 0;
		receive_all(&serving, size);
		CHECK(serving.arguments.id != first && serving.arguments.received_count == 1);
		serving.arguments.flags = STPLR_RETURN_ONLY;
		IS(0, answer(&serving, "done", 4));
		join(client);
	}
}

/* In one step with the wait for the next. */
static void a_thread_that_gives_a_call_back_can_wait_at_once(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, IS(0, call_door(door, new_data(20000), 20000, NULL, 0)));

	IS(0, serve(&serving));
	serving.arguments.flags = STPLR_RETURN_AGAIN;
	IS(0, serve(&serving));
	CHECK(serving.arguments.id && serving.arguments.length == 20000);
	serving.arguments.flags = 0;
	finish(&serving);
	join(client);
}

/* Nobody waits for it, and it is none the worse for that. */
static void a_client_that_is_stopped_sends_once_it_goes_on(void)
{
	static uint8_t nothing[4 << 20];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		int pool = new_pool(), door = new_door(pool);
		struct serving serving = { .pool = pool };
		size_t size = sizes[i];
		pid_t client = CALLER(pool,
				      IS(0, call_door(door, new_data(size), size, NULL, 0)));

		IS(0, serve(&serving));
		stop(client);
		IS(-EAGAIN, read_rest(&serving, nothing));
		IS(0, give_back(&serving));
		/* Others are served meanwhile. */
		serving.arguments.id = 0;
		pid_t other = CALLER(pool, IS(0, knock(door)));

		IS(0, serve(&serving));
		CHECK(!serving.arguments.length);
		finish(&serving);
		join(other);
		go_on(client);
		serving.arguments.flags = 0;
		serving.arguments.id = 0;
		receive_all(&serving, size);
		finish(&serving);
		join(client);
	}
}

struct unmapped {
	uint8_t *page;
	int told, tells;
};

static void *unmap_when_told(void *what)
{
	struct unmapped *unmapped = what;
	char c;

	CHECK(read(unmapped->told, &c, 1) == 1);
	OK(munmap(unmapped->page, 4096));
	CHECK(write(unmapped->tells, "x", 1) == 1);
	return NULL;
}

static void what_is_not_there_any_more_is_EFAULT(void)
{
	static uint8_t rest[20000];
	int pool = new_pool(), door = new_door(pool), to_helper[2], from_helper[2];
	struct serving serving = { .pool = pool };
	char c;

	OK(pipe(to_helper));
	OK(pipe(from_helper));
	pid_t client = CALLER(pool, {
		uint8_t *data = new_data(20000);
		struct unmapped unmapped = { data + 12288, to_helper[0], from_helper[1] };
		pthread_t thread;

		OK(pthread_create(&thread, NULL, unmap_when_told, &unmapped));
		IS(-EFAULT, call_door(door, data, 20000, NULL, 0));
	});

	IS(0, serve(&serving));
	CHECK(write(to_helper[1], "x", 1) == 1 && read(from_helper[0], &c, 1) == 1);
	IS(-EFAULT, read_rest(&serving, rest));
	IS(0, give_back(&serving));
	join(client);
}

/* A client is not sent back and forth for ever. */
static void a_call_that_is_given_back_again_and_again_is_EFAULT(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		IS(-EFAULT, call_door(door, new_data(20000), 20000, NULL, 0));
		IS(0, call_door(door, "x", 1, NULL, 0));
	});

	IS(0, serve(&serving));
	while (serving.arguments.length > 1) {
		IS(0, give_back(&serving));
		serving.arguments.id = 0;
		IS(0, serve(&serving));
	}
	finish(&serving);
	join(client);
}

static void giving_back_is_no_refusal(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, IS(0, knock(door)));

	IS(0, serve(&serving));
	serving.arguments.flags = STPLR_RETURN_AGAIN | STPLR_RETURN_REFUSE;
	IS(-EINVAL, serve(&serving));
	serving.arguments.flags |= STPLR_RETURN_ONLY;
	IS(-EINVAL, serve(&serving));
	serving.arguments.flags = STPLR_RETURN_AGAIN | STPLR_RETURN_ONLY | STPLR_RETURN_DEFER;
	IS(-EINVAL, serve(&serving));
	serving.arguments.flags = STPLR_RETURN_AGAIN | STPLR_RETURN_ONLY;
	serving.arguments.refusal = EAGAIN;
	IS(-EINVAL, serve(&serving));
	serving.arguments.refusal = 0;
	finish(&serving);
	join(client);
}

static const struct test tests[] = {
	{ "a call that is given back comes again", a_call_that_is_given_back_comes_again },
	{ "a thread that gives a call back can wait at once",
	  a_thread_that_gives_a_call_back_can_wait_at_once },
	{ "a client that is stopped sends once it goes on",
	  a_client_that_is_stopped_sends_once_it_goes_on },
	{ "what is not there any more is EFAULT", what_is_not_there_any_more_is_EFAULT },
	{ "a call that is given back again and again is EFAULT",
	  a_call_that_is_given_back_again_and_again_is_EFAULT },
	{ "giving back is no refusal", giving_back_is_no_refusal },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(tests[0]));
}
