// SPDX-License-Identifier: GPL-2.0
/*
 * How a client's memory is read and written: small and big, with pointers that are wrong, and watched by a
 * userfaultfd.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include "new.h"
#include "watch.h"

static void a_clients_memory_can_be_read_and_written_of(size_t size)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *sent = malloc(size), *room = calloc(1, size), *mine = malloc(size);
	struct stplr_receive received;

	for (size_t i = 0; i < size; i++)
		sent[i] = (char)(i * 7 + i / 255);
	pid_t client = CLIENT(channel, connection, {
		IS(size, stplr_send(connection, sent, size, room, size, NULL));
		CHECK(room[0] == 'r' && room[1] == 0 && room[10] == 'w' && room[11] == 'w');
		CHECK(room[size - 1] == 'e' && room[size - 2] == 0);
	});
	IS(4, stplr_receive(channel, mine, 4, second, &received));
	CHECK(!memcmp(mine, sent, 4) && received.length == size);
	IS(size - 5, stplr_read(channel, received.id, 5, mine, size));
	CHECK(!memcmp(mine, sent + 5, size - 5));
	IS(0, stplr_read(channel, received.id, size, mine, 1));
	IS(0, stplr_read(channel, received.id, ~0ULL, mine, 1));
	IS(-EFAULT, stplr_read(channel, received.id, 0, (void *)8, 1));
	IS(2, stplr_write(channel, received.id, 10, "ww", 2));
	IS(1, stplr_write(channel, received.id, size - 1, "eee", 3));
	IS(0, stplr_write(channel, received.id, size, "x", 1));
	IS(-EFAULT, stplr_write(channel, received.id, 0, (void *)8, 1));
	IS(1, stplr_reply(channel, received.id, 0, "r", 1));
	IS(-ESRCH, stplr_write(channel, received.id, 10, "xx", 2));
	join(client);
}

static void small_memory_can_be_read_and_written(void)
{
	a_clients_memory_can_be_read_and_written_of(100);
}

static void big_memory_can_be_read_and_written(void)
{
	a_clients_memory_can_be_read_and_written_of(300000);
}

static void bad_pointers_lose_nothing(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char buffer[8] = "";

	pid_t client = CLIENT(channel, connection, {
		IS(-EFAULT, stplr_send(connection, (void *)8, 8, NULL, 0, NULL));
		IS(-EFAULT, stplr_send(connection, (void *)8, 80000, NULL, 0, NULL));
		IS(-EFAULT, stplr_send(connection, "fine", 5, (void *)8, 8, NULL));
	});
	IS(-EFAULT, stplr_receive(channel, (void *)8, 8, second, &received));
	FAILS(EFAULT, ioctl(channel, STPLR_RECEIVE, NULL));
	FAILS(EFAULT, ioctl(channel, STPLR_REPLY, 8));
	FAILS(EFAULT, ioctl(channel, STPLR_REPLY_RECEIVE, 8));
	FAILS(EFAULT, ioctl(channel, STPLR_READ, 8));
	FAILS(EFAULT, ioctl(connection, STPLR_SEND, 8));
	FAILS(ENOTTY, ioctl(channel, _IO('i', 99), 0));
	FAILS(ENOTTY, ioctl(connection, STPLR_RECEIVE, &received));
	IS(5, stplr_receive(channel, buffer, 8, second, &received));
	CHECK(!strcmp(buffer, "fine"));
	IS(-EFAULT, stplr_reply(channel, received.id, 0, (void *)8, 8));
	IS(3, stplr_reply(channel, received.id, 0, "abc", 3));
	join(client);
}

static void watched_memory_is_passed_as_any_other(void)
{
	enum { SIZE = 40 * 4096 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *expected = malloc(SIZE), *mine = malloc(SIZE);
	struct stplr_receive received;

	need_userfaultfd();
	for (int i = 0; i < SIZE; i++)
		expected[i] = (char)(i * 31 + i / 253);
	pid_t client = CLIENT(channel, connection, {
		char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct stplr_part pieces[] = { stplr_part(expected, 4096),
					       stplr_part(memory + 4096, SIZE - 4096) };
		struct stplr_send send = { .send = { (uintptr_t)pieces, 0, 2 },
					   .reply = stplr_bytes(memory, SIZE),
					   .timeout_ns = -1 };

		memcpy(memory, expected, SIZE);
		watch(memory, SIZE);
		IS(0, stplr_send(connection, memory, SIZE, NULL, 0, NULL));
		OK(stplr_send_full(connection, &send));
		CHECK(send.replied == SIZE && !memcmp(memory, expected, 5000));
		CHECK(memory[5000] == 'x' && memory[SIZE - 1] == 'x');
	});
	IS(SIZE, stplr_receive(channel, mine, SIZE, second, &received));
	CHECK(!memcmp(mine, expected, SIZE));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	memset(mine, 0, SIZE);
	/* What is not watched is received, what is is read later. */
	IS(4096, stplr_receive(channel, mine, 4096, second, &received));
	IS(SIZE - 4096, stplr_read(channel, received.id, 4096, mine + 4096, SIZE - 4096));
	CHECK(!memcmp(mine, expected, SIZE));
	memset(mine, 'x', SIZE);
	IS(SIZE - 5000, stplr_write(channel, received.id, 5000, mine, SIZE - 5000));
	IS(5000, stplr_reply(channel, received.id, 0, expected, 5000));
	join(client);
}

struct watcher {
	void *memory;
	size_t size;
	int told, tells; /* pipes */
};

