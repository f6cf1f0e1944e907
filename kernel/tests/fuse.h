/* SPDX-License-Identifier: GPL-2.0 */
/* A file system of one file, which a process of its own serves, or does not. */
#ifndef FUSE_H
#define FUSE_H

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "tap.h"

#define FOLDER_OF_FILES "/tmp/fuse"
#define SIZE 65536

/* The file system: one file, whose first reads fail and whose further ones are never answered. */
struct file_system {
	int device;
	int failures; /* to come */
	bool holds; /* whoever closes it */
};

static inline void answer_request(const struct file_system *files, const struct fuse_in_header *in,
				  int error, const void *bytes, size_t length)
{
	struct {
		struct fuse_out_header header;
		char bytes[256];
	} out = { .header = { .error = -error, .unique = in->unique } };

	CHECK(length <= sizeof(out.bytes));
	if (length)
		memcpy(out.bytes, bytes, length);
	out.header.len = (uint32_t)(sizeof(out.header) + length);
	CHECK(write(files->device, &out, out.header.len) == (ssize_t)out.header.len ||
	      errno == ENOENT);
}

static inline struct fuse_attr attributes_of(uint64_t node)
{
	struct fuse_attr attributes = { .ino = node, .nlink = 1, .blksize = 4096 };

	attributes.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
	attributes.size = node == FUSE_ROOT_ID ? 0 : SIZE;
	return attributes;
}

static inline void serve_one(struct file_system *files, const struct fuse_in_header *in)
{
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096 };
	struct fuse_entry_out entry = { .nodeid = 2, .attr_valid = 60, .entry_valid = 60 };
	struct fuse_attr_out attributes = { .attr_valid = 60 };
	struct fuse_open_out opened = { .fh = 1 };

	switch (in->opcode) {
	case FUSE_INIT:
		answer_request(files, in, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		entry.attr = attributes_of(2);
		answer_request(files, in, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		attributes.attr = attributes_of(in->nodeid);
		answer_request(files, in, 0, &attributes, sizeof(attributes));
		break;
	case FUSE_OPEN:
		answer_request(files, in, 0, &opened, sizeof(opened));
		break;
	case FUSE_READ:
		if (files->failures-- > 0)
			answer_request(files, in, EIO, NULL, 0);
		break;
	case FUSE_FLUSH:
		if (!files->holds)
			answer_request(files, in, ENOSYS, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		break;
	default:
		answer_request(files, in, ENOSYS, NULL, 0);
	}
}

static inline void *serve_files(void *argument)
{
	static char buffer[1 << 17];

	while (read(((struct file_system *)argument)->device, buffer, sizeof(buffer)) > 0)
		serve_one(argument, (const struct fuse_in_header *)buffer);
	return NULL;
}

/* In a process of its own, so that whatever is stuck in the file system does not keep that. */
static inline pid_t start_files_that(int failures, bool holds)
{
	struct file_system files = { .device = open("/dev/fuse", O_RDWR),
				     .failures = failures,
				     .holds = holds };
	char options[80];

	if (files.device < 0)
		SKIP("this kernel has no FUSE");
	mkdir(FOLDER_OF_FILES, 0700);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", files.device);
	OK(mount("fuse", FOLDER_OF_FILES, "fuse", 0, options));
	pid_t server = fork();

	if (server == 0)
		serve_files(&files);
	close(files.device);
	return server;
}

#endif
