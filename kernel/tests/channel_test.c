// SPDX-License-Identifier: GPL-2.0
/* What channels and connections promise. */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "new.h"
#include "seen.h"

static void a_message_is_received_and_answered(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 42);
	struct stplr_receive received;
	char buffer[64], reply[64];
	int64_t status;

	pid_t client = CLIENT(channel, connection, {
		IS(6, stplr_send(connection, "question", 9, reply, sizeof(reply), &status));
		CHECK(!strcmp(reply, "reply") && status == -7);
	});
	IS(9, stplr_receive(channel, buffer, sizeof(buffer), second, &received));
	CHECK(!strcmp(buffer, "question"));
	CHECK(received.id && !received.pulse && received.label == 42);
	CHECK(received.length == 9 && received.room == 64);
	CHECK(received.pid == client && received.tid == client);
	CHECK(received.uid == getuid() && received.gid == getgid());
	IS(6, stplr_reply(channel, received.id, -7, "reply", 6));
	join(client);
}

static void every_size_arrives_whole(void)
{
	static const size_t sizes[] = { 0, 1, 255, 256, 257, 16384, 16385, 65536, (1 << 20) + 7 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	size_t most = (1 << 20) + 7;
	char *buffer = malloc(most), *back = malloc(most);
	struct stplr_receive received;

	for (size_t i = 0; i < most; i++)
		buffer[i] = (char)(i * 31 + i / 253);
	pid_t client = CLIENT(channel, connection, {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			memset(back, 0, most);
			IS(sizes[i], stplr_send(connection, buffer, sizes[i], back, most, NULL));
			CHECK(!memcmp(buffer, back, sizes[i]));
		}
	});
	char *mine = malloc(most);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		memset(mine, 0, most);
		IS(sizes[i], stplr_receive(channel, mine, most, second, &received));
		IS(sizes[i], stplr_reply(channel, received.id, 0, mine, sizes[i]));
	}
	join(client);
}

static void buffers_are_one_run_of_bytes(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char a[3], b[10];
	struct stplr_part parts[3] = { stplr_part("ab", 2), stplr_part("", 0),
				       stplr_part("cdefg", 6) };
	struct stplr_part room[2] = { stplr_part(a, 3), stplr_part(b, 10) };
	struct stplr_receive receive = { .buffer = stplr_vector(room, 2), .timeout_ns = second };

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .send = stplr_vector(parts, 3),
					   .reply = stplr_vector(room, 2),
					   .timeout_ns = -1 };

		OK(stplr_send_full(connection, &send));
		CHECK(send.replied == 8 && !memcmp(a, "123", 3) && !strcmp(b, "4567"));
	});
	OK(stplr_receive_full(channel, &receive));
	CHECK(receive.length == 8 && !memcmp(a, "abc", 3) && !strcmp(b, "defg"));
	IS(8, stplr_reply(channel, receive.id, 0, "1234567", 8));
	join(client);
}

