// SPDX-License-Identifier: GPL-2.0
/*
 * Doors at paths, at random: mounted, mounted once more elsewhere, unmounted at once or when nobody has them
 * open any more, attached, detached, renamed, deleted and called, by root and by a user, in namespaces of
 * their own as well, while servers and clients are killed. What that proves is that the kernel has nothing
 * to complain of, that no answer is another's, that only root mounts, and that the module can go afterwards.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "crowd.h"
#include "door.h"
#include "seen.h"

#define FOLDER_OF_NAMES "/tmp/doorfs/"
#define NAMES 4
#define USER 1000
#define MOUNT_MAX "/proc/sys/fs/mount-max"
#define DOORS 4

static int own_pool = -1, own_doors[DOORS];
static bool is_root;

/* Of all processes. */
static struct {
	int wrong; /* the line that found what may not be, or 0 */
	_Atomic unsigned int mounts, attachments, calls; /* that succeeded */
} *seen;

/* Of those of the crowd nobody asks how they ended. */
#define MUST(condition)                                                                          \
	do {                                                                                     \
		if (!(condition))                                                                \
			seen->wrong = __LINE__;                                                       \
	} while (0)

static const char *some_name(void)
{
	static _Thread_local char names[2][40];
	static _Thread_local int turn;

	turn = !turn;
	snprintf(names[turn], sizeof(names[turn]), FOLDER_OF_NAMES "%u", dice(NAMES));
	return names[turn];
}

/* A door of its own or any that a path leads to; the caller closes it. */
static int some_door(void)
{
	if (own_pool >= 0 && dice(2))
		return dup(own_doors[dice(DOORS)]);
	return open(some_name(), dice(2) ? O_RDONLY : O_RDWR);
}

/* Options that are right, or not. */
static void some_options(char text[100], int door)
{
		static const char *const more[] = { "", ",mode=0666", ",mode=0640,uid=1000", ",uid=1000,gid=7" };
	static const char *const wrong[] = { ",mode=7777", ",fd=0", ",nothing", ",gid=4294967295" };

	snprintf(text, 100, "fd=%d%s", dice(30) ? door : (int)dice(40),
		 dice(8) ? more[dice(4)] : wrong[dice(4)]);
}

static void mount_some_door(void)
{
	char text[100];
	int door = some_door();

	some_options(text, door);
	if (!mount("none", some_name(), "doorfs", dice(4) ? 0 : MS_RDONLY | MS_NOATIME, text)) {
		MUST(is_root);
		seen->mounts++;
	}
	close(door);
}

/* The same in steps, which may stop at any of them, or be done twice. */
static void mount_in_steps(void)
{
	int context = (int)syscall(SYS_fsopen, "doorfs", 0), door = some_door(), made;
	char number[12];

	MUST(context < 0 || is_root);
	snprintf(number, sizeof(number), "%d", door);
	for (unsigned int i = dice(3); i; i--)
		syscall(SYS_fsconfig, context, 1 /* FSCONFIG_SET_STRING */, "fd", number, 0);
	if (dice(8) == 0)
		syscall(SYS_fsconfig, context, 5 /* FSCONFIG_SET_FD */, "fd", NULL, door);
	for (unsigned int i = dice(3); i; i--)
		syscall(SYS_fsconfig, context, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0);
	made = (int)syscall(SYS_fsmount, context, 0, 0);
	seen->mounts += made >= 0;
	close(context);
	close(door);
	if (made >= 0 && dice(3))
		syscall(SYS_move_mount, made, "", AT_FDCWD, some_name(), 4 /* MOVE_MOUNT_F_EMPTY_PATH */);
	close(made);
}

static void change_mounts(void)
{
	static const int ways[] = { 0, 0, MNT_DETACH, MNT_DETACH, MNT_FORCE, MNT_EXPIRE, UMOUNT_NOFOLLOW };
	static const unsigned long sharing[] = { MS_PRIVATE, MS_SHARED, MS_SLAVE, MS_UNBINDABLE };
	int tree;

	switch (dice(9)) {
	case 0:
		mount_some_door();
		break;
	case 1:
		mount_in_steps();
		break;
	case 2:
		mount(some_name(), some_name(), NULL, MS_BIND | (dice(2) ? MS_REC : 0), NULL);
		break;
	case 3:
		mount(some_name(), some_name(), NULL, MS_MOVE, NULL);
		break;
	case 4:
		mount(NULL, some_name(), NULL, sharing[dice(4)], NULL);
		break;
	case 5:
		mount(NULL, some_name(), NULL, MS_REMOUNT | (dice(2) ? MS_BIND : 0) | (dice(2) ? MS_RDONLY : 0),
		      dice(4) ? NULL : "fd=0");
		break;
	case 6:
		tree = (int)syscall(SYS_open_tree, AT_FDCWD, some_name(), dice(2) ? 1 /* OPEN_TREE_CLONE */ : 0);
		if (dice(2))
			syscall(SYS_move_mount, tree, "", AT_FDCWD, some_name(), 4);
		close(tree);
		break;
	default:
		umount2(some_name(), ways[dice(sizeof(ways) / sizeof(*ways))]);
	}
}

