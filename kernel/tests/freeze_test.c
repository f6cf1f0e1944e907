// SPDX-License-Identifier: GPL-2.0
/*
 * The freezer stops all tasks of a group, as a machine that goes to sleep stops all there are.
 * Nobody who waits is to notice.
 */
#include <fcntl.h>
#include <linux/suspend_ioctls.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "new.h"
#include "old.h"
#include "seen.h"

#define FREEZER "/tmp/freezer"
#define COLD FREEZER "/cold/"
#define EMPTY FREEZER "/empty/"

/*
 * A group without tasks is frozen throughout: the first that is and the last have the kernel patch
 * itself, and a processor that is emulated may not see that in time, but loop where the patch was.
 */
static void need_freezer(void)
{
	mkdir(FREEZER, 0700);
	if (mount("freezer", FREEZER, "cgroup", 0, "freezer"))
		SKIP("this kernel has no freezer of cgroup v1");
	OK(mkdir(COLD, 0700));
	OK(mkdir(EMPTY, 0700));
	write_to(EMPTY "freezer.state", "FROZEN");
}

static void put_into_the_cold(pid_t process)
{
	char number[20];

	snprintf(number, sizeof(number), "%d", process);
	write_to(COLD "cgroup.procs", number);
}

/*
 * Who cannot be frozen keeps the whole group, or machine, from it. This freezer looks at each task
 * once, unlike that of the machine, and may have to be asked again.
 */
static void turn(const char *state)
{
	double end = now() + 5 * patience();

	write_to(COLD "freezer.state", state);
	while (!lines(COLD "freezer.state", "%s", state)) {
		CHECK(now() < end);
		nap(2);
		write_to(COLD "freezer.state", state);
	}
}

static void freeze(void)
{
	turn("FROZEN");
}

static void thaw(void)
{
	turn("THAWED");
}

static bool waits(pid_t process, const char *how, unsigned int channel)
{
	return lines(FOLDER "blocked", "%d %d %s %u", process, process, how, channel) == 1;
}

#define AWAIT_WAITS(process, how, channel)                                                       \
	do {                                                                                     \
		while (!waits(process, how, channel))                                            \
			nap(2);                                                                  \
	} while (0)

/* Once it waits for its message to be received; what is in the message is its number. */
static pid_t client_of(int channel, int connection, unsigned int number, int message,
		       int64_t timeout_ns)
{
	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .send = stplr_bytes(&message, sizeof(message)),
					   .timeout_ns = timeout_ns };

		OK(stplr_send_full(connection, &send));
	});

	AWAIT_WAITS(client, "SEND", number);
	return client;
}

static uint64_t receive_of(int channel, int message)
{
	struct stplr_receive received;
	int got;

	IS(sizeof(got), stplr_receive(channel, &got, sizeof(got), second, &received));
	CHECK(got == message);
	return received.id;
}

/* Waits for a message, then answers it. */
static pid_t server_of(int channel, unsigned int number, int64_t timeout_ns)
{
	pid_t server = fork();

	if (server == 0) {
		struct stplr_receive received;

		IS(0, stplr_receive(channel, NULL, 0, timeout_ns, &received));
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		_exit(0);
	}
	AWAIT_WAITS(server, "RECEIVE", number);
	return server;
}

static const int64_t forever = -1, minute = 60 * 1000000000LL;

static void clients_go_on(void)
{
	int channel = stplr_channel_create("seen", 0600, 0), connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");
	pid_t clients[5];
	uint64_t ids[5];

	need_freezer();
	long sends = counter("sends"), interrupted = counter("interrupted");

	/* Two whose messages are received, two whose are not, one that comes later and stays warm. */
	for (int i = 0; i < 5; i++) {
		clients[i] = client_of(channel, connection, number, i, i & 1 ? minute : forever);
		if (i < 2)
			ids[i] = receive_of(channel, i);
		if (i < 4)
			put_into_the_cold(clients[i]);
	}
	freeze();
	for (int i = 0; i < 4; i++)
		CHECK(waits(clients[i], i < 2 ? "REPLY" : "SEND", number));
	thaw();
	for (int i = 2; i < 5; i++)
		ids[i] = receive_of(channel, i);
	for (int i = 0; i < 5; i++) {
		IS(0, stplr_reply(channel, ids[i], 0, NULL, 0));
		join(clients[i]);
	}
	CHECK(counter("sends") == sends + 5 && counter("interrupted") == interrupted);
}

