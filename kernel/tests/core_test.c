// SPDX-License-Identifier: GPL-2.0
/* The module as it is built without its first interface: that is absent, and all else is there. */
#include <sys/stat.h>

#include "new.h"

static void there_are_no_handles(void)
{
	struct stat status;

	OK(stat("/dev/stplr", &status));
	FAILS(ENOENT, stat("/dev/stplr-0", &status));
	FAILS(ENOENT, stat("/sys/module/stplr/parameters/devices", &status));
}

static void messages_go_there_and_back(void)
{
	int channel = new_channel(STPLR_CHANNEL_DISCONNECT);
	int connection = new_connection(channel, 7);
	const size_t sizes[] = { 5, 4000, 100000 };
	char *got = calloc(1, 100000);
	struct stplr_receive received;

	pid_t client = CLIENT(channel, connection, {
		char *sent = calloc(1, 100000), *reply = calloc(1, 100000);

		for (int i = 0; i < 3; i++) {
			memset(sent, 'a' + i, sizes[i]);
			IS(sizes[i], stplr_send(connection, sent, sizes[i], reply, sizes[i], NULL));
			CHECK(!memcmp(reply, sent, sizes[i]));
		}
		IS(0, stplr_pulse(connection, 3, 4));
	});
	close(connection);
	for (int i = 0; i < 3; i++) {
		IS(sizes[i], stplr_receive(channel, got, 100000, second, &received));
		CHECK(received.label == 7 && received.pid == client);
		IS(sizes[i], stplr_reply(channel, received.id, 0, got, sizes[i]));
	}
	IS(0, stplr_receive(channel, got, 100000, second, &received));
	CHECK(received.pulse && received.code == 3 && received.value == 4);
	IS(0, stplr_receive(channel, got, 100000, second, &received));
	CHECK(received.pulse && received.code == STPLR_PULSE_DISCONNECT);
	join(client);
}

static const struct test tests[] = {
	{ "there are no handles", there_are_no_handles },
	{ "messages go there and back all the same", messages_go_there_and_back },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
