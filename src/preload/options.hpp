// SPDX-License-Identifier: Apache-2.0
//
// Numbers of options of sockets that are newer than the C library.
#pragma once

#include <netinet/tcp.h>
#include <sys/socket.h>

#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif
#ifndef TCP_INQ
#define TCP_INQ 36
#endif
#ifndef SO_INQ
#define SO_INQ 84
#endif
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef SOCK_SNDBUF_LOCK
#define SOCK_SNDBUF_LOCK 1
#endif
