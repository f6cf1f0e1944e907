/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A call: an item in a port that its sender waits for. Its state machine:
 *
 *            submit                       take                   keep
 *   (new) ─────────────> QUEUED ─────────────────> TAKEN ───────────────────> OWED
 *                        SEND-blocked     ▲  │     a receiver      REPLY-blocked │ ▲
 *                          │              │  │     reads from it                │ │ unclaim:
 *                          │              └──┘                           claim  │ │ the replier's
 *                          │         untake: the receiver's                     │ │ own fault
 *                          │         own fault; same place in the queue         ▼ │
 *                          │                          │                     ANSWERING
 *                          │ signal,                  │ finish:             a replier
 *                          │ timeout,                 │ one way, or         writes to it
 *                          │ port closed              │ sender's fault         │
 *                          ▼                          ▼                        ▼ finish
 *                        DONE <─────────────────── DONE <──────────────────── DONE
 *
 * How a sender's wait can end otherwise:
 *   QUEUED      any signal, its deadline: it takes itself out of the queue; nobody saw the message.
 *   TAKEN       any signal, its deadline: at once. The receiver finds the call abandoned and passes
 *               it over: nobody saw the message.
 *   OWED        a fatal signal: at once. Another signal, its deadline: at once with EINTR or
 *               ETIMEDOUT, unless the port wants unblock pulses: then the server is told, and the
 *               sender waits on for the answer.
 *   ANSWERING   like OWED. The replier finds the call abandoned: its answer reaches nobody.
 *
 * An interruption that passes leaves all of these as they are: the sender is away for a while. Only its
 * program knows whether it goes on meanwhile, so nobody touches its memory until it is back.
 *
 * A thread that is busy with a call (TAKEN, ANSWERING, or a read or write between them) may wait for
 * memory of its own for as long as it likes. A sender that wants to leave does not wait for that, but
 *   - for those that touch its memory at this moment, between touch and untouch, where nobody sleeps for
 *     anything that a program decides. No other begins to meanwhile, and the last of them does in its
 *     place what it would do: it leaves, or the server is told.
 *   - for an answer to be whole: for others that write to it, too, for as long as it would have waited
 *     for the answer.
 * A thread that is still busy with a call that is over finds that out when it next wants to touch the
 * sender's memory.
 *
 * Nobody but the sender waits for pages of the sender to come. A busy thread that misses some asks the
 * sender for them, which has nothing else to do, and waits for a moment of its own choosing.
 *
 * Locking: port->lock protects of a call: item, state, busy, reading, touching, ask, interrupted,
 * abandoned, away, outcome, and sender.notified. A call that is settled (DONE, and nobody has hold of
 * what its sender gets) stays so, and its sender may look at it without the lock. A call's id, name and
 * port do not change while it is OWED, its replier by stplr_port_pass() only. Everything else in a call
 * belongs to the sender until it is submitted, and then is read-only, but for what message.h describes.
 *
 * References: the sender holds one until its wait ends. One belongs to the port's structures, from
 * submit to DONE; take, claim and borrow lend the caller one, which untake, keep, unclaim, return
 * and finish take back. Releasing the last may sleep.
 */
#ifndef STPLR_CALL_H
#define STPLR_CALL_H

#include <linux/refcount.h>

#include "port.h"

enum stplr_call_state {
	STPLR_CALL_QUEUED,
	STPLR_CALL_TAKEN,
	STPLR_CALL_OWED,
	STPLR_CALL_ANSWERING,
	STPLR_CALL_DONE,
};

/* Pages of a sender, or room for some, that somebody who is busy with its call waits for. */
struct stplr_ask {
	u64 base;
	size_t length;
	bool write;
	bool room; /* for so many bytes, and the others do not matter */
	int outcome; /* once the sender has looked after it */
	struct stplr_waiter waiter;
};

