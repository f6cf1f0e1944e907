// SPDX-License-Identifier: GPL-2.0
/* What is handed to a receiver that is being killed is received by another, which waits as well. */
#define _GNU_SOURCE
#include <sched.h>

#include "new.h"
#include "processor.h"
#include "raise.h"
#include "seen.h"

/* Says what it has received, once it is in line. */
static pid_t receiver(int channel, int says)
{
	pid_t process = fork();

	if (process == 0) {
		struct stplr_receive received;
		char byte;

		CHECK(stplr_receive(channel, &byte, 1, -1, &received) >= 0);
		if (received.pulse)
			byte = (char)received.value;
		CHECK(write(says, &byte, 1) == 1);
		if (received.id)
			IS(1, stplr_reply(channel, received.id, 0, &byte, 1));
		_exit(0);
	}
	AWAIT_LINE(FOLDER "blocked", "%d %d RECEIVE ", process, process);
	return process;
}

static void send_one_way(int connection)
{
	IS(0, stplr_send_one_way(connection, "m", 1));
}

static void send_and_wait(int connection)
{
	char room;

	IS(1, stplr_send(connection, "m", 1, &room, 1, NULL));
	CHECK(room == 'm');
}

static void pulse(int connection)
{
	IS(0, stplr_pulse(connection, 1, 'm'));
}

/*
 * All on one processor, which who sends does not leave in between: it is handed to the one that came last,
 * which is killed and has not run since.
 */
static void another_receives(void (*give)(int connection))
{
	int channel = new_channel(0), connection = new_connection(channel, 0), says[2];
	char byte;

	OK(pipe(says));
	run_on(0);
	pid_t lives = receiver(channel, says[1]), dies = receiver(channel, says[1]);

	be_real_time(1);
	OK(kill(dies, SIGKILL));
	give(connection);
	CHECK(read(says[0], &byte, 1) == 1 && byte == 'm');
	join(lives);
	CHECK(waitpid(dies, NULL, 0) == dies);
}

static void another_receives_what_wants_no_answer(void)
{
	another_receives(send_one_way);
}

static void another_receives_and_answers(void)
{
	another_receives(send_and_wait);
}

static void another_receives_a_pulse(void)
{
	another_receives(pulse);
}

static const struct test tests[] = {
	{ "what wants no answer", another_receives_what_wants_no_answer },
	{ "what is to be answered", another_receives_and_answers },
	{ "a pulse", another_receives_a_pulse },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
