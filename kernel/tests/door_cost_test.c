// SPDX-License-Identifier: GPL-2.0
/* For whom counts what calls of doors leave behind, and who closes what nobody has taken of an answer. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mman.h>

#include "door.h"
#include "linger.h"
#include "seen.h"
#include "stop.h"
#include "watch.h"

#define PLENTY "67108864"
#define NOTHING "1"

enum { SERVER_USER = 3021, CLIENT_USER = 3022 };

/* A pool of another user's, by a process that ends with it. */
static int pool_of(uid_t user)
{
	struct stplr_pool_create create = {};
	int device = open("/dev/door", O_RDWR | O_CLOEXEC), pool;

	CHECK(device >= 0);
	OK(setresuid(user, user, user));
	pool = ioctl(device, STPLR_POOL_CREATE, &create);
	CHECK(pool >= 0);
	return pool;
}

enum { DOORS = 20 };

static pid_t server_of(uid_t user, int *doors)
{
	int pair[2];

	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t server = fork();

	if (server == 0) {
		int pool = pool_of(user);

		for (int i = 0; i < DOORS; i++)
			CHECK(send_door(pair[0], new_door(pool), 0));
		close(pair[0]);
		close(pair[1]);
		echo_for_ever(pool);
		_exit(0);
	}
	close(pair[0]);
	for (int i = 0; i < DOORS; i++)
		CHECK((doors[i] = receive_door(pair[1], 0)) >= 0);
	close(pair[1]);
	return server;
}

static void what_belongs_to_others_keeps_nothing_of_a_caller(void)
{
	int doors[DOORS], channel = new_channel(0), connection = new_connection(channel, 0);
	pid_t server = server_of(SERVER_USER, doors);
	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .timeout_ns = 0 };

		OK(setresuid(CLIENT_USER, CLIENT_USER, CLIENT_USER));
		for (int i = 0; i < DOORS; i++)
			IS(0, knock(doors[i]));
		IS(-ETIMEDOUT, stplr_send_full(connection, &send));
	});

	join(client);
	IS(0, settled_bytes_of(CLIENT_USER));
	OK(kill(server, 0));
}

/* A server that answers one call with descriptors, which it closes then, or another thread does meanwhile. */
struct answering {
	int door; /* socket that it passes its door by */
	int end;
	unsigned int count; /* of descriptors, all of the same file */
	bool meanwhile;
	int received, go, answered; /* pipes; go < 0: at once */
};

static char *held_back;
static int faults;

static void *close_meanwhile(void *argument)
{
	const struct answering *answering = argument;
	struct uffdio_zeropage page = { .range = { (uintptr_t)held_back, 4096 } };

	await_fault(faults);
	OK(close(answering->end));
	OK(ioctl(faults, UFFDIO_ZEROPAGE, &page));
	return NULL;
}

static void be_a_server_that_answers(struct answering *answering)
{
	struct serving serving = { .pool = pool_of(SERVER_USER) };
	struct stplr_door_desc *files = calloc(answering->count, sizeof(*files));
	pthread_t thread;
	char byte;

	for (unsigned int i = 0; i < answering->count; i++)
		files[i] = passed(answering->end);
	CHECK(send_door(answering->door, new_door(serving.pool), 0));
	IS(0, serve(&serving));
	CHECK(write(answering->received, "x", 1) == 1);
	if (answering->go >= 0)
		CHECK(read(answering->go, &byte, 1) == 1);
	serving.arguments.descriptors = (uintptr_t)files;
	serving.arguments.count = answering->count;
	if (answering->meanwhile) {
		OK(pthread_create(&thread, NULL, close_meanwhile, answering));
		serving.arguments.data = (uintptr_t)held_back;
		serving.arguments.size = 64;
		finish(&serving);
		OK(pthread_join(thread, NULL));
	} else {
		finish(&serving);
		OK(close(answering->end));
	}
	CHECK(write(answering->answered, "x", 1) == 1);
	pause();
}

/* Of which the caller has the other ends. */
struct server {
	int door, received, go, answered;
};

