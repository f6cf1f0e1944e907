// SPDX-License-Identifier: GPL-2.0
/*
 * Crowds of servers and clients that are interrupted, killed, forked and lied to; then ioctls with
 * arguments at random. What they prove is that the kernel has nothing to complain of, that the
 * module can be unloaded afterwards, and that those who behave are served throughout.
 *
 * STPLR_SECONDS says how long each test goes on, 2 by default.
 */
#define TEST_SECONDS (seconds() + 40)
static int seconds(void);

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "../lib/libstplr.h"
#include "tap.h"

static int seconds(void)
{
	const char *text = getenv("STPLR_SECONDS");

	return text && atoi(text) > 0 ? atoi(text) : 2;
}

static unsigned long long seed;

static unsigned int dice(unsigned int sides)
{
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (unsigned int)(seed >> 33) % sides;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void on_signal(int number)
{
}

/* A signal every few milliseconds, with or without SA_RESTART. */
static void be_interrupted(void)
{
	struct sigaction action = { .sa_handler = on_signal,
				    .sa_flags = dice(2) ? SA_RESTART : 0 };
	int microseconds = 500 + (int)dice(5000);
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

#define MOST (200 * 1024)

/* Memory, or something that is none, or that stops to be while it is used. */
static void *some_memory(void)
{
	static char *fine, *turning;

	if (!fine) {
		fine = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		turning = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			       -1, 0);
	}
	switch (dice(12)) {
	case 0:
		return (void *)(unsigned long)dice(1 << 16);
	case 1:
		return (void *)0xffff800000000000UL;
	case 2:
		mprotect(turning, MOST, dice(2) ? PROT_READ : PROT_NONE);
		return turning;
	case 3:
		mprotect(turning, MOST, PROT_READ | PROT_WRITE);
		madvise(turning, MOST, MADV_DONTNEED);
		return turning;
	default:
		return fine;
	}
}

static size_t some_size(void)
{
	static const size_t sizes[] = { 0, 1, 64, 256, 257, 4096, 16384, 16385, 65536, MOST };

	return sizes[dice(sizeof(sizes) / sizeof(*sizes))];
}

static struct stplr_buffer some_buffer(void)
{
	void *memory = some_memory();
	size_t size = some_size();

	return dice(4) ? stplr_bytes(memory, size) : stplr_registered(dice(4), memory, size);
}

static void *turn_memory(void *argument)
{
	for (;;) {
		some_memory();
		usleep(200);
	}
	return NULL;
}

static void misbehaving_client(int connection)
{
	pthread_t thread;

	be_interrupted();
	setpriority(PRIO_PROCESS, 0, (int)dice(40) - 20);
	if (dice(2))
		pthread_create(&thread, NULL, turn_memory, NULL);
	for (;;) {
		struct stplr_send send = { .send = some_buffer(), .reply = some_buffer(),
					   .timeout_ns = dice(3) ? -1 : (int)dice(3000000),
					   .flags = dice(8) == 0 };
		int copy;

		if (dice(10) == 0) {
			send.files = (uintptr_t)&connection;
			send.file_count = 1;
		}
		stplr_send_full(connection, &send);
		switch (dice(20)) {
		case 0:
			stplr_pulse(connection, 2, 0);
			break;
		case 1:
			copy = dup(connection);
			close(connection);
			connection = copy;
			break;
		case 2:
			if (fork() == 0)
				_exit(0);
			waitpid(-1, NULL, 0);
			break;
		case 3:
			stplr_register(connection, some_memory(), some_size());
			break;
		case 4:
			stplr_unregister(connection, dice(5));
			break;
		}
	}
}

static void misbehaving_server(int channel)
{
	char *buffer = malloc(MOST);
	int files[4];

	be_interrupted();
	for (;;) {
		struct stplr_receive receive = {
			.buffer = stplr_bytes(dice(20) ? buffer : some_memory(), some_size()),
			.timeout_ns = (int)dice(20000000),
			.files = (uintptr_t)files,
			.file_room = dice(4),
		};

		if (stplr_receive_full(channel, &receive))
			continue;
		for (unsigned int i = 0; i < receive.file_count; i++)
			close(files[i]);
		if (dice(10) == 0)
			stplr_read(channel, receive.id, dice(MOST), some_memory(), some_size());
		if (dice(10) == 0)
			stplr_write(channel, receive.id, dice(MOST), some_memory(), some_size());
		if (dice(30) && receive.id)
			stplr_reply(channel, receive.id, 0, dice(20) ? buffer : some_memory(),
				    some_size());
	}
}

/* Those that behave: numbers go there and come back, one greater. */
static void good_server(int channel)
{
	long long number = 0;
	struct stplr_reply_receive both = {};

	for (;;) {
		both.receive.buffer = stplr_bytes(&number, sizeof(number));
		both.receive.timeout_ns = -1;
		if (stplr_reply_receive(channel, &both))
			continue;
		number++;
		both.reply.id = both.receive.id;
		both.reply.buffer = stplr_bytes(&number, sizeof(number));
	}
}

static void good_client(int connection, double end)
{
	for (long long i = 0; now() < end; i++) {
		long long got = 0;

		CHECK(stplr_send(connection, &i, sizeof(i), &got, sizeof(got), NULL) ==
		      sizeof(got));
		CHECK(got == i + 1);
	}
}

typedef void worker(int fd);

static pid_t start(worker *run, int fd, int unused, unsigned int number)
{
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		seed = (unsigned long long)getpid() * 7919 + number;
		close(unused);
		run(fd);
		_exit(1);
	}
	CHECK(child > 0);
	return child;
}

