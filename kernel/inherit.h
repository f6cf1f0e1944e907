/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Priority inheritance: on channels that ask for it, a thread that serves runs at least with the
 * priority of the client whose message it received last, until that is answered, and of the most
 * urgent message in the queue.
 *
 *   client ── sent ──> a receiver waits: that thread is raised, then woken
 *                      nobody does:      all threads of the channel are raised, for the first
 *                                        that is free will take it
 *   server ── received ──> exactly the call's priority or the queue's, whichever is higher
 *          ── ended ─────> the call no longer counts, however it ended
 *
 * A module cannot lend a priority the way a lock of the kernel does, for rt_mutex_setprio() is not
 * exported. It changes the scheduling parameters of the thread, as sched_setattr(2) would, and puts
 * them back. Therefore:
 *   - the raise can be seen from outside, and what anybody sets meanwhile is undone;
 *   - children of a raised thread start without it (SCHED_FLAG_RESET_ON_FORK);
 *   - a client of SCHED_DEADLINE lends the highest real-time priority, not its deadline, and a
 *     server of SCHED_DEADLINE keeps its own;
 *   - in a group of threads other than the first, where kernels give such groups a share of real time
 *     (RT_GROUP_SCHED), no real time is lent, for the share may be none;
 *   - a message has the priority that its sender had when it sent: who is raised while it waits for
 *     a further server does not raise that one.
 * Nobody is ever lowered.
 *
 * Locking: a channel has one lock for all that it lends, and a thread one for all that it has been lent.
 * Both are rt_mutexes, so that whoever waits for one lends its priority to the holder. The thread's nests
 * in the channel's, and so does port->lock; nothing else is held. Nobody waits for another channel's
 * lock, or for memory, with one of them.
 */
#ifndef STPLR_INHERIT_H
#define STPLR_INHERIT_H

#include "channel.h"

/* Priorities of messages: 1 to 40 for nice 19 to -20, above them real time. */
#define STPLR_PRIORITY_NORMAL 20
#define STPLR_PRIORITY_REAL_TIME 40
#define STPLR_PRIORITY_DEADLINE (STPLR_PRIORITY_REAL_TIME + 100)

/**
 * stplr_priority_of_current() - the priority of the calling thread's messages
 *
 * Return: as above.
 */
int stplr_priority_of_current(void);

/**
 * stplr_inherit_begin() - stplr_inherit_enter() on a channel that asks for it
 * @channel: the channel
 *
 * Return: 0, -ENOMEM, -EDQUOT.
 */
int stplr_inherit_begin(struct stplr_channel *channel);

/*
 * The calling thread is about to receive: nothing that it received before counts any more. 0,
 * -ENOMEM, -EDQUOT.
 */
static inline int stplr_inherit_enter(struct stplr_channel *channel)
{
	return channel->flags & STPLR_CHANNEL_INHERIT ? stplr_inherit_begin(channel) : 0;
}

/**
 * stplr_inherit_sent() - lend the sender's priority; for struct stplr_port_ops
 * @call: as there
 * @receiver: as there
 */
void stplr_inherit_sent(struct stplr_call *call, struct task_struct *receiver);

/**
 * stplr_inherit_received() - by the receiver of a call, which it will answer
 * @channel: of which
 * @id: of the call
 * @priority: of the call
 */
void stplr_inherit_received(struct stplr_channel *channel, u64 id, int priority);

/**
 * stplr_inherit_ended() - by whoever ended a call or saw it end
 * @channel: of which
 * @id: of the call
 */
void stplr_inherit_ended(struct stplr_channel *channel, u64 id);

/**
 * stplr_inherit_close() - give a channel's threads back what is theirs; it is closed
 * @channel: the channel
 */
void stplr_inherit_close(struct stplr_channel *channel);

#endif
