// SPDX-License-Identifier: GPL-2.0
/* Which memory cgroup pays for what is left with a message, and who makes room in it. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "door.h"
#include "new.h"
#include "seen.h"

#define GROUPS "/tmp/groups"
#define FILES "/tmp/group-files"
#define MIB (1UL << 20)
/* The kernel charges a few pages ahead for each processor: what is used later may be charged already. */
#define AHEAD ((long)MIB)

static void need_groups(void)
{
	mkdir(GROUPS, 0700);
	if (mount("none", GROUPS, "cgroup2", 0, NULL))
		SKIP("this kernel has no cgroup v2");
	if (access(GROUPS "/cgroup.subtree_control", W_OK) ||
	    !lines(GROUPS "/cgroup.controllers", "memory"))
		SKIP("this kernel has no memory cgroups");
	write_to(GROUPS "/cgroup.subtree_control", "+memory");
	OK(mkdir(GROUPS "/client", 0700));
	OK(mkdir(GROUPS "/server", 0700));
	mkdir(FILES, 0700);
	OK(mount("files", FILES, "ramfs", 0, NULL));
}

static void join_group(const char *group)
{
	char path[60], number[20];

	snprintf(path, sizeof(path), GROUPS "/%s/cgroup.procs", group);
	snprintf(number, sizeof(number), "%d", getpid());
	write_to(path, number);
}

static long value(const char *path, const char *name)
{
	char *text = contents(path), *at = name ? strstr(text, name) : text;
	long found;

	CHECK(at);
	found = atol(at + (name ? strlen(name) : 0));
	free(text);
	return found;
}

