/* SPDX-License-Identifier: GPL-2.0 */
/* Sockets whose last close takes its time. */
#ifndef LINGER_H
#define LINGER_H

#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "tap.h"

/* For so many seconds, for its peer takes nothing of what is in it; or until that is closed. */
static inline int lingering_socket(int seconds, int *peer)
{
	int listening = socket(AF_INET, SOCK_STREAM, 0), end = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ifreq up = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	struct linger linger = { .l_onoff = 1, .l_linger = seconds };
	socklen_t length = sizeof(address);
	static char bytes[65536];

	if (listening < 0 || ioctl(listening, SIOCSIFFLAGS, &up))
		SKIP("this kernel has no network");
	OK(bind(listening, (struct sockaddr *)&address, length));
	OK(listen(listening, 1));
	OK(getsockname(listening, (struct sockaddr *)&address, &length));
	OK(connect(end, (struct sockaddr *)&address, length));
	*peer = accept(listening, NULL, NULL);
	CHECK(*peer >= 0);
	OK(setsockopt(end, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	while (send(end, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	close(listening);
	return end;
}

#endif
