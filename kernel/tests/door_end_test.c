// SPDX-License-Identifier: GPL-2.0
/* Doors: who leaves, is interrupted or ends, what that ends, and what goes on. */
#define _GNU_SOURCE
#include <poll.h>

#include "door.h"
#include "seen.h"
#include "watch.h"

static void whoever_waits_for_a_thread_is_interrupted_with_EAGAIN(void)
{
	int pool = new_pool(), door = new_door(pool);
	pid_t client = CALLER(pool, {
		handle_signal(SIGUSR1, SA_RESTART);
		IS(-EAGAIN, knock(door));
	});

	await_ioctl(client);
	OK(kill(client, SIGUSR1));
	join(client);
}

static void a_client_that_leaves_gets_EINTR_and_its_server_a_notice(void)
{
	int pool = new_pool(), door = new_door(pool);
	int quiet = new_door_of(pool, 0, STPLR_DOOR_NO_CANCEL);
	struct serving serving = { .pool = pool };
	struct stplr_door_notice notice;
	struct pollfd polled = { .fd = pool, .events = POLLIN };
	pid_t client = CALLER(pool, {
		handle_signal(SIGUSR1, SA_RESTART);
		IS(-EINTR, knock(door));
		IS(-EINTR, knock(quiet));
		knock(door);
	});

	IS(0, serve(&serving));
	CHECK(poll(&polled, 1, 0) == 0);
	FAILS(EAGAIN, ioctl(pool, STPLR_POOL_NOTICE, &notice));
	OK(kill(client, SIGUSR1));
	CHECK(poll(&polled, 1, 10000) == 1 && polled.revents == POLLIN);
	/* It stays. */
	FAILS(EFAULT, ioctl(pool, STPLR_POOL_NOTICE, 8));
	OK(ioctl(pool, STPLR_POOL_NOTICE, &notice));
	CHECK(notice.id == serving.arguments.id && notice.tid == getpid());
	FAILS(EAGAIN, ioctl(pool, STPLR_POOL_NOTICE, &notice));
	/* Its answer reaches nobody, and the thread goes on with the next call. */
	IS(0, answer(&serving, "late", 4));
	CHECK(serving.arguments.door == info_of(quiet).id);
	OK(kill(client, SIGUSR1));
	AWAIT_LINE(FOLDER "blocked", "%d %d SEND", client, client);
	IS(0, serve(&serving));
	CHECK(poll(&polled, 1, 0) == 0);
	OK(kill(client, SIGKILL));
	CHECK(poll(&polled, 1, 10000) == 1);
	OK(ioctl(pool, STPLR_POOL_NOTICE, &notice));
	CHECK(notice.id == serving.arguments.id);
}

static char *held_memory;
static int failed[2], seen[2]; /* pipes: the id of the call; closed when the thread may end */

/* Where a thread ends its call ends, and what its server would be told of it. */
static void *fail_to_answer(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };
	char byte;

	IS(0, serve(&serving));
	IS(-EFAULT, answer(&serving, held_memory, 100));
	CHECK(write(failed[1], &serving.arguments.id, sizeof(serving.arguments.id)) ==
	      sizeof(serving.arguments.id));
	CHECK(read(seen[0], &byte, 1) == 0);
	return NULL;
}

/* It goes on with a call that nobody waits for any more, having been told of that once. */
static void a_server_that_fails_to_answer_has_a_notice_too(void)
{
	int pool = new_pool(), door = new_door(pool), faults;
	struct stplr_door_notice notice;
	pthread_t thread;
	char room[100];
	__u64 id;

	need_userfaultfd();
	OK(pipe2(failed, O_CLOEXEC));
	OK(pipe2(seen, O_CLOEXEC));
	pid_t client = CALLER(pool, {
		handle_signal(SIGUSR1, SA_RESTART);
		IS(-EINTR, call_door(door, "ab", 2, room, sizeof(room)));
	});
	held_memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(held_memory != MAP_FAILED);
	faults = watch(held_memory, 4096);
	thread = start_serving(fail_to_answer, pool);
	await_fault(faults);
	OK(kill(client, SIGUSR1));
	join(client);
	FAILS(EAGAIN, ioctl(pool, STPLR_POOL_NOTICE, &notice));
	fail_fault(faults, held_memory, 4096);
	CHECK(read(failed[0], &id, sizeof(id)) == sizeof(id));
	OK(ioctl(pool, STPLR_POOL_NOTICE, &notice));
	CHECK(notice.id == id);
	FAILS(EAGAIN, ioctl(pool, STPLR_POOL_NOTICE, &notice));
	close(seen[1]);
	OK(pthread_join(thread, NULL));
}

