// SPDX-License-Identifier: GPL-2.0
/* Doors: files that lead to them. What is attached here is detached in the end, so that the module can go. */
#define _GNU_SOURCE
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "door.h"
#include "seen.h"

#define PLACE "/tmp/door"

static int open_file(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0666);

	CHECK(fd >= 0);
	return fd;
}

static long with_path(int fd, unsigned long command, const char *path, int flags)
{
	int file = open_file(path, flags);
	struct stplr_door_path arguments = { .fd = file };
	int result = ioctl(fd, command, &arguments);

	result = result < 0 ? -errno : result;
	close(file);
	return result;
}

static long attach(int door, const char *path)
{
	long err = with_path(door, STPLR_DOOR_ATTACH, path, O_RDWR | O_CREAT);

	if (err == -EOPNOTSUPP)
		SKIP("this kernel has no marks on inodes");
	return err;
}

static long at_device(unsigned long command, const char *path)
{
	int device = open_file("/dev/door", O_RDWR);
	long result = with_path(device, command, path, O_RDONLY);

	close(device);
	return result;
}

static long open_door(const char *path)
{
	return at_device(STPLR_DOOR_OPEN, path);
}

static long detach(const char *path)
{
	return at_device(STPLR_DOOR_DETACH, path);
}

static void put_back(void)
{
	while (!umount2(PLACE, MNT_DETACH))
		;
	unlink(PLACE);
	unlink(PLACE "2");
	/* Marks go a moment after they are detached, and their doors with them. */
	for (int i = 0; i < 500 && lines(FOLDER "channels", "doors of"); i++)
		nap(10);
}

static void a_path_leads_to_its_door(void)
{
	char room[4];
	int door, opened;

	serving_process(&door, echo_for_ever);
	IS(0, attach(door, PLACE));
	opened = (int)open_door(PLACE);
	CHECK(opened > 2 && fcntl(opened, F_GETFD) == 0);
	CHECK(info_of(opened).id == info_of(door).id);
	/* The server's own and all others may go: the path keeps the door. */
	close(door);
	close(opened);
	door = (int)open_door(PLACE);
	IS(2, call_door(door, "ab", 2, room, sizeof(room)));
	IS(0, detach(PLACE));
	IS(-ENXIO, open_door(PLACE));
	IS(2, call_door(door, "ab", 2, room, sizeof(room)));
}

static void a_file_stays_as_it_is(void)
{
	int door = new_door(new_pool()), file = open_file(PLACE, O_RDWR | O_CREAT);
	char text[8] = "";

	IS(0, attach(door, PLACE));
	CHECK(write(file, "hello", 5) == 5 && pread(file, text, 8, 0) == 5);
	CHECK(!strcmp(text, "hello"));
	IS(0, detach(PLACE));
}

static void a_door_has_many_names_and_a_file_one_door(void)
{
	int pool = new_pool(), door = new_door(pool), other = new_door(pool);

	IS(0, attach(door, PLACE));
	IS(0, attach(door, PLACE "2"));
	IS(-EBUSY, attach(other, PLACE));
	CHECK(info_of((int)open_door(PLACE "2")).id == info_of(door).id);
	IS(0, detach(PLACE));
	IS(0, attach(other, PLACE));
	CHECK(info_of((int)open_door(PLACE)).id == info_of(other).id);
	IS(0, detach(PLACE));
	IS(0, detach(PLACE "2"));
}

