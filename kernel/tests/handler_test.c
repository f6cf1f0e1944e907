// SPDX-License-Identifier: GPL-2.0
/*
 * Handlers that are run while somebody waits, or once a stopped process goes on: the call ends or begins
 * anew, and nothing is left of it.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "new.h"
#include "stop.h"

enum { MUCH = 1 << 16 };

/* A client whose handler ends its call, and which uses its memory for something else from then on. */
struct leaver {
	pid_t client;
	int told, go; /* pipes: that it does, and that it may end */
};

/* Its memory is what it sends, or the room for the reply. */
static struct leaver leaver_of(int channel, bool sends)
{
	int connection = new_connection(channel, 0), told[2], go[2];
	char byte;

	OK(pipe(told));
	OK(pipe(go));
	pid_t client = CLIENT(channel, connection, {
		static char memory[MUCH];
		struct stplr_send send = { .timeout_ns = forever };

		*(sends ? &send.send : &send.reply) = stplr_bytes(memory, MUCH);
		handle_signal(SIGUSR1, 0);
		if (sends)
			memset(memory, 's', MUCH);
		IS(-EINTR, stplr_send_full(connection, &send));
		memset(memory, 'c', MUCH);
		CHECK(write(told[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
		for (int i = 0; i < MUCH; i++)
			CHECK(memory[i] == 'c');
	});
	return (struct leaver){ client, told[0], go[1] };
}

static void have_gone_on(struct leaver leaver, const char *blocked)
{
	char byte;

	await_blocked(leaver.client, blocked);
	stop(leaver.client);
	OK(kill(leaver.client, SIGUSR1));
	go_on(leaver.client);
	CHECK(read(leaver.told, &byte, 1) == 1);
}

static void have_ended(struct leaver leaver)
{
	CHECK(write(leaver.go, "x", 1) == 1);
	join(leaver.client);
}

/* Its program has gone on, by a handler, without the module: the room is for something else by then. */
static void nothing_is_written_to_who_has_gone_on(void)
{
	int channel = new_channel(0);
	struct leaver leaver = leaver_of(channel, false);
	struct stplr_receive received;
	static char mine[MUCH];

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	have_gone_on(leaver, "REPLY");
	memset(mine, 'r', MUCH);
	stplr_reply(channel, received.id, 0, mine, MUCH);
	have_ended(leaver);
}

/* And so is what was sent, which nobody receives. */
static void nothing_is_read_of_who_has_gone_on(void)
{
	int channel = new_channel(0);
	struct leaver leaver = leaver_of(channel, true);
	struct stplr_receive received;
	static char mine[MUCH];

	have_gone_on(leaver, "SEND");
	IS(-ETIMEDOUT, stplr_receive(channel, mine, MUCH, 100000000, &received));
	have_ended(leaver);
}

/* One that nobody has received begins anew when its handler says so, were it stopped before or not. */
static void a_handler_restarts_a_call_after_a_stop(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;

	for (int stops = 0; stops < 3; stops++) {
		pid_t client = CLIENT(channel, connection, {
			struct stplr_send send = { .timeout_ns = forever };

			handle_signal(SIGUSR1, SA_RESTART);
			OK(stplr_send_full(connection, &send));
		});

		await_blocked(client, "SEND");
		for (int i = 0; i < stops; i++) {
			stop(client);
			go_on(client);
			nap(50);
		}
		OK(kill(client, SIGUSR1));
		nap(50);
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(client);
	}
}

/* It is only when it goes on that a handler is run; then the call has failed, as any other. */
static void a_handler_that_is_run_later_ends_it(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), go[2];
	char byte;

	OK(pipe(go));
	pid_t client = CLIENT(channel, connection, {
		handle_signal(SIGUSR1, SA_RESTART);
		struct stplr_send send = { .timeout_ns = minute };

		IS(-EINTR, stplr_send_full(connection, &send));
		IS(0, stplr_pulse(connection, 7, 0));
		CHECK(read(go[0], &byte, 1) == 1);
	});
	struct stplr_receive received, pulse;

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	await_blocked(client, "REPLY");
	stop(client);
	OK(kill(client, SIGUSR1));
	go_on(client);
	IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
	CHECK(pulse.pulse && pulse.code == 7);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
	CHECK(write(go[1], "x", 1) == 1);
	join(client);
}

static void there_a_server_that_is_to_be_told_is_told(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);

	pid_t client = CLIENT(channel, connection, {
		handle_signal(SIGUSR1, 0);
		IS(-EINTR, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		close(connection);
	});
	struct stplr_receive received, pulse;

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	await_blocked(client, "REPLY");
	stop(client);
	OK(kill(client, SIGUSR1));
	go_on(client);
	IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
	CHECK(pulse.pulse && pulse.code == STPLR_PULSE_UNBLOCK);
	CHECK((uint64_t)pulse.value == received.id);
	join(client);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

/* Of a call that it has answered it has nothing to give up. */
static void not_if_it_has_answered(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK), connection = new_connection(channel, 0);
	struct stplr_receive received, pulse;

	pid_t client = CLIENT(channel, connection, {
		handle_signal(SIGUSR1, 0);
		IS(-EINTR, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		IS(0, stplr_pulse(connection, 7, 0));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	await_blocked(client, "REPLY");
	stop(client);
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	OK(kill(client, SIGUSR1));
	go_on(client);
	IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
	CHECK(pulse.pulse && pulse.code == 7);
	join(client);
}

static sigjmp_buf elsewhere;

static void jump(int number)
{
	siglongjmp(elsewhere, 1);
}

/* However it does not come back: by a handler that jumps, by SIGKILL while it is stopped. */
static void nothing_is_left_of_who_does_not_come_back(void)
{
	int channel = new_channel(STPLR_CHANNEL_DISCONNECT);

	for (int killed = 0; killed < 2; killed++) {
		int connection = new_connection(channel, 5), go[2];
		struct stplr_receive received, pulse;
		char byte;

		OK(pipe(go));
		pid_t client = CLIENT(channel, connection, {
			signal(SIGUSR1, jump);
			if (!sigsetjmp(elsewhere, 1)) {
				stplr_send(connection, NULL, 0, NULL, 0, NULL);
				_exit(1);
			}
			close(connection);
			CHECK(read(go[0], &byte, 1) == 1);
			/* What the kernel would have had it come back by is still there. */
			FAILS(EINTR, syscall(SYS_restart_syscall));
		});
		close(connection);
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		await_blocked(client, "REPLY");
		stop(client);
		OK(kill(client, killed ? SIGKILL : SIGUSR1));
		go_on(client);
		IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
		CHECK(pulse.pulse && pulse.code == STPLR_PULSE_DISCONNECT && pulse.value == 5);
		IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
		if (killed) {
			waitpid(client, NULL, 0);
			continue;
		}
		CHECK(write(go[1], "x", 1) == 1);
		join(client);
	}
}

static int kept;

static void execute(int number)
{
	char text[12];

	snprintf(text, sizeof(text), "%d", kept);
	execl("/proc/self/exe", "handler_test", text, NULL);
	_exit(1);
}

/* The new program: nothing is left of what the old one has waited for, be it that the connection is. */
static int be_executed(int connection)
{
	FAILS(EINTR, syscall(SYS_restart_syscall));
	IS(0, stplr_pulse(connection, 7, 0));
	pause();
	return 0;
}

static void a_handler_that_executes_a_program_ends_it_as_well(void)
{
	int channel = new_channel(STPLR_CHANNEL_UNBLOCK);
	struct stplr_receive received, pulse;
	bool told = false, used = false;

	kept = new_connection(channel, 0);
	OK(fcntl(kept, F_SETFD, 0));
	pid_t client = CLIENT(channel, kept, {
		signal(SIGUSR1, execute);
		stplr_send(kept, NULL, 0, NULL, 0, NULL);
		_exit(1);
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	await_blocked(client, "REPLY");
	stop(client);
	OK(kill(client, SIGUSR1));
	go_on(client);
	while (!told || !used) {
		IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
		CHECK(pulse.pulse);
		if (pulse.code == STPLR_PULSE_UNBLOCK)
			told = (uint64_t)pulse.value == received.id;
		else
			used = pulse.code == 7;
	}
	CHECK(waitpid(client, NULL, WNOHANG) == 0);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

static const struct test tests[] = {
	{ "nothing is written to who has gone on", nothing_is_written_to_who_has_gone_on },
	{ "nothing is read of who has gone on", nothing_is_read_of_who_has_gone_on },
	{ "a handler restarts a call after a stop", a_handler_restarts_a_call_after_a_stop },
	{ "a handler that is run later ends the call", a_handler_that_is_run_later_ends_it },
	{ "then the server is told, where it is to be",
	  there_a_server_that_is_to_be_told_is_told },
	{ "but not of a call that it has answered", not_if_it_has_answered },
	{ "nothing is left of who does not come back",
	  nothing_is_left_of_who_does_not_come_back },
	{ "a handler that executes a program ends it as well",
	  a_handler_that_executes_a_program_ends_it_as_well },
};

int main(int count, char **arguments)
{
	if (count == 2)
		return be_executed(atoi(arguments[1]));
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
