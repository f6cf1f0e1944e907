// SPDX-License-Identifier: GPL-2.0
/* Memory that is pinned once for many messages. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "new.h"

#define SIZE (300 * 1024)

static char *new_memory(size_t size)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	for (size_t i = 0; i < size; i++)
		memory[i] = (char)(i * 31 + i / 253);
	return memory;
}

static long number_in(const char *path, const char *name)
{
	FILE *file = fopen(path, "r");
	char line[200];
	long number = -1;

	CHECK(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			number = atol(line + strlen(name));
	fclose(file);
	CHECK(number >= 0);
	return number;
}

/* Pages that are pinned on this machine at this moment. */
static long pinned(void)
{
	FILE *refresh = fopen("/proc/sys/vm/stat_refresh", "r");

	/* Each processor has counts of its own, which reading this adds up. */
	CHECK(refresh && fgetc(refresh) == EOF);
	fclose(refresh);
	return number_in("/proc/vmstat", "nr_foll_pin_acquired ") -
	       number_in("/proc/vmstat", "nr_foll_pin_released ");
}

/* What a process leaves is given back a little later. */
static void await_pinned(long expected)
{
	while (pinned() != expected)
		nap(2);
}

static void every_size_arrives_whole(void)
{
	static const size_t sizes[] = { 1, 256, 257, 4096, 16384, 16385, 65536, SIZE - 300 };
	int channel = new_channel(0), connection = new_connection(channel, 0);
	long before = pinned();

	pid_t client = CLIENT(channel, connection, {
		char *sent = new_memory(SIZE), *room = new_memory(SIZE);
		int from = stplr_register(connection, sent + 5, SIZE - 5);
		int to = stplr_register(connection, room, SIZE - 7);

		CHECK(from == 0 && to == 1);
		CHECK(pinned() == before + 2 * SIZE / 4096);
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			struct stplr_send send = {
				.send = stplr_registered(from, sent + 99, sizes[i]),
				.reply = stplr_registered(to, room + 33, sizes[i]),
				.timeout_ns = -1,
			};

			memset(room, 0, SIZE);
			OK(stplr_send_full(connection, &send));
			CHECK(send.replied == sizes[i]);
			CHECK(!memcmp(sent + 99, room + 33, sizes[i]));
			CHECK(!room[32] && !room[33 + sizes[i]]);
		}
		CHECK(pinned() == before + 2 * SIZE / 4096);
		OK(stplr_unregister(connection, from));
		OK(stplr_unregister(connection, to));
		IS(before, pinned());
	});
	char *mine = malloc(SIZE);
	struct stplr_receive received;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		IS(sizes[i], stplr_receive(channel, mine, SIZE, second, &received));
		IS(sizes[i], stplr_reply(channel, received.id, 0, mine, sizes[i]));
	}
	join(client);
}

static void a_server_reads_and_writes_there(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	char *mine = malloc(SIZE), *expected = new_memory(SIZE);

	pid_t client = CLIENT(channel, connection, {
		char *memory = new_memory(SIZE);
		int number = stplr_register(connection, memory, SIZE);
		struct stplr_send send = { .send = stplr_registered(number, memory, SIZE),
					   .reply = stplr_registered(number, memory, SIZE),
					   .timeout_ns = -1 };

		OK(stplr_send_full(connection, &send));
		CHECK(memory[0] == 'r' && !memcmp(memory + 9999, "written", 7));
		CHECK(!memcmp(memory + 10006, expected + 10006, SIZE - 10006));
	});
	IS(3, stplr_receive(channel, mine, 3, second, &received));
	IS(SIZE - 5000, stplr_read(channel, received.id, 5000, mine, SIZE));
	CHECK(!memcmp(mine, expected + 5000, SIZE - 5000));
	IS(7, stplr_write(channel, received.id, 9999, "written", 7));
	IS(-EFAULT, stplr_read(channel, received.id, 0, (void *)8, 5000));
	IS(-EFAULT, stplr_write(channel, received.id, 0, (void *)8, 5000));
	IS(1, stplr_reply(channel, received.id, 0, "r", 1));
	join(client);
}

static int send_from(int connection, unsigned int number, const void *address, size_t length)
{
	struct stplr_send send = { .send = stplr_registered(number, address, length),
				   .timeout_ns = 0 };

	return stplr_send_full(connection, &send);
}

