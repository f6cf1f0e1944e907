// SPDX-License-Identifier: GPL-2.0
/*
 * The state machine of port.c in user space: senders that are interrupted and killed, servers that
 * take, put back, keep, read, answer and die, and somebody who looks on, until the port is closed;
 * then the same with the next port. Built with the sanitizers, which see what no test of the whole
 * can: every race, and every reference too many or too few. What a call lends to a server (what was
 * sent, the room for the reply) is accessed without any lock by whoever touches it, and by its sender
 * as soon as that has left, so a sender that left too early would be a race.
 *
 * Usage: port_stress [SECONDS]; TAP. Fails as well if one of the transitions never came to pass.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../call.h"
#include "port_shim.h"

#define SENDERS 6
#define SERVERS 4
#define ANSWER 42
#define GIVEN 0 /* the outcome of who has one */
#define ROUND_US 250000

/* What can happen to a call, each to be seen at least once. */
enum event {
	ANSWERED,
	INTERRUPTED_QUEUED,
	INTERRUPTED_OWED,
	TIMED_OUT,
	CLOSED,
	DISOWNED,
	ABANDONED,
	HANDED_OVER,
	QUEUED,
	PUT_BACK,
	KEPT,
	KEPT_TOO_LATE,
	READ,
	READ_TOO_LATE,
	CLAIMED,
	CLAIM_MISSED,
	UNCLAIMED,
	ANSWERED_AND_TAKEN,
	UNBLOCKED,
	LEFT_BEHIND,
	AWAY,
	FORGOTTEN,
	BROUGHT,
	PULSED,
	CANCELLED,
	TOLD_OF_LEAVE,
	HELD_BACK,
	SEEN_SEND_BLOCKED,
	SEEN_REPLY_BLOCKED,
	SEEN_RECEIVE_BLOCKED,
	EVENTS,
};

static const char *const event_names[EVENTS] = {
	"answered", "interrupted while queued", "interrupted while owed", "timed out", "closed",
	"disowned", "abandoned", "handed over", "queued", "put back", "kept", "kept too late",
	"read", "read too late", "claimed", "claim missed", "unclaimed",
	"answered and taken", "unblocked", "left behind", "away", "forgotten", "brought", "pulsed",
	"cancelled", "told of leave", "held back",
	"seen SEND-blocked", "seen REPLY-blocked", "seen RECEIVE-blocked",
};

static atomic_long events[EVENTS];
static atomic_long calls_alive, pulses_alive;
static atomic_bool stop;
static struct stplr_port port;
static struct task_struct tasks[SENDERS + SERVERS];

struct test_call {
	struct stplr_call call;
	int sent; /* read by servers, between touch and untouch */
	int room; /* written by servers, likewise */
	int left; /* what is not written, as the sender is away; by the server that answers */
};

static void saw(enum event event)
{
	atomic_fetch_add_explicit(&events[event], 1, memory_order_relaxed);
}

static struct test_call *test_call_of(struct stplr_call *call)
{
	return container_of(call, struct test_call, call);
}

static void free_call(struct stplr_call *call)
{
	free(container_of(call, struct test_call, call));
	atomic_fetch_sub(&calls_alive, 1);
}

static void readable(struct stplr_port *unused)
{
	(void)unused;
}

static struct stplr_item *new_pulse(void)
{
	struct stplr_item *pulse = calloc(1, sizeof(*pulse));

	pulse->kind = STPLR_ITEM_PULSE;
	atomic_fetch_add(&pulses_alive, 1);
	return pulse;
}

/* Some clients may leave, for others the server is told. */
static struct stplr_item *unblock(struct stplr_call *call)
{
	if (!(call->id & 2))
		return NULL;
	saw(UNBLOCKED);
	return new_pulse();
}

static void die(const char *what)
{
	printf("not ok 1 - the state machine holds: %s\n", what);
	fflush(stdout);
	_exit(1);
}

static void left(struct stplr_call *call)
{
	if (call->state != STPLR_CALL_OWED || !call->replier)
		die("a sender that leaves what nobody has");
	saw(TOLD_OF_LEAVE);
}

