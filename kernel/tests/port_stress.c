// SPDX-License-Identifier: GPL-2.0
/*
 * The state machine of port.c in user space: senders that are interrupted and killed, servers that
 * take, put back, keep, answer and die, until the port is closed. Built with the sanitizers, which
 * see what no test of the whole can: every race, and every reference too many or too few.
 *
 * Usage: port_stress [SECONDS]; TAP.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../port.h"

#define SENDERS 6
#define SERVERS 4
#define ANSWER 42

_Thread_local struct task_struct *current;

static atomic_long calls_alive, pulses_alive, answered, interrupted;
static atomic_bool stop;
static struct stplr_port port;
static struct task_struct tasks[SENDERS + SERVERS];

struct test_call {
	struct stplr_call call;
	int sent;
};

void stplr_waiter_init(struct stplr_waiter *waiter)
{
	waiter->task = current;
	waiter->notified = false;
}

/* A deadline is a number of turns of half a millisecond here. */
int stplr_waiter_sleep(struct stplr_waiter *waiter, unsigned int mode, ktime_t deadline)
{
	struct task_struct *task = waiter->task;
	int err = 0;

	pthread_mutex_lock(&task->lock);
	while (!READ_ONCE(waiter->notified)) {
		struct timespec until;

		if (task->killed || (task->signalled && mode == TASK_INTERRUPTIBLE)) {
			task->signalled = false;
			err = -EINTR;
			break;
		}
		if (deadline <= 0) {
			err = -ETIMEDOUT;
			break;
		}
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 500000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		pthread_cond_timedwait(&task->woken, &task->lock, &until);
		if (deadline != KTIME_MAX)
			deadline--;
	}
	pthread_mutex_unlock(&task->lock);
	return err;
}

void stplr_waiter_notify(struct stplr_waiter *waiter, struct stplr_waker *waker)
{
	waker->task = NULL;
	if (READ_ONCE(waiter->notified))
		return;
	waker->task = waiter->task;
	WRITE_ONCE(waiter->notified, true);
}

void stplr_waker_run(struct stplr_waker *waker, bool yields)
{
	(void)yields;
	if (!waker->task)
		return;
	pthread_mutex_lock(&waker->task->lock);
	pthread_cond_broadcast(&waker->task->woken);
	pthread_mutex_unlock(&waker->task->lock);
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
	return call->id & 2 ? new_pulse() : NULL;
}

static void drop_pulse(struct stplr_item *pulse)
{
	free(pulse);
	atomic_fetch_sub(&pulses_alive, 1);
}

static const struct stplr_port_ops ops = { free_call, readable, unblock, drop_pulse };

static unsigned int dice(unsigned int *seed, unsigned int sides)
{
	return (unsigned int)rand_r(seed) % sides;
}

static void die(const char *what)
{
	printf("not ok 1 - the state machine holds: %s\n", what);
	fflush(stdout);
	_exit(1);
}

static void *sender(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	u64 id = (u64)seed << 32;

	current = argument;
	while (!atomic_load(&stop)) {
		struct test_call *call = calloc(1, sizeof(*call));
		bool delivered;
		int err;

		atomic_fetch_add(&calls_alive, 1);
		call->sent = (int)seed;
		stplr_call_init(&call->call, &port, ++id, (int)dice(&seed, 3), dice(&seed, 4));
		err = stplr_port_send(&call->call,
				      dice(&seed, 3) ? KTIME_MAX : (ktime_t)dice(&seed, 4),
				      &delivered);
		if (err == ANSWER)
			atomic_fetch_add(&answered, 1);
		else if (err == -EINTR || err == -ETIMEDOUT)
			atomic_fetch_add(&interrupted, 1);
		else if (err != -ESRCH)
			die("an outcome that nobody gave");
		pthread_mutex_lock(&current->lock);
		current->killed = false;
		pthread_mutex_unlock(&current->lock);
		stplr_call_put(&call->call);
	}
	return NULL;
}

static void answer(struct stplr_call *call)
{
	struct stplr_waker waker;

	stplr_call_finish(call, ANSWER, &waker);
	stplr_waker_run(&waker, true);
}

/* What a server does with a call that it has received. */
static void serve(struct stplr_call *call, const void *taker, unsigned int *seed)
{
	u64 id = call->id;

	if (dice(seed, 6) == 0) {
		stplr_call_untake(call);
		return;
	}
	if (!call->wants_reply || dice(seed, 6) == 0) {
		answer(call);
		return;
	}
	stplr_call_keep(call, taker);
	if (dice(seed, 3) == 0) {
		call = stplr_port_borrow(&port, id, taker);
		if (call) {
			sched_yield();
			stplr_call_return(call);
		}
	}
	if (dice(seed, 10) == 0) {
		stplr_port_disown(&port, taker, -ESRCH);
		return;
	}
	call = stplr_port_claim(&port, id, taker);
	if (call && dice(seed, 5) == 0) {
		stplr_call_unclaim(call);
		call = stplr_port_claim(&port, id, taker);
	}
	if (call)
		answer(call);
}

static void *server(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	struct stplr_item *item;

	current = argument;
	for (;;) {
		int err = stplr_port_take(&port, dice(&seed, 2) ? KTIME_MAX : 2, &item);

		if (err == -ESRCH)
			return NULL;
		if (err)
			continue;
		if (item->kind == STPLR_ITEM_PULSE)
			drop_pulse(item);
		else
			serve(container_of(item, struct stplr_call, item), argument, &seed);
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

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 2);
	pthread_t threads[SENDERS + SERVERS];
	unsigned int seed = 1;

	printf("1..1\n");
	stplr_port_init(&port, &ops);
	for (int i = 0; i < SENDERS + SERVERS; i++) {
		pthread_mutex_init(&tasks[i].lock, NULL);
		pthread_cond_init(&tasks[i].woken, NULL);
		if (pthread_create(&threads[i], NULL, i < SENDERS ? sender : server, &tasks[i]))
			die("a thread cannot be made");
	}
	while (time(NULL) < end) {
		torment(&seed);
		usleep(100);
	}
	atomic_store(&stop, true);
	stplr_port_close(&port, -ESRCH);
	for (int i = 0; i < SENDERS + SERVERS; i++)
		pthread_join(threads[i], NULL);
	printf("# %ld answered, %ld interrupted\n", atomic_load(&answered),
	       atomic_load(&interrupted));
	if (atomic_load(&calls_alive) || atomic_load(&pulses_alive))
		die("something is left");
	if (!atomic_load(&answered) || !atomic_load(&interrupted))
		die("nothing happened");
	printf("ok 1 - the state machine holds\n");
	return 0;
}
