// SPDX-License-Identifier: GPL-2.0
/*
 * The first interface: pointers and counts that are wrong, and memory that is read-only, dropped, or never
 * comes.
 */
#include "old.h"
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
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