/* Watches the memory from a first word on to a second. */
static void *watch_when_told(void *argument)
{
	struct watcher *watcher = argument;
	char c;

	CHECK(read(watcher->told, &c, 1) == 1);
	int faults = watch(watcher->memory, watcher->size);

	CHECK(write(watcher->tells, "x", 1) == 1);
	CHECK(read(watcher->told, &c, 1) == 1);
	close(faults);
	CHECK(write(watcher->tells, "x", 1) == 1);
	return NULL;
}

/* What was sent from memory that was plain then, and is watched by the time it is read. */
static void memory_that_is_not_at_hand_is_asked_for_again(void)
{
	enum { SIZE = 40 * 4096 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *mine = malloc(SIZE);
	struct stplr_receive received;
	int to_helper[2], from_helper[2];
	char c;

	need_userfaultfd();
	OK(pipe(to_helper));
	OK(pipe(from_helper));
	memset(memory, 'm', SIZE);
	pid_t client = CLIENT(channel, connection, {
		struct watcher watcher = { memory, SIZE, to_helper[0], from_helper[1] };
		pthread_t thread;

		OK(pthread_create(&thread, NULL, watch_when_told, &watcher));
		IS(SIZE, stplr_send(connection, memory, SIZE, memory, SIZE, NULL));
		CHECK(memory[0] == 'w' && memory[SIZE - 1] == 'w');
	});
	IS(4, stplr_receive(channel, mine, 4, second, &received));
	CHECK(write(to_helper[1], "x", 1) == 1 && read(from_helper[0], &c, 1) == 1);
	IS(-EAGAIN, stplr_read(channel, received.id, 0, mine, SIZE));
	IS(-EAGAIN, stplr_read(channel, received.id, SIZE - 1, mine, 1));
	/* What is written waits with the kernel. */
	memset(mine, 'w', SIZE);
	IS(SIZE, stplr_write(channel, received.id, 0, mine, SIZE));
	CHECK(write(to_helper[1], "x", 1) == 1 && read(from_helper[0], &c, 1) == 1);
	IS(SIZE, stplr_read(channel, received.id, 0, mine, SIZE));
	CHECK(mine[0] == 'm' && mine[SIZE - 1] == 'm');
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

/* A page that comes when nobody holds it back any more. */
struct late_page {
	void *page;
	int faults;
	int64_t delay_ns;
	int round; /* that of its client */
	int let_go; /* the last round in which it was let go */
};

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Lets the page go so much after each round has begun. */
static void *let_go(void *argument)
{
	struct late_page *late = argument;

	for (int round = 1;; round++) {
		while (__atomic_load_n(&late->round, __ATOMIC_ACQUIRE) != round)
			sched_yield();
		int64_t end = now_ns() + late->delay_ns;

		while (now_ns() < end)
			;
		close(late->faults);
		__atomic_store_n(&late->let_go, round, __ATOMIC_RELEASE);
	}
	return NULL;
}

/*
 * The client's last page is let go while the server copies: the kernel then wants the client's
 * memory for itself, and the server must not wait for that page while it has that.
 */
static void memory_that_is_let_go_stalls_nobody(void)
{
	enum { SIZE = 32 * 4096, ROUNDS = 400 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *mine = malloc(SIZE);
	struct stplr_receive received;

	need_userfaultfd();
	pid_t client = CLIENT(channel, connection, {
		char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct late_page late = { .page = memory + SIZE - 4096 };
		pthread_t thread;

		OK(pthread_create(&thread, NULL, let_go, &late));
		memset(memory, 1, SIZE);
		int64_t start = now_ns();

		for (int i = 0; i < 8; i++)
			IS(SIZE, stplr_send(connection, memory, SIZE, memory, SIZE, NULL));
		int64_t usual = (now_ns() - start) / 8;

		for (int round = 1; round <= ROUNDS; round++) {
			OK(madvise(late.page, 4096, MADV_DONTNEED));
			late.faults = watch(late.page, 4096);
			late.delay_ns = usual * (round % 50) / 50;
			__atomic_store_n(&late.round, round, __ATOMIC_RELEASE);
			if (round % 2)
				IS(0, stplr_send(connection, memory, SIZE, NULL, 0, NULL));
			else
				IS(SIZE, stplr_send(connection, NULL, 0, memory, SIZE, NULL));
			while (__atomic_load_n(&late.let_go, __ATOMIC_ACQUIRE) != round)
				sched_yield();
			CHECK(memory[0] == 1 && memory[SIZE - 4097] == 1);
			CHECK(memory[SIZE - 1] == (round % 2 ? 0 : 1));
		}
	});
	memset(mine, 1, SIZE);
	for (int i = 0; i < 8 + ROUNDS; i++) {
		CHECK(stplr_receive(channel, mine, SIZE, second, &received) >= 0);
		mine[SIZE - 1] = 1;
		CHECK(stplr_reply(channel, received.id, 0, mine, received.room) >= 0);
	}
	join(client);
}

static const struct test tests[] = {
	{ "a client's small memory can be read and written",
	  small_memory_can_be_read_and_written },
	{ "a client's big memory can be read and written", big_memory_can_be_read_and_written },
	{ "bad pointers lose nothing", bad_pointers_lose_nothing },
	{ "watched memory is passed as any other", watched_memory_is_passed_as_any_other },
	{ "memory that is not at hand is asked for again",
	  memory_that_is_not_at_hand_is_asked_for_again },
	{ "memory that is let go while it is copied stalls nobody",
	  memory_that_is_let_go_stalls_nobody },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