static void only_bytes_of_the_region_are_taken(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *memory = new_memory(SIZE);
	int number = stplr_register(connection, memory + 100, 1000);

	IS(0, number);
	IS(-ETIMEDOUT, send_from(connection, number, memory + 100, 1000));
	IS(-ETIMEDOUT, send_from(connection, number, memory + 1100, 0));
	IS(-EFAULT, send_from(connection, number, memory + 99, 1000));
	IS(-EFAULT, send_from(connection, number, memory + 101, 1000));
	IS(-EFAULT, send_from(connection, number, memory + 2000, 1));
	IS(-EFAULT, send_from(connection, number, NULL, 4096));
	IS(-EFAULT, send_from(connection, number, (void *)~0UL, 4096));
	IS(-EFAULT, send_from(connection, number + 1, memory + 100, 1000));
	IS(-EFAULT, send_from(connection, 16, memory + 100, 1000));
	IS(-EFAULT, send_from(connection, 0x7fffffff, memory + 100, 1000));
	/* Nor is it of any use for what a server has. */
	struct stplr_receive receive = { .buffer = stplr_registered(number, memory + 100, 1000) };

	IS(-EINVAL, stplr_receive_full(channel, &receive));
	/* Another process, though it has the same addresses. */
	pid_t child = CLIENT(channel, connection, {
		IS(-EFAULT, send_from(connection, number, memory + 100, 1000));
	});

	join(child);
	OK(stplr_unregister(connection, number));
	IS(-EFAULT, send_from(connection, number, memory + 100, 1000));
	IS(-ENOENT, stplr_unregister(connection, number));
	FAILS(ENOENT, ioctl(connection, STPLR_UNREGISTER, ~0UL));
}

static void what_cannot_be_pinned_is_refused(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *memory = new_memory(SIZE);
	long before = pinned();

	IS(-EINVAL, stplr_register(connection, memory, 0));
	IS(-EINVAL, stplr_register(connection, memory, 1UL << 40));
	IS(-EINVAL, stplr_register(connection, (void *)~0UL, 4096));
	FAILS(EFAULT, ioctl(connection, STPLR_REGISTER, 8));
	OK(mprotect(memory + 8192, 4096, PROT_READ));
	IS(-EFAULT, stplr_register(connection, memory, SIZE));
	OK(munmap(memory + 8192, 4096));
	IS(-EFAULT, stplr_register(connection, memory, SIZE));
	IS(0, stplr_register(connection, memory, 8192));
	IS(before + 2, pinned());
	for (int i = 1; i < 16; i++)
		IS(i, stplr_register(connection, memory, 1));
	IS(-ENOSPC, stplr_register(connection, memory, 1));
	IS(before + 2 + 15, pinned());
	close(connection);
	IS(before, pinned());
	close(channel);
}

static void pinned_memory_is_limited(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	long before = pinned();

	pid_t client = CLIENT(channel, connection, {
		struct rlimit limit = { 65536, 65536 };
		char *memory = new_memory(SIZE);

		OK(setrlimit(RLIMIT_MEMLOCK, &limit));
		OK(setuid(1000));
		IS(-ENOMEM, stplr_register(connection, memory, 65537));
		IS(0, stplr_register(connection, memory, 40960));
		IS(40, number_in("/proc/self/status", "VmPin:"));
		IS(-ENOMEM, stplr_register(connection, memory, 40960));
		OK(stplr_unregister(connection, 0));
		IS(0, number_in("/proc/self/status", "VmPin:"));
		IS(0, stplr_register(connection, memory, 65536));
	});
	join(client);
	await_pinned(before);
}

static void memory_of_files_is_refused(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	const char *folder = "/tmp/region-files";
	long before = pinned();

	OK(mkdir(folder, 0700));
	OK(mount("files", folder, "ramfs", 0, NULL));
	int file = open("/tmp/region-files/one", O_CREAT | O_RDWR, 0600);

	CHECK(file >= 0);
	OK(umount2(folder, MNT_DETACH));
	OK(rmdir(folder));
	OK(ftruncate(file, SIZE));
	char *memory = new_memory(SIZE);

	/* In the middle of what may be registered. */
	CHECK(mmap(memory + 65536, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
	      MAP_FAILED);
	IS(-EFAULT, stplr_register(connection, memory, SIZE));
	IS(-EFAULT, stplr_register(connection, memory + 65536, 1));
	IS(before, pinned());
	IS(0, number_in("/proc/self/status", "VmPin:"));
	IS(0, stplr_register(connection, memory, 65536));
	IS(64, number_in("/proc/self/status", "VmPin:"));
}

static void set_user_bytes(long bytes)
{
	FILE *limit = fopen("/sys/module/stplr/parameters/user_bytes", "w");

	CHECK(limit && fprintf(limit, "%ld\n", bytes) > 0);
	OK(fclose(limit));
}

static void what_a_user_pins_is_limited(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), status;
	char *memory = new_memory(SIZE);

	set_user_bytes(200000);
	pid_t client = fork();

	if (client == 0) {
		OK(setuid(1000));
		IS(-EDQUOT, stplr_register(connection, memory, SIZE));
		IS(0, stplr_register(connection, memory, 100000));
		IS(-EDQUOT, stplr_register(connection, memory, 100000));
		OK(stplr_unregister(connection, 0));
		IS(0, stplr_register(connection, memory, 100000));
		_exit(0);
	}
	CHECK(waitpid(client, &status, 0) == client);
	set_user_bytes(64 << 20);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_process_that_ends_leaves_nothing_pinned(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	long before = pinned();

	/* The connection lives on here. */
	for (int i = 0; i < 10; i++) {
		pid_t client = CLIENT(channel, connection, {
			char *memory = new_memory(SIZE);

			CHECK(stplr_register(connection, memory, SIZE) >= 0);
			if (i & 1)
				raise(SIGKILL);
		});

		waitpid(client, NULL, 0);
	}
	await_pinned(before);
	char *memory = new_memory(SIZE);

	for (int i = 0; i < 16; i++)
		CHECK(stplr_register(connection, memory, 1) >= 0);
}

static void a_program_that_is_executed_finds_nothing_pinned(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), go[2];
	long before = pinned();
	pid_t client;

	OK(pipe(go));
	client = CLIENT(channel, connection, {
		char *memory = new_memory(SIZE);

		IS(0, stplr_register(connection, memory, SIZE));
		CHECK(read(go[0], memory, 1) == 1);
		/* The connection goes on in the new program, which has none of that memory. */
		OK(fcntl(connection, F_SETFD, 0));
		execl("/proc/self/exe", "region_test", "sleep", NULL);
		_exit(1);
	});

	while (pinned() == before)
		nap(2);
	CHECK(write(go[1], "x", 1) == 1);
	await_pinned(before);
	CHECK(waitpid(client, NULL, WNOHANG) == 0);
}

