// SPDX-License-Identifier: GPL-2.0
/* The first interface: its version, handles, buffers of every size and number, threads, and 32-bit programs. */
#include <stddef.h>
#include <stdint.h>

#include "old.h"

_Static_assert(STPLR_VERSION == 0x800c692a, "IOR 42, 12 bytes");
_Static_assert(STPLR_HANDLE_GET == 0x8008692b, "IOR 43, 8 bytes");
_Static_assert(STPLR_HANDLE_PUT == 0x4008692c, "IOW 44, 8 bytes");
_Static_assert(STPLR_MSG_SEND == 0xc020692d, "IOWR 45, 32 bytes");
_Static_assert(STPLR_MSG_SEND_RECEIVE == 0xc030692e, "IOWR 46, 48 bytes");
_Static_assert(STPLR_MSG_RECEIVE == 0xc028692f, "IOWR 47, 40 bytes");
_Static_assert(STPLR_MSG_REPLY == 0xc0206930, "IOWR 48, 32 bytes");
_Static_assert(sizeof(struct stplr_msg) == 16 && offsetof(struct stplr_msg, buflen) == 8, "");
_Static_assert(sizeof(struct stplr_msgs) == 16 && offsetof(struct stplr_msgs, count) == 8, "");
_Static_assert(offsetof(struct stplr_msg_send, smsgs) == 16, "");
_Static_assert(offsetof(struct stplr_msg_send_receive, rmsgs) == 32, "");
_Static_assert(offsetof(struct stplr_msg_receive, reply_required) == 16, "");
_Static_assert(offsetof(struct stplr_msg_receive, rmsgs) == 24, "");
_Static_assert(offsetof(struct stplr_msg_reply, rmsgs) == 16, "");

static void version_is_0_0_7(void)
{
	struct stplr_version version = {};
	int fd = open("/dev/stplr-0", O_RDWR);

	OK(ioctl(fd, STPLR_VERSION, &version));
	CHECK(version.major == 0 && version.minor == 0 && version.micro == 7);
	FAILS(EFAULT, ioctl(fd, STPLR_VERSION, NULL));
}

static void a_process_opens_a_node_once(void)
{
	int fd = open("/dev/stplr-0", O_RDWR);

	CHECK(fd >= 0);
	FAILS(EBUSY, open("/dev/stplr-0", O_RDWR));
	CHECK(open("/dev/stplr-1", O_RDWR) >= 0);
	pid_t child = fork();
	if (child == 0) {
		CHECK(open("/dev/stplr-0", O_RDWR) >= 0);
		_exit(0);
	}
	join(child);
	close(fd);
	CHECK(open("/dev/stplr-0", O_RDWR) >= 0);
}