static void change_names(void)
{
	switch (dice(4)) {
	case 0:
		unlink(some_name());
		break;
	case 1:
		rename(some_name(), some_name());
		break;
	case 2:
		link(some_name(), some_name());
		break;
	default:
		close(open(some_name(), O_RDWR | O_CREAT, 0666));
	}
}

static void attach_or_detach(void)
{
	struct stplr_door_path path = { .fd = open(some_name(), dice(3) ? O_RDWR | O_CREAT : O_PATH, 0666) };
	int device = open("/dev/door", O_RDWR), door = some_door(), opened;

	switch (dice(3)) {
	case 0:
		seen->attachments += !ioctl(door, STPLR_DOOR_ATTACH, &path);
		break;
	case 1:
		ioctl(device, STPLR_DOOR_DETACH, &path);
		break;
	default:
		path.flags = dice(4);
		opened = ioctl(device, STPLR_DOOR_OPEN, &path);
		if (opened > 2)
			close(opened);
	}
	close(path.fd);
	close(device);
	close(door);
}

/* What can be done to any file. */
static void treat_as_a_file(void)
{
	int fd = open(some_name(), dice(3) ? O_RDWR : O_RDWR | O_TRUNC);
	struct stat status;
	char byte = 0;

	switch (dice(12)) {
	case 0:
		(void)!read(fd, &byte, 1);
		break;
	case 1:
		if (!fstat(fd, &status) && minor(status.st_rdev) == STPLR_DOORFS_MINOR)
			MUST(write(fd, &byte, 1) < 0);
		break;
	case 2:
		(void)!ftruncate(fd, dice(3));
		break;
	case 3:
		fchmod(fd, dice(01000));
		break;
	case 4:
		(void)!fchown(fd, dice(2) ? USER : 0, (gid_t)-1);
		break;
	case 5:
		flock(fd, LOCK_NB | (dice(2) ? LOCK_SH : LOCK_EX));
		break;
	case 6:
		fcntl(fd, F_SETLEASE, dice(2) ? F_RDLCK : F_UNLCK);
		break;
	case 7:
		fallocate(fd, 0, 0, 1);
		break;
	case 8:
		ioctl(fd, _IOWR('X', 119, int) /* FIFREEZE */, 0);
		ioctl(fd, _IOWR('X', 120, int) /* FITHAW */, 0);
		break;
	case 9:
		futimens(fd, NULL);
		syncfs(fd);
		break;
	case 10: {
		int events = inotify_init1(IN_NONBLOCK);

		inotify_add_watch(events, some_name(), IN_ALL_EVENTS);
		close(events);
		break;
	}
	default:
		munmap(mmap(NULL, 4096, PROT_READ, dice(2) ? MAP_SHARED : MAP_PRIVATE, fd, 0), 4096);
	}
	close(fd);
}

/* What comes back is what was sent, of whatever door, or nothing does. */
static void call_some_door(void)
{
	int door = dice(4) ? open(some_name(), O_RDONLY) : some_door();
	struct stplr_door_desc sent = passed(door);
	char data[300], room[300];
	size_t size = dice(sizeof(data));
	struct stplr_door_info info;

	memset(data, (int)dice(256), sizeof(data));
	for (int i = 0; i < 4 && !ioctl(door, STPLR_DOOR_INFO, &info); i++) {
		struct stplr_door_call arguments = { .data = (uintptr_t)data, .size = size,
						     .room = (uintptr_t)room, .room_size = sizeof(room),
						     .descriptors = (uintptr_t)&sent,
						     .count = dice(4) == 0 };

		if (!ioctl(door, STPLR_DOOR_CALL, &arguments)) {
			MUST(arguments.replied == size && !memcmp(data, room, size));
			seen->calls++;
		}
		if (dice(30) == 0)
			ioctl(door, STPLR_DOOR_REVOKE);
	}
	close(door);
}