static void the_file_has_to_be_ones_own_and_writable(void)
{
	int pool = new_pool(), door = new_door(pool), pair[2];
	struct stplr_door_path arguments = { .fd = -1 };

	IS(0, attach(door, PLACE));
	IS(0, detach(PLACE));
	IS(-EACCES, with_path(door, STPLR_DOOR_ATTACH, PLACE, O_RDONLY | O_CREAT));
	IS(-EINVAL, with_path(door, STPLR_DOOR_ATTACH, "/tmp", O_RDONLY | O_DIRECTORY));
	IS(-EINVAL, with_path(door, STPLR_DOOR_ATTACH, "/dev/null", O_RDWR));
	FAILS(EBADF, ioctl(door, STPLR_DOOR_ATTACH, &arguments));
	OK(pipe(pair));
	arguments.fd = pair[1];
	FAILS(EINVAL, ioctl(door, STPLR_DOOR_ATTACH, &arguments));
	arguments.flags = 1;
	FAILS(EINVAL, ioctl(door, STPLR_DOOR_ATTACH, &arguments));
	IS(-EINVAL, detach(PLACE));
	OK(chmod(PLACE, 0666));
	OK(chmod("/dev/door", 0666));
	join(CALLER(pool, {
		OK(setresuid(1000, 1000, 1000));
		IS(-EPERM, attach(door, PLACE));
	}));
	IS(0, attach(door, PLACE));
	join(CALLER(pool, {
		OK(setresuid(1000, 1000, 1000));
		IS(-EPERM, detach(PLACE));
		CHECK(info_of((int)open_door(PLACE)).id == info_of(door).id);
	}));
	OK(chmod("/dev/door", 0600));
	IS(0, detach(PLACE));
}

/* Without being let open the file. */
static void whether_there_is_a_door_is_for_all_to_know(void)
{
	struct stplr_door_path arguments = { .flags = STPLR_DOOR_LOOK };
	int door = new_door(new_pool()), device = open_file("/dev/door", O_RDWR);

	close(open_file(PLACE, O_RDWR | O_CREAT));
	arguments.fd = open_file(PLACE, O_PATH);
	FAILS(ENXIO, ioctl(device, STPLR_DOOR_OPEN, &arguments));
	IS(0, attach(door, PLACE));
	IS(0, ioctl(device, STPLR_DOOR_OPEN, &arguments));
	arguments.flags = 0;
	FAILS(EBADF, ioctl(device, STPLR_DOOR_OPEN, &arguments));
	OK(ioctl(device, STPLR_DOOR_DETACH, &arguments));
	FAILS(EINVAL, ioctl(device, STPLR_DOOR_DETACH, &arguments));
	close(arguments.fd);
	close(device);
}

/* They go without being deleted, and whatever is attached to them would stay for good. */
static void files_of_the_kernels_own_lead_to_no_door(void)
{
	int door = new_door(new_pool());

	IS(-EINVAL, with_path(door, STPLR_DOOR_ATTACH, "/proc/self/oom_score_adj", O_RDWR));
	IS(-EINVAL, with_path(door, STPLR_DOOR_ATTACH, "/sys/module/stplr/parameters/user_bytes", O_RDWR));
	IS(-EINVAL, with_path(door, STPLR_DOOR_ATTACH, "/sys/kernel/tracing/tracing_on", O_RDWR));
	/* Not there on all kernels. Its inode counts as linked for ever. */
	int secret = syscall(SYS_memfd_secret, 0);

	if (secret >= 0) {
		struct stplr_door_path arguments = { .fd = secret };

		FAILS(EINVAL, ioctl(door, STPLR_DOOR_ATTACH, &arguments));
		close(secret);
	}
	CHECK(!mkdir("/tmp/mount", 0700) || errno == EEXIST);
	if (!mount("none", "/tmp/mount", "cgroup2", 0, NULL)) {
		long err = with_path(door, STPLR_DOOR_ATTACH, "/tmp/mount/cgroup.procs", O_RDWR);

		OK(umount("/tmp/mount"));
		IS(-EINVAL, err);
	}
}

/* Whatever is attached to one that has no name goes with it. */
static void a_file_is_deleted_with_its_last_descriptor(void)
{
	int pool = new_pool(), door = new_door_of(pool, 1, STPLR_DOOR_UNREF_MULTI);
	struct serving serving = { .pool = pool };
	struct stplr_door_path arguments = { .fd = open_file(PLACE, O_RDWR | O_CREAT) };

	OK(unlink(PLACE));
	OK(ioctl(door, STPLR_DOOR_ATTACH, &arguments));
	close(arguments.fd);
	IS(0, serve(&serving));
	CHECK(serving.arguments.notes & STPLR_NOTE_UNREF);
}

