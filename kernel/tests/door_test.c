// SPDX-License-Identifier: GPL-2.0
/* Doors: calls, results and errors, and what a door says of itself. */
#define _GNU_SOURCE
#include <grp.h>
#include <limits.h>
#include <stddef.h>

#include "door.h"
#include "seen.h"

#define SIZES(type, name) _Static_assert(sizeof(struct type) == STPLR_##name##_SIZE_VER0, #type)
SIZES(stplr_pool_create, POOL_CREATE);
SIZES(stplr_door_create, DOOR_CREATE);
SIZES(stplr_door_call, DOOR_CALL);
SIZES(stplr_door_return, DOOR_RETURN);
SIZES(stplr_door_set, DOOR_SET);
SIZES(stplr_door_info, DOOR_INFO);
SIZES(stplr_door_cred, DOOR_CRED);
SIZES(stplr_door_notice, DOOR_NOTICE);
_Static_assert(offsetof(struct stplr_door_call, replied) == 64, "");
_Static_assert(offsetof(struct stplr_door_return, next_id) == 72, "");

static const char text[] = "who is there";

static void a_call_is_answered(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		char room[32] = "";

		IS(5, call_door(door, text, sizeof(text), room, sizeof(room)));
		CHECK(!strcmp(room, "back") && !called.mapped && !called.received_count);
	});

	IS(0, serve(&serving));
	CHECK(serving.arguments.procedure == 7 && serving.arguments.cookie == 1);
	CHECK(serving.arguments.door == info_of(door).id);
	CHECK(serving.arguments.length == sizeof(text) && !strcmp(serving.data, text));
	CHECK(serving.arguments.reply_room == 32 && serving.arguments.pid == client);
	CHECK(serving.arguments.next_id && serving.arguments.notes == STPLR_NOTE_LAST);
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, "back", 5));
	join(client);
}

static void sizes_come_through(void)
{
	static char sent[8192], room[8192];
	int pool = new_pool(), door = new_door(pool);

	start_serving(echo, pool);
	for (size_t size = 0; size <= sizeof(sent); size = size < 64 ? size + 1 : size * 2) {
		for (size_t i = 0; i < size; i++)
			sent[i] = (char)(i * 7 + size);
		IS(size, call_door(door, sent, size, room, sizeof(room)));
		CHECK(!memcmp(sent, room, size));
	}
}

static void a_door_of_the_same_process_can_be_called(void)
{
	int pool = new_pool(), door = new_door(pool);
	char room[16];

	start_serving(echo, pool);
	IS(3, call_door(door, "abc", 3, room, sizeof(room)));
	CHECK(info_of(door).attributes == STPLR_DOOR_LOCAL);
}

static void doors_of_one_pool_are_told_apart(void)
{
	int pool = new_pool(), first = new_door_of(pool, 1, 0), second = new_door_of(pool, 2, 0);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		IS(0, knock(second));
		IS(0, knock(first));
	});

	IS(0, serve(&serving));
	CHECK(serving.arguments.cookie == 2 && serving.arguments.door == info_of(second).id);
	IS(0, serve(&serving));
	CHECK(serving.arguments.cookie == 1 && serving.arguments.door == info_of(first).id);
	CHECK(info_of(first).id != info_of(second).id);
	finish(&serving);
	join(client);
}

static void attributes_are_checked(void)
{
	static const unsigned int wrong[] = { STPLR_DOOR_LOCAL, STPLR_DOOR_REVOKED, STPLR_DOOR_IS_UNREF,
					      0x1000, STPLR_DOOR_UNREF | STPLR_DOOR_UNREF_MULTI };
	struct stplr_door_create arguments = {};
	int pool = new_pool();

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		arguments.attributes = wrong[i];
		FAILS(EINVAL, ioctl(pool, STPLR_DOOR_CREATE, &arguments));
	}
	arguments.attributes = 0;
	arguments.reserved = 1;
	FAILS(EINVAL, ioctl(pool, STPLR_DOOR_CREATE, &arguments));
	IS(STPLR_DOOR_REFUSE_DESC | STPLR_DOOR_PRIVATE | STPLR_DOOR_LOCAL,
	   info_of(new_door_of(pool, 0, STPLR_DOOR_REFUSE_DESC | STPLR_DOOR_PRIVATE)).attributes);
}