static void *serve_echoes(void *argument)
{
	struct stplr_door_desc got[2] = {};
	struct stplr_door_return arguments = {};
	char room[512], copy[512];

	for (;;) {
		arguments.room = (uintptr_t)room;
		arguments.room_size = sizeof(room);
		arguments.received = (uintptr_t)got;
		arguments.received_room = 2;
		if (ioctl(own_pool, STPLR_DOOR_RETURN, &arguments)) {
			if (errno != EINTR)
				arguments.id = 0;
			continue;
		}
		for (unsigned int i = 0; i < arguments.received_count; i++)
			close(got[i].fd);
		/* The next begins while this is still to be answered. */
		memcpy(copy, room, sizeof(room));
		arguments.id = arguments.next_id;
		arguments.data = (uintptr_t)copy;
		arguments.size = arguments.length;
	}
	return argument;
}

static void come_down(void)
{
	is_root = dice(3) != 0;
	if (is_root && dice(4) == 0)
		(void)!unshare(CLONE_NEWNS);
	if (is_root)
		return;
	CHECK(!setresgid(USER, USER, USER) && !setresuid(USER, USER, USER));
	/* Root of that namespace alone may bind and unmount there, but mounts no doors. */
	if (dice(2))
		(void)!unshare(CLONE_NEWUSER | CLONE_NEWNS);
}

/* Whoever calls a server that is stopped, or itself, has to come back in the end. */
static void be_interrupted_at_times(void)
{
	struct itimerval timer = { { 0, 30000 }, { 0, 30000 } };

	be_interrupted();
	if (dice(4))
		setitimer(ITIMER_REAL, &timer, NULL);
}

static void do_as_one_likes(void)
{
	for (;;)
		switch (dice(8)) {
		case 0:
		case 1:
			change_mounts();
			break;
		case 2:
			change_names();
			break;
		case 3:
			attach_or_detach();
			break;
		case 4:
			treat_as_a_file();
			break;
		default:
			call_some_door();
		}
}

static void server(int unused)
{
	static const unsigned int attributes[] = { 0, STPLR_DOOR_UNREF, STPLR_DOOR_UNREF_MULTI,
						   STPLR_DOOR_REFUSE_DESC };

	(void)unused;
	own_pool = new_pool();
	for (int i = 0; i < DOORS; i++)
		own_doors[i] = new_door_of(own_pool, 1, attributes[dice(4)]);
	come_down();
	start_thread(serve_echoes);
	start_thread(serve_echoes);
	be_interrupted_at_times();
	do_as_one_likes();
}

static void client(int unused)
{
	(void)unused;
	come_down();
	be_interrupted_at_times();
	do_as_one_likes();
}

static void crowd_of(worker *serves, worker *calls)
{
	int fd = open("/dev/null", O_RDWR);

	CHECK(!mkdir(FOLDER_OF_NAMES, 0777) || errno == EEXIST);
	/* Of its own: names that are mounted on others, and then read-only, make the whole file system so. */
	OK(mount("names", FOLDER_OF_NAMES, "tmpfs", 0, NULL));
	OK(chmod(FOLDER_OF_NAMES, 0777));
	OK(chmod("/dev/door", 0666));
	/* What is shared and bound to itself has twice as many each time. */
	CHECK(write_setting(MOUNT_MAX, "300"));
	seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(seen != MAP_FAILED);
	a_crowd(serves, fd, calls, dup(fd));
	printf("# %u mounts, %u attachments, %u calls\n", seen->mounts, seen->attachments, seen->calls);
	IS(0, seen->wrong);
	OK(access("/tmp", W_OK));
}

static void server_short_of_memory(int fd)
{
	be_short_of_memory();
	server(fd);
}

static void client_short_of_memory(int fd)
{
	be_short_of_memory();
	client(fd);
}

static void paths_at_random(void)
{
	crowd_of(server, client);
}

static void paths_at_random_while_memory_runs_short(void)
{
	if (!let_memory_run_short())
		SKIP("this kernel cannot let allocations fail");
	crowd_of(server_short_of_memory, client_short_of_memory);
}

/* What is attached or mounted keeps the module, and goes a moment after it is undone. */
static void put_back(void)
{
	char name[40];

	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), FOLDER_OF_NAMES "%d", i);
		while (!umount2(name, MNT_DETACH))
			;
		unlink(name);
	}
	while (!umount2(FOLDER_OF_NAMES, MNT_DETACH))
		;
	rmdir(FOLDER_OF_NAMES);
	chmod("/dev/door", 0600);
	write_setting(MOUNT_MAX, "100000");
	for (int i = 0; i < 1000 && lines(FOLDER "channels", "doors of"); i++)
		nap(10);
}

static const struct test tests[] = {
	{ "doors at paths at random", paths_at_random },
	{ "doors at paths at random while memory runs short",
	  paths_at_random_while_memory_runs_short },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(*tests));
}
