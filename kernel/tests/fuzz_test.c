// SPDX-License-Identifier: GPL-2.0
/*
 * Every ioctl with arguments at random: bits, structures that are right but for some members, at the
 * edge of memory, on descriptors of every kind, by threads that take them away from each other. What
 * that proves is that the kernel has nothing to complain of.
 */
#define _GNU_SOURCE
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "../include/stplr_doors.h"
#include "crowd.h"

#define FDS 20
#define FILES 7 /* the first of two descriptors of a file, which doors are attached to */
#define NAMES 3 /* of files */

static int fds[FDS];
static __u64 ids[4]; /* of calls, as far as they are known */
static struct stplr_handle handle;

/* One of the kinds of numbers that make a difference. */
static __u64 some_word(void)
{
	switch (dice(10)) {
	case 0:
		return (__u64)(unsigned long)some_memory();
	case 1:
		return dice(70000);
	case 2:
		return ((__u64)dice(1 << 30) << 32) | dice(1 << 30);
	case 3:
		return ~0ULL;
	case 4:
		return handle.uuid;
	case 5:
		return (__u64)getpid() << 32 | (__u32)getpid();
	case 6:
		return ids[dice(4)];
	case 7:
		return 1ULL << dice(64);
	default:
		return dice(4);
	}
}

static struct stplr_buffer some_buffers(void)
{
	static struct stplr_part array[1026];
	struct stplr_buffer buffer = some_buffer();

	if (dice(3) == 0) {
		for (int i = 0; i < 4; i++)
			array[i] = stplr_part(some_memory(), (__u32)some_size());
		buffer = stplr_vector(array, dice(8) ? dice(5) : dice(2000));
	}
	return buffer;
}

static __s64 soon(void)
{
	return (__s64)dice(2000000);
}

union argument {
	__u64 words[32];
	struct stplr_msg_send_receive old_call;
	struct stplr_msg_receive old_receive;
	struct stplr_msg_reply old_reply;
	struct stplr_channel_create create;
	struct stplr_send send;
	struct stplr_receive receive;
	struct stplr_reply reply;
	struct stplr_reply_receive both;
	struct stplr_access access;
	struct stplr_pulse pulse;
	struct stplr_death death;
	struct stplr_register memory;
	struct stplr_pool_create pool;
	struct stplr_door_create door;
	struct stplr_door_call call;
	struct stplr_door_return answer;
	struct stplr_door_set set;
	struct stplr_door_cred cred;
	struct stplr_door_path path;
};

static struct stplr_receive some_receive(int *files)
{
	return (struct stplr_receive){ .buffer = some_buffers(),
				       .timeout_ns = soon(),
				       .files = (unsigned long)files,
				       .file_room = dice(4),
				       .wanted_id = dice(3) ? 0 : ids[dice(4)] };
}

static void make_sense_for_doors(unsigned long command, union argument *a)
{
	static struct stplr_door_desc sent[4], room[4];

	for (int i = 0; i < 4; i++)
		sent[i] = (struct stplr_door_desc){ .fd = fds[dice(FDS)],
						    .attributes = STPLR_DOOR_DESCRIPTOR };
	switch (command) {
	case STPLR_POOL_CREATE:
		a->pool = (struct stplr_pool_create){ .spin_us = dice(100) };
		break;
	case STPLR_DOOR_CREATE:
		a->door = (struct stplr_door_create){ .attributes = 1u << dice(12) };
		break;
	case STPLR_DOOR_CALL:
		a->call = (struct stplr_door_call){ .data = (unsigned long)some_memory(),
						    .size = some_size(),
						    .room = (unsigned long)some_memory(),
						    .room_size = some_size(),
						    .descriptors = (unsigned long)sent,
						    .received = (unsigned long)room,
						    .count = dice(4),
						    .received_room = dice(4) };
		break;
	case STPLR_DOOR_RETURN:
		a->answer = (struct stplr_door_return){ .id = ids[dice(4)],
							.data = (unsigned long)some_memory(),
							.size = some_size(),
							.descriptors = (unsigned long)sent,
							.count = dice(4),
							.flags = dice(8),
							.refusal = dice(2),
							.room = (unsigned long)some_memory(),
							.room_size = some_size(),
							.received = (unsigned long)room,
							.received_room = dice(4) };
		break;
	case STPLR_DOOR_SET:
		a->set = (struct stplr_door_set){ .which = dice(4), .value = some_word() };
		break;
	case STPLR_DOOR_CRED:
		a->cred.id = ids[dice(4)];
		a->cred.reserved = 0;
		break;
	case STPLR_DOOR_ATTACH:
	case STPLR_DOOR_DETACH:
	case STPLR_DOOR_OPEN:
		a->path = (struct stplr_door_path){ .fd = fds[dice(3) ? FILES + dice(2) : dice(FDS)],
						    .flags = dice(2) ? STPLR_DOOR_LOOK : 0 };
		break;
	}
}

