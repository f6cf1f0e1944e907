// SPDX-License-Identifier: GPL-2.0
/* What becomes of calls whose client or server leaves, is interrupted, or has no time left. */
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "new.h"
#include "seen.h"

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
	/* Also where it has been closed before. */
	OK(stplr_death(connection, mine, 6));
	IS(0, stplr_receive(mine, NULL, 0, second, &received));
	CHECK(received.pulse && received.code == STPLR_PULSE_DEATH && received.value == 6);
}

/* As processes that share the connection do. */
static void each_of_several_channels_is_told_of_a_death(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), mine[3];
	struct stplr_receive received;

	for (int i = 0; i < 3; i++) {
		mine[i] = new_channel(0);
		OK(stplr_death(connection, mine[i], i));
		IS(-EBUSY, stplr_death(connection, mine[i], i));
	}
	close(mine[1]);
	close(channel);
	for (int i = 0; i < 3; i += 2) {
		IS(0, stplr_receive(mine[i], NULL, 0, second, &received));
		CHECK(received.pulse && received.code == STPLR_PULSE_DEATH && received.value == i);
		IS(-ETIMEDOUT, stplr_receive(mine[i], NULL, 0, 0, &received));
	}
}

static void a_connection_tells_a_bounded_number_of_channels(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), told = 0, mine, err;

	do {
		mine = new_channel(0);
		err = stplr_death(connection, mine, 0);
		close(mine);
	} while (!err && ++told < 5000);
	IS(-EAGAIN, err);
	IS(1024, told);
	close(connection);
	connection = new_connection(channel, 0);
	mine = new_channel(0);
	OK(stplr_death(connection, mine, 0));
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

static const struct test tests[] = {
	{ "reply and receive, interrupted, does not answer again",
	  a_restarted_call_does_not_answer_again },
	{ "where it is not restarted it has answered", others_end_having_answered },
	{ "a server that dies is told to its clients", a_server_that_dies_is_told_to_its_clients },
	{ "closing the channel ends all calls", closing_the_channel_ends_all_calls },
	{ "a client that disconnects is told to the server",
	  a_client_that_disconnects_is_told_to_the_server },
	{ "a server's death can be a pulse", a_servers_death_can_be_a_pulse },
	{ "each of several channels is told of a death", each_of_several_channels_is_told_of_a_death },
	{ "a connection tells a bounded number of channels", a_connection_tells_a_bounded_number_of_channels },
	{ "an interrupted client leaves", an_interrupted_client_leaves },
	{ "where the channel says so it waits for the server",
	  where_the_channel_says_so_it_waits_for_the_server },
	{ "a client that waits so can be killed", a_client_that_waits_so_can_be_killed },
	{ "there, when a client's time runs out, that is for the server to say",
	  where_the_channel_says_so_time_runs_out_for_the_server },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
