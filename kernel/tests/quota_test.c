// SPDX-License-Identifier: GPL-2.0
/* What a user may hold of the kernel's memory, and whose it is. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "new.h"
#include "old.h"
#include "seen.h"

/* Enough for all that a test needs, and too little for anything. */
#define PLENTY "67108864"
#define NOTHING "1"

#define FILES "/tmp/quota-files"

/*
 * Who is charged and refused from here on. Root may be again, for it is root that sets limits, but
 * is not privileged meanwhile.
 */
static void be(uid_t uid)
{
	OK(setresuid(0, 0, 0));
	OK(setresuid(uid, uid, 0));
}

static void limit(const char *bytes)
{
	uid_t ruid, euid, suid;

	OK(getresuid(&ruid, &euid, &suid));
	OK(setresuid(0, 0, 0));
	write_to(PARAMETERS "user_bytes", bytes);
	OK(setresuid(ruid, euid, suid));
}

static long held_by(uid_t uid)
{
	uid_t ruid, euid, suid;
	long bytes;

	OK(getresuid(&ruid, &euid, &suid));
	OK(setresuid(0, 0, 0));
	bytes = bytes_of(uid);
	OK(setresuid(ruid, euid, suid));
	return bytes;
}

/* What goes last may go a little after its process. */
static void await_nothing_held_by(uid_t uid)
{
	while (held_by(uid))
		nap(2);
}

/* Of something that takes memory and is a descriptor. */
static void takes(bool refused, int fd)
{
	CHECK(refused ? fd == -EDQUOT : fd >= 0);
	if (fd >= 0)
		close(fd);
}

/* Of a message that nobody receives. */
static void sends(bool refused, int connection, struct stplr_buffer buffer)
{
	struct stplr_send send = { .send = buffer };

	IS(refused ? -EDQUOT : -ETIMEDOUT, stplr_send_full(connection, &send));
}

/* The same with a descriptor, for whoever has sent it may close it meanwhile. */
static void sends_file(bool refused, int connection)
{
	int32_t file = 0;
	struct stplr_send send = { .files = (uintptr_t)&file, .file_count = 1 };

	IS(refused ? -EDQUOT : -ETIMEDOUT, stplr_send_full(connection, &send));
}

static void each_takes_memory(bool refused, int channel, int connection)
{
	static char memory[4096];
	struct stplr_part three[3] = { stplr_part("a", 1), stplr_part("b", 1),
				       stplr_part("c", 1) };

	takes(refused, stplr_channel_create(NULL, 0, 0));
	takes(refused, stplr_channel_connect(channel, 0));
	takes(refused, stplr_connect("3001/seen"));
	sends(refused, connection, stplr_bytes(memory, 257));
	sends(refused, connection, stplr_vector(three, 3));
	sends_file(refused, connection);
	IS(refused ? -EDQUOT : 0, stplr_register(connection, memory, sizeof(memory)));
	IS(refused ? -EDQUOT : 0, stplr_pulse(connection, 1, 1));
	IS(refused ? -EDQUOT : 0, stplr_death(connection, channel, 1));
}

static void what_takes_memory_is_refused(void)
{
	struct stplr_receive received;

	be(3001);
	int channel = stplr_channel_create("3001/seen", 0600, 0);
	int connection = new_connection(channel, 0);

	/* A message is kept for the next. */
	sends(false, connection, stplr_bytes("few", 3));
	long before = held_by(3001);

	CHECK(before > 0);
	limit(NOTHING);
	each_takes_memory(true, channel, connection);
	sends(false, connection, stplr_bytes("few", 3));
	IS(-EDQUOT, stplr_receive(channel, NULL, 0, 0, &received));
	IS(before, held_by(3001));
	limit(PLENTY);
	each_takes_memory(false, channel, connection);
	CHECK(held_by(3001) > before);
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	CHECK(received.pulse && received.code == 1);
	close(connection);
	close(channel);
	await_nothing_held_by(3001);
}