/* What a program might ask for in earnest. */
static void make_sense(unsigned long command, union argument *a)
{
	static int files[STPLR_FILES_MAX];

	switch (command) {
	case STPLR_MSG_SEND:
	case STPLR_MSG_SEND_RECEIVE:
	case STPLR_MSG_RECEIVE:
	case STPLR_MSG_REPLY:
		a->old_call.handle = handle;
		a->old_call.pid = a->old_call.tid = getpid() - (int)dice(3);
		a->old_call.smsgs.count = dice(3);
		a->old_call.rmsgs.count = dice(3);
		break;
	case STPLR_CHANNEL_CREATE:
		a->create = (struct stplr_channel_create){ .flags = dice(8), .mode = 0600 };
		a->create.name[0] = dice(2) ? 0 : (char)('a' + dice(20));
		break;
	case STPLR_SEND:
		a->send = (struct stplr_send){ .send = some_buffers(),
					       .reply = some_buffers(),
					       .timeout_ns = soon(),
					       .files = (unsigned long)fds,
					       .file_count = dice(4),
					       .flags = dice(2) };
		break;
	case STPLR_RECEIVE:
		a->receive = some_receive(files);
		break;
	case STPLR_REPLY:
	case STPLR_REPLY_RECEIVE:
		a->reply = (struct stplr_reply){ .id = ids[dice(4)],
						 .buffer = some_buffers(),
						 .error = dice(3) ? 0 : (int)dice(200) };
		if (command == STPLR_REPLY_RECEIVE)
			a->both.receive = some_receive(files);
		break;
	case STPLR_READ:
	case STPLR_WRITE:
		a->access = (struct stplr_access){ ids[dice(4)], dice(MOST), some_buffers() };
		break;
	case STPLR_PULSE:
	case STPLR_POST:
		a->pulse = (struct stplr_pulse){ (int)dice(9), (int)dice(30), 5 };
		break;
	case STPLR_DEATH:
		a->death = (struct stplr_death){ fds[dice(FDS)], 0, 5 };
		break;
	case STPLR_REGISTER:
		a->memory = (struct stplr_register){ (unsigned long)some_memory(), some_size() };
		break;
	}
}

/* Descriptors that were received are closed, ids remembered. */
static void clear_up(unsigned long command, const union argument *a, int result)
{
	const struct stplr_receive *received = command == STPLR_RECEIVE ? &a->receive :
					       command == STPLR_REPLY_RECEIVE ? &a->both.receive :
										NULL;

	if (command == STPLR_DOOR_RETURN && !result)
		ids[dice(4)] = a->answer.next_id;
	if (command == STPLR_DOOR_CALL && !result && a->call.mapped_size)
		munmap((void *)(unsigned long)a->call.mapped, a->call.mapped_size);
	if (result > 2 && (command == STPLR_CHANNEL_CREATE || command == STPLR_CONNECT ||
			   command == STPLR_CHANNEL_CONNECT || command == STPLR_POOL_CREATE ||
			   command == STPLR_DOOR_CREATE || command == STPLR_DOOR_OPEN)) {
		unsigned int place = dice(FDS);

		if (place >= FILES + 2) {
			close(fds[place]);
			fds[place] = result;
		} else {
			close(result);
		}
	}
	if (!received || result)
		return;
	ids[dice(4)] = received->id;
	if (received->file_count <= STPLR_FILES_MAX && received->files) {
		int *files = (int *)(unsigned long)received->files;

		for (unsigned int i = 0; i < received->file_count && i < received->file_room; i++)
			close(files[i]);
	}
}

