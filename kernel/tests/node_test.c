// SPDX-License-Identifier: GPL-2.0
/* Who may open the nodes, on a system that udev has set up with the rules that are installed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>

#include "tap.h"

static const char *const nodes[] = { "/dev/stplr", "/dev/stplr-0", "/dev/stplr-3" };

#define EACH_NODE(node)                                                                          \
	const char *const *node = nodes; node < nodes + sizeof(nodes) / sizeof(*nodes); node++

static void need_udev(void)
{
	if (access("/lib/systemd/systemd-udevd", X_OK))
		SKIP("no udev here, or a kernel that is too small for it");
}

/* The module's group in /etc/group. */
static gid_t group(void)
{
	FILE *file = fopen("/etc/group", "r");
	char line[200];
	unsigned int gid = 0;

	CHECK(file);
	while (fgets(line, sizeof(line), file) && sscanf(line, "stplr:x:%u:", &gid) != 1)
		;
	fclose(file);
	CHECK(gid);
	return gid;
}

static void they_belong_to_the_group(void)
{
	need_udev();
	for (EACH_NODE(node)) {
		struct stat status;

		OK(stat(*node, &status));
		CHECK(S_ISCHR(status.st_mode) && (status.st_mode & 07777) == 0660);
		CHECK(status.st_uid == 0 && status.st_gid == group());
	}
}

static void become(gid_t also)
{
	OK(setgroups(also ? 1 : 0, &also));
	OK(setgid(1000));
	OK(setuid(1000));
}

static void who_is_in_the_group_may_open_them(void)
{
	need_udev();
	become(group());
	for (EACH_NODE(node)) {
		int fd = open(*node, O_RDWR);

		CHECK(fd >= 0);
		close(fd);
	}
}

static void nobody_else_may(void)
{
	become(0);
	for (EACH_NODE(node)) {
		FAILS(EACCES, open(*node, O_RDWR));
		FAILS(EACCES, open(*node, O_RDONLY));
	}
}

static const struct test tests[] = {
	{ "the nodes belong to the group", they_belong_to_the_group },
	{ "who is in the group may open them", who_is_in_the_group_may_open_them },
	{ "nobody else may", nobody_else_may },
};

int main(void)
{
	return run_tests(tests, sizeof(tests) / sizeof(*tests));
}
