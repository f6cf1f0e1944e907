// SPDX-License-Identifier: GPL-2.0
/*
 * Whose memory it is that does not come, that one waits: no client stalls a server, and a server that
 * waits for memory of its own holds up no deadline and keeps nobody's memory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "linger.h"
#include "new.h"
#include "processor.h"
#include "seen.h"

#define MIB (1UL << 20)

/* Memory that does not come until it is let come. */
struct held_back {
	char *memory;
	size_t size;
	int faults;
};

static struct held_back hold_back(size_t size)
{
	struct held_back held = { .size = size,
				  .faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK) };
	struct uffdio_api api = { .api = UFFD_API };

	if (held.faults < 0)
		SKIP("this kernel has no userfaultfd");
	OK(ioctl(held.faults, UFFDIO_API, &api));
	held.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(held.memory != MAP_FAILED);
	struct uffdio_register range = { .range = { (uintptr_t)held.memory, size },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };

	OK(ioctl(held.faults, UFFDIO_REGISTER, &range));
	return held;
}

/* Until some thread waits for it. */
static void await_fault(const struct held_back *held)
{
	struct uffd_msg fault;

	while (read(held->faults, &fault, sizeof(fault)) != sizeof(fault))
		nap(2);
	CHECK(fault.event == UFFD_EVENT_PAGEFAULT);
}

static void let_come(const struct held_back *held)
{
	struct uffdio_zeropage pages = { .range = { (uintptr_t)held->memory, held->size } };

	OK(ioctl(held->faults, UFFDIO_ZEROPAGE, &pages));
}

/* A server whose own memory is held back, with who lets it come. */
struct server {
	pid_t process;
	int says[2], told[2]; /* pipes: it waits for memory now; let it come */
};

static void await(int pipe)
{
	char byte;

	CHECK(read(pipe, &byte, 1) == 1);
}

static void tell(int pipe)
{
	CHECK(write(pipe, "x", 1) == 1);
}

struct helper {
	struct held_back held;
	struct server *server;
};

static void *help(void *argument)
{
	struct helper *helper = argument;

	await_fault(&helper->held);
	tell(helper->server->says[1]);
	await(helper->server->told[0]);
	let_come(&helper->held);
	return NULL;
}

typedef void serving(int channel, char *memory);

static struct server start_server(int channel, serving *serve)
{
	struct server server;

	OK(pipe(server.says));
	OK(pipe(server.told));
	server.process = fork();
	if (server.process == 0) {
		struct helper helper = { hold_back(MIB), &server };
		pthread_t thread;

		OK(pthread_create(&thread, NULL, help, &helper));
		serve(channel, helper.held.memory);
		fflush(stdout);
		_exit(0);
	}
	return server;
}

/* The deadline of its client holds, and it passes that message over for the next. */
static void receive_late(int channel, char *memory)
{
	struct stplr_receive received;

	IS(6, stplr_receive(channel, memory, 65536, second, &received));
	CHECK(!memcmp(memory, "second", 6));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
}

static void read_late(int channel, char *memory)
{
	struct stplr_receive received;

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	/* It was with the kernel; or there is nobody to read from. */
	long got = stplr_read(channel, received.id, 0, memory, 65536);

	CHECK(got == (long)received.length || got == -ESRCH);
	IS(-ESRCH, stplr_reply(channel, received.id, 0, NULL, 0));
}

static void reply_late(int channel, char *memory)
{
	struct stplr_receive received;

	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	IS(-ESRCH, stplr_reply(channel, received.id, 0, memory, 65536));
}

static void a_deadline_holds(serving *serve, size_t size, bool sends_another)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct server server = start_server(channel, serve);

	pid_t client = CLIENT(channel, connection, {
		char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct stplr_send timed = { .send = stplr_bytes(memory, size),
					    .reply = stplr_bytes(memory, 65536),
					    .timeout_ns = 300000000 };

		memset(memory, 'f', 65536);
		IS(-ETIMEDOUT, stplr_send_full(connection, &timed));
		for (size_t i = 0; i < 65536; i++)
			CHECK(memory[i] == 'f');
	});
	await(server.says[0]);
	join(client);
	pid_t other = CLIENT(channel, connection, {
		if (sends_another)
			IS(0, stplr_send(connection, "second", 6, NULL, 0, NULL));
	});
	tell(server.told[1]);
	join(server.process);
	join(other);
}