static void what_takes_memory_beside_a_message_is_refused(void)
{
	static char bytes[300];
	struct stplr_msg many = { bytes, sizeof(bytes) }, few = { bytes, 200 };
	pid_t server = echo_server(sizeof(bytes));

	be(3002);
	struct party me = enter();

	OK(old_call(&me, server, server, &few, 1, &few, 1));
	long before = held_by(3002);

	limit(NOTHING);
	FAILS(EDQUOT, old_call(&me, server, server, &many, 1, NULL, 0));
	FAILS(EDQUOT, old_send(&me, server, server, &many, 1));
	OK(old_call(&me, server, server, &few, 1, &few, 1));
	IS(before, held_by(3002));
	limit(PLENTY);
	many.buflen = sizeof(bytes);
	OK(old_call(&me, server, server, &many, 1, &many, 1));
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	close(me.fd);
	await_nothing_held_by(3002);
}

static void nodes_and_handles_count(void)
{
	struct stplr_handle handle;

	be(3003);
	limit(NOTHING);
	FAILS(EDQUOT, open("/dev/stplr-0", O_RDWR));
	limit(PLENTY);
	int node = open("/dev/stplr-0", O_RDWR);
	long before = held_by(3003);

	CHECK(node >= 0 && before > 0);
	limit(NOTHING);
	FAILS(EDQUOT, ioctl(node, STPLR_HANDLE_GET, &handle));
	IS(before, held_by(3003));
	limit(PLENTY);
	OK(ioctl(node, STPLR_HANDLE_GET, &handle));
	CHECK(held_by(3003) > before);
	OK(ioctl(node, STPLR_HANDLE_PUT, &handle));
	while (held_by(3003) != before)
		nap(2);
	OK(ioctl(node, STPLR_HANDLE_GET, &handle));
	close(node);
	await_nothing_held_by(3003);
}

static void who_may_exceed_limits_is_counted(void)
{
	long before = settled_bytes_of(0);

	limit(NOTHING);
	int channel = new_channel(0);

	CHECK(bytes_of(0) > before);
	close(channel);
	IS(before, bytes_of(0));
}

static void root_of_a_namespace_is_refused(void)
{
	if (access("/proc/self/ns/user", F_OK))
		SKIP("this kernel has no user namespaces");
	limit(NOTHING);
	OK(setgid(3004));
	OK(setuid(3004));
	if (unshare(CLONE_NEWUSER))
		SKIP("users may not make user namespaces here");
	IS(-EDQUOT, stplr_channel_create(NULL, 0, 0));
}

/* By the parent, of a child that has made a user namespace: its own number and a hundred others. */
static void map_numbers(pid_t child, uid_t own)
{
	char path[40], map[60];

	snprintf(path, sizeof(path), "/proc/%d/uid_map", child);
	snprintf(map, sizeof(map), "0 %u 1\n1 100000 100\n", own);
	write_to(path, map);
}

