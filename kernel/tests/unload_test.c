// SPDX-License-Identifier: GPL-2.0
/* The module goes while there are processes that were once in it: none of them finds its way back there. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>

#include "new.h"
#include "seen.h"

#define MODULE "/stplr.ko"

static int go[2], told[2];

static void close_all_but(int one, int another)
{
	for (int fd = 3; fd < 64; fd++)
		if (fd != one && fd != another)
			close(fd);
}

/* The child has nothing of the module but what it inherits of its parent's wait. */
static void fork_there(int number)
{
	char byte;

	if (fork())
		return;
	close_all_but(go[0], told[1]);
	CHECK(write(told[1], "x", 1) == 1);
	CHECK(read(go[0], &byte, 1) == 1);
	FAILS(EINTR, syscall(SYS_restart_syscall));
	CHECK(write(told[1], "x", 1) == 1);
	_exit(0);
}

static void unload(void)
{
	while (syscall(SYS_delete_module, "stplr", O_NONBLOCK)) {
		CHECK(errno == EAGAIN || errno == EWOULDBLOCK || errno == EBUSY);
		nap(20);
	}
}

static void load(void)
{
	int module = open(MODULE, O_RDONLY | O_CLOEXEC);

	CHECK(module >= 0);
	OK(syscall(SYS_finit_module, module, "", 0));
	close(module);
}

static void a_child_of_a_handler_is_not_restarted_there(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), status;
	struct stplr_receive received;
	char byte;

	if (access(MODULE, R_OK))
		SKIP("the module is not where the guest has it");
	OK(pipe(go));
	OK(pipe(told));
	pid_t client = CLIENT(channel, connection, {
		signal(SIGUSR1, fork_there);
		IS(-EINTR, stplr_send(connection, NULL, 0, NULL, 0, NULL));
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	AWAIT_LINE(FOLDER "blocked", "%d %d REPLY ", client, client);
	OK(kill(client, SIGSTOP));
	CHECK(waitpid(client, &status, WUNTRACED) == client && WIFSTOPPED(status));
	OK(kill(client, SIGUSR1));
	OK(kill(client, SIGCONT));
	join(client);
	close(told[1]);
	/* The child has let go of all that it had. */
	CHECK(read(told[0], &byte, 1) == 1);
	close(channel);
	close(connection);
	unload();
	CHECK(write(go[1], "x", 1) == 1);
	CHECK(read(told[0], &byte, 1) == 1);
	load();
}

static const struct test tests[] = {
	{ "a child that a handler forked is not restarted there",
	  a_child_of_a_handler_is_not_restarted_there },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
