// SPDX-License-Identifier: GPL-2.0
/* Steps of the state machine of port.c whose order is what matters, one after the other; TAP. */
#include <stdio.h>
#include <unistd.h>

#include "../call.h"
#include "port_shim.h"

#define ANSWERED 0

static struct stplr_port port;
static struct task_struct me, client, other;
static _Atomic bool told_of_other;
static int failed;

static void free_call(struct stplr_call *call)
{
	free(call);
}

static void readable(struct stplr_port *unused)
{
	(void)unused;
}

static struct stplr_item *unblock(struct stplr_call *call)
{
	struct stplr_item *pulse = NULL;

	/* Of an odd one the server is told. */
	if (call->id & 1)
		pulse = calloc(1, sizeof(*pulse));
	if (pulse)
		pulse->kind = STPLR_ITEM_PULSE;
	return pulse;
}

static void drop_pulse(struct stplr_item *pulse)
{
	free(pulse);
}

static void sent(struct stplr_call *call, struct task_struct *receiver)
{
	(void)call;
	if (receiver == &other)
		told_of_other = true;
}

static const struct stplr_port_ops ops = {
	.free_call = free_call,
	.readable = readable,
	.unblock = unblock,
	.drop_pulse = drop_pulse,
	.sent = sent,
};

/* Turns of half a millisecond. */
enum { NEVER = 4000 };

struct sent {
	struct stplr_call *call;
	ktime_t deadline;
	int outcome;
	bool delivered;
	pthread_t thread;
};

static void *send_it(void *argument)
{
	struct sent *sent = argument;

	current = &client;
	sent->outcome = stplr_port_send(sent->call, sent->deadline, &sent->delivered);
	return NULL;
}

/* A call on its way, which the caller has taken. Its reference is the test's. */
static void send_and_take(struct sent *sent, u64 id, ktime_t deadline)
{
	struct stplr_item *item;

	stplr_port_init(&port, &ops, 1, 0);
	sent->call = calloc(1, sizeof(*sent->call));
	sent->deadline = deadline;
	sent->outcome = 1;
	current = &client;
	stplr_call_init(sent->call, &port, id, 1, true);
	current = &me;
	pthread_create(&sent->thread, NULL, send_it, sent);
	if (stplr_port_take(&port, KTIME_MAX, &item))
		abort();
}

static void report(const char *what, bool good)
{
	static int number;

	printf("%s %d - %s\n", good ? "ok" : "not ok", ++number, what);
	failed += !good;
}

static void finish(struct stplr_call *call)
{
	stplr_call_finish(call, ANSWERED, true);
}

static void an_answer_does_not_wait_for_readers(void)
{
	struct stplr_call *read;
	struct sent sent;
	bool touches;

	send_and_take(&sent, 2, NEVER);
	stplr_call_keep(sent.call, 0, &me, 1);
	read = stplr_port_borrow(&port, 2, &me, true);
	finish(stplr_port_claim(&port, 2, &me));
	pthread_join(sent.thread, NULL);
	touches = !stplr_call_touch(read);
	stplr_call_return(read, true);
	report("an answer does not wait for who reads", sent.outcome == ANSWERED && !touches);
	stplr_call_put(sent.call);
}

/* Its deadline came to pass while somebody had hold of its memory, and was told to the server. */
static void an_answer_at_the_pulse_is_the_outcome(void)
{
	struct stplr_call *read, *claimed;
	struct stplr_item *pulse;
	struct sent sent;

	send_and_take(&sent, 1, 4);
	stplr_call_keep(sent.call, 0, &me, 1);
	read = stplr_port_borrow(&port, 1, &me, true);
	stplr_call_touch(read);
	usleep(30000);
	stplr_call_untouch(read);
	if (stplr_port_take(&port, NEVER, &pulse) || pulse->kind != STPLR_ITEM_PULSE)
		abort();
	free(pulse);
	claimed = stplr_port_claim(&port, 1, &me);
	stplr_call_touch(read);
	finish(claimed);
	usleep(5000);
	stplr_call_untouch(read);
	usleep(5000);
	stplr_call_return(read, true);
	pthread_join(sent.thread, NULL);
	report("an answer at the pulse is the outcome", sent.outcome == ANSWERED);
	stplr_call_put(sent.call);
}

/* Until the client has found that somebody has hold of its memory. */
static void await_interruption(struct stplr_call *call)
{
	bool interrupted;

	do {
		usleep(500);
		spin_lock(&port.lock);
		interrupted = call->interrupted;
		spin_unlock(&port.lock);
	} while (!interrupted);
}

/* However many take turns at it. */
static void who_touches_next_lets_a_client_leave(void)
{
	struct stplr_call *first, *second;
	struct sent sent;
	int during, after;

	send_and_take(&sent, 2, 4);
	stplr_call_keep(sent.call, 0, &me, 1);
	first = stplr_port_borrow(&port, 2, &me, true);
	second = stplr_port_borrow(&port, 2, &me, true);
	stplr_call_touch(first);
	await_interruption(first);
	during = stplr_call_touch(second);
	stplr_call_untouch(first);
	if (!during)
		stplr_call_untouch(second);
	after = stplr_call_touch(second);
	if (!after)
		stplr_call_untouch(second);
	stplr_call_return(first, true);
	stplr_call_return(second, true);
	pthread_join(sent.thread, NULL);
	report("who touches next lets a client leave",
	       during == -EINPROGRESS && after == -ESRCH && sent.outcome == -ETIMEDOUT);
	stplr_call_put(sent.call);
}