/* The kernel cannot forget the file as long, so its inode is among what the user is charged for. */
static void a_path_takes_as_much_as_its_file(void)
{
	int door = new_door(new_pool());
	long before = bytes_of(0);

	IS(0, attach(door, PLACE));
	CHECK(bytes_of(0) >= before + 1000);
	IS(0, detach(PLACE));
	while (bytes_of(0) != before)
		nap(2);
}

static void await_unref(struct serving *serving)
{
	IS(0, serve(serving));
	CHECK(serving->arguments.notes & STPLR_NOTE_UNREF);
}

static void a_path_counts_as_a_descriptor(void)
{
	int pool = new_pool(), door = new_door_of(pool, 1, STPLR_DOOR_UNREF_MULTI);
	struct serving serving = { .pool = pool };

	IS(0, attach(door, PLACE));
	IS(0, detach(PLACE));
	await_unref(&serving);
	/* To delete the file is to detach. */
	IS(0, attach(door, PLACE));
	OK(unlink(PLACE));
	await_unref(&serving);
	IS(0, with_path(door, STPLR_DOOR_ATTACH, PLACE, O_RDWR | O_CREAT));
	IS(0, detach(PLACE));
	await_unref(&serving);
}

static void a_file_system_with_doors_can_be_unmounted(void)
{
	int pool = new_pool(), door = new_door_of(pool, 1, STPLR_DOOR_UNREF);
	struct serving serving = { .pool = pool };

	CHECK(!mkdir("/tmp/mount", 0700) || errno == EEXIST);
	OK(mount("none", "/tmp/mount", "tmpfs", 0, NULL));
	IS(0, attach(door, "/tmp/mount/door"));
	OK(umount("/tmp/mount"));
	await_unref(&serving);
}

static void a_path_outlives_its_server(void)
{
	int door, opened;
	pid_t server = serving_process(&door, echo_for_ever);

	IS(0, attach(door, PLACE));
	OK(kill(server, SIGKILL));
	CHECK(waitpid(server, NULL, 0) == server);
	opened = (int)open_door(PLACE);
	CHECK(opened >= 0);
	while (info_of(opened).target != -1)
		nap(2);
	IS(-EBADF, knock(opened));
	IS(0, detach(PLACE));
}

/* With more options, or NULL. Returns 0 or a negative errno. */
static int mount_door(int door, const char *more)
{
	char text[200];

	close(open_file(PLACE, O_RDWR | O_CREAT));
	snprintf(text, sizeof(text), "fd=%d%s%s", door, more ? "," : "", more ? more : "");
	return mount("none", PLACE, "doorfs", 0, text) ? -errno : 0;
}

static void a_mounted_door_is_there_for_every_open(void)
{
	int door, opened;
	char room[4];

	serving_process(&door, echo_for_ever);
	IS(0, mount_door(door, NULL));
	opened = open_file(PLACE, O_RDONLY);
	CHECK(info_of(opened).id == info_of(door).id);
	IS(2, call_door(opened, "ab", 2, room, sizeof(room)));
	/* The mount keeps the door, and who has it open keeps it, whatever becomes of the mount. */
	close(door);
	IS(2, call_door(opened, "ab", 2, room, sizeof(room)));
	OK(umount2(PLACE, MNT_DETACH));
	IS(2, call_door(opened, "ab", 2, room, sizeof(room)));
	close(opened);
	opened = open_file(PLACE, O_RDONLY);
	FAILS(ENOTTY, ioctl(opened, STPLR_DOOR_INFO, room));
	close(opened);
}

static void a_mounted_door_is_one_where_it_is_passed_on(void)
{
	int pool = new_pool(), door = new_door(pool), opened;

	IS(0, mount_door(door, NULL));
	IS(-EBUSY, attach(door, PLACE));
	opened = open_file(PLACE, O_RDWR);
	/* Its attributes tell the server's own what they are. */
	CHECK(info_of(opened).attributes & STPLR_DOOR_LOCAL);
	OK(ioctl(opened, STPLR_DOOR_REVOKE));
	CHECK(info_of(door).attributes & STPLR_DOOR_REVOKED);
	/* It can be mounted elsewhere in its turn. */
	close(open_file(PLACE "2", O_RDWR | O_CREAT));
	OK(umount2(PLACE, MNT_DETACH));
	IS(0, mount_door(opened, NULL));
	close(opened);
	opened = open_file(PLACE, O_RDONLY);
	CHECK(info_of(opened).id == info_of(door).id);
	close(opened);
}