static void a_reply_is_cut_to_the_clients_room(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char room[8] = ".......";

	pid_t client = CLIENT(channel, connection, {
		IS(3, stplr_send(connection, "x", 1, room, 3, NULL));
		CHECK(!strcmp(room, "abc...."));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.length == 1 && received.room == 3);
	IS(3, stplr_reply(channel, received.id, 0, "abcdef", 6));
	join(client);
}

/* A call that has been received, of a client that expects it to fail. */
struct awaiting {
	pid_t client;
	uint64_t id;
};

static struct awaiting call_that_fails(int channel, int error)
{
	int connection = new_connection(channel, 0);
	struct stplr_receive received;
	pid_t client = CLIENT(channel, connection,
			      { IS(-error, stplr_send(connection, "x", 1, NULL, 0, NULL)); });

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	return (struct awaiting){ client, received.id };
}

static void an_error_reply_fails_the_call(void)
{
	int channel = new_channel(0);
	struct awaiting call = call_that_fails(channel, EDOM);

	OK(stplr_reply_error(channel, call.id, EDOM));
	join(call.client);
}

static void errors_of_the_kernels_own_are_no_replies(void)
{
	int channel = new_channel(0);
	struct awaiting call = call_that_fails(channel, EHWPOISON);
	struct stplr_receive received;

	/* ERESTARTSYS and its kind, and what the module itself says of a page that takes time. */
	for (int error = 512; error <= 4096; error++)
		IS(-EINVAL, stplr_reply_error(channel, call.id, error));
	OK(stplr_reply_error(channel, call.id, EHWPOISON));
	join(call.client);
	/* It has not come again. */
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
}

static void ids_cannot_be_forged_or_used_twice(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection,
			      { IS(0, stplr_send(connection, "x", 1, NULL, 0, NULL)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	IS(-ESRCH, stplr_reply(channel, received.id + 2, 0, NULL, 0));
	IS(-ESRCH, stplr_reply(channel, 0, 0, NULL, 0));
	IS(-ESRCH, stplr_reply(new_channel(0), received.id, 0, NULL, 0));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

static void only_the_process_that_received_may_answer(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char byte;

	pid_t client = CLIENT(channel, connection,
			      { IS(0, stplr_send(connection, "x", 1, NULL, 0, NULL)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	pid_t thief = fork();

	if (thief == 0) {
		IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
		IS(-ESRCH, stplr_read(channel, received.id, 0, &byte, 1));
		IS(-ESRCH, stplr_write(channel, received.id, 0, &byte, 1));
		_exit(0);
	}
	join(thief);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

struct answer {
	int channel;
	uint64_t id;
};

static void *answer(void *argument)
{
	struct answer *what = argument;

	IS(2, stplr_reply(what->channel, what->id, 0, "ok", 2));
	return NULL;
}

static void another_thread_may_answer(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pthread_t thread;
	char room[2];

	pid_t client = CLIENT(channel, connection,
			      { IS(2, stplr_send(connection, "x", 1, room, 2, NULL)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	struct answer what = { channel, received.id };

	OK(pthread_create(&thread, NULL, answer, &what));
	OK(pthread_join(thread, NULL));
	join(client);
}

static void reply_and_receive_is_one_call(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	int number;

	pid_t client = CLIENT(channel, connection, {
		for (int i = 0; i < 100; i++) {
			int got = 0;

			IS(sizeof(got), stplr_send(connection, &i, sizeof(i), &got, sizeof(got),
						   NULL));
			CHECK(got == i * 2);
		}
	});
	struct stplr_reply_receive both = { .receive = { .buffer = stplr_bytes(&number, 4),
							 .timeout_ns = second } };

	for (int i = 0; i < 100; i++) {
		OK(stplr_reply_receive(channel, &both));
		CHECK(number == i);
		number *= 2;
		both.reply.id = both.receive.id;
		both.reply.buffer = stplr_bytes(&number, 4);
	}
	IS(4, stplr_reply(channel, both.reply.id, 0, &number, 4));
	join(client);
	/* A client that is gone keeps nobody from receiving. */
	both.receive.timeout_ns = 0;
	IS(-ETIMEDOUT, stplr_reply_receive(channel, &both));
	both.reply.error = -1;
	IS(-EINVAL, stplr_reply_receive(channel, &both));
}

/* Signals that were handled, here and in children. */
static volatile int *handled;

static void count_signal(int number)
{
	++*handled;
}

static void count_signals(int flags)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };

	handled = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(handled != MAP_FAILED);
	OK(sigaction(SIGUSR1, &action, NULL));
}

/* Once it waits to receive. */
static void interrupt(pid_t server)
{
	int before = *handled;

	AWAIT_LINE(FOLDER "blocked", "%d %d RECEIVE ", server, server);
	kill(server, SIGUSR1);
	while (*handled == before)
		nap(2);
}

static void call_for(int connection, const char *answer)
{
	char room[4];

	IS(4, stplr_send(connection, NULL, 0, room, 4, NULL));
	CHECK(!strcmp(room, answer));
}

static void a_restarted_call_does_not_answer_again(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	long before = counter("replies");

	count_signals(SA_RESTART);
	pid_t server = fork();

	if (server == 0) {
		struct stplr_reply_receive both = { .reply.buffer = stplr_bytes("1st", 4),
						    .receive.timeout_ns = -1 };
		struct stplr_receive received;

		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		both.reply.id = received.id;
		OK(stplr_reply_receive(channel, &both));
		CHECK(both.reply.id == 0);
		IS(4, stplr_reply(channel, both.receive.id, 0, "2nd", 4));
		_exit(0);
	}
	call_for(connection, "1st");
	interrupt(server);
	interrupt(server);
	call_for(connection, "2nd");
	join(server);
	CHECK(*handled == 2 && counter("replies") == before + 2);
}

static void a_call_is_not_restarted(int flags, int64_t timeout_ns)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	long before = counter("replies");

	count_signals(flags);
	pid_t server = fork();

	if (server == 0) {
		struct stplr_reply_receive both = { .reply.buffer = stplr_bytes("1st", 4),
						    .receive.timeout_ns = timeout_ns };
		struct stplr_receive received;

		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		both.reply.id = received.id;
		IS(-EINTR, stplr_reply_receive(channel, &both));
		/* Who makes the same call again answers nobody. */
		OK(stplr_reply_receive(channel, &both));
		IS(4, stplr_reply(channel, both.receive.id, 0, "2nd", 4));
		_exit(0);
	}
	call_for(connection, "1st");
	interrupt(server);
	call_for(connection, "2nd");
	join(server);
	CHECK(*handled == 1 && counter("replies") == before + 2);
}

static void others_end_having_answered(void)
{
	a_call_is_not_restarted(0, -1);
	a_call_is_not_restarted(SA_RESTART, second);
}

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

static void a_receive_times_out(void)
{
	int channel = new_channel(0);
	struct stplr_receive received;
	double start = now();

	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, second / 100, &received));
	CHECK(now() - start >= 0.1 && now() - start < 2);
}

static void a_send_times_out_before_and_after_it_is_received(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_send send = { .timeout_ns = second / 50 };
	struct stplr_receive received;

	IS(-ETIMEDOUT, stplr_send_full(connection, &send));
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	pid_t client = CLIENT(channel, connection,
			      { IS(-ETIMEDOUT, stplr_send_full(connection, &send)); });
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	join(client);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

static void pulses_are_queued_and_received(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	for (int i = 0; i < 3; i++)
		OK(stplr_pulse(connection, i, 1000000000000LL + i));
	for (int i = 0; i < 3; i++) {
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.pulse && !received.id && received.code == i);
		CHECK(received.value == 1000000000000LL + i);
	}
	IS(-EINVAL, stplr_pulse(connection, -1, 0));
}

static void pulses_of_a_connection_are_bounded(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	int count = 0, err;

	do {
		err = stplr_pulse(connection, 1, count++);
	} while (!err && count < 100000);
	IS(-EAGAIN, err);
	CHECK(count > 100 && count < 1000);
	OK(stplr_pulse(new_connection(channel, 0), 1, 0));
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	OK(stplr_pulse(connection, 1, 0));
}

static void the_urgent_go_first(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	static const int nices[] = { 10, 0, 19, 5 }, order[] = { 1, 3, 0, 2 };
	struct stplr_receive received;
	pid_t clients[4];
	int number;

	for (int i = 0; i < 4; i++) {
		clients[i] = CLIENT(channel, connection, {
			OK(setpriority(PRIO_PROCESS, 0, nices[i]));
			IS(0, stplr_send(connection, &i, sizeof(i), NULL, 0, NULL));
		});
		await_ioctl(clients[i]);
	}
	struct sched_param real_time = { .sched_priority = 10 };
	pid_t urgent = CLIENT(channel, connection, {
		OK(sched_setscheduler(0, SCHED_FIFO, &real_time));
		number = 99;
		IS(0, stplr_send(connection, &number, sizeof(number), NULL, 0, NULL));
	});

	await_ioctl(urgent);
	IS(4, stplr_receive(channel, &number, 4, second, &received));
	CHECK(number == 99 && received.priority == 50);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(urgent);
	for (int i = 0; i < 4; i++) {
		IS(4, stplr_receive(channel, &number, 4, second, &received));
		CHECK(number == order[i] && received.priority == 20 - nices[order[i]]);
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(clients[order[i]]);
	}
}

static int pulse_of(int connection, int code, int priority)
{
	struct stplr_pulse pulse = { .code = code, .priority = priority };

	return ioctl(connection, STPLR_PULSE, &pulse);
}

static void a_pulse_may_have_less_priority_than_its_sender(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	static const int asked[] = { 0, 20, 1 }, told[] = { 20, 20, 1 };
	struct stplr_receive received;

	FAILS(EINVAL, pulse_of(connection, 1, -1));
	FAILS(EINVAL, pulse_of(connection, 1, 21));
	FAILS(EINVAL, pulse_of(connection, 1, 149));
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	for (int i = 0; i < 3; i++) {
		OK(pulse_of(connection, i, asked[i]));
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.pulse && received.code == i && received.priority == told[i]);
	}
	OK(setpriority(PRIO_PROCESS, 0, 10));
	FAILS(EINVAL, pulse_of(connection, 1, 11));
	struct sched_param real_time = { .sched_priority = 10 };

	OK(sched_setscheduler(0, SCHED_FIFO, &real_time));
	FAILS(EINVAL, pulse_of(connection, 1, 51));
	OK(pulse_of(connection, 1, 50));
}

static void pulses_and_messages_stand_in_one_queue(void)
{
	int channel = stplr_channel_create("seen", 0600, 0);
	int connection = new_connection(channel, 0);
	/* In the order they come: code of a pulse, or -1 for a message, and the priority. */
	static const int order[][2] = { { 15, 15 }, { 12, 12 }, { -1, 12 }, { 13, 12 }, { 5, 5 } };
	unsigned int number = number_of("seen");
	struct stplr_receive received;

	OK(pulse_of(connection, 5, 5));
	OK(pulse_of(connection, 12, 12));
	pid_t client = CLIENT(channel, connection, {
		OK(setpriority(PRIO_PROCESS, 0, 8));
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	AWAIT_LINE(FOLDER "channels", "%u 1 0 0 ", number);
	OK(pulse_of(connection, 13, 12));
	OK(pulse_of(connection, 15, 15));
	for (int i = 0; i < 5; i++) {
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.priority == order[i][1]);
		CHECK(received.pulse ? received.code == order[i][0] : order[i][0] == -1);
		if (!received.pulse)
			IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	}
	join(client);
}

static void poll_tells_of_messages_and_of_the_end(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct pollfd at_server = { .fd = channel, .events = POLLIN };
	struct pollfd at_client = { .fd = connection, .events = 0 };
	struct stplr_receive received;

	IS(0, poll(&at_server, 1, 0));
	IS(0, poll(&at_client, 1, 0));
	pid_t client = CLIENT(channel, connection, {
		nap(100);
		OK(stplr_pulse(connection, 1, 1));
		IS(1, poll(&at_client, 1, 5000));
		CHECK(at_client.revents & POLLHUP);
	});
	IS(1, poll(&at_server, 1, 5000));
	IS(0, stplr_receive(channel, NULL, 0, 0, &received));
	IS(0, poll(&at_server, 1, 0));
	nap(50);
	close(channel);
	join(client);
	IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	IS(-ESRCH, stplr_pulse(connection, 1, 1));
}

static void a_server_that_dies_is_told_to_its_clients(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pid_t server = fork();

	if (server == 0) {
		IS(0, stplr_receive(channel, NULL, 0, -1, &received));
		pause();
	}
	/* The channel lives on here; what the dead process had received does not. */
	pid_t client = CLIENT(channel, connection,
			      { IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL)); });
	await_ioctl(client);
	while (waitpid(server, NULL, WNOHANG) == 0) {
		char path[40], call[4] = "";

		/* It has received once it is in pause. */
		snprintf(path, sizeof(path), "/proc/%d/syscall", server);
		FILE *file = fopen(path, "r");

		CHECK(file && fgets(call, sizeof(call), file));
		fclose(file);
		if (!strcmp(call, "34 "))
			break;
		nap(2);
	}
	double start = now();

	kill(server, SIGKILL);
	join(client);
	CHECK(now() - start < 1);
	waitpid(server, NULL, 0);
	/* And the channel still works. */
	pid_t second_client = CLIENT(channel, connection, {
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(second_client);
}

static void closing_the_channel_ends_all_calls(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pid_t clients[3];

	for (int i = 0; i < 3; i++)
		clients[i] = CLIENT(channel, connection, {
			IS(-ESRCH, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	for (int i = 0; i < 3; i++)
		await_ioctl(clients[i]);
	close(channel);
	for (int i = 0; i < 3; i++)
		join(clients[i]);
}

static void a_client_that_disconnects_is_told_to_the_server(void)
{
	int channel = new_channel(STPLR_CHANNEL_DISCONNECT);
	int connection = new_connection(channel, 77), copy = dup(connection);
	struct stplr_receive received;

	close(connection);
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
	pid_t client = CLIENT(channel, copy, { pause(); });

	close(copy);
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, second / 100, &received));
	kill(client, SIGKILL);
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.pulse && received.code == STPLR_PULSE_DISCONNECT && received.value == 77);
	waitpid(client, NULL, 0);
}

static void a_servers_death_can_be_a_pulse(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	int mine = new_channel(0);
	struct stplr_receive received;

	IS(-EINVAL, stplr_death(connection, connection, 0));
	IS(-EBADF, stplr_death(connection, 999, 0));
	OK(stplr_death(connection, mine, 5));
	IS(-EBUSY, stplr_death(connection, mine, 5));
	close(channel);
	IS(0, stplr_receive(mine, NULL, 0, second, &received));
	CHECK(received.pulse && received.code == STPLR_PULSE_DEATH && received.value == 5);
	IS(-ESRCH, stplr_death(connection, mine, 5));
}

static void an_interrupted_client_leaves(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection, {
		handle_signal(SIGUSR1, SA_RESTART);
		IS(-EINTR, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	kill(client, SIGUSR1);
	join(client);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

static void where_the_channel_says_so_it_waits_for_the_server(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);
	struct stplr_receive received, pulse;
	char room[2];

	pid_t client = CLIENT(channel, connection, {
		handle_signal(SIGUSR1, 0);
		IS(2, stplr_send(connection, NULL, 0, room, 2, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	kill(client, SIGUSR1);
	IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
	CHECK(pulse.pulse && pulse.code == STPLR_PULSE_UNBLOCK);
	CHECK((uint64_t)pulse.value == received.id);
	IS(0, waitpid(client, NULL, WNOHANG));
	kill(client, SIGUSR1);
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, second / 200, &pulse));
	IS(2, stplr_reply(channel, received.id, 0, "ok", 2));
	join(client);
}

static void a_client_that_waits_so_can_be_killed(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection, {
		handle_signal(SIGUSR1, 0);
		stplr_send(connection, NULL, 0, NULL, 0, NULL);
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	kill(client, SIGUSR1);
	nap(50);
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

static void where_the_channel_says_so_time_runs_out_for_the_server(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);
	struct stplr_receive received, pulse;
	char room[2];
	struct stplr_send send = { .reply = stplr_bytes(room, 2), .timeout_ns = second / 20 };

	for (int error = 0; error <= ETIMEDOUT; error += ETIMEDOUT) {
		pid_t client = CLIENT(channel, connection, {
			IS(-error, stplr_send_full(connection, &send));
			CHECK(error || (send.replied == 2 && !memcmp(room, "ok", 2)));
		});
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
		CHECK(pulse.pulse && pulse.code == STPLR_PULSE_UNBLOCK);
		CHECK((uint64_t)pulse.value == received.id);
		IS(0, waitpid(client, NULL, WNOHANG));
		if (error)
			OK(stplr_reply_error(channel, received.id, error));
		else
			IS(2, stplr_reply(channel, received.id, 0, "ok", 2));
		join(client);
	}
	/* Of what nobody has received nobody is told. */
	IS(-ETIMEDOUT, stplr_send_full(connection, &send));
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &received));
}

static void one_way_messages_end_when_they_are_received(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char buffer[8];

	pid_t client = CLIENT(channel, connection,
			      { OK(stplr_send_one_way(connection, "hello", 6)); });
	IS(6, stplr_receive(channel, buffer, 8, second, &received));
	CHECK(!received.id && !received.pulse && !strcmp(buffer, "hello"));
	join(client);
}

static void descriptors_go_along(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	int ends[2], more[17], got[4] = { -1, -1, -1, -1 };
	char c;

	OK(pipe(ends));
	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .timeout_ns = -1,
					   .files = (uintptr_t)ends,
					   .file_count = 2 };

		OK(stplr_send_full(connection, &send));
		send.file_count = 17;
		send.files = (uintptr_t)more;
		IS(-EINVAL, stplr_send_full(connection, &send));
		send.file_count = 1;
		more[0] = 999;
		IS(-EBADF, stplr_send_full(connection, &send));
		send.files = 8;
		IS(-EFAULT, stplr_send_full(connection, &send));
	});
	struct stplr_receive receive = { .timeout_ns = second,
					 .files = 8,
					 .file_room = 4 };

	close(ends[0]);
	close(ends[1]);
	IS(-EFAULT, stplr_receive_full(channel, &receive));
	receive.files = (uintptr_t)got;
	OK(stplr_receive_full(channel, &receive));
	CHECK(receive.file_count == 2 && got[2] == -1);
	CHECK(fcntl(got[0], F_GETFD) == FD_CLOEXEC);
	CHECK(write(got[1], "x", 1) == 1 && read(got[0], &c, 1) == 1);
	IS(0, stplr_reply(channel, receive.id, 0, NULL, 0));
	join(client);
}

static void a_connection_can_be_passed_on(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), got;
	int passed = new_connection(channel, 9);
	struct stplr_receive receive = { .timeout_ns = second,
					 .files = (uintptr_t)&got,
					 .file_room = 1 };

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .timeout_ns = -1,
					   .files = (uintptr_t)&passed,
					   .file_count = 1 };

		OK(stplr_send_full(connection, &send));
	});
	OK(stplr_receive_full(channel, &receive));
	OK(stplr_pulse(got, 3, 0));
	IS(0, stplr_reply(channel, receive.id, 0, NULL, 0));
	join(client);
}

static void a_pulse_that_cannot_be_told_keeps_its_place(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	struct stplr_receive *fixed = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(fixed != MAP_FAILED);
	*fixed = (struct stplr_receive){ .timeout_ns = 0 };
	OK(mprotect(fixed, 4096, PROT_READ));
	for (int i = 0; i < 3; i++)
		IS(0, stplr_pulse(connection, 1, i));
	for (int i = 0; i < 3; i++) {
		IS(-EFAULT, stplr_receive_full(channel, fixed));
		IS(0, stplr_receive(channel, NULL, 0, 0, &received));
		CHECK(received.pulse && received.value == i);
	}
}

static void names_are_guarded_by_their_mode(void)
{
	int channel = stplr_channel_create("open", 0666, 0);
	int closed = stplr_channel_create("closed", 0600, 0);
	struct stplr_receive received;

	CHECK(channel >= 0 && closed >= 0);
	IS(-EADDRINUSE, stplr_channel_create("open", 0666, 0));
	IS(-ENOENT, stplr_connect("nobody"));
	IS(-EINVAL, stplr_connect(""));
	IS(-EINVAL, stplr_channel_create("x", 07777, 0));
	IS(-EINVAL, stplr_channel_create("x", 0, 8));
	OK(chmod("/dev/stplr", 0666));
	pid_t client = CLIENT(channel, channel, {
		OK(setgid(1000));
		OK(setuid(1000));
		IS(-EACCES, stplr_connect("closed"));
		int connection = stplr_connect("open");

		CHECK(connection >= 0);
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	CHECK(received.uid == 1000 && received.gid == 1000);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
	close(channel);
	IS(-ENOENT, stplr_connect("open"));
	CHECK(stplr_channel_create("open", 0, 0) >= 0);
}

static void names_of_users_are_theirs_to_take(void)
{
	OK(chmod("/dev/stplr", 0666));
	pid_t child = fork();

	if (child == 0) {
		OK(setgid(1000));
		OK(setuid(1000));
		CHECK(stplr_channel_create("1000/mine", 0600, 0) >= 0);
		IS(-EACCES, stplr_channel_create("nobody's", 0600, 0));
		IS(-EACCES, stplr_channel_create("/1000", 0600, 0));
		IS(-EACCES, stplr_channel_create("0/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("00/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("10000/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("4294968296/clock", 0600, 0));
		IS(-EACCES, stplr_channel_create("100000000000000000001000/clock", 0600, 0));
		_exit(0);
	}
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(stplr_channel_create("0/clock", 0600, 0) >= 0);
	CHECK(stplr_channel_create("1000/by-root", 0600, 0) >= 0);
}

static void who_does_not_block_is_told(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	struct stplr_reply_receive both = { .receive.timeout_ns = -1 };

	OK(fcntl(channel, F_SETFL, O_NONBLOCK));
	IS(-EAGAIN, stplr_receive(channel, NULL, 0, -1, &received));
	IS(-EAGAIN, stplr_receive(channel, NULL, 0, second, &received));
	IS(-EAGAIN, stplr_reply_receive(channel, &both));
	pid_t client = CLIENT(channel, connection, {
		OK(fcntl(connection, F_SETFL, O_NONBLOCK));
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	struct pollfd waiting = { .fd = channel, .events = POLLIN };

	CHECK(poll(&waiting, 1, 10000) == 1);
	IS(0, stplr_receive(channel, NULL, 0, -1, &received));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

/* Their client has left by the time they are closed for good. */
static void descriptors_of_a_full_table_are_taken_back(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), ends[2], next;
	int32_t got[4];
	struct stplr_receive receive = { .timeout_ns = second,
					 .files = (uintptr_t)got,
					 .file_room = 4 };
	struct rlimit room;
	char byte;

	OK(pipe(ends));
	pid_t client = CLIENT(channel, connection, {
		int32_t files[4] = { ends[1], ends[1], ends[1], ends[1] };
		struct stplr_send send = { .files = (uintptr_t)files,
					   .file_count = 4,
					   .timeout_ns = -1 };

		stplr_send_full(connection, &send);
	});
	AWAIT_LINE(FOLDER "blocked", "%d %d SEND ", client, client);
	close(ends[1]);
	next = dup(0);
	OK(close(next));
	OK(getrlimit(RLIMIT_NOFILE, &room));
	room.rlim_cur = (rlim_t)next + 2;
	OK(setrlimit(RLIMIT_NOFILE, &room));
	IS(-EMFILE, stplr_receive_full(channel, &receive));
	IS(next, dup(0));
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	/* Nobody has the other end any more. */
	IS(0, read(ends[0], &byte, 1));
}

static void descriptors_without_room_are_told_of(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);

	for (unsigned int room = 0; room < 4; room++) {
		pid_t client = CLIENT(channel, connection, {
			int32_t files[3] = { 0, 1, 2 };
			struct stplr_send send = { .files = (uintptr_t)files,
						   .file_count = 3,
						   .timeout_ns = -1 };

			OK(stplr_send_full(connection, &send));
		});
		int32_t got[4] = { -1, -1, -1, -1 };
		struct stplr_receive received = { .timeout_ns = second,
						  .files = (uintptr_t)got,
						  .file_room = room };

		OK(stplr_receive_full(channel, &received));
		CHECK(received.file_count == (room < 3 ? room : 3) && received.value == 3);
		for (unsigned int i = 0; i < 4; i++)
			CHECK((got[i] >= 0) == (i < received.file_count));
		for (unsigned int i = 0; i < received.file_count; i++)
			OK(close(got[i]));
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(client);
	}
}

static void what_a_user_takes_is_bounded(void)
{
	FILE *limit = fopen("/sys/module/stplr/parameters/user_bytes", "w");

	CHECK(limit);
	fprintf(limit, "65536\n");
	fclose(limit);
	OK(chmod("/dev/stplr", 0666));
	pid_t child = fork();

	if (child == 0) {
		int err = 0, count = 0, channels[200];

		OK(setuid(1000));
		while (count < 200 && (channels[count] = stplr_channel_create(NULL, 0, 0)) >= 0)
			count++;
		err = count < 200 ? channels[count] : 0;
		IS(-EDQUOT, err);
		CHECK(count > 10);
		while (count--)
			close(channels[count]);
		CHECK(stplr_channel_create(NULL, 0, 0) >= 0);
		_exit(0);
	}
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	limit = fopen("/sys/module/stplr/parameters/user_bytes", "w");
	fprintf(limit, "67108864\n");
	fclose(limit);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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

/* From here on a userfaultfd watches the memory; returns it. */
static int watch(void *memory, size_t size)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { (unsigned long)memory, size },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	CHECK(faults >= 0);
	OK(ioctl(faults, UFFDIO_API, &api));
	OK(ioctl(faults, UFFDIO_REGISTER, &range));
	return faults;
}

static void need_userfaultfd(void)
{
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (faults < 0)
		SKIP("this kernel has no userfaultfd");
	close(faults);
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

static void *serve(void *argument)
{
	int channel = *(int *)argument;
	struct stplr_receive received;
	char buffer[600];

	for (;;) {
		ssize_t length = stplr_receive(channel, buffer, sizeof(buffer), -1, &received);

		CHECK(length >= 0);
		if (received.pulse)
			return NULL;
		IS(length, stplr_reply(channel, received.id, 0, buffer, (size_t)length));
	}
}

static void many_clients_and_many_threads(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	pthread_t threads[4];
	pid_t clients[64];

	for (int i = 0; i < 4; i++)
		OK(pthread_create(&threads[i], NULL, serve, &channel));
	for (int i = 0; i < 64; i++)
		clients[i] = CLIENT(channel, connection, {
			char sent[600];
			char got[600];

			for (int n = 0; n < 25; n++) {
				size_t length = (size_t)(n * 24);

				memset(sent, i + n, sizeof(sent));
				IS(length, stplr_send(connection, sent, length, got, 600, NULL));
				CHECK(!memcmp(sent, got, length));
			}
		});
	for (int i = 0; i < 64; i++)
		join(clients[i]);
	for (int i = 0; i < 4; i++)
		OK(stplr_pulse(connection, 1, 0));
	for (int i = 0; i < 4; i++)
		OK(pthread_join(threads[i], NULL));
}

static const struct test tests[] = {
	{ "a message is received and answered", a_message_is_received_and_answered },
	{ "every size arrives whole on a channel", every_size_arrives_whole },
	{ "buffers are one run of bytes", buffers_are_one_run_of_bytes },
	{ "a reply is cut to the client's room", a_reply_is_cut_to_the_clients_room },
	{ "an error reply fails the call", an_error_reply_fails_the_call },
	{ "errors of the kernel's own are no replies", errors_of_the_kernels_own_are_no_replies },
	{ "ids cannot be forged or used twice", ids_cannot_be_forged_or_used_twice },
	{ "only the process that received may answer", only_the_process_that_received_may_answer },
	{ "another thread of it may answer", another_thread_may_answer },
	{ "reply and receive is one call", reply_and_receive_is_one_call },
	{ "reply and receive, interrupted, does not answer again",
	  a_restarted_call_does_not_answer_again },
	{ "where it is not restarted it has answered", others_end_having_answered },
	{ "a client's small memory can be read and written",
	  small_memory_can_be_read_and_written },
	{ "a client's big memory can be read and written", big_memory_can_be_read_and_written },
	{ "a receive times out", a_receive_times_out },
	{ "a send times out before and after it is received",
	  a_send_times_out_before_and_after_it_is_received },
	{ "pulses are queued and received", pulses_are_queued_and_received },
	{ "pulses of a connection are bounded", pulses_of_a_connection_are_bounded },
	{ "the urgent go first", the_urgent_go_first },
	{ "a pulse may have less priority than its sender, not more",
	  a_pulse_may_have_less_priority_than_its_sender },
	{ "pulses and messages stand in one queue", pulses_and_messages_stand_in_one_queue },
	{ "poll tells of messages and of the end", poll_tells_of_messages_and_of_the_end },
	{ "a server that dies is told to its clients", a_server_that_dies_is_told_to_its_clients },
	{ "closing the channel ends all calls", closing_the_channel_ends_all_calls },
	{ "a client that disconnects is told to the server",
	  a_client_that_disconnects_is_told_to_the_server },
	{ "a server's death can be a pulse", a_servers_death_can_be_a_pulse },
	{ "an interrupted client leaves", an_interrupted_client_leaves },
	{ "where the channel says so it waits for the server",
	  where_the_channel_says_so_it_waits_for_the_server },
	{ "a client that waits so can be killed", a_client_that_waits_so_can_be_killed },
	{ "there, when a client's time runs out, that is for the server to say",
	  where_the_channel_says_so_time_runs_out_for_the_server },
	{ "one-way messages end when they are received",
	  one_way_messages_end_when_they_are_received },
	{ "descriptors go along", descriptors_go_along },
	{ "a connection can be passed on", a_connection_can_be_passed_on },
	{ "a pulse that cannot be told of keeps its place",
	  a_pulse_that_cannot_be_told_keeps_its_place },
	{ "names are guarded by their mode", names_are_guarded_by_their_mode },
	{ "names of users are theirs to take", names_of_users_are_theirs_to_take },
	{ "who does not block is told that nothing is there", who_does_not_block_is_told },
	{ "descriptors of a full table are taken back",
	  descriptors_of_a_full_table_are_taken_back },
	{ "descriptors for which there was no room are told of",
	  descriptors_without_room_are_told_of },
	{ "what a user takes is bounded", what_a_user_takes_is_bounded },
	{ "bad pointers lose nothing", bad_pointers_lose_nothing },
	{ "watched memory is passed as any other", watched_memory_is_passed_as_any_other },
	{ "memory that is not at hand is asked for again",
	  memory_that_is_not_at_hand_is_asked_for_again },
	{ "memory that is let go while it is copied stalls nobody",
	  memory_that_is_let_go_stalls_nobody },
	{ "many clients and many threads", many_clients_and_many_threads },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
