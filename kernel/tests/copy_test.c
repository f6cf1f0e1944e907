// SPDX-License-Identifier: GPL-2.0
/* Bytes arrive as they were sent, wherever they lie in memory, and not one beside them is touched. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "new.h"

#define PAGE 4096
/* How many pages are pinned at a time, and room for more. */
#define BATCH 32
#define MOST ((BATCH + 6) * PAGE)
#define AROUND 16

/* By way of the kernel, small and large, and from pages that are pinned. */
static const size_t sizes[] = { 257, 1000, 4095, 4096, 4097, 2 * PAGE + 3, 5 * PAGE };

#define SIZES (sizeof(sizes) / sizeof(*sizes))
#define SHIFTS 9

static unsigned char nth(size_t i, size_t seed)
{
	return (unsigned char)(i * 31 + i / 251 + seed);
}

static void fill(unsigned char *bytes, size_t size, size_t seed)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = nth(i, seed);
}

static bool filled(const unsigned char *bytes, size_t size, size_t seed)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != nth(i, seed))
			return false;
	return true;
}

static bool blank(const unsigned char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != 0xee)
			return false;
	return true;
}

static unsigned char *new_room(void)
{
	unsigned char *room = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				   -1, 0);

	CHECK(room != MAP_FAILED);
	return room;
}

/* What arrived in a room, behind AROUND bytes and a shift, and what is around it. */
static void look(const unsigned char *room, size_t shift, size_t size, size_t seed)
{
	CHECK(blank(room, AROUND + shift));
	CHECK(filled(room + AROUND + shift, size, seed));
	CHECK(blank(room + AROUND + shift + size, AROUND));
}

static void answer_all(int channel, size_t rounds)
{
	unsigned char *room = new_room();
	struct stplr_receive received;

	for (size_t round = 0; round < rounds; round++) {
		size_t size = sizes[round % SIZES], shift = round / SIZES % SHIFTS;
		unsigned char *bytes = room + AROUND + shift;

		memset(room, 0xee, MOST);
		IS(size, stplr_receive(channel, bytes, size, second, &received));
		look(room, shift, size, round);
		fill(bytes, size, round + 1);
		IS(size, stplr_reply(channel, received.id, 0, bytes, size));
	}
}

static void call(int connection, const unsigned char *sent, unsigned char *room, size_t size,
		 size_t shift, size_t round)
{
	IS(size, stplr_send(connection, sent, size, room + AROUND + shift, size, NULL));
	look(room, shift, size, round + 1);
}

static void every_alignment_arrives_whole(void)
{
	const size_t rounds = SIZES * SHIFTS * SHIFTS;
	int channel = new_channel(0), connection = new_connection(channel, 0);

	pid_t client = CLIENT(channel, connection, {
		unsigned char *sent = new_room(), *room = new_room();

		for (size_t round = 0; round < rounds; round++) {
			size_t size = sizes[round % SIZES], shift = round / SIZES / SHIFTS;

			fill(sent + shift, size, round);
			memset(room, 0xee, MOST);
			call(connection, sent + shift, room, size, shift, round);
		}
	});
	answer_all(channel, rounds);
	join(client);
}

/* Memory that ends after length bytes, which begin at any address. */
static unsigned char *room_that_ends(size_t length)
{
	unsigned char *room = new_room();

	OK(munmap(room + MOST - PAGE, PAGE));
	return room + MOST - PAGE - length;
}

static void a_receiver_without_room_leaves_the_message(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	unsigned char *room = new_room();

	for (size_t i = 0; i < SIZES; i++) {
		pid_t client = CLIENT(channel, connection, {
			unsigned char *sent = new_room();

			fill(sent, sizes[i], i);
			IS(0, stplr_send(connection, sent, sizes[i], NULL, 0, NULL));
		});
		/* At words, and between them; with the end at one, and between. */
		for (size_t missing = 1; missing < 18; missing++)
			IS(-EFAULT, stplr_receive(channel, room_that_ends(sizes[i] - missing),
						  sizes[i], second, &received));
		IS(sizes[i], stplr_receive(channel, room, sizes[i], second, &received));
		CHECK(filled(room, sizes[i], i));
		IS(0, stplr_reply(channel, received.id, 0, NULL, 0));
		join(client);
	}
}

static void a_replier_without_bytes_can_answer_again(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	unsigned char *bytes = new_room();

	for (size_t i = 0; i < SIZES; i++) {
		pid_t client = CLIENT(channel, connection, {
			unsigned char *room = new_room();

			IS(sizes[i], stplr_send(connection, NULL, 0, room, sizes[i], NULL));
			CHECK(filled(room, sizes[i], i));
		});
		IS(0, stplr_receive(channel, NULL, 0, second, &received));
		for (size_t missing = 1; missing < 18; missing++)
			IS(-EFAULT, stplr_reply(channel, received.id, 0,
						room_that_ends(sizes[i] - missing), sizes[i]));
		fill(bytes, sizes[i], i);
		IS(sizes[i], stplr_reply(channel, received.id, 0, bytes, sizes[i]));
		join(client);
	}
}