/* However slow that is to run; the call goes on. */
static void the_last_who_touches_tells_of_a_client(void)
{
	struct stplr_call *first, *second;
	struct stplr_item *pulse = NULL;
	struct sent sent;
	int during, told, after;

	send_and_take(&sent, 1, 4);
	stplr_call_keep(sent.call, 0, &me, 1);
	first = stplr_port_borrow(&port, 1, &me, true);
	second = stplr_port_borrow(&port, 1, &me, true);
	stplr_call_touch(first);
	await_interruption(first);
	during = stplr_call_touch(second);
	stplr_call_untouch(first);
	told = stplr_port_take(&port, 0, &pulse);
	after = stplr_call_touch(second);
	if (!after)
		stplr_call_untouch(second);
	if (!during)
		stplr_call_untouch(second);
	free(pulse);
	stplr_call_return(first, true);
	stplr_call_return(second, true);
	finish(stplr_port_claim(&port, 1, &me));
	pthread_join(sent.thread, NULL);
	report("the last who touches it tells the server of a client that wants to leave",
	       during == -EINPROGRESS && !told && !after && sent.outcome == ANSWERED);
	stplr_call_put(sent.call);
	stplr_port_close(&port, -ESRCH);
}

static void an_answer_waits_for_who_writes(void)
{
	struct stplr_call *written;
	struct sent sent;
	bool touches;

	send_and_take(&sent, 2, NEVER);
	stplr_call_keep(sent.call, 0, &me, 1);
	written = stplr_port_borrow(&port, 2, &me, false);
	finish(stplr_port_claim(&port, 2, &me));
	usleep(5000);
	touches = !stplr_call_touch(written);
	stplr_call_untouch(written);
	stplr_call_return(written, false);
	pthread_join(sent.thread, NULL);
	report("an answer waits for who writes", sent.outcome == ANSWERED && touches);
	stplr_call_put(sent.call);
}

static void an_end_of_the_port_does_not_wait_for_who_writes(void)
{
	struct stplr_call *written;
	struct sent sent;
	bool touches;

	send_and_take(&sent, 2, NEVER);
	stplr_call_keep(sent.call, 0, &me, 1);
	written = stplr_port_borrow(&port, 2, &me, false);
	finish(stplr_port_claim(&port, 2, &me));
	stplr_port_close(&port, -ESRCH);
	pthread_join(sent.thread, NULL);
	touches = !stplr_call_touch(written);
	stplr_call_return(written, false);
	report("an end of the port does not wait for who writes", sent.outcome == -ESRCH && !touches);
	stplr_call_put(sent.call);
}

static void *take_it(void *unused)
{
	struct stplr_item *item;

	(void)unused;
	current = &other;
	if (stplr_port_take(&port, KTIME_MAX, &item))
		abort();
	return NULL;
}

static bool somebody_is_in_line(void)
{
	bool found;

	spin_lock(&port.lock);
	found = port.receivers.first;
	spin_unlock(&port.lock);
	return found;
}

/* The sender is to know whom it waits for. */
static void what_is_put_back_is_anothers(void)
{
	bool mine, still_mine, others;
	pthread_t thread;
	struct sent sent;

	send_and_take(&sent, 2, NEVER);
	mine = stplr_call_taken_by(sent.call, &me) && !stplr_call_taken_by(sent.call, &other);
	pthread_create(&thread, NULL, take_it, NULL);
	while (!somebody_is_in_line())
		usleep(500);
	stplr_call_untake(sent.call);
	pthread_join(thread, NULL);
	still_mine = stplr_call_taken_by(sent.call, &me);
	others = stplr_call_taken_by(sent.call, &other) && told_of_other;
	finish(sent.call);
	pthread_join(sent.thread, NULL);
	report("what is put back is another's, who is told before it is woken",
	       mine && !still_mine && others && sent.outcome == ANSWERED);
	stplr_call_put(sent.call);
}

static void what_ends_before_it_is_kept_was_not_delivered(void)
{
	struct sent sent;
	bool kept;

	send_and_take(&sent, 2, NEVER);
	stplr_port_close(&port, -ESRCH);
	kept = stplr_call_keep(sent.call, 0, &me, 1);
	pthread_join(sent.thread, NULL);
	report("what ends before it is kept was delivered to nobody",
	       !kept && sent.outcome == -ESRCH && !sent.delivered && !sent.call->replier);
	stplr_call_put(sent.call);
}

int main(void)
{
	printf("1..8\n");
	pthread_mutex_init(&me.lock, NULL);
	pthread_cond_init(&me.woken, NULL);
	pthread_mutex_init(&client.lock, NULL);
	pthread_cond_init(&client.woken, NULL);
	pthread_mutex_init(&other.lock, NULL);
	pthread_cond_init(&other.woken, NULL);
	an_answer_does_not_wait_for_readers();
	an_answer_at_the_pulse_is_the_outcome();
	who_touches_next_lets_a_client_leave();
	the_last_who_touches_tells_of_a_client();
	an_answer_waits_for_who_writes();
	an_end_of_the_port_does_not_wait_for_who_writes();
	what_is_put_back_is_anothers();
	what_ends_before_it_is_kept_was_not_delivered();
	return failed != 0;
}