static void *fail_to_receive(void *pool)
{
	struct stplr_door_return arguments = { .room = (uintptr_t)held_memory, .room_size = 4096 };
	char byte;

	FAILS(EFAULT, ioctl((int)(intptr_t)pool, STPLR_DOOR_RETURN, &arguments));
	CHECK(read(seen[0], &byte, 1) == 0);
	return NULL;
}

/* The thread that puts it back goes on, so it is not by its end that the call ends. */
static void revoking_ends_what_is_put_back_later(void)
{
	int pool = new_pool(), door = new_door(pool), faults;
	pthread_t thread;

	need_userfaultfd();
	OK(pipe2(seen, O_CLOEXEC));
	pid_t client = CALLER(pool, IS(-EBADF, call_door(door, "ab", 2, NULL, 0)));

	held_memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(held_memory != MAP_FAILED);
	faults = watch(held_memory, 4096);
	thread = start_serving(fail_to_receive, pool);
	await_fault(faults);
	OK(ioctl(door, STPLR_DOOR_REVOKE));
	fail_fault(faults, held_memory, 4096);
	join(client);
	close(seen[1]);
	OK(pthread_join(thread, NULL));
}

static void *serve_once(void *pool)
{
	struct serving serving = { .pool = (int)(intptr_t)pool };

	IS(0, serve(&serving));
	return NULL;
}

static void a_thread_that_ends_ends_its_call(void)
{
	int pool = new_pool(), door = new_door(pool);
	pid_t client = CALLER(pool, IS(-EINTR, knock(door)));
	pthread_t thread = start_serving(serve_once, pool);
	char room[4];

	OK(pthread_join(thread, NULL));
	join(client);
	start_serving(echo, pool);
	IS(2, call_door(door, "ab", 2, room, sizeof(room)));
}

static void a_door_passes_by_a_socket(void)
{
	char room[16] = "";
	int door;
	pid_t server = serving_process(&door, echo_for_ever);

	IS(3, call_door(door, "abc", 3, room, sizeof(room)));
	CHECK(!strcmp(room, "abc") && info_of(door).target == server);
	CHECK(!info_of(door).attributes);
}

static void serve_and_wait(int pool)
{
	struct serving serving = { .pool = pool };

	IS(0, serve(&serving));
	pause();
}

static void the_death_of_the_server_ends_all_its_doors(void)
{
	int door;
	pid_t server = serving_process(&door, serve_and_wait), first, second;

	first = CALLER(-1, IS(-EINTR, knock(door)));
	AWAIT_LINE(FOLDER "blocked", "%d %d REPLY", first, first);
	second = CALLER(-1, IS(-EBADF, knock(door)));
	AWAIT_LINE(FOLDER "blocked", "%d %d SEND", second, second);
	OK(kill(server, SIGKILL));
	join(first);
	join(second);
	IS(-EBADF, knock(door));
	CHECK(info_of(door).target == -1 && info_of(door).attributes == STPLR_DOOR_REVOKED);
}

static void serve_and_execute(int pool)
{
	struct serving serving = { .pool = pool };

	IS(0, serve(&serving));
	/* Somebody else has the pool, too, so that its last descriptor is not what ends it. */
	if (fork() == 0) {
		pause();
		_exit(0);
	}
	execl("/proc/self/exe", "door_end_test", "sleep", NULL);
	_exit(1);
}

static void exec_of_the_server_ends_all_its_doors(void)
{
	int door;

	serving_process(&door, serve_and_execute);
	IS(-EINTR, knock(door));
	IS(-EBADF, knock(door));
	CHECK(info_of(door).target == -1);
}

static void execute(const char *what, int pool, int door)
{
	char numbers[2][12];

	snprintf(numbers[0], sizeof(numbers[0]), "%d", pool);
	snprintf(numbers[1], sizeof(numbers[1]), "%d", door);
	execl("/proc/self/exe", "door_end_test", what, numbers[0], numbers[1], NULL);
	_exit(1);
}