/* All that can be done with a descriptor beside ioctl. */
static void other_calls(int fd)
{
	char bytes[64];
	struct epoll_event event = { .events = dice(2) ? EPOLLIN : EPOLLIN | EPOLLET };

	switch (dice(8)) {
	case 0:
		(void)!read(fd, bytes, sizeof(bytes));
		break;
	case 1:
		(void)!write(fd, bytes, sizeof(bytes));
		break;
	case 2:
		mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		break;
	case 3:
		lseek(fd, dice(100), SEEK_SET);
		break;
	case 4:
		epoll_ctl(fds[3], EPOLL_CTL_ADD, fd, &event);
		break;
	case 5:
		epoll_wait(fds[3], &event, 1, 0);
		break;
	case 6:
		fcntl(fd, F_SETFL, dice(1 << 15));
		break;
	default:
		poll(&(struct pollfd){ .fd = fd, .events = (short)dice(1 << 15) }, 1, 0);
	}
}

static void file_name(char name[24], unsigned int number)
{
	snprintf(name, 24, "/tmp/fuzz-%u", number);
}

/* Of few names, so that several processes attach to one and remove it. */
static void change_file(void)
{
	char name[24], other[24];

	file_name(name, dice(NAMES));
	file_name(other, dice(NAMES));
	switch (dice(4)) {
	case 0:
		unlink(name);
		break;
	case 1:
		rename(name, other);
		break;
	default:
		close(fds[FILES]);
		close(fds[FILES + 1]);
		fds[FILES] = open(name, O_RDWR | O_CREAT, 0600);
		fds[FILES + 1] = open(name, dice(2) ? O_PATH : O_RDONLY);
	}
}

/* All of their structure is written, however much of it the kernel does not know. */
static bool is_answer_alone(unsigned long command)
{
	return command == STPLR_INFO || command == STPLR_DOOR_INFO || command == STPLR_POOL_NOTICE;
}