static void numbers_of_a_namespace_are_its_makers(void)
{
	int ready[2], go[2];
	char byte;

	if (access("/proc/self/ns/user", F_OK))
		SKIP("this kernel has no user namespaces");
	OK(pipe(ready));
	OK(pipe(go));
	long before = held_by(100000 + 41);

	pid_t child = fork();

	if (child == 0) {
		OK(setresuid(3007, 3007, 3007));
		OK(unshare(CLONE_NEWUSER));
		CHECK(write(ready[1], "", 1) == 1);
		CHECK(read(go[0], &byte, 1) == 1);
		/* 100041 to everybody else. */
		OK(setresuid(42, 42, 42));
		CHECK(stplr_channel_create(NULL, 0, 0) >= 0);
		CHECK(write(ready[1], "", 1) == 1);
		CHECK(read(go[0], &byte, 1) == 1);
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	map_numbers(child, 3007);
	CHECK(write(go[1], "", 1) == 1);
	CHECK(read(ready[0], &byte, 1) == 1);
	CHECK(held_by(3007) > 0);
	IS(before, held_by(100041));
	CHECK(write(go[1], "", 1) == 1);
	join(child);
	await_nothing_held_by(3007);
}

static void pulses_of_a_user_are_bounded(void)
{
	enum { EACH = 256, ALL = 16384 };
	int channel = new_channel(0);
	struct stplr_receive received;

	be(3008);
	for (int i = 0; i < ALL / EACH; i++) {
		int connection = new_connection(channel, 0);

		for (int n = 0; n < EACH; n++)
			IS(0, stplr_pulse(connection, 1, n));
		IS(-EAGAIN, stplr_pulse(connection, 1, 0));
		/* Its pulses stay. */
		close(connection);
	}
	int connection = new_connection(channel, 0);

	IS(-EAGAIN, stplr_pulse(connection, 1, 0));
	/* Other channels are not concerned, and neither are other users. */
	int elsewhere = new_channel(0);

	IS(0, stplr_pulse(new_connection(elsewhere, 0), 1, 0));
	be(3009);
	IS(0, stplr_pulse(new_connection(channel, 0), 1, 0));
	be(3008);
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	IS(0, stplr_pulse(connection, 1, 0));
	IS(-EAGAIN, stplr_pulse(connection, 1, 0));
	close(channel);
	IS(-ESRCH, stplr_pulse(connection, 1, 0));
}

/* Whether they are queued or kept ready for the end of a connection. */
static void ends_of_connections_are_bounded(void)
{
	enum { ALL = 16384 };
	int channel = new_channel(STPLR_CHANNEL_DISCONNECT), count = 0, connection;
	struct stplr_receive received;

	be(3010);
	while ((connection = stplr_channel_connect(channel, 7)) >= 0) {
		close(connection);
		CHECK(++count <= ALL);
	}
	IS(-EAGAIN, connection);
	IS(ALL, count);
	be(3011);
	CHECK(stplr_channel_connect(channel, 8) >= 0);
	be(3010);
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	CHECK(received.code == STPLR_PULSE_DISCONNECT && received.value == 7);
	connection = new_connection(channel, 7);
	IS(-EAGAIN, stplr_channel_connect(channel, 7));
	IS(-EAGAIN, stplr_pulse(connection, 1, 0));
}

/* On a channel that is told of clients who want to leave, by those who are killed thereafter. */
static void clients_that_want_to_leave_are_bounded(void)
{
	enum { ALL = 16384 };
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK);
	struct stplr_receive received;

	be(3012);
	int connection = new_connection(channel, 0);

	for (int i = 0; i < ALL / 256; i++) {
		int other = new_connection(channel, 0);

		for (int n = 0; n < 256; n++)
			IS(0, stplr_pulse(other, 1, 0));
		close(other);
	}
	IS(-EAGAIN, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	struct stplr_send send = { .timeout_ns = 0 };

	IS(-ETIMEDOUT, stplr_send_full(connection, &send));
}

/*
 * Memory that servers do not reach into: replies there that are too long for their first place wait
 * with the kernel.
 */
enum { SIZE = 64 * 4096 };

static char *memory_of_a_file(void)
{
	mkdir(FILES, 0700);
	OK(mount("files", FILES, "ramfs", 0, NULL));
	int file = open(FILES "/one", O_CREAT | O_EXCL | O_RDWR, 0600);

	CHECK(file >= 0);
	OK(ftruncate(file, SIZE));
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	CHECK(memory != MAP_FAILED);
	memset(memory, 0, SIZE);
	close(file);
	return memory;
}

/* A client that gets many bytes, or whose call fails with an error. */
static pid_t client_of(int channel, int connection, uid_t uid, char *memory, int error)
{
	return CLIENT(channel, connection, {
		be(uid);
		IS(error ? -error : SIZE, stplr_send(connection, "x", 1, memory, SIZE, NULL));
		CHECK(error || (memory[0] == 'r' && memory[SIZE - 1] == 'r'));
	});
}

/* By a server of one user, to a client of another that is at its limit. */
static void a_reply_beyond_the_limit(uid_t server, uid_t user, int error)
{
	char *memory = memory_of_a_file(), *mine = malloc(SIZE);
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	memset(mine, 'r', SIZE);
	pid_t client = client_of(channel, connection, user, memory, error);

	be(server);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	limit(NOTHING);
	CHECK(stplr_reply(channel, received.id, 0, mine, SIZE) >= 0);
	join(client);
	limit(PLENTY);
	close(connection);
	close(channel);
	await_nothing_held_by(3005);
	await_nothing_held_by(3006);
}

static void a_reply_is_its_clients(void)
{
	a_reply_beyond_the_limit(3005, 3006, EDQUOT);
}

static void a_servers_privilege_does_not_count(void)
{
	a_reply_beyond_the_limit(0, 3006, EDQUOT);
}

static void a_clients_privilege_does(void)
{
	a_reply_beyond_the_limit(3005, 0, 0);
}

static void a_short_reply_needs_none(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char room[256];

	pid_t client = CLIENT(channel, connection, {
		be(3006);
		IS(256, stplr_send(connection, "x", 1, room, 256, NULL));
	});
	be(3005);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	limit(NOTHING);
	IS(256, stplr_reply(channel, received.id, 0, room, 256));
	join(client);
}

static void what_a_server_writes_is_its_clients(void)
{
	char *memory = memory_of_a_file(), *mine = malloc(SIZE);
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	memset(mine, 'r', SIZE);
	pid_t client = client_of(channel, connection, 3006, memory, 0);

	be(3005);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	long servers = held_by(3005), clients = held_by(3006);

	limit(NOTHING);
	IS(-EDQUOT, stplr_write(channel, received.id, 0, mine, SIZE));
	IS(clients, held_by(3006));
	limit(PLENTY);
	IS(SIZE, stplr_write(channel, received.id, 0, mine, SIZE));
	CHECK(held_by(3006) >= clients + SIZE && held_by(3005) == servers);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
	close(connection);
	await_nothing_held_by(3006);
}

static void a_reply_by_a_handle_is_its_clients(void)
{
	char *memory = memory_of_a_file();
	struct stplr_msg msg = { malloc(SIZE), SIZE };
	struct stplr_msg_receive from;
	int ready[2];
	char c;

	OK(pipe(ready));
	be(3005);
	struct party me = enter();
	pid_t child = fork();

	if (child == 0) {
		close(me.fd);
		be(3006);
		struct party client = enter();
		struct stplr_msg room = { memory, SIZE };

		CHECK(write(ready[1], "x", 1) == 1);
		FAILS(EDQUOT, old_call(&client, me.pid, me.tid, NULL, 0, &room, 1));
		_exit(0);
	}
	CHECK(read(ready[0], &c, 1) == 1);
	OK(old_receive(&me, NULL, 0, &from));
	limit(NOTHING);
	OK(old_reply(&me, child, child, &msg, 1));
	join(child);
	await_nothing_held_by(3006);
}

static mode_t mode_of_control, mode_of_node;

static void open_to_all(void)
{
	struct stat status;

	OK(stat("/dev/stplr", &status));
	mode_of_control = status.st_mode & 07777;
	OK(stat("/dev/stplr-0", &status));
	mode_of_node = status.st_mode & 07777;
	OK(chmod("/dev/stplr", 0666));
	OK(chmod("/dev/stplr-0", 0666));
}

static void put_back(void)
{
	write_to(PARAMETERS "user_bytes", PLENTY);
	umount2(FILES, MNT_DETACH);
	rmdir(FILES);
}

static const struct test tests[] = {
	{ "what takes memory is refused at the limit", what_takes_memory_is_refused },
	{ "what messages by handles take is refused at the limit",
	  what_takes_memory_beside_a_message_is_refused },
	{ "nodes and handles count", nodes_and_handles_count },
	{ "who may exceed limits is counted", who_may_exceed_limits_is_counted },
	{ "root of a user namespace is refused as any user", root_of_a_namespace_is_refused },
	{ "all numbers of a user namespace count for its maker", numbers_of_a_namespace_are_its_makers },
	{ "pulses of a user to a channel are bounded, over all connections",
	  pulses_of_a_user_are_bounded },
	{ "ends of connections are bounded", ends_of_connections_are_bounded },
	{ "clients that want to leave are bounded", clients_that_want_to_leave_are_bounded },
	{ "a reply that the client's user has no room for fails the client's call",
	  a_reply_is_its_clients },
	{ "there a server's privilege does not count", a_servers_privilege_does_not_count },
	{ "there a client's privilege does", a_clients_privilege_does },
	{ "a short reply needs no room", a_short_reply_needs_none },
	{ "what a server writes is its client's", what_a_server_writes_is_its_clients },
	{ "a reply by a handle is its client's", a_reply_by_a_handle_is_its_clients },
};

int main(void)
{
	int result;

	open_to_all();
	result = run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
	OK(chmod("/dev/stplr", mode_of_control));
	OK(chmod("/dev/stplr-0", mode_of_node));
	return result;
}
