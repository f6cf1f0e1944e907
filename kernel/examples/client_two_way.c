// SPDX-License-Identifier: GPL-2.0
/* Sends messages and waits for each answer. Usage: client_two_way PID TID [COUNT] */
#include <string.h>

#include "client.h"

int main(int argc, char **argv)
{
	struct client client;
	char question[64] = "ping", answer[64];

	if (client_begin(&client, argc, argv))
		return 1;
	for (long i = 0; i < client.count; i++) {
		struct stplr_msg out = { question, sizeof(question) };
		struct stplr_msg in = { answer, sizeof(answer) };
		struct stplr_msg_send_receive call = { client.handle, client.pid, client.tid,
						       { &out, 1 }, { &in, 1 } };

		if (ioctl(client.node, STPLR_MSG_SEND_RECEIVE, &call)) {
			perror("send and receive");
			return 1;
		}
		if (in.buflen != sizeof(question) || strcmp(question, answer)) {
			fprintf(stderr, "another answer than expected\n");
			return 1;
		}
	}
	return client_end(&client, "sent and answered");
}