static void *at_random(void *argument)
{
	static const unsigned long commands[] = {
		STPLR_VERSION, STPLR_HANDLE_GET, STPLR_HANDLE_PUT, STPLR_MSG_SEND,
		STPLR_MSG_SEND_RECEIVE, STPLR_MSG_RECEIVE, STPLR_MSG_REPLY, STPLR_CHANNEL_CREATE,
		STPLR_CONNECT, STPLR_CHANNEL_CONNECT, STPLR_SEND, STPLR_RECEIVE, STPLR_REPLY,
		STPLR_REPLY_RECEIVE, STPLR_READ, STPLR_WRITE, STPLR_PULSE, STPLR_DEATH,
		STPLR_REGISTER, STPLR_UNREGISTER, STPLR_POST, STPLR_INFO, STPLR_SHUTDOWN,
		STPLR_POOL_CREATE, STPLR_DOOR_CREATE, STPLR_DOOR_CALL, STPLR_DOOR_CALL,
		STPLR_DOOR_RETURN, STPLR_DOOR_RETURN, STPLR_DOOR_INFO, STPLR_DOOR_SET,
		STPLR_DOOR_REVOKE, STPLR_DOOR_CRED, STPLR_POOL_NOTICE, STPLR_DOOR_ATTACH,
		STPLR_DOOR_DETACH, STPLR_DOOR_OPEN, STPLR_DOOR_OPEN,
	};
	/* The page behind is nobody's. */
	char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(edge + 4096, 4096);
	let_fail(true);
	for (;;) {
		unsigned long command = commands[dice(sizeof(commands) / sizeof(*commands))];
		union argument a;
		void *where = &a;
		int result;

		/* What is closed is of little use afterwards. */
		if ((command == STPLR_SHUTDOWN || command == STPLR_DOOR_REVOKE) && dice(50))
			command = STPLR_INFO;
		for (int i = 0; i < 32; i++)
			a.words[i] = some_word();
		if (dice(3)) {
			make_sense(command, &a);
			make_sense_for_doors(command, &a);
		}
		for (unsigned int i = dice(3) ? 0 : dice(4); i; i--)
			a.words[dice(20)] = some_word();
		if (dice(30) == 0 && !is_answer_alone(command))
			command ^= 1UL << dice(32);
		if (dice(20) == 0) {
			where = edge + 4096 - 8 * (1 + dice(30));
			memcpy(where, &a, (size_t)(edge + 4096 - (char *)where));
		} else if (dice(30) == 0) {
			where = some_memory();
		}
		result = ioctl(fds[dice(FDS)], command, where);
		if (where == &a)
			clear_up(command, &a, result);
		if (dice(4) == 0)
			other_calls(fds[dice(FDS)]);
		if (dice(100) == 0)
			change_file();
		if (dice(100) == 0) {
			unsigned int place = FILES + 2 + dice(FDS - FILES - 2);
			int copy = dup(fds[dice(FDS)]);

			/* Under the feet of the other thread. */
			close(fds[place]);
			fds[place] = copy;
		}
	}
	return argument;
}

static void fuzz(int unused)
{
	struct stplr_door_create door = { .attributes = dice(2) ? STPLR_DOOR_UNREF_MULTI : 0 };

	(void)unused;
	be_interrupted();
	fds[0] = open("/dev/stplr-1", O_RDWR);
	fds[1] = open("/dev/stplr", O_RDWR);
	fds[2] = stplr_channel_create(NULL, 0, dice(8));
	fds[3] = epoll_create1(0);
	fds[4] = socket(AF_UNIX, SOCK_STREAM, 0);
	fds[5] = open("/dev/door", O_RDWR);
	fds[6] = ioctl(fds[5], STPLR_POOL_CREATE, &(struct stplr_pool_create){});
	change_file();
	for (int i = FILES + 2; i < FDS; i++)
		fds[i] = dice(2) ? ioctl(fds[6], STPLR_DOOR_CREATE, &door) :
			 dice(3) ? stplr_channel_connect(fds[2], i) :
				   dup(fds[2]);
	ioctl(fds[0], STPLR_HANDLE_GET, &handle);
	if (dice(2))
		start_thread(at_random);
	at_random(NULL);
}

static void fuzz_short_of_memory(int unused)
{
	be_short_of_memory();
	fuzz(unused);
}

static void crowd_of(worker *run)
{
	int fd = open("/dev/null", O_RDWR), copy = dup(fd);

	a_crowd(run, fd, run, copy);
}

static void ioctls_at_random(void)
{
	crowd_of(fuzz);
}

static void ioctls_at_random_while_memory_runs_short(void)
{
	if (!let_memory_run_short())
		SKIP("this kernel cannot let allocations fail");
	crowd_of(fuzz_short_of_memory);
}

static const struct test tests[] = {
	{ "ioctls at random", ioctls_at_random },
	{ "ioctls at random while memory runs short", ioctls_at_random_while_memory_runs_short },
};

/* What is attached to a file keeps the module for as long as there is the file. */
static void remove_files(void)
{
	char name[24];

	for (unsigned int i = 0; i < NAMES; i++) {
		file_name(name, i);
		unlink(name);
	}
}

int main(void)
{
	return run_tests_and(remove_files, tests, sizeof(tests) / sizeof(*tests));
}
