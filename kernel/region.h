/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Registered memory: pages of a client, pinned once, that servers then copy from and to without
 * pinning them for each message.
 *
 * A region belongs to a connection, and is used by the process that registered it. It ends when it
 * is unregistered, when that process ends or executes another program, or with the connection; the pages are let go when the
 * last message that uses them is through. They count as pinned memory of the process (VmPin, no more
 * than RLIMIT_MEMLOCK) and against the limit of the user.
 */
#ifndef STPLR_REGION_H
#define STPLR_REGION_H

#include <linux/mm.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include "exit.h"
#include "user.h"

struct mm_struct;
struct page;

#define STPLR_REGIONS 16

struct stplr_region {
	refcount_t refs;
	struct stplr_regions *regions; /* reference, while it is in a slot */
	struct stplr_watch watch; /* of the process, as long as it runs this program */
	struct stplr_user *user; /* reference */
	struct mm_struct *mm; /* mmgrab */
	u64 base;
	size_t length;
	long count;
	struct page **pages; /* pinned */
};

struct stplr_regions {
	refcount_t refs; /* of the connection and of each region in a slot */
	spinlock_t lock; /* nothing nests in it but what exit.c has */
	struct stplr_region *slots[STPLR_REGIONS];
};

/**
 * stplr_regions_new() - make room for the regions of a connection
 *
 * Return: that with a reference, or NULL.
 */
struct stplr_regions *stplr_regions_new(void);

/**
 * stplr_regions_end() - empty all slots and drop the caller's reference
 * @regions: of a connection
 */
void stplr_regions_end(struct stplr_regions *regions);

/**
 * stplr_region_register() - pin memory of the calling process
 * @regions: of a connection
 * @guess: who is charged, as a rule
 * @base: where the memory begins
 * @length: its bytes
 *
 * Return: a number, or -EINVAL, -ENOSPC, -EFAULT, -ENOMEM (also RLIMIT_MEMLOCK), -EDQUOT, -EINTR (it is being killed).
 */
long stplr_region_register(struct stplr_regions *regions, struct stplr_user *guess, u64 base,
			   u64 length);

/**
 * stplr_region_unregister() - let go of it, once the last message that uses it is through
 * @regions: of a connection
 * @number: what stplr_region_register() returned
 *
 * Return: 0, -ENOENT.
 */
long stplr_region_unregister(struct stplr_regions *regions, unsigned long number);

/**
 * stplr_regions_count() - count regions
 * @regions: of a connection
 *
 * Return: how many there are.
 */
unsigned int stplr_regions_count(struct stplr_regions *regions);

/**
 * stplr_region_find() - the region that bytes of the calling process lie in
 * @regions: of a connection
 * @number: which one that is to be
 * @base: where the bytes begin
 * @length: how many they are
 *
 * Return: it with a reference; NULL unless all of them lie there.
 */
struct stplr_region *stplr_region_find(struct stplr_regions *regions, u32 number, u64 base,
				       size_t length);

/**
 * stplr_region_put() - drop a reference
 * @region: the region
 */
void stplr_region_put(struct stplr_region *region);

/* The page that an address in the region is in, and those that follow. */
static inline struct page **stplr_region_pages(struct stplr_region *region, u64 address)
{
	return region->pages + ((offset_in_page(region->base) + address - region->base) >>
				PAGE_SHIFT);
}

#endif
