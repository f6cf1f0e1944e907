// SPDX-License-Identifier: GPL-2.0
/*
 * The first interface: pointers and counts that are wrong, and memory that is read-only, dropped, comes late,
 * or never.
 */
#include "old.h"
#include "seen.h"
#include "watch.h"

static void a_bad_pointer_is_efault(void)
{
	pid_t server = echo_server(1 << 17);
	struct party me = enter();
	char good[8] = "x", *big = malloc(1 << 17);
	struct stplr_msg bad = { (void *)8, 8 }, fine = { good, 8 }, kernel = { (void *)~0UL, 8 };
	struct stplr_msg bad_big = { (void *)8, 1 << 17 }, fine_big = { big, 1 << 17 };
	struct stplr_msg wild = { (void *)0xffff888000000000UL, 1 << 17 };

	fill(big, 1 << 17, 0);
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_SEND, NULL));
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_SEND_RECEIVE, 8));
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_RECEIVE, ~0UL));
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_REPLY, NULL));
	for (int i = 0; i < 3; i++) {
		FAILS(EFAULT, old_send(&me, server, server, &bad, 1));
		FAILS(EFAULT, old_send(&me, server, server, &kernel, 1));
		FAILS(EFAULT, old_send(&me, server, server, (void *)16, 1));
		FAILS(EFAULT, old_send(&me, server, server, &bad_big, 1));
		FAILS(EFAULT, old_send(&me, server, server, &wild, 1));
		fine.buflen = 8;
		bad.buflen = 8;
		FAILS(EFAULT, old_call(&me, server, server, &fine, 1, &bad, 1));
		bad_big.buflen = 1 << 17;
		FAILS(EFAULT, old_call(&me, server, server, &fine_big, 1, &bad_big, 1));
		fine.buflen = 8;
		fine_big.buflen = 1 << 17;
		bad.buflen = 8;
	}
	OK(old_call(&me, server, server, &fine, 1, &fine, 1));
	OK(old_call(&me, server, server, &fine_big, 1, &fine_big, 1));
}

static void a_receivers_bad_pointer_loses_no_message(size_t size)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		char *buffer = malloc(size);
		struct stplr_msg s = { buffer, (__u32)size };

		fill(buffer, size, 5);
		OK(old_send(&client, parent, parent, &s, 1));
		_exit(0);
	}
	char *got = calloc(1, size);
	struct stplr_msg bad = { (void *)8, (__u32)size }, r = { got, (__u32)size };
	struct stplr_msg_receive from;

	for (int i = 0; i < 3; i++) {
		FAILS(EFAULT, old_receive(&me, &bad, 1, &from));
		FAILS(EFAULT, old_receive(&me, (void *)16, 1, &from));
		bad.buflen = (__u32)size;
	}
	OK(old_receive(&me, &r, 1, &from));
	CHECK(from.pid == child && filled(got, size, 5));
	join(child);
}

static void a_bad_pointer_loses_no_small_message(void)
{
	a_receivers_bad_pointer_loses_no_message(100);
}

static void a_bad_pointer_loses_no_big_message(void)
{
	a_receivers_bad_pointer_loses_no_message(100000);
}

static void a_repliers_bad_pointer_can_be_mended(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		char got[4] = "";
		struct stplr_msg r = { got, 3 };

		OK(old_call(&client, parent, parent, NULL, 0, &r, 1));
		CHECK(r.buflen == 3 && !strcmp(got, "yes"));
		_exit(0);
	}
	struct stplr_msg bad = { (void *)8, 3 }, good = { "yes", 3 };
	struct stplr_msg_receive from;

	OK(old_receive(&me, NULL, 0, &from));
	FAILS(EFAULT, old_reply(&me, from.pid, from.tid, &bad, 1));
	bad.buflen = 3;
	OK(old_reply(&me, from.pid, from.tid, &good, 1));
	join(child);
}

static void a_huge_count_is_refused(void)
{
	pid_t server = echo_server(64);
	struct party me = enter();
	struct stplr_msg s = { "x", 1 }, *many = calloc(1025, sizeof(s));
	struct stplr_msg huge[2] = { { many, 0x7ffff000 }, { many, 1 } };
	struct stplr_msg_receive from;

	FAILS(EINVAL, old_send(&me, server, server, &s, ~0U));
	FAILS(EINVAL, old_send(&me, server, server, many, 1025));
	FAILS(EINVAL, old_receive(&me, &s, 0x80000000U, &from));
	FAILS(EMSGSIZE, old_send(&me, server, server, huge, 2));
	OK(old_send(&me, server, server, many, 1024));
}

static void zero_lengths_are_messages(void)
{
	pid_t server = echo_server(64);
	struct party me = enter();
	struct stplr_msg s[2] = { { NULL, 0 }, { (void *)8, 0 } }, r = { NULL, 0 };

	OK(old_call(&me, server, server, s, 2, &r, 1));
	OK(old_call(&me, server, server, NULL, 0, NULL, 0));
	OK(old_send(&me, server, server, s, 1));
}