struct stplr_call {
	struct stplr_item item;
	struct hlist_node owed; /* in port->owed while OWED, in port->answered while that is not over */
	struct hlist_node all; /* in port->calls from submit to DONE */
	struct stplr_port *port;
	struct stplr_waiter sender;
	refcount_t refs;
	u64 id; /* 0 until the port has numbered it, unless its owner did */
	u64 name; /* how a reply names it, from the time when it is OWED: its id, or as replier likes */
	const void *replier; /* who may answer it; compared here, and followed by ops->left alone */
	const struct task_struct *receiver; /* who has TAKEN it; compared alone, under the lock */
	int replier_tid; /* which thread of it received it, for people to read */
	int outcome; /* of the sender's wait, once DONE */
	int interrupted; /* why the sender wants to leave once nobody touches its memory; 0: it does not */
	u8 state; /* enum stplr_call_state */
	bool wants_reply;
	bool unblocked; /* the server has been told so, or that it has left */
	bool settled; /* over and not touched; set with release, for the sender to read */
	bool abandoned; /* the sender has left; nobody to wake */
	bool away; /* the sender is out of its wait and may come back to it: nobody to ask, or to touch */
	unsigned int busy; /* threads that are at work on the call */
	unsigned int reading; /* of those, who change nothing of it */
	unsigned int touching; /* of those, who has hold of the sender's memory just now */
	struct stplr_ask *ask; /* of one of those, which waits for it; NULL: of none */
	struct stplr_waker waker; /* of whoever ends many calls at a time */
};

/**
 * stplr_call_init() - initialise the part of a call that belongs to its port
 * @call: the call, of which the caller has a reference then: the sender's
 * @port: where it is to be sent
 * @id: its number; with 0 the port gives it one that it gives to no other call
 * @priority: its place in the queue
 * @wants_reply: whether the sender waits for an answer, or only until it has been received
 */
void stplr_call_init(struct stplr_call *call, struct stplr_port *port, u64 id, int priority,
		     bool wants_reply);

/**
 * stplr_call_put() - drop a reference
 * @call: the call, which is freed with its last reference; that may sleep
 */
void stplr_call_put(struct stplr_call *call);

/**
 * stplr_port_send() - send, and wait
 * @call: the call
 * @deadline: how long to wait
 * @delivered: whether a receiver has all of the message, be the wait interrupted
 *
 * Return: the outcome that somebody gave the call; -EINTR, -ETIMEDOUT, STPLR_AWAY; -ESRCH when the
 * port was closed already.
 */
int stplr_port_send(struct stplr_call *call, ktime_t deadline, bool *delivered);

/*
 * What send and resume return for a sender that has to be elsewhere. The call goes on, and so
 * does the sender's wait for it, by resume; or by forget, by anybody, it ends.
 */
#define STPLR_AWAY (-4001)

/**
 * stplr_port_resume() - wait on for a call, after STPLR_AWAY
 * @call: the call
 * @deadline: as for stplr_port_send()
 * @delivered: likewise
 *
 * Return: as stplr_port_send().
 */
int stplr_port_resume(struct stplr_call *call, ktime_t deadline, bool *delivered);

/**
 * stplr_port_forget() - end the wait for a call, after STPLR_AWAY
 * @call: the call, whose memory nobody touches. The sender's reference stays the caller's
 *
 * Return: whether somebody had received it who was still to answer.
 */
bool stplr_port_forget(struct stplr_call *call);

/**
 * stplr_port_disown() - end every call that replier may answer and has not
 * @port: the port
 * @replier: who may answer them
 * @outcome: what they end with
 *
 * Of calls that are TAKEN or ANSWERING somebody is through soon: the outcome is theirs.
 */
void stplr_port_disown(struct stplr_port *port, const void *replier, int outcome);

/**
 * stplr_port_cancel() - end every call that is QUEUED and matches
 * @port: the port
 * @matches: called with port->lock held
 * @context: passed on
 * @outcome: what they end with
 */
void stplr_port_cancel(struct stplr_port *port,
		       bool (*matches)(const struct stplr_call *call, const void *context),
		       const void *context, int outcome);

/**
 * stplr_call_keep() - note that a call has been received, TAKEN -> OWED
 * @call: the call; takes the caller's reference
 * @name: by which it will be answered; 0: its id. Others of the same replier have others
 * @replier: who may answer it from now on
 * @replier_tid: which thread of it received it
 *
 * Return: false if its sender has left meanwhile, and the call is DONE.
 */
bool stplr_call_keep(struct stplr_call *call, u64 name, const void *replier, int replier_tid);

/**
 * stplr_call_untake() - put a call back to its place in the queue, TAKEN -> QUEUED
 * @call: the call; takes the caller's reference
 */
