// SPDX-License-Identifier: GPL-2.0
/*
 * A server of the first interface: receives messages, answers those that want it with their own
 * bytes. Usage: server [COUNT]; prints the process and thread id that clients need, and after COUNT
 * messages, if given, how many there were and how long they took.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "stplr.h"

static long long microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	long wanted = argc > 1 ? atol(argv[1]) : -1, received = 0, answered = 0;
	int node = open("/dev/stplr-0", O_RDWR);
	struct stplr_handle handle;
	long long start = 0;
	char buffer[4096];

	if (node < 0 || ioctl(node, STPLR_HANDLE_GET, &handle)) {
		perror("/dev/stplr-0");
		return 1;
	}
	printf("%d %ld\n", getpid(), syscall(SYS_gettid));
	fflush(stdout);
	while (received != wanted) {
		struct stplr_msg msg = { buffer, sizeof(buffer) };
		struct stplr_msg_receive from = { .handle = handle, .rmsgs = { &msg, 1 } };

		if (ioctl(node, STPLR_MSG_RECEIVE, &from)) {
			perror("receive");
			return 1;
		}
		if (!received++)
			start = microseconds();
		if (from.reply_required) {
			struct stplr_msg_reply reply = { handle, from.pid, from.tid, { &msg, 1 } };

			/* A client that is gone meanwhile is no fault of the server. */
			answered += !ioctl(node, STPLR_MSG_REPLY, &reply);
		}
	}
	printf("%ld messages received, %ld answered, %lld us\n", received, answered,
	       microseconds() - start);
	return ioctl(node, STPLR_HANDLE_PUT, &handle) != 0;
}