/* Memory whose pages never come: whoever touches it waits for ever. */
static void *memory_that_never_comes(size_t size)
{
	size = (size + 4095) & ~4095UL;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need_userfaultfd();
	watch(memory, size);
	return memory;
}

static void a_reply_of(size_t size)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg r = { memory_that_never_comes(size), (__u32)size };

		OK(old_call(&client, parent, parent, NULL, 0, &r, 1));
		_exit(0);
	}
	struct stplr_msg reply = { calloc(1, size), (__u32)size };
	struct stplr_msg_receive from;

	OK(old_receive(&me, NULL, 0, &from));
	double start = now();

	OK(old_reply(&me, from.pid, from.tid, &reply, 1));
	CHECK(now() - start < 1);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void a_small_reply_does_not_wait_for_the_client(void)
{
	a_reply_of(100);
}

static void a_big_reply_does_not_wait_for_the_client(void)
{
	a_reply_of(1 << 20);
}

static void a_client_cannot_stall_a_receiver(void)
{
	struct party me = enter();
	pid_t parent = getpid(), children[2];

	for (int i = 0; i < 2; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			close(me.fd);
			struct party client = enter();
			size_t size = 1 << 20;
			char *buffer = i ? calloc(1, size) : memory_that_never_comes(size);
			struct stplr_msg s = { buffer, (__u32)size };

			OK(old_send(&client, parent, parent, &s, 1));
			_exit(0);
		}
		await_ioctl(children[i]);
	}
	struct stplr_msg r = { malloc(1 << 20), 1 << 20 };
	struct stplr_msg_receive from;
	double start = now();

	OK(old_receive(&me, &r, 1, &from));
	CHECK(from.pid == children[1] && now() - start < 1);
	join(children[1]);
	kill(children[0], SIGKILL);
	waitpid(children[0], NULL, 0);
}

static void pages_that_were_dropped_are_sent(void)
{
	size_t size = 1 << 20;
	char path[] = "/tmp/pagesXXXXXX", *got = malloc(size);
	int fd = mkstemp(path);
	pid_t server = echo_server(size);
	struct party me = enter();

	fill(got, size, 3);
	CHECK(write(fd, got, size) == (ssize_t)size);
	memset(got, 0, size);
	char *mapped = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	struct stplr_msg s = { mapped, (__u32)size }, r = { got, (__u32)size };

	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(filled(got, size, 3));
}

static void const_buffers_can_be_sent_of(size_t size)
{
	char *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pid_t server = echo_server(size);
	struct party me = enter();
	char *got = malloc(size);
	struct stplr_msg s = { page, (__u32)size }, r = { got, (__u32)size };

	fill(page, size, 9);
	OK(mprotect(page, size, PROT_READ));
	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(filled(got, size, 9));
}

static void small_const_buffers_can_be_sent(void)
{
	const_buffers_can_be_sent_of(4096);
}

static void big_const_buffers_can_be_sent(void)
{
	const_buffers_can_be_sent_of(256 * 1024);
}

static void a_const_array_can_be_sent(void)
{
	static const struct stplr_msg s = { "const", 6 };
	pid_t server = echo_server(64);
	struct party me = enter();
	char got[8];
	struct stplr_msg r = { got, 8 };

	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(!strcmp(got, "const"));
}

enum { ROOM = 100, LITTLE = 3 };

/* A thread that receives into memory which comes when the test has it come. */
struct slow_receiver {
	struct party me;
	struct stplr_msg room;
	struct stplr_msg_receive from;
	pthread_t thread;
	bool repeats; /* after EINTR */
};

static volatile sig_atomic_t handled;

static void count_signal(int number)
{
	handled++;
}

static void *receive_slowly(void *argument)
{
	struct slow_receiver *receiver = argument;
	int got;

	OK(ioctl(receiver->me.fd, STPLR_HANDLE_GET, &receiver->me.handle));
	__atomic_store_n(&receiver->me.tid, my_tid(), __ATOMIC_SEQ_CST);
	do
		got = old_receive(&receiver->me, &receiver->room, 1, &receiver->from);
	while (got && errno == EINTR && receiver->repeats);
	OK(got);
	return NULL;
}

static pid_t sender_of(struct slow_receiver *receiver, unsigned int length)
{
	pid_t owner = getpid(), child = fork();

	if (child == 0) {
		close(receiver->me.fd);
		struct party client = enter();
		char bytes[ROOM];
		struct stplr_msg s = { bytes, length };

		fill(bytes, length, length);
		OK(old_send(&client, owner, receiver->me.tid, &s, 1));
		CHECK(s.buflen == length);
		_exit(0);
	}
	return child;
}

/* Until the thread has nothing to receive, and sleeps. */
static void await_receiver(struct slow_receiver *receiver)
{
	AWAIT_LINE(FOLDER "blocked", "%d %d RECEIVE ", getpid(), receiver->me.tid);
}