static struct server start_answering(int end, int peer, unsigned int count, bool at_once, bool meanwhile)
{
	int pair[2], received[2], go[2], answered[2];
	struct server server;

	need_userfaultfd();
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	OK(pipe(received));
	OK(pipe(go));
	OK(pipe(answered));
	if (fork() == 0) {
		struct answering answering = { .door = pair[0],
					       .end = end,
					       .count = count,
					       .meanwhile = meanwhile,
					       .received = received[1],
					       .go = at_once ? -1 : go[0],
					       .answered = answered[1] };

		close(peer);
		/* While it is root. */
		held_back = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				 -1, 0);
		CHECK(held_back != MAP_FAILED);
		faults = watch(held_back, 4096);
		be_a_server_that_answers(&answering);
	}
	OK(close(end));
	server = (struct server){ receive_door(pair[1], 0), received[0], go[1], answered[0] };
	CHECK(server.door >= 0);
	return server;
}

static void await_byte(int pipe)
{
	char byte;

	CHECK(read(pipe, &byte, 1) == 1);
}

/* Else it would be an hour. */
static void files_that_are_not_taken_hold_up_no_client(void)
{
	int peer, end = lingering_socket(3600, &peer);
	struct server server = start_answering(end, peer, 1, true, true);
	char room[64];

	IS(-EOVERFLOW, call_door(server.door, NULL, 0, room, sizeof(room)));
	await_byte(server.answered);
	close(peer);
}

static int call_and_wait(void *door)
{
	struct stplr_door_desc got[4];
	char room[64];

	call_with(*(int *)door, (struct stplr_door_call){ .room = (uintptr_t)room,
							  .room_size = sizeof(room),
							  .received = (uintptr_t)got,
							  .received_room = 4 });
	return 0;
}

/* A client that is stopped in its call. Its end closes nothing: its descriptors are the caller's as well. */
static pid_t stopped_client(struct server *server)
{
	static char stack[65536] __attribute__((aligned(16)));
	pid_t client = clone(call_and_wait, stack + sizeof(stack), CLONE_FILES | SIGCHLD,
			     &server->door);

	CHECK(client > 0);
	await_byte(server->received);
	stop(client);
	return client;
}

static void files_of_an_answer_count_until_they_are_closed(void)
{
	enum { COUNT = 100 };
	int peer, end = lingering_socket(3600, &peer);
	struct server server = start_answering(end, peer, COUNT, false, false);
	pid_t client = stopped_client(&server);
	long before = settled_bytes_of(SERVER_USER);

	CHECK(write(server.go, "x", 1) == 1);
	await_byte(server.answered);
	IS(before, bytes_of(SERVER_USER));
	OK(kill(client, SIGKILL));
	CHECK(waitpid(client, NULL, 0) == client);
	while (bytes_of(SERVER_USER) < before + COUNT * (long)sizeof(void *))
		nap(2);
	close(peer);
	while (bytes_of(SERVER_USER) != before)
		nap(2);
}

static void files_beyond_the_limit_are_not_kept(void)
{
	struct server server;
	int ends[2];
	char byte;

	OK(pipe(ends));
	server = start_answering(ends[1], ends[0], 1, false, false);
	pid_t client = stopped_client(&server);

	write_to(PARAMETERS "user_bytes", NOTHING);
	CHECK(write(server.go, "x", 1) == 1);
	/* The client is where it was. */
	IS(0, read(ends[0], &byte, 1));
	OK(kill(client, SIGKILL));
	CHECK(waitpid(client, NULL, 0) == client);
}

static void put_back(void)
{
	write_to(PARAMETERS "user_bytes", PLENTY);
}

static const struct test tests[] = {
	{ "what belongs to others keeps nothing of a caller",
	  what_belongs_to_others_keeps_nothing_of_a_caller },
	{ "files of an answer that are not taken hold up no client",
	  files_that_are_not_taken_hold_up_no_client },
	{ "files of an answer count until they are closed",
	  files_of_an_answer_count_until_they_are_closed },
	{ "files of an answer beyond the limit are not kept", files_beyond_the_limit_are_not_kept },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
