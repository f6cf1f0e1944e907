/* SPDX-License-Identifier: GPL-2.0 */
/* The first interface, as a program of 0.0.7 would call it. */
#ifndef OLD_H
#define OLD_H

#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "../include/stplr.h"
#include "tap.h"

struct party {
	int fd;
	struct stplr_handle handle;
	pid_t pid, tid;
};

static inline pid_t my_tid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static inline struct party enter(void)
{
	struct party me = { .pid = getpid(), .tid = my_tid() };

	me.fd = open("/dev/stplr-0", O_RDWR);
	CHECK(me.fd >= 0);
	OK(ioctl(me.fd, STPLR_HANDLE_GET, &me.handle));
	return me;
}

static inline int old_send(const struct party *me, pid_t pid, pid_t tid,
			   const struct stplr_msg *msgs, __u32 count)
{
	struct stplr_msg_send args = { me->handle, pid, tid, { msgs, count } };

	return ioctl(me->fd, STPLR_MSG_SEND, &args);
}

static inline int old_call(const struct party *me, pid_t pid, pid_t tid,
			   const struct stplr_msg *smsgs, __u32 scount,
			   const struct stplr_msg *rmsgs, __u32 rcount)
{
	struct stplr_msg_send_receive args = {
		me->handle, pid, tid, { smsgs, scount }, { rmsgs, rcount }
	};

	return ioctl(me->fd, STPLR_MSG_SEND_RECEIVE, &args);
}

static inline int old_receive(const struct party *me, const struct stplr_msg *msgs, __u32 count,
			      struct stplr_msg_receive *from)
{
	from->handle = me->handle;
	from->rmsgs.msgs = msgs;
	from->rmsgs.count = count;
	return ioctl(me->fd, STPLR_MSG_RECEIVE, from);
}

static inline int old_reply(const struct party *me, pid_t pid, pid_t tid,
			    const struct stplr_msg *msgs, __u32 count)
{
	struct stplr_msg_reply args = { me->handle, pid, tid, { msgs, count } };

	return ioctl(me->fd, STPLR_MSG_REPLY, &args);
}

/* Bytes that tell where they belong. */
static inline void fill(void *to, size_t length, unsigned int seed)
{
	unsigned char *bytes = to;

	for (size_t i = 0; i < length; i++)
		bytes[i] = (unsigned char)(i * 31 + i / 253 + seed);
}

static inline bool filled(const void *from, size_t length, unsigned int seed)
{
	const unsigned char *bytes = from;

	for (size_t i = 0; i < length; i++)
		if (bytes[i] != (unsigned char)(i * 31 + i / 253 + seed))
			return false;
	return true;
}

/* A server in a child: echoes until its parent is through with it. Returns the child's pid. */
static inline pid_t echo_server(size_t room)
{
	int ready[2];
	char c;

	OK(pipe(ready));
	pid_t child = fork();
	if (child == 0) {
		struct party me = enter();
		void *buffer = malloc(room);

		CHECK(write(ready[1], "x", 1) == 1);
		for (;;) {
			struct stplr_msg msg = { buffer, (__u32)room };
			struct stplr_msg_receive from;

			OK(old_receive(&me, &msg, 1, &from));
			if (from.reply_required)
				old_reply(&me, from.pid, from.tid, &msg, 1);
		}
	}
	CHECK(read(ready[0], &c, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	return child;
}

#endif