static void servers_go_on(void)
{
	int channels[2], connections[2];
	static const char *const names[] = { "one", "two" };
	pid_t servers[2];

	need_freezer();
	for (int i = 0; i < 2; i++) {
		channels[i] = stplr_channel_create(names[i], 0600, 0);
		connections[i] = new_connection(channels[i], 0);
		servers[i] = server_of(channels[i], number_of(names[i]), i ? minute : forever);
		put_into_the_cold(servers[i]);
	}
	freeze();
	/* There is no line in which they could take anything. */
	for (int i = 0; i < 2; i++)
		CHECK(!waits(servers[i], "RECEIVE", number_of(names[i])));
	thaw();
	for (int i = 0; i < 2; i++) {
		IS(0, stplr_send(connections[i], NULL, 0, NULL, 0, NULL));
		join(servers[i]);
	}
}

/* Who is frozen receives nothing meanwhile, though it came last, and then would be the first. */
static void another_server_receives(void)
{
	int channel = stplr_channel_create("seen", 0600, 0), connection = new_connection(channel, 0);
	unsigned int number = number_of("seen");

	need_freezer();
	for (int i = 0; i < 2; i++) {
		pid_t warm = server_of(channel, number, i ? minute : forever);
		pid_t cold = server_of(channel, number, i ? minute : forever);

		put_into_the_cold(cold);
		freeze();
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		join(warm);
		thaw();
		IS(0, stplr_send(connection, NULL, 0, NULL, 0, NULL));
		join(cold);
	}
}

static void what_comes_meanwhile_is_found_afterwards(void)
{
	int channel = stplr_channel_create("seen", 0600, 0), connection = new_connection(channel, 0);
	int other = stplr_channel_create("other", 0600, 0), to_other = new_connection(other, 0);
	unsigned int number = number_of("seen");

	need_freezer();
	pid_t client = client_of(channel, connection, number, 1, forever);
	uint64_t id = receive_of(channel, 1);
	pid_t queued = client_of(channel, connection, number, 2, forever);
	pid_t server = server_of(other, number_of("other"), forever);

	put_into_the_cold(client);
	put_into_the_cold(queued);
	put_into_the_cold(server);
	freeze();
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	id = receive_of(channel, 2);
	pid_t asks = CLIENT(other, to_other, {
		IS(0, stplr_send(to_other, NULL, 0, NULL, 0, NULL));
	});
	AWAIT_LINE(FOLDER "channels", "%u 1 0 0 ", number_of("other"));
	IS(0, waitpid(client, NULL, WNOHANG));
	thaw();
	join(client);
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(queued);
	join(asks);
	join(server);
}

/* Where only its server or SIGKILL ends a client's wait. */
static void who_waits_for_its_server_can_be_frozen(void)
{
	int channel = stplr_channel_create("seen", 0600, STPLR_CHANNEL_UNBLOCK);
	int connection = new_connection(channel, 0);
	struct stplr_receive pulse;

	need_freezer();
	handle_signal(SIGUSR1, 0);
	pid_t client = client_of(channel, connection, number_of("seen"), 1, forever);
	uint64_t id = receive_of(channel, 1);

	put_into_the_cold(client);
	kill(client, SIGUSR1);
	IS(0, stplr_receive(channel, NULL, 0, second, &pulse));
	CHECK(pulse.code == STPLR_PULSE_UNBLOCK && (uint64_t)pulse.value == id);
	freeze();
	IS(-ETIMEDOUT, stplr_receive(channel, NULL, 0, 0, &pulse));
	thaw();
	IS(0, stplr_reply(channel, id, 0, NULL, 0));
	join(client);
}

/* All of them, but for who asks for it: whoever could not be frozen would keep the machine from its sleep. */
static void all_go_on_after_the_sleep_of_the_machine(void)
{
	int channel = stplr_channel_create("seen", 0600, 0), connection = new_connection(channel, 0);
	int other = stplr_channel_create("other", 0600, 0), to_other = new_connection(other, 0);
	int sleep = open("/dev/snapshot", O_RDONLY | O_CLOEXEC);
	unsigned int number = number_of("seen");
	pid_t clients[4], servers[2];
	uint64_t ids[4];

	if (sleep < 0)
		SKIP("this kernel has no /dev/snapshot");
	for (int i = 0; i < 4; i++) {
		clients[i] = client_of(channel, connection, number, i, i & 1 ? minute : forever);
		if (i < 2)
			ids[i] = receive_of(channel, i);
	}
	for (int i = 0; i < 2; i++)
		servers[i] = server_of(other, number_of("other"), i ? minute : forever);
	OK(ioctl(sleep, SNAPSHOT_FREEZE));
	OK(ioctl(sleep, SNAPSHOT_UNFREEZE));
	close(sleep);
	for (int i = 2; i < 4; i++)
		ids[i] = receive_of(channel, i);
	for (int i = 0; i < 4; i++) {
		IS(0, stplr_reply(channel, ids[i], 0, NULL, 0));
		join(clients[i]);
	}
	for (int i = 0; i < 2; i++)
		IS(0, stplr_send(to_other, NULL, 0, NULL, 0, NULL));
	for (int i = 0; i < 2; i++)
		join(servers[i]);
}