/* Returns once its first sender was killed while its message was being received. */
static void start_receiver(struct slow_receiver *receiver)
{
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int faults = watch(page, 4096);
	struct uffdio_zeropage zero = { .range = { (unsigned long)page, 4096 } };
	pid_t sender;

	receiver->me.fd = open("/dev/stplr-0", O_RDWR);
	CHECK(receiver->me.fd >= 0);
	receiver->room = (struct stplr_msg){ page, ROOM };
	OK(pthread_create(&receiver->thread, NULL, receive_slowly, receiver));
	while (!__atomic_load_n(&receiver->me.tid, __ATOMIC_SEQ_CST))
		nap(2);
	await_receiver(receiver);
	sender = sender_of(receiver, LITTLE);
	await_fault(faults);
	kill(sender, SIGKILL);
	CHECK(waitpid(sender, NULL, 0) == sender);
	OK(ioctl(faults, UFFDIO_ZEROPAGE, &zero));
	await_receiver(receiver);
}

static void receive_the_next_whole(struct slow_receiver *receiver)
{
	join(sender_of(receiver, ROOM));
	OK(pthread_join(receiver->thread, NULL));
	CHECK(receiver->room.buflen == ROOM);
	CHECK(filled(receiver->room.msgbuf, ROOM, ROOM));
}

/* Of a sender that left while it was received nothing stays, above all not in how much room there is. */
static void who_left_takes_no_room_of_the_next(void)
{
	struct slow_receiver receiver = {};

	need_userfaultfd();
	start_receiver(&receiver);
	receive_the_next_whole(&receiver);
}

static void interrupt_and_receive(struct slow_receiver *receiver, int flags)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };

	need_userfaultfd();
	OK(sigaction(SIGUSR1, &action, NULL));
	start_receiver(receiver);
	OK(pthread_kill(receiver->thread, SIGUSR1));
	while (!handled)
		nap(2);
	receive_the_next_whole(receiver);
}

static void nor_where_the_wait_is_restarted(void)
{
	struct slow_receiver receiver = {};

	interrupt_and_receive(&receiver, SA_RESTART);
}

static void nor_where_the_program_repeats_it(void)
{
	struct slow_receiver receiver = { .repeats = true };

	interrupt_and_receive(&receiver, 0);
}

/* The message is not lost, and what the program is told then does not cut the next. */
static void a_receive_that_cannot_tell_the_sender_takes_no_room(void)
{
	struct party me = enter();
	struct stplr_msg_receive *fixed = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct slow_receiver told = { .me = me };
	char got[ROOM];
	struct stplr_msg r = { got, ROOM };
	struct stplr_msg_receive from;
	pid_t sender;

	CHECK(fixed != MAP_FAILED);
	*fixed = (struct stplr_msg_receive){ .handle = me.handle, .rmsgs = { &r, 1 } };
	OK(mprotect(fixed, 4096, PROT_READ));
	sender = sender_of(&told, LITTLE);
	FAILS(EFAULT, ioctl(me.fd, STPLR_MSG_RECEIVE, fixed));
	CHECK(r.buflen == ROOM);
	OK(old_receive(&me, &r, 1, &from));
	CHECK(from.pid == sender && r.buflen == LITTLE && filled(got, LITTLE, LITTLE));
	join(sender);
}

static const struct test tests[] = {
	{ "a bad pointer is EFAULT", a_bad_pointer_is_efault },
	{ "a receiver's bad pointer loses no small message", a_bad_pointer_loses_no_small_message },
	{ "a receiver's bad pointer loses no big message", a_bad_pointer_loses_no_big_message },
	{ "a replier's bad pointer can be mended", a_repliers_bad_pointer_can_be_mended },
	{ "a huge count is refused", a_huge_count_is_refused },
	{ "zero lengths are messages", zero_lengths_are_messages },
	{ "a small reply does not wait for the client",
	  a_small_reply_does_not_wait_for_the_client },
	{ "a big reply does not wait for the client", a_big_reply_does_not_wait_for_the_client },
	{ "a client cannot stall a receiver", a_client_cannot_stall_a_receiver },
	{ "pages of a file are sent", pages_that_were_dropped_are_sent },
	{ "small const buffers can be sent", small_const_buffers_can_be_sent },
	{ "big const buffers can be sent", big_const_buffers_can_be_sent },
	{ "a const array can be sent", a_const_array_can_be_sent },
	{ "a sender that leaves while it is received takes no room of the next",
	  who_left_takes_no_room_of_the_next },
	{ "nor where the wait is restarted", nor_where_the_wait_is_restarted },
	{ "nor where the program repeats it", nor_where_the_program_repeats_it },
	{ "a receive that cannot tell the sender takes no room",
	  a_receive_that_cannot_tell_the_sender_takes_no_room },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
