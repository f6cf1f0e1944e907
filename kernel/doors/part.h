/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a message that is a call of a door has beside. All of it is the sender's until the call is submitted;
 * then what comes back belongs to whoever has claimed the call, and to the sender once it is DONE.
 */
#ifndef STPLR_DOORS_PART_H
#define STPLR_DOORS_PART_H

#include <linux/types.h>

struct cred;
struct file;
struct stplr_door;
struct stplr_message;

struct stplr_door_part {
	struct stplr_door *door; /* reference; NULL: no call of a door */
	const struct cred *caller; /* reference */
	int refusal; /* what the call ends with, once a server would have it or has said so; or 0 */
	bool bare; /* takes no result */
	u32 file_count; /* that come back */
	struct file **files; /* references */
	struct file *result; /* reference: what there was no room for, in pages of its own */
	size_t result_size;
	size_t charged; /* to the client for these, and part of what the message is charged */
};

/**
 * stplr_door_part_charge() - charge the client for what it is answered
 * @message: a call that the caller has claimed
 * @bytes: how much; given back with what stplr_door_part_clear() or stplr_door_part_put() give back
 *
 * Return: 0 or -EDQUOT.
 */
int stplr_door_part_charge(struct stplr_message *message, size_t bytes);

/**
 * stplr_door_part_clear() - forget what has been answered; by a server that failed, and waits for its files
 * @message: a call that the caller has claimed
 */
void stplr_door_part_clear(struct stplr_message *message);

/**
 * stplr_door_part_put_files() - the same of the files alone; or by a client that has descriptors of them
 * @part: of the call
 */
void stplr_door_part_put_files(struct stplr_door_part *part);

/**
 * stplr_door_part_put() - give all of it back; files that nobody took are closed elsewhere
 * @message: a call of a door; of none then
 */
void stplr_door_part_put(struct stplr_message *message);

/**
 * stplr_result_make() - copy a result that the client has no room for
 * @message: the call, which the caller has claimed
 * @from: where it is in the caller's memory
 * @size: its bytes
 * @peer_error: -EDQUOT or -ENOMEM if the client, or the server's user meanwhile, may not hold as much
 *
 * The pages are a file that nobody has a descriptor of, in the client's memory cgroup; those that the bytes
 * are in stay the caller's. It is charged to the server while it is made, to the client from then on.
 * Return: 0, -EFAULT, -EINTR, -EFBIG (RLIMIT_FSIZE), which are the caller's fault.
 */
int stplr_result_make(struct stplr_message *message, u64 from, size_t size, int *peer_error);

/**
 * stplr_result_map() - give the caller, a client, its result as private pages
 * @part: of its call
 * @address: where they are
 * @size: their bytes, to be unmapped
 *
 * Return: 0 or -EOVERFLOW.
 */
int stplr_result_map(struct stplr_door_part *part, u64 *address, u64 *size);

#endif