static void a_deadline_holds_while_a_server_receives(void)
{
	a_deadline_holds(receive_late, 5, true);
	a_deadline_holds(receive_late, 65536, true);
}

static void a_deadline_holds_while_a_server_reads(void)
{
	a_deadline_holds(read_late, 5, false);
	a_deadline_holds(read_late, 65536, false);
}

static void a_deadline_holds_while_a_server_replies(void)
{
	a_deadline_holds(reply_late, 5, false);
	a_deadline_holds(reply_late, 65536, false);
}

/* A signal ends such a wait as well, and the message goes to nobody. */
static void a_signal_ends_the_wait_for_such_a_server(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct server server = start_server(channel, receive_late);

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send send = { .send = stplr_bytes("first", 5), .timeout_ns = second };

		handle_signal(SIGUSR1, 0);
		IS(-EINTR, stplr_send_full(connection, &send));
		IS(0, stplr_send(connection, "second", 6, NULL, 0, NULL));
	});
	await(server.says[0]);
	kill(client, SIGUSR1);
	/* Its second message is in the queue only once it has left the first. */
	unsigned int before = 0;

	while (!before) {
		nap(10);
		before = (unsigned int)lines(FOLDER "blocked", "%d %d SEND ", client, client);
	}
	nap(50);
	tell(server.told[1]);
	join(server.process);
	join(client);
}

enum { LINGERING = 30 };

/* The server is the last who has it, when it passes the message over. */
static void a_socket_that_lingers_stalls_no_server(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct server server = start_server(channel, receive_late);
	int peer, end = lingering_socket(LINGERING, &peer);
	double start = now();

	pid_t client = CLIENT(channel, connection, {
		struct stplr_send timed = { .send = stplr_bytes("first", 5),
					    .files = (uintptr_t)&end,
					    .file_count = 1,
					    .timeout_ns = 300000000 };

		IS(-ETIMEDOUT, stplr_send_full(connection, &timed));
	});
	await(server.says[0]);
	join(client);
	close(end);
	pid_t other = CLIENT(channel, connection,
			     IS(0, stplr_send(connection, "second", 6, NULL, 0, NULL)));
	tell(server.told[1]);
	join(server.process);
	join(other);
	CHECK(now() - start < LINGERING / 2);
	close(peer);
}

/* A tmpfs that is busy for as long as anything of it is mapped. */
#define FILES "/tmp/stall-files"

static void memory_of_the_dead_is_given_back(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), ready[2];

	OK(pipe(ready));
	mkdir(FILES, 0700);
	OK(mount("files", FILES, "tmpfs", 0, NULL));
	struct server server = start_server(channel, receive_late);

	pid_t client = CLIENT(channel, connection, {
		int file = open(FILES "/one", O_CREAT | O_RDWR, 0600);

		OK(ftruncate(file, 65536));
		char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		CHECK(memory != MAP_FAILED);
		close(file);
		memset(memory, 'f', 65536);
		stplr_send(connection, memory, 65536, NULL, 0, NULL);
	});
	await(server.says[0]);
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	/* Its server still waits. This ends, or the test does. */
	while (umount2(FILES, 0))
		nap(5);
	pid_t other = CLIENT(channel, connection, {
		IS(0, stplr_send(connection, "second", 6, NULL, 0, NULL));
	});
	tell(server.told[1]);
	join(server.process);
	join(other);
}

/* A hole that is being punched into a file, and is not done before it is let go on. */
struct punch {
	int file;
	size_t size;
	volatile bool done;
};

static void *punch(void *argument)
{
	struct punch *punch = argument;

	run_on(1);
	run_as(SCHED_IDLE, 0);
	OK(fallocate(punch->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
		     (off_t)punch->size));
	punch->done = true;
	return NULL;
}