static void sent(struct stplr_call *call, struct task_struct *receiver)
{
	(void)call;
	saw(receiver ? HANDED_OVER : QUEUED);
}

static void drop_pulse(struct stplr_item *pulse)
{
	free(pulse);
	atomic_fetch_sub(&pulses_alive, 1);
}

static int bring(u64 base, size_t length, bool write)
{
	if (base != 1 || length != 2 || write)
		die("something was asked for that nobody wanted");
	sched_yield();
	saw(BROUGHT);
	return 0;
}

/* Some signals, as it were: they are those of a thread that has turned a number. */
static bool passes(void)
{
	static _Thread_local unsigned int number;
	bool killed;

	pthread_mutex_lock(&current->lock);
	killed = current->killed;
	pthread_mutex_unlock(&current->lock);
	return !killed && number++ % 2;
}

static const struct stplr_port_ops ops = {
	.free_call = free_call,
	.readable = readable,
	.unblock = unblock,
	.left = left,
	.drop_pulse = drop_pulse,
	.passes = passes,
	.bring = bring,
	.sent = sent,
};

static unsigned int dice(unsigned int *seed, unsigned int sides)
{
	return (unsigned int)rand_r(seed) % sides;
}

static void *sender(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	int number = 0;

	current = argument;
	while (!atomic_load(&stop)) {
		struct test_call *call = calloc(1, sizeof(*call));
		bool delivered, abandoned, killed;
		int err;

		atomic_fetch_add(&calls_alive, 1);
		call->sent = ++number;
		stplr_call_init(&call->call, &port, 0, (int)dice(&seed, 3), dice(&seed, 4));
		err = stplr_port_send(&call->call,
				      dice(&seed, 3) ? KTIME_MAX : (ktime_t)dice(&seed, 4),
				      &delivered);
		while (err == STPLR_AWAY) {
			saw(AWAY);
			/* It may be using that for something else. */
			int room = call->room;

			call->sent = call->room = 0;
			sched_yield();
			call->sent = number;
			call->room = room;
			if (dice(&seed, 3)) {
				err = stplr_port_resume(&call->call, KTIME_MAX, &delivered);
				continue;
			}
			saw(FORGOTTEN);
			stplr_port_forget(&call->call);
			err = -EINTR;
		}
		/* Nobody sets it after this thread has left, and nobody unsets it. */
		abandoned = call->call.abandoned;
		pthread_mutex_lock(&current->lock);
		killed = current->killed;
		pthread_mutex_unlock(&current->lock);
		if (abandoned && err != -EINTR && err != -ETIMEDOUT)
			die("an abandoned call with an outcome");
		if (err == GIVEN && call->room != ANSWER && call->left != ANSWER)
			die("an answer that was not written");
		/* Nobody touches it any more, unless it was killed, so no lock is needed. */
		if (!abandoned || !killed)
			call->sent = call->room = 0;
		if (err == GIVEN)
			saw(ANSWERED);
		else if (abandoned)
			saw(ABANDONED);
		else if (err == -EINTR)
			saw(delivered ? INTERRUPTED_OWED : INTERRUPTED_QUEUED);
		else if (err == -ETIMEDOUT)
			saw(TIMED_OUT);
		else if (err == -ECONNRESET)
			saw(DISOWNED);
		else if (err == -ESRCH)
			saw(CLOSED);
		else if (err == -EBADF && !delivered)
			saw(CANCELLED);
		else
			die("an outcome that nobody gave");
		pthread_mutex_lock(&current->lock);
		current->killed = false;
		pthread_mutex_unlock(&current->lock);
		stplr_call_put(&call->call);
	}
	return NULL;
}

static int touch(struct stplr_call *call)
{
	int err;

	while ((err = stplr_call_touch(call)) == -EINPROGRESS) {
		saw(HELD_BACK);
		usleep(20);
	}
	return err;
}

static void write_answer(struct stplr_call *call)
{
	int err = touch(call);

	if (!err) {
		test_call_of(call)->room = ANSWER;
		stplr_call_untouch(call);
	} else if (err == -EBUSY) {
		test_call_of(call)->left = ANSWER;
	}
}

