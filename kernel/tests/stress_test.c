// SPDX-License-Identifier: GPL-2.0
/*
 * Crowds of servers and clients that are interrupted, killed, forked and lied to. What they prove is
 * that the kernel has nothing to complain of, that the module can be unloaded afterwards, and that
 * those who behave are served throughout.
 */
#include <sys/resource.h>

#include "crowd.h"

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
	be_interrupted();
	setpriority(PRIO_PROCESS, 0, (int)dice(25) - 5);
	if (dice(2))
		start_thread(turn_memory);
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
			fork_and_end();
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
	a_crowd(misbehaving_server, channel, misbehaving_client, connection);
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

	a_crowd(old_party, fd, old_party, copy);
}

static void client_short_of_memory(int connection)
{
	be_short_of_memory();
	misbehaving_client(connection);
}

static void server_short_of_memory(int channel)
{
	be_short_of_memory();
	misbehaving_server(channel);
}

static void memory_runs_short(void)
{
	if (!let_memory_run_short())
		SKIP("this kernel cannot let allocations fail");
	int channel = stplr_channel_create(NULL, 0, STPLR_CHANNEL_UNBLOCK | STPLR_CHANNEL_INHERIT);
	int connection = stplr_channel_connect(channel, 1);

	a_crowd(server_short_of_memory, channel, client_short_of_memory, connection);
}

static const struct test tests[] = {
	{ "a crowd on a channel", a_crowd_on_a_channel },
	{ "a crowd where clients wait for the server", a_crowd_where_clients_wait },
	{ "a crowd whose priorities are inherited", a_crowd_that_inherits },
	{ "a crowd of the first interface", a_crowd_of_the_first_interface },
	{ "memory runs short", memory_runs_short },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