/* One whose message is received, one whose is not, and a server that waits; by handles. */
static void who_has_a_handle_goes_on(void)
{
	pid_t clients[2], me_first = getpid();

	need_freezer();
	struct party me = enter();
	long sends = counter("sends");

	for (int i = 0; i < 2; i++) {
		clients[i] = fork();
		if (clients[i] == 0) {
			close(me.fd);
			struct party client = enter();

			OK(old_call(&client, me_first, me_first, NULL, 0, NULL, 0));
			_exit(0);
		}
		AWAIT_LINE(FOLDER "blocked", "%d %d SEND ", clients[i], clients[i]);
		struct stplr_msg_receive from;

		if (!i)
			OK(old_receive(&me, NULL, 0, &from));
	}
	pid_t server = echo_server(8);

	AWAIT_LINE(FOLDER "blocked", "%d %d RECEIVE ", server, server);
	put_into_the_cold(clients[0]);
	put_into_the_cold(clients[1]);
	put_into_the_cold(server);
	freeze();
	CHECK(lines(FOLDER "blocked", "%d %d REPLY ", clients[0], clients[0]) == 1);
	CHECK(lines(FOLDER "blocked", "%d %d SEND ", clients[1], clients[1]) == 1);
	CHECK(!lines(FOLDER "blocked", "%d %d RECEIVE ", server, server));
	thaw();
	struct stplr_msg_receive from;

	OK(old_receive(&me, NULL, 0, &from));
	CHECK(from.pid == clients[1]);
	for (int i = 0; i < 2; i++) {
		OK(old_reply(&me, clients[i], clients[i], NULL, 0));
		join(clients[i]);
	}
	OK(old_call(&me, server, server, NULL, 0, NULL, 0));
	CHECK(counter("sends") == sends + 3);
}

static void calls(int connection, volatile bool *ends)
{
	for (int i = 0; !*ends; i++) {
		int got = 0;
		struct stplr_send send = { .send = stplr_bytes(&i, sizeof(i)),
					   .reply = stplr_bytes(&got, sizeof(got)),
					   .timeout_ns = i & 1 ? minute : forever };

		OK(stplr_send_full(connection, &send));
		CHECK(got == i);
	}
}

/* Each number once. */
static void answers(int channel)
{
	int number;
	struct stplr_reply_receive both = { .receive.buffer = stplr_bytes(&number, 4) };

	for (int i = 0;; i++) {
		both.receive.timeout_ns = i & 2 ? minute : forever;
		OK(stplr_reply_receive(channel, &both));
		if (both.receive.pulse)
			return;
		CHECK(number == i);
		both.reply.id = both.receive.id;
		both.reply.buffer = stplr_bytes(&number, 4);
	}
}

/* Wherever they are just then: on the way to sleep, looking before they do, copying. */
static void who_is_at_work_goes_on(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	volatile bool *ends = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				   -1, 0);

	need_freezer();
	CHECK(ends != MAP_FAILED);
	pid_t server = fork();

	if (server == 0) {
		answers(channel);
		_exit(0);
	}
	pid_t client = CLIENT(channel, connection, { calls(connection, ends); });

	close(channel);
	put_into_the_cold(server);
	put_into_the_cold(client);
	for (int i = 0; i < 40; i++) {
		freeze();
		thaw();
		usleep((useconds_t)(i * 97 % 1000));
	}
	*ends = true;
	join(client);
	OK(stplr_pulse(connection, 1, 1));
	join(server);
}

/* What is frozen cannot be killed; and a group goes when nobody is in it. */
static void put_back(void)
{
	FILE *state = fopen(COLD "freezer.state", "w");

	if (state) {
		fputs("THAWED", state);
		fclose(state);
	}
	for (int i = 0; i < 500 && rmdir(COLD) && errno == EBUSY; i++)
		nap(10);
	rmdir(EMPTY);
	umount2(FREEZER, MNT_DETACH);
	rmdir(FREEZER);
}

static const struct test tests[] = {
	{ "clients that are frozen go on", clients_go_on },
	{ "servers that are frozen go on", servers_go_on },
	{ "another server receives meanwhile", another_server_receives },
	{ "what comes meanwhile is found afterwards", what_comes_meanwhile_is_found_afterwards },
	{ "who waits for its server can be frozen", who_waits_for_its_server_can_be_frozen },
	{ "all go on after the sleep of the machine", all_go_on_after_the_sleep_of_the_machine },
	{ "who has a handle goes on", who_has_a_handle_goes_on },
	{ "who is at work goes on", who_is_at_work_goes_on },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