static void what_a_door_does_not_take_is_refused_at_once(void)
{
	int pool = new_pool(), door = new_door(pool);
	int refuses = new_door_of(pool, 0, STPLR_DOOR_REFUSE_DESC);
	struct stplr_door_desc descriptors[2] = { { .fd = 0, .attributes = STPLR_DOOR_DESCRIPTOR },
						  { .fd = 1, .attributes = STPLR_DOOR_DESCRIPTOR } };
	struct stplr_door_call with = { .descriptors = (uintptr_t)descriptors, .count = 2 };

	IS(0, set_param(door, STPLR_PARAM_DATA_MIN, 2));
	IS(0, set_param(door, STPLR_PARAM_DATA_MAX, 4));
	IS(0, set_param(door, STPLR_PARAM_DESC_MAX, 1));
	IS(-ENOBUFS, call_door(door, text, 1, NULL, 0));
	IS(-ENOBUFS, call_door(door, text, 5, NULL, 0));
	IS(-ENOBUFS, knock(door));
	IS(-ENOTSUP, call_with(refuses, with));
	with.data = (uintptr_t)text;
	with.size = 2;
	IS(-ENFILE, call_with(door, with));
	FAILS(EFAULT, ioctl(door, STPLR_DOOR_CALL, NULL));
}

static void parameters_are_the_creators_to_set(void)
{
	int pool = new_pool(), door = new_door(pool);
	int refuses = new_door_of(pool, 0, STPLR_DOOR_REFUSE_DESC);

	CHECK(info_of(door).data_min == 0 && info_of(door).data_max == UINT64_MAX);
	CHECK(info_of(door).desc_max == INT_MAX && info_of(refuses).desc_max == 0);
	IS(0, set_param(door, STPLR_PARAM_DATA_MAX, 100));
	IS(-EINVAL, set_param(door, STPLR_PARAM_DATA_MIN, 101));
	IS(0, set_param(door, STPLR_PARAM_DATA_MIN, 100));
	IS(-EINVAL, set_param(door, STPLR_PARAM_DATA_MAX, 99));
	IS(-ERANGE, set_param(door, STPLR_PARAM_DESC_MAX, (uint64_t)INT_MAX + 1));
	IS(-ENOTSUP, set_param(refuses, STPLR_PARAM_DESC_MAX, 1));
	IS(0, set_param(refuses, STPLR_PARAM_DESC_MAX, 0));
	IS(-EINVAL, set_param(door, 4, 0));
	CHECK(info_of(door).data_min == 100 && info_of(door).data_max == 100);
	join(CALLER(pool, IS(-EPERM, set_param(door, STPLR_PARAM_DESC_MAX, 1))));
	CHECK(info_of(door).desc_max == INT_MAX);
}

/* What is wrong with the arguments is told when a thread would have them. */
static void bad_arguments_wait_for_a_thread(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct stplr_door_desc closed = { .fd = 999, .attributes = STPLR_DOOR_DESCRIPTOR };
	struct stplr_door_desc bare = { .fd = 0 };
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		IS(-EFAULT, call_door(door, (void *)16, 8, NULL, 0));
		IS(-EFAULT, call_door(door, (void *)16, 100000, NULL, 0));
		IS(-E2BIG, call_door(door, text, 1ull << 40, NULL, 0));
		IS(-EINVAL, call_with(door, (struct stplr_door_call){
						    .descriptors = (uintptr_t)&closed, .count = 1 }));
		IS(-EINVAL, call_with(door, (struct stplr_door_call){
						    .descriptors = (uintptr_t)&bare, .count = 1 }));
		IS(-EFAULT, call_with(door, (struct stplr_door_call){
						    .descriptors = 16, .count = 1 }));
		IS(-E2BIG, call_with(door, (struct stplr_door_call){ .descriptors = 16, .count = 1025 }));
		IS(0, knock(door));
	});

	await_ioctl(client);
	IS(0, waitpid(client, NULL, WNOHANG));
	IS(0, serve(&serving));
	CHECK(serving.arguments.length == 0 && serving.arguments.received_count == 0);
	finish(&serving);
	join(client);
}