static void what_a_mounted_door_is_can_be_told(void)
{
	int opened;
	struct statfs system;
	struct stat status;
	char byte;

	IS(0, mount_door(new_door(new_pool()), "mode=0640,uid=7,gid=8"));
	OK(stat(PLACE, &status));
	CHECK(status.st_mode == (S_IFREG | 0640) && status.st_uid == 7 && status.st_gid == 8);
	CHECK(status.st_size == 0);
	IS(STPLR_DOORFS_MINOR, minor(status.st_rdev));
	OK(statfs(PLACE, &system));
	IS(STPLR_DOORFS_MAGIC, system.f_type);
	opened = open_file(PLACE, O_RDWR | O_TRUNC);
	FAILS(EINVAL, read(opened, &byte, 1));
	FAILS(EINVAL, write(opened, "x", 1));
	FAILS(EFBIG, ftruncate(opened, 100));
	close(opened);
}

static void a_mounted_door_stays_as_it_is(void)
{
	struct stat status;

	IS(0, mount_door(new_door(new_pool()), "mode=0640"));
	FAILS(EINVAL, mount("none", PLACE, NULL, MS_REMOUNT, "mode=0666"));
	FAILS(EINVAL, mount("none", PLACE, NULL, MS_REMOUNT, "fd=0"));
	OK(mount("none", PLACE, NULL, MS_REMOUNT | MS_RDONLY, NULL));
	OK(stat(PLACE, &status));
	CHECK(status.st_mode == (S_IFREG | 0640));
	CHECK(lines("/proc/mounts", "doorfs ro,mode=640,uid=0,gid=0") == 1 ||
	      lines("/proc/mounts", "mode=640,uid=0,gid=0") == 1);
}

/* Asked through the mount it is the door that is looked at, and not the file that one asks through. */
static void *ask_through_a_mount(void *unused)
{
	struct serving serving = { .pool = new_pool() };
	int door = new_door_of(serving.pool, 1, STPLR_DOOR_UNREF_MULTI), opened, own;

	IS(0, mount_door(door, NULL));
	opened = open_file(PLACE, O_RDONLY);
	own = dup(door);
	close(own);
	/* The server's own, and the mount. */
	CHECK(!(info_of(opened).attributes & STPLR_DOOR_IS_UNREF));
	OK(umount2(PLACE, MNT_DETACH));
	close(opened);
	await_unref(&serving);
	CHECK(info_of(door).attributes & STPLR_DOOR_IS_UNREF);
	IS(0, mount_door(door, NULL));
	opened = open_file(PLACE, O_RDONLY);
	CHECK(!(info_of(opened).attributes & STPLR_DOOR_IS_UNREF));
	CHECK(!(info_of(door).attributes & STPLR_DOOR_IS_UNREF));
	close(door);
	/* The mount alone, once the module has counted. */
	while (!(info_of(opened).attributes & STPLR_DOOR_IS_UNREF))
		nap(2);
	close(opened);
	close(serving.pool);
	return unused;
}

static void a_mounted_door_tells_whether_it_is_unreferenced(void)
{
	pthread_t thread;

	ask_through_a_mount(NULL);
	put_back();
	IS(0, pthread_create(&thread, NULL, ask_through_a_mount, NULL));
	IS(0, pthread_join(thread, NULL));
}

static void who_may_open_a_mounted_door_is_for_its_mode_to_say(void)
{
	int pool = new_pool(), door = new_door(pool);

	IS(0, mount_door(door, "mode=0600,uid=1000"));
	join(CALLER(pool, {
		OK(setresuid(1000, 1000, 1000));
		close(open_file(PLACE, O_RDONLY));
		IS(-EPERM, mount_door(door, NULL));
		FAILS(EPERM, umount2(PLACE, MNT_DETACH));
	}));
	join(CALLER(pool, {
		OK(setresuid(1001, 1001, 1001));
		FAILS(EACCES, open(PLACE, O_RDONLY));
	}));
}

