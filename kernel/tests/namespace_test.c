// SPDX-License-Identifier: GPL-2.0
/* By what numbers processes and users know each other that live in different namespaces. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/stat.h>

#include "new.h"
#include "old.h"

/* What this process forks from here on lives in a namespace of its own, the first as number 1. */
static void put_children_elsewhere(void)
{
	if (access("/proc/self/ns/pid", F_OK))
		SKIP("this kernel has no pid namespaces");
	OK(unshare(CLONE_NEWPID));
}

static void who_receives_outside_sees_the_numbers_there(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	put_children_elsewhere();
	pid_t client = CLIENT(channel, connection, {
		CHECK(getpid() == 1);
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(client != 1 && received.pid == client && received.tid == client);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

static void who_receives_inside_sees_nobody_from_outside(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	pid_t outside = CLIENT(channel, connection, {
		IS(0, stplr_send(connection, "out", 3, NULL, 0, NULL));
	});
	put_children_elsewhere();
	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		CHECK(received.pid == 0 && received.tid == 0 && received.length == 3);
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		pid_t inside = CLIENT(channel, connection, {
			IS(0, stplr_send(connection, "in", 2, NULL, 0, NULL));
		});
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		CHECK(received.pid == inside && received.tid == inside && received.length == 2);
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(inside);
		_exit(0);
	}
	join(outside);
	join(server);
}

static void handles_are_found_by_the_numbers_of_who_asks(void)
{
	struct party me = enter();
	int ready[2];
	char c;

	OK(pipe(ready));
	put_children_elsewhere();
	pid_t server = fork();

	if (server == 0) {
		close(me.fd);
		struct party mine = enter();
		struct stplr_msg_receive from;
		pid_t client = fork();

		CHECK(mine.pid == 1);
		if (client == 0) {
			close(mine.fd);
			struct party inside = enter();

			FAILS(ENODEV, old_send(&inside, me.pid, me.tid, NULL, 0));
			OK(old_call(&inside, 1, 1, NULL, 0, NULL, 0));
			_exit(0);
		}
		OK(old_receive(&mine, NULL, 0, &from));
		CHECK(from.pid == client && from.tid == client && client != 1);
		OK(old_reply(&mine, client, client, NULL, 0));
		join(client);
		CHECK(write(ready[1], "x", 1) == 1);
		OK(old_receive(&mine, NULL, 0, &from));
		CHECK(from.pid == 0 && from.tid == 0 && !from.reply_required);
		_exit(0);
	}
	CHECK(read(ready[0], &c, 1) == 1);
	FAILS(ENODEV, old_send(&me, 1, 1, NULL, 0));
	/* It could not be answered. */
	FAILS(ENODEV, old_call(&me, server, server, NULL, 0, NULL, 0));
	OK(old_send(&me, server, server, NULL, 0));
	join(server);
}

static void a_map(pid_t process, const char *which)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/%d/%s", process, which);
	FILE *file = fopen(path, "w");

	CHECK(file && fputs("0 100000 10", file) >= 0);
	OK(fclose(file));
}

/* On to a user namespace where 100000 to 100009 are 0 to 9, and there to be user and group id. */
static void become_inside(unsigned int id)
{
	pid_t me = getpid();
	int unshared[2];
	char c;

	OK(pipe(unshared));
	pid_t helper = fork();

	if (helper == 0) {
		CHECK(read(unshared[0], &c, 1) == 1);
		a_map(me, "uid_map");
		a_map(me, "gid_map");
		_exit(0);
	}
	OK(unshare(CLONE_NEWUSER));
	CHECK(write(unshared[1], "x", 1) == 1);
	join(helper);
	OK(setgid(id));
	OK(setuid(id));
}

static void become(unsigned int id)
{
	OK(setgid(id));
	OK(setuid(id));
}

static void need_user_namespaces(void)
{
	if (access("/proc/self/ns/user", F_OK))
		SKIP("this kernel has no user namespaces");
}

static void who_receives_outside_sees_the_users_there(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	need_user_namespaces();
	pid_t client = CLIENT(channel, connection, {
		become_inside(3);
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.uid == 100003 && received.gid == 100003);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

static void who_receives_inside_sees_users_as_they_are_mapped(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	static const unsigned int outside[] = { 100003, 0, 1000 }, inside[] = { 3, 65534, 65534 };
	struct stplr_receive received;

	need_user_namespaces();
	pid_t server = fork();

	if (server == 0) {
		become_inside(0);
		for (int i = 0; i < 3; i++) {
			IS(0, stplr_receive(channel, NULL, 0, second, &received));
			CHECK(received.uid == inside[i] && received.gid == inside[i]);
			IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		}
		_exit(0);
	}
	for (int i = 0; i < 3; i++)
		join(CLIENT(channel, connection, {
			become(outside[i]);
			IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		}));
	join(server);
}

static void open_to_all(void)
{
	OK(chmod("/dev/stplr", 0666));
}

static void root_of_a_namespace_is_one_user_of_many(void)
{
	int channel = stplr_channel_create("root's", 0600, 0), ready[2];
	char c;

	need_user_namespaces();
	open_to_all();
	OK(pipe(ready));
	pid_t owner = fork();

	if (owner == 0) {
		become(100000);
		CHECK(stplr_channel_create("100000/its", 0600, 0) >= 0);
		CHECK(stplr_channel_create("100000/nobody's", 0, 0) >= 0);
		IS(-EACCES, stplr_channel_create("nobody's", 0, 0));
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(channel >= 0 && read(ready[0], &c, 1) == 1);
	pid_t child = fork();

	if (child == 0) {
		become_inside(0);
		IS(-EACCES, stplr_connect("root's"));
		IS(-EACCES, stplr_connect("100000/nobody's"));
		CHECK(stplr_connect("100000/its") >= 0);
		IS(-EACCES, stplr_channel_create("0/clock", 0600, 0));
		CHECK(stplr_channel_create("100000/clock", 0600, 0) >= 0);
		_exit(0);
	}
	join(child);
}

/* In a user namespace a program cannot know by which number. */
static void names_can_be_of_the_caller_itself(void)
{
	int outside = stplr_channel_create("~/clock", 0600, 0);
	char longest[STPLR_NAME_MAX];

	need_user_namespaces();
	open_to_all();
	CHECK(outside >= 0 && stplr_connect("0/clock") >= 0 && stplr_connect("~/clock") >= 0);
	memset(longest, 'x', sizeof(longest) - 1);
	memcpy(longest, "~/", 2);
	longest[sizeof(longest) - 1] = 0;
	CHECK(stplr_channel_create(longest, 0600, 0) >= 0);
	pid_t child = fork();

	if (child == 0) {
		become_inside(3);
		IS(-ENOENT, stplr_connect("~/clock"));
		CHECK(stplr_channel_create("~/clock", 0600, 0) >= 0);
		CHECK(stplr_connect("~/clock") >= 0 && stplr_connect("100003/clock") >= 0);
		IS(-ENAMETOOLONG, stplr_channel_create(longest, 0600, 0));
		IS(-ENAMETOOLONG, stplr_connect(longest));
		_exit(0);
	}
	join(child);
}

static void groups_are_the_same_across_namespaces(void)
{
	int ready[2];
	char c;

	need_user_namespaces();
	open_to_all();
	OK(pipe(ready));
	pid_t owner = fork();

	if (owner == 0) {
		become(100002);
		CHECK(stplr_channel_create("100002/the group's", 0060, 0) >= 0);
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], &c, 1) == 1);
	pid_t child = fork();

	if (child == 0) {
		become_inside(0);
		IS(-EACCES, stplr_connect("100002/the group's"));
		OK(setgid(2));
		CHECK(stplr_connect("100002/the group's") >= 0);
		_exit(0);
	}
	join(child);
}

static void names_are_those_of_an_ipc_namespace(void)
{
	int channel = stplr_channel_create("clock", 0666, 0);

	if (access("/proc/self/ns/ipc", F_OK))
		SKIP("this kernel has no IPC namespaces");
	CHECK(channel >= 0);
	pid_t child = fork();

	if (child == 0) {
		OK(unshare(CLONE_NEWIPC));
		IS(-ENOENT, stplr_connect("clock"));
		int other = stplr_channel_create("clock", 0666, 0);

		CHECK(other >= 0 && stplr_connect("clock") >= 0);
		IS(-EADDRINUSE, stplr_channel_create("clock", 0666, 0));
		_exit(0);
	}
	join(child);
	CHECK(stplr_connect("clock") >= 0);
}

/* Where it made the namespace, though it is root nowhere else. */
static void names_are_taken_by_who_rules_there(void)
{
	need_user_namespaces();
	if (access("/proc/self/ns/ipc", F_OK))
		SKIP("this kernel has no IPC namespaces");
	open_to_all();
	pid_t child = fork();

	if (child == 0) {
		become_inside(0);
		IS(-EACCES, stplr_channel_create("clock", 0666, 0));
		OK(unshare(CLONE_NEWIPC));
		CHECK(stplr_channel_create("clock", 0666, 0) >= 0);
		_exit(0);
	}
	join(child);
}

static mode_t mode;

static void put_back(void)
{
	chmod("/dev/stplr", mode);
}

static const struct test tests[] = {
	{ "who receives outside sees a sender by its number there",
	  who_receives_outside_sees_the_numbers_there },
	{ "who receives inside sees nobody from outside",
	  who_receives_inside_sees_nobody_from_outside },
	{ "handles are found by the numbers of who asks",
	  handles_are_found_by_the_numbers_of_who_asks },
	{ "who receives outside sees users as they are there",
	  who_receives_outside_sees_the_users_there },
	{ "who receives inside sees users as they are mapped",
	  who_receives_inside_sees_users_as_they_are_mapped },
	{ "root of a user namespace is one user of many",
	  root_of_a_namespace_is_one_user_of_many },
	{ "names can be of the caller, whatever number that is",
	  names_can_be_of_the_caller_itself },
	{ "groups are the same across user namespaces", groups_are_the_same_across_namespaces },
	{ "names are those of an IPC namespace", names_are_those_of_an_ipc_namespace },
	{ "there they are taken by who rules there", names_are_taken_by_who_rules_there },
};

int main(void)
{
	struct stat status;

	OK(stat("/dev/stplr", &status));
	mode = status.st_mode & 07777;
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