static void a_bare_call_takes_no_result(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, IS(0, call_with(door, (struct stplr_door_call){
								  .flags = STPLR_CALL_BARE })));

	IS(0, serve(&serving));
	CHECK(serving.arguments.notes & STPLR_NOTE_BARE);
	IS(-E2BIG, answer(&serving, text, 1));
	/* The client waits on. */
	serving.arguments.size = 0;
	finish(&serving);
	join(client);
}

static void an_answer_that_fails_may_be_given_again(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct stplr_door_desc bad = { .fd = 999, .attributes = STPLR_DOOR_DESCRIPTOR };
	struct serving serving = { .pool = pool };
	pid_t client = CALLER(pool, {
		char room[8] = "";

		IS(3, call_door(door, NULL, 0, room, sizeof(room)));
		CHECK(!memcmp(room, "yes", 3) && !room[3]);
	});

	IS(0, serve(&serving));
	IS(-EFAULT, answer(&serving, (void *)16, 8));
	IS(-EFAULT, answer(&serving, (void *)16, 10000));
	serving.arguments.descriptors = (uintptr_t)&bad;
	serving.arguments.count = 1;
	IS(-EINVAL, answer(&serving, "no, no", 6));
	serving.arguments.count = 1025;
	IS(-E2BIG, answer(&serving, "no", 2));
	serving.arguments.count = 0;
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, "yes", 3));
	join(client);
}

static void only_the_creator_uses_a_pool(void)
{
	int pool = new_pool(), door = new_door(pool);
	pid_t child = fork();

	if (child == 0) {
		struct stplr_door_create create = {};
		struct stplr_door_notice notice;
		struct serving serving = { .pool = pool };

		FAILS(EPERM, ioctl(pool, STPLR_DOOR_CREATE, &create));
		FAILS(EPERM, ioctl(pool, STPLR_POOL_NOTICE, &notice));
		IS(-EPERM, serve(&serving));
		FAILS(EPERM, ioctl(door, STPLR_DOOR_REVOKE));
		CHECK(info_of(door).target == getppid() && !info_of(door).attributes);
		_exit(0);
	}
	join(child);
	CHECK(info_of(door).target == getpid());
}

static void *pretend(void *serving)
{
	struct serving other = *(struct serving *)serving;
	struct stplr_door_cred cred = { .id = other.arguments.id };

	FAILS(EINVAL, ioctl(other.pool, STPLR_DOOR_CRED, &cred));
	other.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&other, "them", 4));
	return NULL;
}

static void another_thread_cannot_answer(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	pthread_t thread;
	pid_t client = CALLER(pool, {
		char room[8];

		IS(4, call_door(door, text, 4, room, sizeof(room)));
		CHECK(!memcmp(room, "mine", 4));
	});

	IS(0, serve(&serving));
	OK(pthread_create(&thread, NULL, pretend, &serving));
	OK(pthread_join(thread, NULL));
	serving.arguments.flags = STPLR_RETURN_ONLY;
	IS(0, answer(&serving, "mine", 4));
	join(client);
}

