// SPDX-License-Identifier: GPL-2.0
/*
 * A client that has its own memory locked for as long as it likes, by a page of a file whose file
 * system it is itself and which never comes, holds up nobody but itself. Nor does it by a file of that
 * which takes for ever to be closed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>

#include "door.h"
#include "fuse.h"
#include "new.h"
#include "seen.h"

#define CONTROLS "/tmp/fusectl"

static pid_t start_files(int failures)
{
	return start_files_that(failures, false);
}

static char *file_memory;

static void *touch(void *unused)
{
	(void)*(volatile char *)file_memory;
	return unused;
}

static void *map_more(void *unused)
{
	mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return unused;
}

/* Whether others have to wait for that: whoever looks at what it maps would be one. */
static bool has_locked_memory(pid_t process, pid_t *reader)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/%d/maps", process);
	*reader = fork();
	if (*reader == 0) {
		free(contents(path));
		_exit(0);
	}
	for (int i = 0; i < 100; i++) {
		if (waitpid(*reader, NULL, WNOHANG))
			return false;
		nap(5);
	}
	return true;
}

struct sender {
	int connection;
	char *room;
};

/* As how much the room for its reply is passed, of which nobody uses more than there is. */
static size_t claimed = SIZE;

static void *send_much(void *argument)
{
	struct sender *sender = argument;

	stplr_send(sender->connection, sender->room, SIZE, sender->room, claimed, NULL);
	return NULL;
}

/* Sends, and has its memory locked, once it is told to, while its message is on its way. */
static void be_a_client_that_locks(int connection, int go)
{
	struct sender sender = { connection, NULL };
	int file = open(FOLDER_OF_FILES "/file", O_RDONLY);
	pthread_t threads[3];
	char byte;

	CHECK(file >= 0);
	sender.room = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file_memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
	CHECK(sender.room != MAP_FAILED && file_memory != MAP_FAILED);
	memset(sender.room, 's', SIZE);
	OK(pthread_create(&threads[0], NULL, send_much, &sender));
	CHECK(read(go, &byte, 1) == 1);
	OK(pthread_create(&threads[1], NULL, touch, NULL));
	nap(300);
	OK(pthread_create(&threads[2], NULL, map_more, NULL));
	for (;;)
		pause();
}

/* The server has the message of such a client. */
static void answer_client(int channel, int connection, uint64_t id)
{
	static char bytes[SIZE];

	IS(SIZE, stplr_reply(channel, id, 0, bytes, SIZE));
}

/* The server has not looked at it yet, and somebody else has sent meanwhile. */
static void receive_from_another(int channel, int connection, uint64_t id)
{
	struct stplr_receive received;
	char bytes[8192];

	pid_t other = CLIENT(channel, connection,
			     IS(0, stplr_send(connection, "other", 5, NULL, 0, NULL)));

	AWAIT_LINE(FOLDER "blocked", "%d %d SEND ", other, other);
	IS(5, stplr_receive(channel, bytes, sizeof(bytes), second, &received));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(other);
}

typedef void deed(int channel, int connection, uint64_t id);

/* Whether it came to that: the client had its memory locked, and the deed was done meanwhile. */
static bool try_with(int failures, bool received, deed *deed)
{
	int channel = stplr_channel_create("fuse", 0600, 0), go[2];
	int connection = new_connection(channel, 0);
	pid_t files = start_files(failures), client, reader;
	struct stplr_receive message = { .id = 0 };
	bool locked;

	OK(pipe(go));
	client = CLIENT(channel, connection, be_a_client_that_locks(connection, go[0]));
	AWAIT_LINE(FOLDER "blocked", "%d ", client);
	if (received)
		IS(0, stplr_receive(channel, NULL, 0, second, &message));
	CHECK(write(go[1], "", 1) == 1);
	nap(700);
	locked = has_locked_memory(client, &reader);
	if (locked)
		deed(channel, connection, message.id);
	kill(files, SIGKILL);
	kill(client, SIGKILL);
	waitpid(files, NULL, 0);
	waitpid(client, NULL, 0);
	while (waitpid(reader, NULL, 0) > 0)
		;
	umount2(FOLDER_OF_FILES, MNT_DETACH);
	close(channel);
	close(connection);
	return locked;
}

/* How many reads have to fail before the kernel waits for one with the lock is the kernel's to say. */
static void with_a_client_that_locks(bool received, deed *deed)
{
	int times = 0;

	for (int failures = 0; failures < 4; failures++)
		times += try_with(failures, received, deed);
	printf("# %d times\n", times);
	if (!times)
		SKIP("here no page of a file keeps the memory locked");
}

static void a_reply_goes_out(void)
{
	with_a_client_that_locks(true, answer_client);
}

static void others_are_received_from(void)
{
	with_a_client_that_locks(false, receive_from_another);
}