static void a_thread_takes_one_handle(void)
{
	struct party me = enter();
	struct stplr_handle second;

	FAILS(EBUSY, ioctl(me.fd, STPLR_HANDLE_GET, &second));
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	FAILS(ENODEV, ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	OK(ioctl(me.fd, STPLR_HANDLE_GET, &second));
	CHECK(second.uuid != me.handle.uuid);
	FAILS(EFAULT, ioctl(me.fd, STPLR_HANDLE_PUT, NULL));
}

static void *use_others_handle(void *argument)
{
	struct party me = *(struct party *)argument;
	struct stplr_msg_receive from;

	FAILS(EBADR, old_send(&me, me.pid, me.tid, NULL, 0));
	FAILS(EBADR, old_receive(&me, NULL, 0, &from));
	FAILS(EBADR, old_reply(&me, me.pid, me.tid, NULL, 0));
	FAILS(EBADR, ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
	return NULL;
}

static void another_thread_may_not_use_a_handle(void)
{
	struct party me = enter();
	pthread_t thread;

	OK(pthread_create(&thread, NULL, use_others_handle, &me));
	OK(pthread_join(thread, NULL));
}

static void a_child_may_not_use_its_parents_handle(void)
{
	struct party me = enter();
	struct stplr_handle handle;
	pid_t child = fork();

	if (child == 0) {
		FAILS(EBADR, ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
		FAILS(EBADR, ioctl(me.fd, STPLR_HANDLE_GET, &handle));
		FAILS(EBADR, old_send(&me, me.pid, me.tid, NULL, 0));
		_exit(0);
	}
	join(child);
	OK(ioctl(me.fd, STPLR_HANDLE_PUT, &me.handle));
}

static void what_is_unknown_is_enodev(void)
{
	struct party me = enter(), nobody = me;
	struct stplr_msg_receive from;

	nobody.handle.uuid++;
	FAILS(ENODEV, old_send(&me, me.pid, 999999, NULL, 0));
	FAILS(ENODEV, old_send(&me, 1, me.tid, NULL, 0));
	FAILS(ENODEV, old_send(&me, -1, -1, NULL, 0));
	FAILS(ENODEV, old_send(&nobody, me.pid, me.tid, NULL, 0));
	FAILS(ENODEV, old_receive(&nobody, NULL, 0, &from));
	FAILS(ENODEV, old_reply(&me, 1, 1, NULL, 0));
}

static void an_unknown_ioctl_fails_at_once(void)
{
	struct party me = enter();
	double start = now();

	FAILS(ENOTTY, ioctl(me.fd, _IO('i', 99), 0));
	CHECK(now() - start < 0.5);
}

static void a_round_trip_of(size_t size)
{
	pid_t server = echo_server(size + 100);
	struct party me = enter();
	char *sent = malloc(size), *got = calloc(1, size + 50);
	struct stplr_msg s = { sent, (__u32)size }, r = { got, (__u32)size + 50 };

	fill(sent, size, 7);
	OK(old_call(&me, server, server, &s, 1, &r, 1));
	CHECK(s.buflen == size && r.buflen == size);
	CHECK(filled(got, size, 7));
}

static void every_size_arrives_whole(void)
{
	static const size_t sizes[] = { 0, 1, 64, 255, 256, 257, 4095, 4096, 4097, 16383, 16384,
					16385, 65536, 1 << 20, (4 << 20) + 13 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		pid_t child = fork();

		if (child == 0) {
			a_round_trip_of(sizes[i]);
			_exit(0);
		}
		join(child);
	}
}

static void buffers_pair_up_by_index(size_t unit)
{
	int go[2];
	char c;

	OK(pipe(go));
	pid_t parent = getpid();
	struct party me = enter();
	pid_t child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		char *a = malloc(unit), *b = malloc(unit * 2), *c3 = malloc(unit);
		struct stplr_msg s[3] = { { a, (__u32)unit },
					  { b, (__u32)unit * 2 },
					  { c3, (__u32)unit } };
		struct stplr_msg r[2] = { { c3, (__u32)unit }, { b, 5 } };

		fill(a, unit, 1);
		fill(b, unit * 2, 2);
		fill(c3, unit, 3);
		OK(old_call(&client, parent, parent, s, 3, r, 2));
		CHECK(s[0].buflen == unit && s[1].buflen == unit && s[2].buflen == 0);
		CHECK(r[0].buflen == 3 && !memcmp(c3, "abc", 3));
		CHECK(r[1].buflen == 0);
		(void)!write(go[1], "x", 1);
		_exit(0);
	}
	char *x = calloc(1, unit * 3), *y = calloc(1, unit);
	struct stplr_msg r[2] = { { x, (__u32)unit * 3 }, { y, (__u32)unit } };
	struct stplr_msg_receive from;

	OK(old_receive(&me, r, 2, &from));
	CHECK(from.pid == child && from.tid == child && from.reply_required);
	CHECK(r[0].buflen == unit && filled(x, unit, 1));
	CHECK(r[1].buflen == unit && filled(y, unit, 2));
	struct stplr_msg reply = { "abc", 3 };

	OK(old_reply(&me, from.pid, from.tid, &reply, 1));
	CHECK(reply.buflen == 3);
	CHECK(read(go[0], &c, 1) == 1);
	join(child);
}

static void small_buffers_pair_up(void)
{
	buffers_pair_up_by_index(20);
}

static void big_buffers_pair_up(void)
{
	buffers_pair_up_by_index(40001);
}

/* Each of which is replied to apart. */
static void many_buffers_pair_up(void)
{
	enum { COUNT = 400 };
	static char room[COUNT][8], bytes[COUNT][4];
	static struct stplr_msg theirs[COUNT], mine[COUNT];
	struct party me = enter();
	struct stplr_msg_receive from;
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();

		for (int i = 0; i < COUNT; i++)
			theirs[i] = (struct stplr_msg){ room[i], sizeof(room[i]) };
		OK(old_call(&client, parent, parent, NULL, 0, theirs, COUNT));
		for (int i = 0; i < COUNT; i++)
			CHECK(theirs[i].buflen == 4 && filled(room[i], 4, (unsigned int)i));
		_exit(0);
	}
	OK(old_receive(&me, NULL, 0, &from));
	for (int i = 0; i < COUNT; i++) {
		fill(bytes[i], 4, (unsigned int)i);
		mine[i] = (struct stplr_msg){ bytes[i], 4 };
	}
	OK(old_reply(&me, child, child, mine, COUNT));
	join(child);
}

static void more_buffers_at_the_receiver_get_nothing(void)
{
	struct party me = enter();
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		close(me.fd);
		struct party client = enter();
		struct stplr_msg s = { "12345", 5 };

		OK(old_send(&client, parent, parent, &s, 1));
		CHECK(s.buflen == 5);
		_exit(0);
	}
	char a[8] = "", b[8] = "untouch";
	struct stplr_msg r[2] = { { a, 8 }, { b, 8 } };
	struct stplr_msg_receive from;

	OK(old_receive(&me, r, 2, &from));
	CHECK(!from.reply_required);
	CHECK(r[0].buflen == 5 && r[1].buflen == 0 && !strcmp(b, "untouch"));
	join(child);
}