static void credentials_are_those_of_the_caller(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct serving serving = { .pool = pool };
	uint32_t groups[4] = {};
	struct stplr_door_cred cred = { .groups = (uintptr_t)groups, .group_room = 2 };
	pid_t client = CALLER(pool, {
		gid_t mine[3] = { 5, 6, 7 };

		OK(setgroups(3, mine));
		OK(setresgid(10, 11, 12));
		OK(setresuid(20, 21, 22));
		IS(0, knock(door));
	});

	IS(0, serve(&serving));
	cred.id = serving.arguments.id;
	OK(ioctl(pool, STPLR_DOOR_CRED, &cred));
	CHECK(cred.rgid == 10 && cred.egid == 11 && cred.sgid == 12);
	CHECK(cred.ruid == 20 && cred.euid == 21 && cred.suid == 22);
	CHECK(cred.pid == client && cred.group_count == 3);
	CHECK(groups[0] == 5 && groups[1] == 6 && !groups[2]);
	finish(&serving);
	FAILS(EINVAL, ioctl(pool, STPLR_DOOR_CRED, &cred));
	join(client);
}

static void a_door_says_what_it_is_in_fdinfo(void)
{
	int pool = new_pool(), door = new_door_of(pool, 0, STPLR_DOOR_REFUSE_DESC);
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", door);
	IS(1, lines(path, "door:\t%llu", info_of(door).id));
	IS(1, lines(path, "server:\t%d", getpid()));
	IS(1, lines(path, "attributes:\t40"));
	OK(ioctl(door, STPLR_DOOR_REVOKE));
	IS(1, lines(path, "attributes:\t48"));
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pool);
	IS(1, lines(path, "door-pool:\t"));
}

static void structures_may_grow(void)
{
	int pool = new_pool(), door = new_door(pool);
	struct {
		struct stplr_door_call call;
		uint64_t more;
	} longer = {};
	struct {
		struct stplr_door_info info;
		uint64_t more;
	} info = { .more = 1 };

	start_serving(echo, pool);
	OK(ioctl(door, _IOC(_IOC_READ | _IOC_WRITE, 'i', 98, sizeof(longer)), &longer));
	longer.more = 1;
	FAILS(E2BIG, ioctl(door, _IOC(_IOC_READ | _IOC_WRITE, 'i', 98, sizeof(longer)), &longer));
	FAILS(EINVAL, ioctl(door, _IOC(_IOC_READ | _IOC_WRITE, 'i', 98, sizeof(longer.call) - 8),
			    &longer));
	OK(ioctl(door, _IOC(_IOC_READ, 'i', 100, sizeof(info)), &info));
	CHECK(info.info.target == getpid() && !info.more);
	longer.more = 0;
	longer.call.armed = 1;
	FAILS(EINVAL, ioctl(door, STPLR_DOOR_CALL, &longer));
	longer.call.armed = 0;
	longer.call.flags = 4;
	FAILS(EINVAL, ioctl(door, STPLR_DOOR_CALL, &longer));
	FAILS(ENOTTY, ioctl(door, STPLR_INFO, &info));
}

static const struct test tests[] = {
	{ "a call is answered", a_call_is_answered },
	{ "arguments and results of all sizes come through", sizes_come_through },
	{ "a door of the same process can be called", a_door_of_the_same_process_can_be_called },
	{ "doors of one pool are told apart", doors_of_one_pool_are_told_apart },
	{ "attributes are checked", attributes_are_checked },
	{ "what a door does not take is refused at once",
	  what_a_door_does_not_take_is_refused_at_once },
	{ "parameters are the creator's to set", parameters_are_the_creators_to_set },
	{ "bad arguments wait for a thread", bad_arguments_wait_for_a_thread },
	{ "a bare call takes no result", a_bare_call_takes_no_result },
	{ "an answer that fails may be given again", an_answer_that_fails_may_be_given_again },
	{ "only the creator uses a pool", only_the_creator_uses_a_pool },
	{ "another thread cannot answer", another_thread_cannot_answer },
	{ "credentials are those of the caller", credentials_are_those_of_the_caller },
	{ "a door says what it is in fdinfo", a_door_says_what_it_is_in_fdinfo },
	{ "structures may grow", structures_may_grow },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