/* Workers are killed at random and started anew. */
static void a_crowd(worker *server, int channel, worker *client, int connection, unsigned int flags)
{
	double end = now() + seconds();
	pid_t crowd[10];
	unsigned int started = 0;

	for (int i = 0; i < 10; i++)
		crowd[i] = i < 3 ? start(server, channel, connection, started++) :
				   start(client, connection, channel, started++);
	while (now() < end) {
		unsigned int i = dice(10);

		usleep(dice(20000));
		/* A thread that waits to be killed may leave SIGTERM pending behind other signals. */
		if (dice(4) == 0) {
			kill(crowd[i], SIGTERM);
			usleep(dice(3000));
		}
		kill(crowd[i], SIGKILL);
		waitpid(crowd[i], NULL, 0);
		crowd[i] = i < 3 ? start(server, channel, connection, started++) :
				   start(client, connection, channel, started++);
	}
	for (int i = 0; i < 10; i++) {
		kill(crowd[i], SIGKILL);
		waitpid(crowd[i], NULL, 0);
	}
	printf("# %u came and went\n", started);
}

static void a_crowd_on_a_channel_with(unsigned int flags)
{
	int channel = stplr_channel_create(NULL, 0, flags);
	int connection = stplr_channel_connect(channel, 1);
	int good_channel = stplr_channel_create(NULL, 0, 0);
	int good_connection = stplr_channel_connect(good_channel, 2);
	double end = now() + seconds();
	pid_t good = start(good_server, good_channel, good_connection, 0);
	pid_t client = fork();

	CHECK(channel >= 0 && connection >= 0 && good_channel >= 0 && good_connection >= 0);
	if (client == 0) {
		good_client(good_connection, end);
		_exit(0);
	}
	a_crowd(misbehaving_server, channel, misbehaving_client, connection, flags);
	join(client);
	kill(good, SIGKILL);
	waitpid(good, NULL, 0);
}

static void a_crowd_on_a_channel(void)
{
	a_crowd_on_a_channel_with(0);
}

static void a_crowd_where_clients_wait(void)
{
	a_crowd_on_a_channel_with(STPLR_CHANNEL_UNBLOCK | STPLR_CHANNEL_DISCONNECT);
}

static void a_crowd_that_inherits(void)
{
	a_crowd_on_a_channel_with(STPLR_CHANNEL_INHERIT);
}

/* The first interface: everybody is server and client to those whose ids stand in shared memory. */
static pid_t (*peers)[2];

static void old_party(int unused)
{
	struct stplr_handle handle;
	unsigned int me = dice(16);
	char *buffer = malloc(MOST);
	int node = open("/dev/stplr-0", O_RDWR);

	if (node < 0 || ioctl(node, STPLR_HANDLE_GET, &handle))
		_exit(1);
	peers[me][0] = getpid();
	peers[me][1] = (pid_t)syscall(SYS_gettid);
	be_interrupted();
	for (;;) {
		unsigned int other = dice(16);
		struct stplr_msg out[2] = { { some_memory(), (__u32)some_size() },
					    { buffer, (__u32)some_size() } };
		struct stplr_msg in[2] = { { dice(20) ? buffer : some_memory(),
					     (__u32)some_size() },
					   { buffer, (__u32)some_size() } };
		struct stplr_msg_receive from = { .handle = handle, .rmsgs = { in, dice(3) } };
		struct stplr_msg_send_receive call = { handle, peers[other][0], peers[other][1],
						       { out, dice(3) }, { in, dice(3) } };

		if (dice(2)) {
			if (!ioctl(node, STPLR_MSG_RECEIVE, &from) && from.reply_required &&
			    dice(20)) {
				struct stplr_msg_reply reply = { handle, from.pid, from.tid,
								 { out, dice(3) } };

				ioctl(node, STPLR_MSG_REPLY, &reply);
			}
		} else {
			ioctl(node, dice(3) ? STPLR_MSG_SEND_RECEIVE : STPLR_MSG_SEND, &call);
		}
		if (dice(50) == 0 && !ioctl(node, STPLR_HANDLE_PUT, &handle) &&
		    ioctl(node, STPLR_HANDLE_GET, &handle))
			_exit(1);
	}
}