static void messages_come_in_the_order_they_were_sent(void)
{
	struct party me = enter();
	pid_t parent = getpid(), children[5];

	for (int i = 0; i < 5; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			close(me.fd);
			struct party client = enter();
			struct stplr_msg s = { &i, sizeof(i) };

			OK(old_send(&client, parent, parent, &s, 1));
			_exit(0);
		}
		await_ioctl(children[i]);
	}
	for (int i = 0; i < 5; i++) {
		int got = -1;
		struct stplr_msg r = { &got, sizeof(got) };
		struct stplr_msg_receive from;

		OK(old_receive(&me, &r, 1, &from));
		CHECK(got == i && from.pid == children[i]);
		join(children[i]);
	}
}

static void sending_to_oneself_is_edeadlk(void)
{
	struct party me = enter();

	FAILS(EDEADLK, old_send(&me, me.pid, me.tid, NULL, 0));
}

static void *sender_thread(void *argument)
{
	struct party me = *(struct party *)argument;

	OK(ioctl(me.fd, STPLR_HANDLE_GET, &me.handle));
	for (int i = 0; i < 200; i++) {
		struct stplr_msg s = { &i, sizeof(i) }, r = { &(int){ 0 }, sizeof(i) };

		OK(old_call(&me, me.pid, me.tid, &s, 1, &r, 1));
		CHECK(*(int *)r.msgbuf == i + 1);
	}
	return NULL;
}

static void threads_of_one_process_can_talk(void)
{
	struct party me = enter();
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		OK(pthread_create(&threads[i], NULL, sender_thread, &me));
	for (int i = 0; i < 4 * 200; i++) {
		int number;
		struct stplr_msg msg = { &number, sizeof(number) };
		struct stplr_msg_receive from;

		OK(old_receive(&me, &msg, 1, &from));
		number++;
		OK(old_reply(&me, from.pid, from.tid, &msg, 1));
	}
	for (int i = 0; i < 4; i++)
		OK(pthread_join(threads[i], NULL));
}

static void no_32_bit_calls(int number)
{
	SKIP("this kernel has no 32-bit calls");
}

/* Call 54 of the 32-bit table is ioctl. */
static long ioctl_32(int fd, unsigned long command, void *argument)
{
	long result;

	asm volatile("int $0x80" : "=a"(result)
		     : "a"(54L), "b"((long)fd), "c"((long)command), "d"((long)argument)
		     : "memory", "r8", "r9", "r10", "r11");
	return (int)result;
}