static void *unregister(void *argument)
{
	OK(stplr_unregister(*(int *)argument, 0));
	return NULL;
}

static void a_message_keeps_what_it_uses(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0), go[2];
	char *mine = malloc(SIZE), *expected = new_memory(SIZE), byte;
	struct stplr_receive received;
	long before = pinned();

	OK(pipe(go));
	pid_t client = CLIENT(channel, connection, {
		char *memory = new_memory(SIZE);
		struct stplr_send send = { .send = stplr_registered(0, memory, SIZE),
					   .timeout_ns = -1 };
		pthread_t thread;

		IS(0, stplr_register(connection, memory, SIZE));
		OK(pthread_create(&thread, NULL, unregister, &connection));
		OK(pthread_join(thread, NULL));
		IS(-EFAULT, stplr_send_full(connection, &send));
		IS(0, stplr_register(connection, memory, SIZE));
		CHECK(read(go[0], &byte, 1) == 1);
		OK(stplr_send_full(connection, &send));
		/* Once more; this time the region goes while the server is at work. */
		OK(stplr_send_full(connection, &send));
		IS(before, pinned());
	});
	CHECK(write(go[1], "x", 1) == 1);
	IS(1, stplr_receive(channel, mine, 1, second, &received));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	IS(1, stplr_receive(channel, mine, 1, second, &received));
	/* Whoever has the connection may let the region go. */
	OK(stplr_unregister(connection, 0));
	CHECK(pinned() > before);
	IS(SIZE, stplr_read(channel, received.id, 0, mine, SIZE));
	CHECK(!memcmp(mine, expected, SIZE));
	IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
	join(client);
}

static void memory_that_is_unmapped_is_no_danger(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	char *mine = malloc(SIZE), *expected = new_memory(SIZE);
	struct stplr_receive received;
	long before = pinned();

	pid_t client = CLIENT(channel, connection, {
		char *memory = new_memory(SIZE);
		struct stplr_send send = { .send = stplr_registered(0, memory, SIZE),
					   .reply = stplr_registered(0, memory, SIZE),
					   .timeout_ns = -1 };

		IS(0, stplr_register(connection, memory, SIZE));
		OK(munmap(memory, SIZE));
		OK(stplr_send_full(connection, &send));
		IS(SIZE, send.replied);
	});
	IS(SIZE, stplr_receive(channel, mine, SIZE, second, &received));
	CHECK(!memcmp(mine, expected, SIZE));
	memset(mine, 0, SIZE);
	IS(SIZE, stplr_reply(channel, received.id, 0, mine, SIZE));
	join(client);
	await_pinned(before);
}

static const struct test tests[] = {
	{ "every size arrives whole from registered memory", every_size_arrives_whole },
	{ "a server reads and writes registered memory", a_server_reads_and_writes_there },
	{ "only bytes of the region are taken", only_bytes_of_the_region_are_taken },
	{ "what cannot be pinned is refused", what_cannot_be_pinned_is_refused },
	{ "pinned memory is limited", pinned_memory_is_limited },
	{ "memory of files is refused", memory_of_files_is_refused },
	{ "what a user pins is limited", what_a_user_pins_is_limited },
	{ "a process that ends leaves nothing pinned", a_process_that_ends_leaves_nothing_pinned },
	{ "a program that is executed finds nothing pinned",
	  a_program_that_is_executed_finds_nothing_pinned },
	{ "a message keeps what it uses", a_message_keeps_what_it_uses },
	{ "memory that is unmapped is no danger", memory_that_is_unmapped_is_no_danger },
};

int main(int count, char **arguments)
{
	/* The new program. */
	if (count == 2 && !strcmp(arguments[1], "sleep")) {
		pause();
		return 0;
	}
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