static void answer(struct stplr_call *call)
{
	write_answer(call);
	if (!stplr_call_finish(call, GIVEN, true))
		saw(LEFT_BEHIND);
}

/* What was sent, or 0 if its sender has left, or is away. */
static int look_at(struct stplr_call *call)
{
	int sent = 0;

	if (touch(call))
		return 0;
	sent = test_call_of(call)->sent;
	if (!sent)
		die("a message that was not sent");
	stplr_call_untouch(call);
	return sent;
}

/* As another thread does that reads while this one answers. Its client need not wait for that. */
static void answer_while_read(struct stplr_call *call, u64 id, const void *replier)
{
	struct stplr_call *claimed = stplr_port_claim(&port, id, replier);

	if (claimed)
		answer(claimed);
	sched_yield();
	if (claimed && look_at(call))
		die("a message of a call that is over");
	saw(READ_TOO_LATE);
}

static void ask(struct stplr_call *call)
{
	struct stplr_ask ask = { .base = 1, .length = 2 };
	int err = stplr_call_ask(call, &ask, 2);

	if (err && err != -ETIMEDOUT && err != -ESRCH && err != -EBUSY && err != -EINTR)
		die("an ask with an outcome that nobody gave");
}

/* The call that a server has kept last, for others of its process to read. It may be over. */
static _Atomic(uint64_t) kept_id;
static _Atomic(const void *) kept_by;

static void read_of_another(void)
{
	struct stplr_call *call =
		stplr_port_borrow(&port, atomic_load(&kept_id), atomic_load(&kept_by), true);

	if (!call)
		return;
	/* For as long as a big copy takes. */
	if (!touch(call)) {
		usleep(200);
		if (!test_call_of(call)->sent)
			die("a message that its sender has taken back");
		stplr_call_untouch(call);
	}
	look_at(call);
	stplr_call_return(call, true);
}

/* What a server does with a call that it has received. Returns a call that is left to be answered. */
static struct stplr_call *serve(struct stplr_call *call, const void *replier, unsigned int *seed)
{
	u64 id = call->id;
	int sent = look_at(call), again;

	if (dice(seed, 4) == 0)
		ask(call);
	if (!sent || dice(seed, 6) == 0) {
		saw(PUT_BACK);
		stplr_call_untake(call);
		return NULL;
	}
	if (!call->wants_reply || dice(seed, 6) == 0) {
		answer(call);
		return NULL;
	}
	saw(stplr_call_keep(call, 0, replier, 1) ? KEPT : KEPT_TOO_LATE);
	if (stplr_port_claim(&port, id, &port) || stplr_port_borrow(&port, id, &port, true))
		die("a call that is somebody else's to answer");
	atomic_store(&kept_id, id);
	atomic_store(&kept_by, replier);
	if (dice(seed, 3) == 0) {
		call = stplr_port_borrow(&port, id, replier, true);
		if (call) {
			ask(call);
			again = look_at(call);
			if (again && again != sent)
				die("a message that changed");
			saw(READ);
			if (dice(seed, 3) == 0)
				answer_while_read(call, id, replier);
			stplr_call_return(call, true);
		}
	}
	if (dice(seed, 10) == 0) {
		stplr_port_disown(&port, replier, -ECONNRESET);
		return NULL;
	}
	/* Some let their clients wait, until the next disowning or the end. */
	if (dice(seed, 10) == 0)
		return NULL;
	call = stplr_port_claim(&port, id, replier);
	if (call && dice(seed, 5) == 0) {
		saw(UNCLAIMED);
		stplr_call_unclaim(call);
		call = stplr_port_claim(&port, id, replier);
	}
	saw(call ? CLAIMED : CLAIM_MISSED);
	return call;
}

/* Answers one call, if there is one, and takes the next item, often in one step. */
static int answer_and_take(struct stplr_call *call, ktime_t deadline, struct stplr_item **item,
			   unsigned int *seed)
{
	struct stplr_answer given = { NULL, GIVEN };

	if (call && dice(seed, 2)) {
		saw(ANSWERED_AND_TAKEN);
		write_answer(call);
		given.call = call;
	} else if (call) {
		answer(call);
	}
	return stplr_port_answer_and_take(&port, &given, deadline, item);
}