static void receive_from_another_soon(int channel, int connection, uint64_t id)
{
	double start = now();

	receive_from_another(channel, connection, id);
	CHECK(now() - start < 4);
}

static void what_a_sender_claims_is_not_waited_for(void)
{
	claimed = STPLR_BYTES_MAX;
	with_a_client_that_locks(false, receive_from_another_soon);
}

static int touch_alone(void *unused)
{
	touch(unused);
	return 0;
}

/* Ends with registered memory, which another process shares, and has locked by then. */
static void be_a_client_that_leaves_memory(int connection)
{
	static char stack[65536] __attribute__((aligned(16)));
	int file = open(FOLDER_OF_FILES "/file", O_RDONLY);
	char *room = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(file >= 0 && room != MAP_FAILED);
	IS(0, stplr_register(connection, room, SIZE));
	file_memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
	CHECK(file_memory != MAP_FAILED);
	CHECK(clone(touch_alone, stack + sizeof(stack), CLONE_VM, NULL) > 0);
	nap(300);
}

/* That of others is learned of all the same. */
static void the_end_of_a_server_frees_its_client(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection,
			      IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL)));
	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		_exit(0);
	}
	join(server);
	join(client);
}

static void the_dead_are_buried(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);

	for (int failures = 0; failures < 4; failures++) {
		pid_t files = start_files(failures);
		pid_t client = CLIENT(channel, connection,
				      be_a_client_that_leaves_memory(connection));

		join(client);
		the_end_of_a_server_frees_its_client();
		kill(files, SIGKILL);
		waitpid(files, NULL, 0);
		umount2(FOLDER_OF_FILES, MNT_DETACH);
	}
}

enum { FILES = 8 };

/* Of these the server has room for some, which it has for a moment: of the file system, or a pipe's end. */
static pid_t client_with_files(int channel, int connection, int end, uid_t user)
{
	pid_t client = CLIENT(channel, connection, {
		int32_t files[FILES];
		struct stplr_send send = { .files = (uintptr_t)files,
					   .file_count = FILES,
					   .timeout_ns = -1 };

		for (int i = 0; i < FILES; i++) {
			files[i] = end >= 0 ? end : open(FOLDER_OF_FILES "/file", O_RDONLY);
			CHECK(files[i] >= 0);
		}
		OK(setresuid(user, user, user));
		stplr_send_full(connection, &send);
	});

	AWAIT_LINE(FOLDER "blocked", "%d %d SEND ", client, client);
	return client;
}

static void find_no_room(int channel)
{
	int32_t got[FILES];
	struct stplr_receive received = { .timeout_ns = second,
					  .files = (uintptr_t)got,
					  .file_room = FILES };
	int next = dup(0);

	OK(close(next));
	IS(-EMFILE, stplr_receive_full(channel, &received));
	/* All of them have been taken back, though they may not be closed yet. */
	IS(next, dup(0));
	OK(close(next));
}

static void leave_room_for_some(void)
{
	struct rlimit room;
	int next = dup(0);

	OK(close(next));
	OK(getrlimit(RLIMIT_NOFILE, &room));
	room.rlim_cur = (rlim_t)next + FILES / 2;
	OK(setrlimit(RLIMIT_NOFILE, &room));
}

/* Nor do files of another of its clients wait for those, although both are one user's. */
static void a_server_without_room_goes_on(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), pair[2];
	int another = new_channel(0), to_another = new_connection(another, 0);
	pid_t files = start_files_that(0, true), stuck, other;
	long before;
	char byte;

	stuck = client_with_files(channel, connection, -1, 0);
	OK(pipe(pair));
	other = client_with_files(another, to_another, pair[1], 0);
	close(pair[1]);
	leave_room_for_some();
	find_no_room(channel);
	before = bytes_of(0);
	find_no_room(channel);
	/* They are in the kernel until they are closed, and count. */
	CHECK(bytes_of(0) > before);
	find_no_room(another);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	IS(0, read(pair[0], &byte, 1));
	kill(files, SIGKILL);
	waitpid(files, NULL, 0);
	kill(stuck, SIGKILL);
	waitpid(stuck, NULL, 0);
}