static void what_is_no_door_is_not_mounted(void)
{
	int door = new_door(new_pool()), pair[2];
	char text[20];

	OK(pipe(pair));
	IS(-EINVAL, mount_door(pair[0], NULL));
	IS(-EBADF, mount_door(999, NULL));
	IS(-EINVAL, mount_door(door, "mode=4755"));
	IS(-EINVAL, mount_door(door, "size=5"));
	IS(-EINVAL, mount_door(door, "uid=4294967295"));
	FAILS(EINVAL, mount("none", PLACE, "doorfs", 0, NULL));
	FAILS(EINVAL, mount("none", PLACE, "doorfs", 0, "mode=0600"));
	/* A door is no folder. */
	CHECK(!mkdir("/tmp/mount", 0700) || errno == EEXIST);
	snprintf(text, sizeof(text), "fd=%d", door);
	FAILS(ENOTDIR, mount("none", "/tmp/mount", "doorfs", 0, text));
}

static void a_mount_counts_as_a_descriptor(void)
{
	int pool = new_pool(), door = new_door_of(pool, 1, STPLR_DOOR_UNREF_MULTI), opened;
	struct serving serving = { .pool = pool };

	IS(0, mount_door(door, NULL));
	OK(umount(PLACE));
	await_unref(&serving);
	/* Whoever has it open has the door. */
	IS(0, mount_door(door, NULL));
	opened = open_file(PLACE, O_RDONLY);
	FAILS(EBUSY, umount(PLACE));
	OK(umount2(PLACE, MNT_DETACH));
	close(opened);
	await_unref(&serving);
	/* What is given up half way counts no more. */
	IS(-EINVAL, mount_door(door, "mode=4755"));
	await_unref(&serving);
}

static void a_mount_outlives_its_server(void)
{
	int door, opened;
	pid_t server = serving_process(&door, echo_for_ever);

	IS(0, mount_door(door, NULL));
	close(door);
	OK(kill(server, SIGKILL));
	CHECK(waitpid(server, NULL, 0) == server);
	opened = open_file(PLACE, O_RDONLY);
	while (info_of(opened).target != -1)
		nap(2);
	IS(-EBADF, knock(opened));
	close(opened);
}

static const struct test tests[] = {
	{ "a path leads to its door", a_path_leads_to_its_door },
	{ "a file stays as it is", a_file_stays_as_it_is },
	{ "a door has many names, and a file one door", a_door_has_many_names_and_a_file_one_door },
	{ "the file has to be one's own, and writable", the_file_has_to_be_ones_own_and_writable },
	{ "whether there is a door is for all to know", whether_there_is_a_door_is_for_all_to_know },
	{ "files of the kernel's own lead to no door", files_of_the_kernels_own_lead_to_no_door },
	{ "a path takes as much as its file", a_path_takes_as_much_as_its_file },
	{ "a file is deleted with its last descriptor", a_file_is_deleted_with_its_last_descriptor },
	{ "a path counts as a descriptor", a_path_counts_as_a_descriptor },
	{ "a file system with doors can be unmounted", a_file_system_with_doors_can_be_unmounted },
	{ "a path outlives its server", a_path_outlives_its_server },
	{ "a mounted door is there for every open", a_mounted_door_is_there_for_every_open },
	{ "a mounted door is one where it is passed on", a_mounted_door_is_one_where_it_is_passed_on },
	{ "what a mounted door is can be told", what_a_mounted_door_is_can_be_told },
	{ "who may open a mounted door is for its mode to say",
	  who_may_open_a_mounted_door_is_for_its_mode_to_say },
	{ "a mounted door stays as it is", a_mounted_door_stays_as_it_is },
	{ "a mounted door tells whether it is unreferenced",
	  a_mounted_door_tells_whether_it_is_unreferenced },
	{ "what is no door is not mounted", what_is_no_door_is_not_mounted },
	{ "a mount counts as a descriptor", a_mount_counts_as_a_descriptor },
	{ "a mount outlives its server", a_mount_outlives_its_server },
};

int main(void)
{
	return run_tests_and(put_back, tests, sizeof(tests) / sizeof(tests[0]));
}