/* What is on the second interface is the same for them. */
static void a_32_bit_server_serves(int channel, int connection, char *low)
{
	struct stplr_receive *received = (struct stplr_receive *)low;
	struct stplr_reply *reply = (struct stplr_reply *)(low + 256);
	struct stplr_part *parts = (struct stplr_part *)(low + 512);
	int32_t status;
	pid_t client = fork();

	if (client == 0) {
		char got[5];
		struct stplr_send send = { .send = { (uintptr_t)"hello", 5, 0 },
					   .reply = { (uintptr_t)got, 5, 0 },
					   .timeout_ns = -1 };

		OK(ioctl(connection, STPLR_SEND, &send));
		CHECK(send.replied == 5 && !memcmp(got, "lloje", 5));
		_exit(0);
	}
	memset(low, 0, 4096);
	parts[0].address = (uintptr_t)low + 1024;
	parts[0].length = 2;
	parts[1].address = (uintptr_t)low + 1100;
	parts[1].length = 100;
	received->buffer.address = (uintptr_t)parts;
	received->buffer.count = 2;
	received->timeout_ns = -1;
	CHECK(ioctl_32(channel, STPLR_RECEIVE, received) == 0);
	CHECK(received->length == 5 && !memcmp(low + 1024, "he", 2));
	CHECK(!memcmp(low + 1100, "llo", 3));
	memcpy(low + 1103, "je", 2);
	reply->id = received->id;
	reply->buffer.address = (uintptr_t)low + 1100;
	reply->buffer.length = 5;
	CHECK(ioctl_32(channel, STPLR_REPLY, reply) == 5);
	CHECK(waitpid(client, &status, 0) == client && status == 0);
}

static void a_32_bit_call_is_refused(void)
{
	void *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	int fd = open("/dev/stplr-0", O_RDWR), control = open("/dev/stplr", O_RDWR);
	struct stplr_channel_create create = {};
	struct stplr_channel_connect connect = {};
	int channel = ioctl(control, STPLR_CHANNEL_CREATE, &create);
	int connection = ioctl(channel, STPLR_CHANNEL_CONNECT, &connect);

	CHECK(connection >= 0);
	signal(SIGSEGV, no_32_bit_calls);
	if (ioctl_32(fd, STPLR_VERSION, low) == -ENOSYS)
		SKIP("this kernel has no 32-bit calls");
	CHECK(ioctl_32(fd, STPLR_VERSION, low) == -ENOTTY);
	CHECK(ioctl_32(fd, STPLR_HANDLE_GET, low) == -ENOTTY);
	CHECK(ioctl_32(fd, STPLR_MSG_RECEIVE, low) == -ENOTTY);
	CHECK(ioctl_32(control, STPLR_CHANNEL_CREATE, low) >= 0);
	CHECK(ioctl_32(connection, STPLR_UNREGISTER, NULL) == -ENOENT);
	a_32_bit_server_serves(channel, connection, low);
}

static const struct test tests[] = {
	{ "the version is 0.0.7", version_is_0_0_7 },
	{ "a process opens a node once", a_process_opens_a_node_once },
	{ "a thread takes one handle", a_thread_takes_one_handle },
	{ "another thread may not use a handle", another_thread_may_not_use_a_handle },
	{ "a child may not use its parent's handle", a_child_may_not_use_its_parents_handle },
	{ "what is unknown is ENODEV", what_is_unknown_is_enodev },
	{ "an unknown ioctl fails at once", an_unknown_ioctl_fails_at_once },
	{ "every size arrives whole", every_size_arrives_whole },
	{ "small buffers pair up by index", small_buffers_pair_up },
	{ "big buffers pair up by index", big_buffers_pair_up },
	{ "many buffers pair up", many_buffers_pair_up },
	{ "surplus buffers get nothing", more_buffers_at_the_receiver_get_nothing },
	{ "messages come in the order they were sent", messages_come_in_the_order_they_were_sent },
	{ "sending to oneself is EDEADLK", sending_to_oneself_is_edeadlk },
	{ "threads of one process can talk", threads_of_one_process_can_talk },
	{ "a 32-bit call is refused, and one of the second interface is not",
	  a_32_bit_call_is_refused },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