/* With one client that it serves, and one that waits. */
static void have_two_clients(struct serving *serving)
{
	IS(0, serve(serving));
	AWAIT_LINE(FOLDER "blocked", " SEND");
}

static void *execute_with_the_pool(void *argument)
{
	int pool = (int)(intptr_t)argument, door = new_door(pool);
	struct serving serving = { .pool = pool };

	have_two_clients(&serving);
	OK(fcntl(pool, F_SETFD, 0));
	OK(fcntl(door, F_SETFD, 0));
	execute("keep", pool, door);
	return NULL;
}

static void execute_by_the_first_thread(int pool)
{
	execute_with_the_pool((void *)(intptr_t)pool);
}

static void execute_by_another_thread(int pool)
{
	pthread_join(start_serving(execute_with_the_pool, pool), NULL);
}

/* Exec closes no descriptor of it then. */
static void send_the_pool_and_execute(int pool)
{
	struct serving serving = { .pool = pool };
	int pair[2];

	have_two_clients(&serving);
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	CHECK(send_door(pair[0], pool, 0));
	close(pool);
	execl("/proc/self/exe", "door_end_test", "sleep", NULL);
	_exit(1);
}

static sigset_t to_go_on(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCONT);
	return set;
}

static void its_clients_are_told(void (*run)(int pool))
{
	sigset_t set = to_go_on();
	pid_t clients[2], server;
	int door, status, first;

	/* By all that follow, also over exec. */
	OK(sigprocmask(SIG_BLOCK, &set, NULL));
	server = serving_process(&door, run);
	for (int i = 0; i < 2; i++) {
		clients[i] = CALLER(-1, {
			long err = knock(door);

			CHECK(err == -EINTR || err == -EBADF);
			while (info_of(door).target != -1)
				nap(2);
			CHECK(info_of(door).attributes & STPLR_DOOR_REVOKED);
			IS(-EBADF, knock(door));
			_exit(err == -EINTR);
		});
	}
	/* One was served, and one was not. */
	CHECK(waitpid(clients[0], &status, 0) == clients[0] && WIFEXITED(status));
	first = WEXITSTATUS(status);
	CHECK(waitpid(clients[1], &status, 0) == clients[1] && WIFEXITED(status));
	IS(1, first + WEXITSTATUS(status));
	CHECK(waitpid(server, &status, WNOHANG) == 0);
	OK(kill(server, SIGCONT));
	/* What it says of the pool that it has kept. */
	if (run != send_the_pool_and_execute)
		join(server);
}

static void exec_ends_a_pool_whose_descriptor_it_keeps(void)
{
	its_clients_are_told(execute_by_the_first_thread);
}

static void exec_by_another_thread_ends_it_as_well(void)
{
	its_clients_are_told(execute_by_another_thread);
}

static void exec_ends_a_pool_that_is_on_its_way_to_another(void)
{
	its_clients_are_told(send_the_pool_and_execute);
}

static void fail_to_execute_and_serve(int pool)
{
	FAILS(ENOENT, execl("/tests/none", "none", NULL));
	/* A child's exec is no end of the parent's program. */
	pid_t child = vfork();

	if (child == 0) {
		execl("/proc/self/exe", "door_end_test", "exit", NULL);
		_exit(1);
	}
	join(child);
	echo((void *)(intptr_t)pool);
}

static void exec_that_fails_or_is_a_childs_ends_nothing(void)
{
	char room[4];
	int door;

	serving_process(&door, fail_to_execute_and_serve);
	for (int i = 0; i < 3; i++)
		IS(2, call_door(door, "ab", 2, room, sizeof(room)));
}

static void a_door_survives_exec_of_its_client(void)
{
	char number[12];
	int door;

	serving_process(&door, echo_for_ever);
	OK(fcntl(door, F_SETFD, 0));
	snprintf(number, sizeof(number), "%d", door);
	pid_t client = fork();
	if (client == 0) {
		execl("/proc/self/exe", "door_end_test", "call", number, NULL);
		_exit(1);
	}
	join(client);
}

