/* SPDX-License-Identifier: GPL-2.0 */
/* What both clients share: arguments, the handle, the clock, and the result. */
#ifndef CLIENT_H
#define CLIENT_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>

#include "stplr.h"

struct client {
	int node;
	struct stplr_handle handle;
	int pid, tid; /* of the server */
	long count;
	long long start;
};

static inline long long microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static inline int client_begin(struct client *client, int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s PID TID [COUNT]\n", argv[0]);
		return -1;
	}
	client->pid = atoi(argv[1]);
	client->tid = atoi(argv[2]);
	client->count = argc > 3 ? atol(argv[3]) : 10000;
	client->node = open("/dev/stplr-0", O_RDWR);
	if (client->node < 0 || ioctl(client->node, STPLR_HANDLE_GET, &client->handle)) {
		perror("/dev/stplr-0");
		return -1;
	}
	client->start = microseconds();
	return 0;
}

static inline int client_end(struct client *client, const char *what)
{
	printf("%ld messages %s, %lld us\n", client->count, what,
	       microseconds() - client->start);
	return ioctl(client->node, STPLR_HANDLE_PUT, &client->handle) != 0;
}

#endif