void stplr_call_untake(struct stplr_call *call);

/**
 * stplr_call_taken_by() - whether a call is TAKEN
 * @call: the call
 * @receiver: by whom
 *
 * Return: true if that thread has taken it and not decided yet what becomes of it.
 */
bool stplr_call_taken_by(struct stplr_call *call, const struct task_struct *receiver);

/**
 * stplr_port_pass() - somebody else may answer a call that is OWED
 * @port: the port
 * @name: by which it is answered
 * @replier: who may answer it so far
 * @to: who may from now on
 *
 * Return: false: replier has no such call.
 */
bool stplr_port_pass(struct stplr_port *port, u64 name, const void *replier, const void *to);

/**
 * stplr_port_claim() - begin to answer a call, OWED -> ANSWERING
 * @port: the port
 * @name: of the call
 * @replier: who may answer it
 *
 * Return: the call with a reference, or NULL: replier has no such call.
 */
struct stplr_call *stplr_port_claim(struct stplr_port *port, u64 name, const void *replier);

/**
 * stplr_call_unclaim() - give up answering a call, ANSWERING -> OWED
 * @call: the call; takes the caller's reference
 */
void stplr_call_unclaim(struct stplr_call *call);

/**
 * stplr_port_borrow() - begin to read from or write to an OWED call, which it stays
 * @port: the port
 * @name: of the call
 * @replier: who may answer it
 * @reads: whether that is all: an answer does not wait for it
 *
 * Return: the call with a reference, or NULL: replier has no such call.
 */
struct stplr_call *stplr_port_borrow(struct stplr_port *port, u64 name, const void *replier,
				     bool reads);

/**
 * stplr_call_return() - be through with what stplr_port_borrow() began
 * @call: the call; takes the caller's reference
 * @reads: as there
 */
void stplr_call_return(struct stplr_call *call, bool reads);

/**
 * stplr_call_touch() - keep the sender from leaving of its own will
 * @call: a call that the caller is busy with
 *
 * Until stplr_call_untouch() its memory may be accessed, and nobody sleeps for what a program decides.
 * Return: 0; -ESRCH if the sender has left or the call is over, and its memory is not to be touched any
 * more; -EBUSY if it is away, and its memory may not be what it was when it sent: its program may be told
 * that the call has failed; -EINPROGRESS if it wants to leave and others touch it: the caller tries again
 * in a moment.
 */
int stplr_call_touch(struct stplr_call *call);

/**
 * stplr_call_untouch() - let the sender leave again
 * @call: the call
 */
void stplr_call_untouch(struct stplr_call *call);

/**
 * stplr_call_ask() - have the sender bring pages, or make room for them
 * @call: a call that the caller is busy with and does not touch
 * @ask: which; the caller's, and free to go when this returns
 * @deadline: how long to wait
 *
 * Return: 0 if it has, -EFAULT if it could not, -ETIMEDOUT, -EINTR (the caller is being killed),
 * -ESRCH (the sender has left, or the call is over), -EBUSY (another asks, or the sender is away).
 */
int stplr_call_ask(struct stplr_call *call, struct stplr_ask *ask, ktime_t deadline);

/**
 * stplr_call_finish() - give a call its outcome, TAKEN or ANSWERING -> DONE
 * @call: the call; takes the caller's reference
 * @outcome: what the sender's wait ends with
 * @yields: whether the caller is about to sleep, as for stplr_waker_run()
 *
 * Return: false if nobody learns of the outcome: the sender has left already, or the call has another.
 */
bool stplr_call_finish(struct stplr_call *call, int outcome, bool yields);

/* A call that has been claimed and written, and lacks only its end. */
struct stplr_answer {
	struct stplr_call *call; /* NULL where there is none */
	int outcome;
};

/**
 * stplr_port_answer_and_take() - stplr_call_finish() if there is an answer, then stplr_port_take()
 * @port: of both
 * @answer: the answer; none then
 * @deadline: how long to wait for the next item
 * @item: the next item
 *
 * Both happen in one section of the lock: the caller is in line before the sender runs.
 * Return: as stplr_port_take().
 */
int stplr_port_answer_and_take(struct stplr_port *port, struct stplr_answer *answer,
			       ktime_t deadline, struct stplr_item **item);

#endif