static void revoking_ends_those_that_wait_and_not_those_that_are_served(void)
{
	int pool = new_pool(), door = new_door(pool), other = new_door_of(pool, 2, 0);
	struct serving serving = { .pool = pool };
	pid_t served, waiting, elsewhere;

	served = CALLER(pool, IS(0, knock(door)));
	IS(0, serve(&serving));
	waiting = CALLER(pool, IS(-EBADF, knock(door)));
	await_ioctl(waiting);
	elsewhere = CALLER(pool, IS(0, knock(other)));
	await_ioctl(elsewhere);
	OK(ioctl(door, STPLR_DOOR_REVOKE));
	join(waiting);
	FAILS(EBADF, ioctl(door, STPLR_DOOR_REVOKE));
	IS(-EBADF, knock(door));
	CHECK(info_of(door).attributes == (STPLR_DOOR_LOCAL | STPLR_DOOR_REVOKED));
	CHECK(info_of(door).target == getpid());
	IS(0, serve(&serving));
	join(served);
	CHECK(serving.arguments.cookie == 2);
	finish(&serving);
	join(elsewhere);
}

static void a_stopped_client_goes_on_waiting(void)
{
	int pool = new_pool(), door = new_door(pool), status;
	struct serving serving = { .pool = pool };
	struct stplr_door_notice notice;
	pid_t client = CALLER(pool, IS(0, knock(door)));

	IS(0, serve(&serving));
	OK(kill(client, SIGSTOP));
	CHECK(waitpid(client, &status, WUNTRACED) == client && WIFSTOPPED(status));
	FAILS(EAGAIN, ioctl(pool, STPLR_POOL_NOTICE, &notice));
	finish(&serving);
	OK(kill(client, SIGCONT));
	join(client);
}

static const struct test tests[] = {
	{ "whoever waits for a thread is interrupted with EAGAIN",
	  whoever_waits_for_a_thread_is_interrupted_with_EAGAIN },
	{ "a client that leaves gets EINTR, and its server a notice",
	  a_client_that_leaves_gets_EINTR_and_its_server_a_notice },
	{ "a server that fails to answer has a notice, too",
	  a_server_that_fails_to_answer_has_a_notice_too },
	{ "a thread that ends ends its call", a_thread_that_ends_ends_its_call },
	{ "a door passes by a socket", a_door_passes_by_a_socket },
	{ "the death of the server ends all its doors", the_death_of_the_server_ends_all_its_doors },
	{ "exec of the server ends all its doors", exec_of_the_server_ends_all_its_doors },
	{ "exec ends a pool whose descriptor it keeps", exec_ends_a_pool_whose_descriptor_it_keeps },
	{ "exec by another thread ends it as well", exec_by_another_thread_ends_it_as_well },
	{ "exec ends a pool that is on its way to another",
	  exec_ends_a_pool_that_is_on_its_way_to_another },
	{ "exec that fails or is a child's ends nothing",
	  exec_that_fails_or_is_a_childs_ends_nothing },
	{ "a door survives exec of its client", a_door_survives_exec_of_its_client },
	{ "revoking ends those that wait, not those that are served",
	  revoking_ends_those_that_wait_and_not_those_that_are_served },
	{ "revoking ends what a thread puts back later", revoking_ends_what_is_put_back_later },
	{ "a stopped client goes on waiting", a_stopped_client_goes_on_waiting },
};

/* The new program, until it is told to go on: it has the descriptors and can do nothing by them. */
static int be_executed_with(int pool, int door)
{
	struct serving serving = { .pool = pool };
	struct stplr_door_create arguments = {};
	sigset_t set = to_go_on();
	int number;

	IS(-EPERM, serve(&serving));
	FAILS(EPERM, ioctl(pool, STPLR_DOOR_CREATE, &arguments));
	FAILS(EPERM, ioctl(door, STPLR_DOOR_REVOKE));
	while (info_of(door).target != -1)
		nap(2);
	IS(-EBADF, knock(door));
	OK(sigwait(&set, &number));
	/* It may have doors of its own. */
	serving.pool = new_pool();
	number = new_door(serving.pool);
	CHECK(info_of(number).target == getpid());
	close(serving.pool);
	return 0;
}

int main(int count, char **arguments)
{
	char room[8];

	if (count == 3 && !strcmp(arguments[1], "call")) {
		IS(2, call_door(atoi(arguments[2]), "ab", 2, room, sizeof(room)));
		return 0;
	}
	if (count == 2 && !strcmp(arguments[1], "exit"))
		return 0;
	if (count == 2) {
		pause();
		return 0;
	}
	if (count == 4)
		return be_executed_with(atoi(arguments[2]), atoi(arguments[3]));
	return run_tests(tests, sizeof(tests) / sizeof(tests[0]));
}
