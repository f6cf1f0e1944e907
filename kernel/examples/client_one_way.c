// SPDX-License-Identifier: GPL-2.0
/* Sends messages that want no answer. Usage: client_one_way PID TID [COUNT] */
#include "client.h"

int main(int argc, char **argv)
{
	struct client client;
	char text[] = "hello";

	if (client_begin(&client, argc, argv))
		return 1;
	for (long i = 0; i < client.count; i++) {
		struct stplr_msg msg = { text, sizeof(text) };
		struct stplr_msg_send send = { client.handle, client.pid, client.tid, { &msg, 1 } };

		if (ioctl(client.node, STPLR_MSG_SEND, &send)) {
			perror("send");
			return 1;
		}
	}
	return client_end(&client, "sent");
}