/* Memory of a file that servers do not reach into: what is replied there waits with the kernel. */
static char *memory_of_a_file(size_t size)
{
	int file = open(FILES "/one", O_CREAT | O_RDWR, 0600);

	CHECK(file >= 0);
	OK(ftruncate(file, (off_t)size));
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static pid_t client_of(int channel, int connection, size_t size, int expected)
{
	return CLIENT(channel, connection, {
		join_group("client");
		long got = stplr_send(connection, "x", 1, memory_of_a_file(size), size, NULL);

		CHECK(got == (expected ? expected : (long)size));
	});
}

static void the_client_pays(void)
{
	enum { SIZE = 8 << 20 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	need_groups();
	pid_t client = client_of(channel, connection, SIZE, 0);

	join_group("server");
	char *mine = malloc(SIZE);

	memset(mine, 'm', SIZE);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	long servers = value(GROUPS "/server/memory.current", NULL);
	long clients = value(GROUPS "/client/memory.current", NULL);

	IS(SIZE, stplr_write(channel, received.id, 0, mine, SIZE));
	CHECK(value(GROUPS "/client/memory.current", NULL) - clients >= SIZE - AHEAD);
	CHECK(value(GROUPS "/server/memory.current", NULL) - servers < SIZE / 4);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join_group("..");
	join(client);
}

/* Its call fails: the server neither makes room in its group nor has anybody there killed. */
static void a_client_at_its_limit_fails_alone(void)
{
	enum { SIZE = 8 << 20 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	need_groups();
	pid_t client = client_of(channel, connection, SIZE, -ENOMEM);

	join_group("server");
	char *mine = malloc(SIZE);

	memset(mine, 'm', SIZE);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	char limit[30];

	snprintf(limit, sizeof(limit), "%ld",
		 value(GROUPS "/client/memory.current", NULL) + 2 * (long)MIB);
	write_to(GROUPS "/client/memory.max", limit);
	CHECK(stplr_reply(channel, received.id, 0, mine, SIZE) >= 0);
	join_group("..");
	join(client);
	IS(0, value(GROUPS "/client/memory.events", "oom "));
	IS(0, value(GROUPS "/client/memory.events", "oom_kill "));
}

/* Of anonymous memory, which the client has to bring itself, or be killed for trying. */
static void pages_are_brought_by_whom_they_are_charged_to(void)
{
	enum { SIZE = 8 << 20 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	need_groups();
	pid_t client = CLIENT(channel, connection, {
		join_group("client");
		char *room = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				  -1, 0);

		IS(SIZE, stplr_send(connection, "x", 1, room, SIZE, NULL));
		CHECK(room[0] == 'm' && room[SIZE - 1] == 'm');
	});

	join_group("server");
	char *mine = malloc(SIZE);

	memset(mine, 'm', SIZE);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	long servers = value(GROUPS "/server/memory.current", NULL);

	IS(SIZE, stplr_reply(channel, received.id, 0, mine, SIZE));
	CHECK(value(GROUPS "/server/memory.current", NULL) - servers < SIZE / 4);
	join_group("..");
	join(client);
}

enum { RESULT = 8 << 20 };

/* Answers the one call with more than there is room for; in between, what is to be done. */
static void answer_at_length(int pool, void (*before_answer)(void))
{
	struct serving serving = { .pool = pool };
	char *mine = malloc(RESULT);

	join_group("server");
	memset(mine, 'm', RESULT);
	IS(0, serve(&serving));
	before_answer();
	long servers = value(GROUPS "/server/memory.current", NULL);

	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, mine, RESULT));
	CHECK(value(GROUPS "/server/memory.current", NULL) - servers < RESULT / 4);
	join_group("..");
}

static long clients_bytes;

static void note_clients(void)
{
	clients_bytes = value(GROUPS "/client/memory.current", NULL);
}

static void limit_client(void)
{
	char limit[30];

	note_clients();
	snprintf(limit, sizeof(limit), "%ld", clients_bytes + 2 * (long)MIB);
	write_to(GROUPS "/client/memory.max", limit);
}

static void a_result_without_room_is_the_clients(void)
{
	int pool = new_pool(), door = new_door(pool), done[2];
	char byte = 0;

	need_groups();
	OK(pipe(done));
	pid_t client = CALLER(pool, {
		join_group("client");
		IS(RESULT, call_door(door, NULL, 0, NULL, 0));
		CHECK(((char *)(uintptr_t)called.mapped)[RESULT - 1] == 'm');
		CHECK(write(done[1], &byte, 1) == 1 && pause() == -1);
	});

	answer_at_length(pool, note_clients);
	CHECK(read(done[0], &byte, 1) == 1);
	CHECK(value(GROUPS "/client/memory.current", NULL) - clients_bytes >= RESULT - AHEAD);
	OK(kill(client, SIGKILL));
	CHECK(waitpid(client, NULL, 0) == client);
}

/* What it is copied from comes by the server, if it has to come. */
static void what_a_result_is_made_of_is_the_servers(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };

	need_groups();
	pid_t client = CALLER(pool, {
		join_group("client");
		IS(RESULT, call_door(door, NULL, 0, NULL, 0));
		CHECK(pause() == -1);
	});

	join_group("server");
	IS(0, serve(&serving));
	note_clients();
	long servers = value(GROUPS "/server/memory.current", NULL);

	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, memory_of_a_file(RESULT), RESULT));
	CHECK(value(GROUPS "/server/memory.current", NULL) - servers >= RESULT - AHEAD);
	CHECK(value(GROUPS "/client/memory.current", NULL) - clients_bytes < RESULT + RESULT / 4);
	join_group("..");
	OK(kill(client, SIGKILL));
	CHECK(waitpid(client, NULL, 0) == client);
}

static void a_client_without_memory_for_its_result_fails_alone(void)
{
	int pool = new_pool(), door = new_door(pool);

	need_groups();
	pid_t client = CALLER(pool, {
		join_group("client");
		IS(-EOVERFLOW, call_door(door, NULL, 0, NULL, 0));
	});

	answer_at_length(pool, limit_client);
	join(client);
	IS(0, value(GROUPS "/client/memory.events", "oom "));
	IS(0, value(GROUPS "/client/memory.events", "oom_kill "));
}

static int the_connection;

static void *call_for_few(void *unused)
{
	char room[200];

	stplr_send(the_connection, "x", 1, room, sizeof(room), NULL);
	return unused;
}

/* However little room there is: what is written there bit by bit takes more. */
static void the_client_pays_for_small_writes(void)
{
	enum { CLIENTS = 64, PIECES = 200, LEAST = CLIENTS * PIECES * 256 / 2 };
	int channel = new_channel(0);
	static uint64_t ids[CLIENTS];
	struct stplr_receive received;

	the_connection = new_connection(channel, 0);
	need_groups();
	pid_t client = CLIENT(channel, the_connection, {
		pthread_t thread;

		join_group("client");
		for (int i = 0; i < CLIENTS; i++)
			OK(pthread_create(&thread, NULL, call_for_few, NULL));
		pause();
	});

	join_group("server");
	for (int i = 0; i < CLIENTS; i++) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		ids[i] = received.id;
	}
	long servers = value(GROUPS "/server/memory.current", NULL);
	long clients = value(GROUPS "/client/memory.current", NULL);

	for (int i = 0; i < CLIENTS; i++)
		for (int piece = 0; piece < PIECES; piece++)
			IS(1, stplr_write(channel, ids[i], piece % 2 ? 0 : 2, "x", 1));
	CHECK(value(GROUPS "/server/memory.current", NULL) - servers < LEAST / 2);
	CHECK(value(GROUPS "/client/memory.current", NULL) - clients >= LEAST);
	join_group("..");
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
}