/* Keeps whoever punches from the processor, once it is told. */
static pid_t start_hog(int told)
{
	pid_t hog = fork();

	if (hog == 0) {
		run_on(1);
		be_greedy();
		await(told);
		for (;;)
			;
	}
	return hog;
}

static bool is_mapped(int pagemap, const char *page)
{
	uint64_t entry;

	CHECK(pread(pagemap, &entry, sizeof(entry), (off_t)((uintptr_t)page / 4096 * 8)) ==
	      sizeof(entry));
	return entry >> 63;
}

static void be_a_client_whose_memory_is_punched(int connection, const int *hogs)
{
	struct punch hole = { .file = memfd_create("punched", 0), .size = 128 * MIB };
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	pthread_t thread;

	CHECK(hole.file >= 0 && pagemap >= 0);
	OK(fallocate(hole.file, 0, 0, (off_t)hole.size));
	char *room = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, hole.file,
			  (off_t)(hole.size - MIB));

	CHECK(room != MAP_FAILED);
	memset(room, 2, MIB);
	OK(pthread_create(&thread, NULL, punch, &hole));
	while (is_mapped(pagemap, room))
		;
	tell(hogs[1]);
	if (hole.done)
		SKIP("the hole was punched too soon");
	/* What is written there before the hole is there would be lost: it comes after it. */
	IS(65536, stplr_send(connection, "hi", 2, room, 65536, NULL));
	OK(pthread_join(thread, NULL));
}

static void a_hole_that_is_punched_stalls_nobody(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), hogs[2];
	struct stplr_receive received;
	static char bytes[65536];
	int status;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP("there is one processor only");
	OK(pipe(hogs));
	run_on(0);
	pid_t hog = start_hog(hogs[0]);
	pid_t client = CLIENT(channel, connection, {
		be_a_client_whose_memory_is_punched(connection, hogs);
	});

	close(connection);
	/* A client that had to skip is gone. */
	if (stplr_receive(channel, NULL, 0, second, &received) < 0) {
		waitpid(client, &status, 0);
		_exit(WEXITSTATUS(status));
	}
	memset(bytes, 'r', sizeof(bytes));
	IS(65536, stplr_reply(channel, received.id, 0, bytes, sizeof(bytes)));
	kill(hog, SIGKILL);
	join(client);
}

static void clients_bring_pages_that_are_not_there(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	static char bytes[65536];

	/* For a tenth of a second after one has not answered, as in the test before, nobody is asked. */
	nap(150);
	long asks = counter("asks");
	pid_t client = CLIENT(channel, connection, {
		char *room = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				  -1, 0);

		IS(65536, stplr_send(connection, "hi", 2, room, 65536, NULL));
		CHECK(room[0] == 'r' && room[65535] == 'r');
	});
	IS(0, stplr_receive(channel, NULL, 0, second, &received));
	memset(bytes, 'r', sizeof(bytes));
	IS(65536, stplr_reply(channel, received.id, 0, bytes, sizeof(bytes)));
	CHECK(counter("asks") > asks);
	join(client);
}

static void put_back(void)
{
	umount2(FILES, MNT_DETACH);
	rmdir(FILES);
}

static const struct test tests[] = {
	{ "a deadline holds while a server receives", a_deadline_holds_while_a_server_receives },
	{ "a deadline holds while a server reads", a_deadline_holds_while_a_server_reads },
	{ "a deadline holds while a server replies", a_deadline_holds_while_a_server_replies },
	{ "a signal ends the wait for such a server", a_signal_ends_the_wait_for_such_a_server },
	{ "a socket that lingers stalls no server", a_socket_that_lingers_stalls_no_server },
	{ "memory of the dead is given back", memory_of_the_dead_is_given_back },
	{ "a hole that is being punched stalls nobody", a_hole_that_is_punched_stalls_nobody },
	{ "clients bring pages that are not there", clients_bring_pages_that_are_not_there },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