static void a_crowd_of_the_first_interface(void)
{
	peers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd = open("/dev/null", O_RDWR), copy = dup(fd);

	a_crowd(old_party, fd, old_party, copy, 0);
}

/* Arguments at random, half of them nearly right. */
static void fuzz(int unused)
{
	static const unsigned long commands[] = {
		STPLR_VERSION, STPLR_HANDLE_GET, STPLR_HANDLE_PUT, STPLR_MSG_SEND,
		STPLR_MSG_SEND_RECEIVE, STPLR_MSG_RECEIVE, STPLR_MSG_REPLY, STPLR_CHANNEL_CREATE,
		STPLR_CONNECT, STPLR_CHANNEL_CONNECT, STPLR_SEND, STPLR_RECEIVE, STPLR_REPLY,
		STPLR_REPLY_RECEIVE, STPLR_READ, STPLR_WRITE, STPLR_PULSE, STPLR_DEATH,
		STPLR_REGISTER, STPLR_UNREGISTER,
	};
	struct stplr_handle handle = {};
	int fds[5];

	(void)unused;
	be_interrupted();
	fds[0] = open("/dev/stplr-1", O_RDWR);
	fds[1] = open("/dev/stplr", O_RDWR);
	fds[2] = stplr_channel_create(NULL, 0, dice(8));
	fds[3] = stplr_channel_connect(fds[2], 3);
	fds[4] = stplr_channel_connect(fds[2], 4);
	ioctl(fds[0], STPLR_HANDLE_GET, &handle);
	for (;;) {
		union {
			unsigned char bytes[256];
			__u64 words[32];
		} argument;
		int result;

		for (int i = 0; i < 32; i++) {
			switch (dice(8)) {
			case 0:
				argument.words[i] = (__u64)some_memory();
				break;
			case 1:
				argument.words[i] = dice(70000);
				break;
			case 2:
				argument.words[i] = ((__u64)dice(1 << 30) << 32) | dice(1 << 30);
				break;
			case 3:
				argument.words[i] = ~0ULL;
				break;
			case 4:
				argument.words[i] = handle.uuid;
				break;
			case 5:
				argument.words[i] = (__u64)getpid() << 32 | (__u32)getpid();
				break;
			default:
				argument.words[i] = dice(4);
			}
		}
		unsigned long command = commands[dice(sizeof(commands) / sizeof(*commands))];

		if (dice(50) == 0)
			command ^= 1UL << dice(32);
		result = ioctl(fds[dice(5)], command, dice(30) ? &argument : some_memory());
		if (result > 4 && (command == STPLR_CHANNEL_CREATE || command == STPLR_CONNECT ||
				   command == STPLR_CHANNEL_CONNECT))
			close(result);
		poll(&(struct pollfd){ .fd = fds[2 + dice(3)], .events = POLLIN }, 1, 0);
	}
}

static void ioctls_at_random(void)
{
	int fd = open("/dev/null", O_RDWR), copy = dup(fd);

	a_crowd(fuzz, fd, fuzz, copy, 0);
}

static bool write_setting(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return done;
}

static void client_short_of_memory(int connection)
{
	write_setting("/proc/self/make-it-fail", "1");
	misbehaving_client(connection);
}

static void server_short_of_memory(int channel)
{
	write_setting("/proc/self/make-it-fail", "1");
	misbehaving_server(channel);
}

static void fuzz_short_of_memory(int unused)
{
	write_setting("/proc/self/make-it-fail", "1");
	fuzz(unused);
}

static void memory_runs_short(void)
{
	static const char *const settings[][2] = {
		{ "task-filter", "Y" }, { "probability", "10" },  { "interval", "1" },
		{ "times", "-1" },	{ "verbose", "0" },	  { "ignore-gfp-wait", "N" },
	};
	char path[100];

	if (access("/sys/kernel/debug/failslab", F_OK))
		SKIP("this kernel cannot let allocations fail");
	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/failslab/%s", settings[i][0]);
		CHECK(write_setting(path, settings[i][1]));
	}
	int channel = stplr_channel_create(NULL, 0, STPLR_CHANNEL_UNBLOCK);
	int connection = stplr_channel_connect(channel, 1);

	a_crowd(server_short_of_memory, channel, client_short_of_memory, connection, 0);
	a_crowd(fuzz_short_of_memory, channel, fuzz_short_of_memory, connection, 0);
}

static const struct test tests[] = {
	{ "a crowd on a channel", a_crowd_on_a_channel },
	{ "a crowd where clients wait for the server", a_crowd_where_clients_wait },
	{ "a crowd whose priorities are inherited", a_crowd_that_inherits },
	{ "a crowd of the first interface", a_crowd_of_the_first_interface },
	{ "ioctls at random", ioctls_at_random },
	{ "memory runs short", memory_runs_short },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