/* Each of which has as many closes that do not come to their end as are waited for at a time. */
static void so_many_users_hold_up_no_other(void)
{
	enum { USERS = 64, CLOSES = 8 };
	int channels[USERS], another = new_channel(0), to_another = new_connection(another, 0);
	int connection, pair[2];
	pid_t files = start_files_that(0, true), clients[USERS], other;
	char byte;

	for (int i = 0; i < USERS; i++) {
		channels[i] = new_channel(0);
		connection = new_connection(channels[i], 0);
		clients[i] = client_with_files(channels[i], connection, -1, 1000 + (uid_t)i);
		close(connection);
	}
	OK(pipe(pair));
	other = client_with_files(another, to_another, pair[1], 999);
	close(pair[1]);
	leave_room_for_some();
	for (int i = 0; i < USERS * CLOSES; i++)
		find_no_room(channels[i / CLOSES]);
	find_no_room(another);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	IS(0, read(pair[0], &byte, 1));
	kill(files, SIGKILL);
	waitpid(files, NULL, 0);
	/* Until all of it is closed the module cannot go. */
	for (int i = 0; i < USERS; i++) {
		kill(clients[i], SIGKILL);
		waitpid(clients[i], NULL, 0);
		while (bytes_of(1000 + (uid_t)i) > 0)
			nap(10);
	}
	nap(100);
}

/* A server of another user that answers with such files, to all who call. */
static pid_t server_with_files(int *door, uid_t user)
{
	int pair[2];

	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t server = CLIENT(pair[1], 0, {
		struct stplr_pool_create create = {};
		struct stplr_door_desc files[FILES];
		struct serving serving = {};
		int device = open("/dev/door", O_RDWR);

		for (int i = 0; i < FILES; i++) {
			files[i] = passed(open(FOLDER_OF_FILES "/file", O_RDONLY));
			CHECK(files[i].fd >= 0);
		}
		OK(setresuid(user, user, user));
		serving.pool = ioctl(device, STPLR_POOL_CREATE, &create);
		CHECK(serving.pool >= 0 && send_door(pair[0], new_door(serving.pool), 0));
		for (;;) {
			IS(0, serve(&serving));
			serving.arguments.descriptors = (uintptr_t)files;
			serving.arguments.count = FILES;
		}
	});

	close(pair[0]);
	*door = receive_door(pair[1], 0);
	CHECK(*door >= 0);
	return server;
}

static void a_servers_files_hold_up_none_of_its_client(void)
{
	enum { CLOSES = 8, USER = 4242 };
	int channel = new_channel(0), connection = new_connection(channel, 0), pair[2], door;
	pid_t files = start_files_that(0, true), server, other;
	struct stplr_door_desc got[FILES];
	char byte;

	server = server_with_files(&door, USER);
	OK(pipe(pair));
	other = client_with_files(channel, connection, pair[1], 0);
	close(pair[1]);
	leave_room_for_some();
	for (int i = 0; i < CLOSES; i++)
		IS(-EMFILE, call_with(door, (struct stplr_door_call){ .received = (uintptr_t)got,
								      .received_room = FILES }));
	find_no_room(channel);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	IS(0, read(pair[0], &byte, 1));
	kill(files, SIGKILL);
	waitpid(files, NULL, 0);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	/* Until all of it is closed the module cannot go. */
	close(door);
	while (bytes_of(USER) > 0)
		nap(10);
}

/* Those of a mount go with it and are not deleted: what is attached to them would stay, and the module with it. */
static void files_that_govern_a_mount_lead_to_no_door(void)
{
	int door = new_door(new_pool()), err;
	pid_t files = start_files(0);
	struct stplr_door_path arguments;
	struct stat status;
	char path[80];

	OK(stat(FOLDER_OF_FILES, &status));
	CHECK(!mkdir(CONTROLS, 0700) || errno == EEXIST);
	OK(mount("none", CONTROLS, "fusectl", 0, NULL));
	snprintf(path, sizeof(path), CONTROLS "/%u/max_background", minor(status.st_dev));
	arguments = (struct stplr_door_path){ .fd = open(path, O_RDWR | O_CLOEXEC) };
	CHECK(arguments.fd >= 0);
	err = ioctl(door, STPLR_DOOR_ATTACH, &arguments) ? errno : 0;
	close(arguments.fd);
	kill(files, SIGKILL);
	waitpid(files, NULL, 0);
	IS(EINVAL, err);
}

static void put_back(void)
{
	/* With the mount goes what is attached there after all. */
	umount2(CONTROLS, MNT_DETACH);
	umount2(FOLDER_OF_FILES, MNT_DETACH);
	rmdir(FOLDER_OF_FILES);
}

int main(void)
{
	static const struct test tests[] = {
		{ "a client that has its memory locked is answered", a_reply_goes_out },
		{ "a sender that has its memory locked is passed over", others_are_received_from },
		{ "nor is it waited for because it claims to be much",
		  what_a_sender_claims_is_not_waited_for },
		{ "who left registered memory that is locked is buried, and others too",
		  the_dead_are_buried },
		{ "a server that has no room for files is not held by them",
		  a_server_without_room_goes_on },
		{ "nor are other users' files by those of many", so_many_users_hold_up_no_other },
		{ "nor are a client's by those of its server", a_servers_files_hold_up_none_of_its_client },
		{ "files that govern a mount lead to no door",
		  files_that_govern_a_mount_lead_to_no_door },
	};

	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