static void *server(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	struct stplr_call *call = NULL;
	struct stplr_item *item;

	current = argument;
	for (;;) {
		int err = answer_and_take(call, dice(&seed, 2) ? KTIME_MAX : 2, &item, &seed);

		call = NULL;
		if (err == -ESRCH)
			return NULL;
		if (err)
			continue;
		if (item->kind == STPLR_ITEM_PULSE) {
			saw(PULSED);
			drop_pulse(item);
		} else {
			call = serve(container_of(item, struct stplr_call, item), argument, &seed);
		}
		if (dice(&seed, 2) == 0)
			read_of_another();
		if (dice(&seed, 20) == 0) {
			struct stplr_item *pulse = new_pulse();

			if (stplr_port_post(&port, pulse, (int)dice(&seed, 3)))
				drop_pulse(pulse);
		}
	}
}

static void torment(unsigned int *seed)
{
	struct task_struct *task = &tasks[dice(seed, SENDERS + SERVERS)];

	pthread_mutex_lock(&task->lock);
	task->signalled = true;
	if (task < tasks + SENDERS && dice(seed, 3) == 0)
		task->killed = true;
	pthread_cond_broadcast(&task->woken);
	pthread_mutex_unlock(&task->lock);
}

static bool is_one_of_few(const struct stplr_call *call, const void *unused)
{
	(void)unused;
	return call->id % 8 == 0;
}

static void look(void *unused, enum stplr_blocked state, struct task_struct *who, int priority,
		 int server)
{
	(void)unused;
	if (who < tasks || who >= tasks + SENDERS + SERVERS || priority < 0 || priority > 2)
		die("a thread that is none");
	if ((state == STPLR_REPLY_BLOCKED) < (server != 0))
		die("a server that cannot be known");
	saw(state == STPLR_SEND_BLOCKED	 ? SEEN_SEND_BLOCKED :
	    state == STPLR_REPLY_BLOCKED ? SEEN_REPLY_BLOCKED :
					   SEEN_RECEIVE_BLOCKED);
}

static void one_round(unsigned int *seed)
{
	pthread_t threads[SENDERS + SERVERS];

	atomic_store(&stop, false);
	stplr_port_init(&port, &ops, (u64)dice(seed, 1 << 30), 0);
	for (int i = 0; i < SENDERS + SERVERS; i++) {
		tasks[i].signalled = tasks[i].killed = false;
		if (pthread_create(&threads[i], NULL, i < SENDERS ? sender : server, &tasks[i]))
			die("a thread cannot be made");
	}
	for (int time = 0; time < ROUND_US; time += 200) {
		torment(seed);
		stplr_port_blocked(&port, look, NULL);
		stplr_port_readable(&port);
		stplr_port_remind(&port);
		stplr_port_cancel(&port, is_one_of_few, NULL, -EBADF);
		if (stplr_port_urgency(&port) > 2)
			die("a priority that nobody has");
		usleep(100);
	}
	atomic_store(&stop, true);
	stplr_port_close(&port, -ESRCH);
	for (int i = 0; i < SENDERS + SERVERS; i++)
		pthread_join(threads[i], NULL);
	if (atomic_load(&calls_alive) || atomic_load(&pulses_alive))
		die("something is left");
}

/* How many seconds more: some transitions are long in coming on a machine that others use as well. */
#define LONGER 20

static bool saw_all(void)
{
	for (int i = 0; i < EVENTS; i++)
		if (!atomic_load(&events[i]))
			return false;
	return true;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 2);
	unsigned int seed = 1;

	printf("1..1\n");
	for (int i = 0; i < SENDERS + SERVERS; i++) {
		pthread_mutex_init(&tasks[i].lock, NULL);
		pthread_cond_init(&tasks[i].woken, NULL);
	}
	do {
		one_round(&seed);
	} while (time(NULL) < end || (!saw_all() && time(NULL) < end + LONGER));
	for (int i = 0; i < EVENTS; i++) {
		printf("# %s: %ld\n", event_names[i], atomic_load(&events[i]));
		if (!atomic_load(&events[i]))
			die(event_names[i]);
	}
	printf("ok 1 - the state machine holds\n");
	return 0;
}