static void a_client_without_room_does_not_fail_its_server(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	unsigned char *bytes = new_room();

	for (size_t i = 0; i < SIZES; i++)
		for (size_t missing = 1; missing < 10; missing++) {
			pid_t client = CLIENT(channel, connection, {
				unsigned char *room = room_that_ends(sizes[i] - missing);

				IS(-EFAULT, stplr_send(connection, NULL, 0, room, sizes[i], NULL));
			});

			IS(0, stplr_receive(channel, NULL, 0, second, &received));
			CHECK(stplr_reply(channel, received.id, 0, bytes, sizes[i]) >= 0);
			join(client);
		}
}

/* What one client was sent never shows in what another gets. */
static void nobody_reads_what_was_there_before(void)
{
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	unsigned char *bytes = new_room();

	for (size_t round = 0; round < 50; round++) {
		pid_t client = CLIENT(channel, connection, {
			unsigned char *room = new_room();

			memset(room, round % 2 ? 0xee : 0x55, MOST);
			IS(round % 2 ? 1000 : PAGE,
			   stplr_send(connection, room, PAGE, room, PAGE, NULL));
			/* Between what the server wrote nothing has changed. */
			CHECK(!(round % 2) || (room[0] == 's' && blank(room + 1, 998) &&
					       room[999] == 'e' && blank(room + 1000, PAGE - 1000)));
		});
		IS(PAGE, stplr_receive(channel, bytes, MOST, second, &received));
		if (round % 2) {
			IS(1, stplr_write(channel, received.id, 999, "e", 1));
			IS(1, stplr_reply(channel, received.id, 0, "s", 1));
		} else {
			IS(PAGE, stplr_reply(channel, received.id, 0, bytes, PAGE));
		}
		join(client);
	}
}

/* Memory of which only the first so many bytes are in reach of others: the rest is a file's. */
static unsigned char *room_half_in_reach(size_t pages)
{
	char folder[] = "/tmp/fileXXXXXX";
	unsigned char *room = new_room();
	char path[40];
	int file;

	CHECK(mkdtemp(folder));
	OK(mount("files", folder, "ramfs", 0, NULL));
	snprintf(path, sizeof(path), "%s/one", folder);
	file = open(path, O_CREAT | O_RDWR, 0600);
	CHECK(file >= 0);
	OK(ftruncate(file, MOST));
	CHECK(mmap(room + pages * PAGE, MOST - pages * PAGE, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_FIXED, file, 0) == room + pages * PAGE);
	close(file);
	OK(umount2(folder, MNT_DETACH));
	OK(rmdir(folder));
	return room;
}

static void the_client_fetches_what_others_cannot_bring(void)
{
	static const size_t beyond[] = { 1, 255, 256, 257, PAGE, PAGE + 1, 3 * PAGE };
	const size_t count = sizeof(beyond) / sizeof(*beyond);
	int channel = new_channel(0), connection = new_connection(channel, 0);
	struct stplr_receive received;
	unsigned char *bytes = new_room();

	pid_t client = CLIENT(channel, connection, {
		unsigned char *room = room_half_in_reach(BATCH);

		for (size_t i = 0; i < count; i++) {
			size_t size = BATCH * PAGE + beyond[i];

			memset(room, 0xee, MOST);
			IS(size, stplr_send(connection, room, size, room, size, NULL));
			CHECK(filled(room, size, i) && blank(room + size, MOST - size));
		}
	});
	for (size_t i = 0; i < count; i++) {
		size_t size = BATCH * PAGE + beyond[i];

		IS(size, stplr_receive(channel, bytes, MOST, second, &received));
		CHECK(blank(bytes, size));
		fill(bytes, size, i);
		IS(size, stplr_reply(channel, received.id, 0, bytes, size));
	}
	join(client);
}

int main(void)
{
	static const struct test tests[] = {
		{ "bytes arrive whole from and to every alignment", every_alignment_arrives_whole },
		{ "a receiver whose memory ends early leaves the message where it was",
		  a_receiver_without_room_leaves_the_message },
		{ "a replier whose memory ends early can answer again",
		  a_replier_without_bytes_can_answer_again },
		{ "a client whose memory ends early fails, and its server does not",
		  a_client_without_room_does_not_fail_its_server },
		{ "a client fetches those bytes of a reply that others cannot bring",
		  the_client_fetches_what_others_cannot_bring },
		{ "nobody reads what was in the kernel's memory before",
		  nobody_reads_what_was_there_before },
	};

	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