/*
 * Memory up to the limit, nearly all of which the kernel may take back, as it may what a container has read
 * of files.
 */
static void fill_group(void)
{
	enum { LIMIT = 24 << 20, LEFT = 128 << 10, STEP = 64 << 10, MORE = 1 << 20 };
	char *memory = mmap(NULL, LIMIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t used = 0;

	CHECK(memory != MAP_FAILED);
	write_to(GROUPS "/client/memory.max", "25165824");
	while (value(GROUPS "/client/memory.current", NULL) < LIMIT - LEFT) {
		memset(memory + used, 'u', STEP);
		used += STEP;
	}
	OK(madvise(memory, used, MADV_FREE));
	memory = mmap(NULL, MORE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	memset(memory, 'u', MORE);
}

/*
 * It is asked for room, and not waited for longer than a moment: then its call fails, but there is room for
 * the next.
 */
static void a_group_that_can_give_up_memory_has_room_for_replies(void)
{
	enum { SIZE = 2 << 20 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char *mine = malloc(SIZE);
	int answers = 0;

	need_groups();
	memset(mine, 'm', SIZE);
	pid_t client = CLIENT(channel, connection, {
		char *room;
		long got;

		join_group("client");
		room = memory_of_a_file(SIZE);
		fill_group();
		do
			got = stplr_send(connection, "x", 1, room, SIZE, NULL);
		while (got == -ENOMEM);
		IS(SIZE, got);
		CHECK(room[0] == 'm' && room[SIZE - 1] == 'm');
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	while (received.length) {
		answers++;
		CHECK(stplr_reply(channel, received.id, 0, mine, SIZE) >= 0);
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
	}
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
	printf("# answered %d times\n", answers);
	IS(0, value(GROUPS "/client/memory.events", "oom_kill "));
}

static void *answer_at_length_for_ever(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };
	char *mine = malloc(RESULT);
	long err;

	memset(mine, 'm', RESULT);
	err = serve(&serving);
	while (!err)
		err = answer(&serving, mine, RESULT);
	return NULL;
}

static void a_group_that_can_give_up_memory_has_room_for_results(void)
{
	int pool = new_pool(), door = new_door(pool);

	need_groups();
	pid_t client = CALLER(pool, {
		long got;

		join_group("client");
		fill_group();
		do
			got = call_door(door, NULL, 0, NULL, 0);
		while (got == -EOVERFLOW);
		IS(RESULT, got);
		CHECK(((char *)(uintptr_t)called.mapped)[RESULT - 1] == 'm');
	});

	start_serving(answer_at_length_for_ever, pool);
	join(client);
	IS(0, value(GROUPS "/client/memory.events", "oom_kill "));
}

static void put_back(void)
{
	for (int i = 0; i < 500 && rmdir(GROUPS "/client") && errno == EBUSY; i++)
		nap(10);
	for (int i = 0; i < 500 && rmdir(GROUPS "/server") && errno == EBUSY; i++)
		nap(10);
	umount2(GROUPS, MNT_DETACH);
	rmdir(GROUPS);
	umount2(FILES, MNT_DETACH);
	rmdir(FILES);
}

static const struct test tests[] = {
	{ "what is left for a client is charged to the client's group", the_client_pays },
	{ "a client whose group is at its limit fails alone", a_client_at_its_limit_fails_alone },
	{ "pages are charged to whose they are", pages_are_brought_by_whom_they_are_charged_to },
	{ "a door's result without room is charged to the client's group",
	  a_result_without_room_is_the_clients },
	{ "a group that can give up memory has room for replies",
	  a_group_that_can_give_up_memory_has_room_for_replies },
	{ "a group that can give up memory has room for results",
	  a_group_that_can_give_up_memory_has_room_for_results },
	{ "what a result is made of is the server's", what_a_result_is_made_of_is_the_servers },
	{ "the client pays for small writes", the_client_pays_for_small_writes },
	{ "a client whose group has no memory for its result fails alone",
	  a_client_without_memory_for_its_result_fails_alone },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
