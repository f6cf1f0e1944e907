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
 *   - children of a raised thread start without it: the kernel resets them (SCHED_FLAG_RESET_ON_FORK), and
 *     a probe of forks gives them policy and nice value of their parent's own; but those of a real-time
 *     thread stay normal, for that cannot be set there;
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
#include "priority.h"

/**
 * stplr_inherit_init() - see to it that children inherit nothing of this
 *
 * Return: 0, or an error.
 */
int stplr_inherit_init(void);

/**
 * stplr_inherit_exit() - undo stplr_inherit_init(), when nobody inherits any more
 */
void stplr_inherit_exit(void);

/**
 * stplr_inherit_join() - get all that stplr_inherit_begin() may fail for, and change nothing yet
 * @channel: a channel that asks for it
 *
 * Return: 0, -ENOMEM, -EDQUOT.
 */
int stplr_inherit_join(struct stplr_channel *channel);

/**
 * stplr_inherit_begin() - by a thread that is about to receive: what it received before counts no more
 * @channel: a channel that asks for it
 *
 * Return: 0; -ENOMEM or -EDQUOT, unless it has joined.
 */
int stplr_inherit_begin(struct stplr_channel *channel);

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
