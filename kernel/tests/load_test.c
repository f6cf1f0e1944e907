// SPDX-License-Identifier: GPL-2.0
/*
 * Loading and unloading, with users who come and go. Each test begins and ends with the module
 * loaded. The module is /stplr.ko, where the guest of kernel/vm has it.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "new.h"

static int load(const char *parameters)
{
	int fd = open("/stplr.ko", O_RDONLY | O_CLOEXEC), result;

	if (fd < 0)
		SKIP("there is no /stplr.ko to load");
	result = (int)syscall(SYS_finit_module, fd, parameters, 0);
	close(fd);
	return result;
}

static int unload(void)
{
	return (int)syscall(SYS_delete_module, "stplr", O_NONBLOCK);
}

/* Processes that were killed close their files a moment later. */
static void unload_soon(void)
{
	double end = now() + 5 * patience();

	while (unload()) {
		CHECK(errno == EAGAIN && now() < end);
		usleep(500);
	}
}

static void it_stays_while_it_is_used(void)
{
	int fds[5], channel;

	fds[0] = open("/dev/stplr-0", O_RDWR);
	fds[1] = open("/dev/stplr", O_RDWR);
	channel = stplr_channel_create("seen", 0600, 0);
	fds[2] = dup(channel);
	fds[3] = new_connection(channel, 0);
	close(channel);
	fds[4] = open("/sys/kernel/debug/stplr/blocked", O_RDONLY);
	for (int i = 0; i < 5; i++) {
		CHECK(fds[i] >= 0);
		FAILS(EAGAIN, unload());
		close(fds[i]);
	}
	unload_soon();
	CHECK(access("/dev/stplr", F_OK) && access("/dev/stplr-0", F_OK));
	CHECK(access("/sys/kernel/debug/stplr", F_OK));
	OK(load(""));
}

static void it_stays_while_somebody_waits(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	pid_t server = fork();

	if (server == 0) {
		stplr_receive(channel, NULL, 0, -1, &received);
		stplr_receive(channel, NULL, 0, -1, &received);
		_exit(1);
	}
	pid_t client = CLIENT(channel, connection, {
		stplr_send(connection, NULL, 0, NULL, 0, NULL);
	});

	await_ioctl(client);
	close(channel);
	close(connection);
	FAILS(EAGAIN, unload());
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	waitpid(client, NULL, 0);
	unload_soon();
	OK(load(""));
}

static void its_parameters_are_checked(void)
{
	unload_soon();
	FAILS(EINVAL, load("devices=0"));
	FAILS(EINVAL, load("devices=257"));
	FAILS(EINVAL, load("devices=-1"));
	FAILS(EINVAL, load("spin_us=1001"));
	FAILS(EINVAL, load("spin_us=-1"));
	OK(load("devices=2 debug=4 spin_us=0"));
	OK(access("/dev/stplr-1", F_OK));
	CHECK(access("/dev/stplr-2", F_OK));
	int channel = new_channel(0);

	close(channel);
	unload_soon();
	OK(load("devices=256"));
	OK(access("/dev/stplr-255", F_OK));
	unload_soon();
	OK(load(""));
}

/* What somebody does with the module who meets it in any state. */
static void use_it(unsigned int number)
{
	struct stplr_handle handle;
	char buffer[30000] = "";

	for (;;) {
		int node = open("/dev/stplr-0", O_RDWR | O_CLOEXEC);
		int channel = stplr_channel_create(NULL, 0, number & 7);
		int connection = stplr_channel_connect(channel, number);
		struct stplr_send send = { .send = stplr_bytes(buffer, sizeof(buffer)),
					   .timeout_ns = 1000000 };
		struct stplr_receive received;

		if (node >= 0)
			ioctl(node, STPLR_HANDLE_GET, &handle);
		if (connection >= 0) {
			stplr_register(connection, buffer, sizeof(buffer));
			stplr_pulse(connection, 1, 1);
			stplr_death(connection, channel, 1);
			if (fork() == 0) {
				stplr_send_full(connection, &send);
				_exit(0);
			}
			stplr_receive(channel, buffer, sizeof(buffer), 0, &received);
			stplr_receive(channel, buffer, sizeof(buffer), 2000000, &received);
			stplr_reply(channel, received.id, 0, buffer, 100);
			waitpid(-1, NULL, 0);
		}
		close(node);
		close(channel);
		close(connection);
		/* So that there are moments without any user. */
		usleep((2000 + 5000 * number) * patience());
	}
}

static void start_users(pid_t users[4])
{
	for (unsigned int i = 0; i < 4; i++) {
		users[i] = fork();
		if (users[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			use_it(i);
		}
	}
}

static void kill_users(pid_t users[4])
{
	for (int i = 0; i < 4; i++) {
		kill(users[i], SIGKILL);
		waitpid(users[i], NULL, 0);
	}
}

static void it_goes_once_its_users_have_gone(void)
{
	pid_t users[4];

	for (int i = 0; i < 12; i++) {
		start_users(users);
		nap(20 * (i % 4));
		kill_users(users);
		unload_soon();
		OK(load(""));
	}
}

/* For two seconds, and for ten more until it has been in use as well as not. */
static void it_comes_and_goes_under_its_users(void)
{
	unsigned int refused = 0, unloaded = 0;
	double end = now() + 2, last = end + 10 * patience();
	pid_t users[4];

	start_users(users);
	while (now() < end || ((!unloaded || !refused) && now() < last)) {
		if (!unload()) {
			unloaded++;
			OK(load(""));
		} else {
			CHECK(errno == EAGAIN);
			refused++;
		}
		usleep(300);
	}
	kill_users(users);
	printf("# unloaded %u times under its users, refused %u times\n", unloaded, refused);
	CHECK(unloaded && refused);
	unload_soon();
	OK(load(""));
}

static const struct test tests[] = {
	{ "it stays while it is used", it_stays_while_it_is_used },
	{ "it stays while somebody waits", it_stays_while_somebody_waits },
	{ "its parameters are checked", its_parameters_are_checked },
	{ "it goes once its users have gone", it_goes_once_its_users_have_gone },
	{ "it comes and goes under its users", it_comes_and_goes_under_its_users },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
