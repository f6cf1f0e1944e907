// SPDX-License-Identifier: GPL-2.0
#include "region.h"

#include <linux/capability.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "compat.h"
#include "page.h"

/* The most that one region holds; the limits of processes and users are lower as a rule. */
#define REGION_MAX (1UL << 30)

struct stplr_regions *stplr_regions_new(void)
{
	struct stplr_regions *regions = kzalloc(sizeof(*regions), GFP_KERNEL_ACCOUNT);

	if (regions) {
		refcount_set(&regions->refs, 1);
		spin_lock_init(&regions->lock);
	}
	return regions;
}

static void put_regions(struct stplr_regions *regions)
{
	if (refcount_dec_and_test(&regions->refs))
		kfree(regions);
}

/* What the kernel holds for a region beside the object of the connection. */
static size_t cost(long count)
{
	return sizeof(struct stplr_region) + count * (sizeof(struct page *) + PAGE_SIZE);
}

static void free_region(struct stplr_region *region)
{
	if (region->count) {
		unpin_user_pages_dirty_lock(region->pages, region->count, true);
		atomic64_sub(region->count, &region->mm->pinned_vm);
	}
	kvfree(region->pages);
	mmdrop(region->mm);
	stplr_user_put(region->user);
	kfree(region);
}

void stplr_region_put(struct stplr_region *region)
{
	if (!refcount_dec_and_test(&region->refs))
		return;
	stplr_user_uncharge(region->user, cost(region->count));
	free_region(region);
}

/* Drops what the slot held. The caller has taken the region out of it. */
static void retire(struct stplr_region *region)
{
	put_regions(region->regions);
	stplr_region_put(region);
}

static void owner_died(struct stplr_watch *watch)
{
	struct stplr_region *region = container_of(watch, struct stplr_region, watch);
	struct stplr_regions *regions = region->regions;
	int i;

	spin_lock(&regions->lock);
	for (i = 0; i < STPLR_REGIONS; i++)
		if (regions->slots[i] == region)
			regions->slots[i] = NULL;
	spin_unlock(&regions->lock);
	retire(region);
}

/* Empties a slot; a region whose process is ending just now is left to owner_died(). */
static struct stplr_region *take_out_locked(struct stplr_regions *regions, unsigned long number)
{
	struct stplr_region *region = regions->slots[number];

	regions->slots[number] = NULL;
	return region && stplr_exit_unwatch(&region->watch) ? region : NULL;
}

void stplr_regions_end(struct stplr_regions *regions)
{
	struct stplr_region *region;
	unsigned long i;

	for (i = 0; i < STPLR_REGIONS; i++) {
		spin_lock(&regions->lock);
		region = take_out_locked(regions, i);
		spin_unlock(&regions->lock);
		if (region)
			retire(region);
	}
	put_regions(regions);
}

/*
 * Counts in what the process has pinned, which takes no lock: regions are freed where nobody may wait
 * for the memory of a process.
 */
static int account(struct mm_struct *mm, long count)
{
	if (atomic64_add_return(count, &mm->pinned_vm) <= rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT ||
	    capable(CAP_IPC_LOCK))
		return 0;
	atomic64_sub(count, &mm->pinned_vm);
	return -ENOMEM;
}

/* Some pages, of memory that others may reach into: whoever lets go of them locks them for a moment. */
static long pin_some(struct mm_struct *mm, u64 start, long count, struct page **pages)
{
	long got = -EFAULT;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	if (stplr_is_plain_locked(mm, start, count * PAGE_SIZE))
		got = stplr_pin_own(start, count, FOLL_WRITE | FOLL_LONGTERM, pages);
	mmap_read_unlock(mm);
	return got;
}

/* Fills region->pages; how many there are then is in region->count, also on failure. */
static int pin(struct stplr_region *region, long count)
{
	u64 start = region->base & PAGE_MASK;
	int err = account(region->mm, count);
	long pinned = 0;

	if (err)
		return err;
	while (pinned < count) {
		long got = pin_some(region->mm, start + pinned * PAGE_SIZE,
				    min_t(long, count - pinned, 1024), region->pages + pinned);

		if (got <= 0) {
			err = got == -ENOMEM || got == -EINTR ? got : -EFAULT;
			break;
		}
		pinned += got;
		cond_resched();
	}
	atomic64_sub(count - pinned, &region->mm->pinned_vm);
	region->count = pinned;
	return err;
}

static struct stplr_region *new_region(struct stplr_user *guess, u64 base, size_t length)
{
	long count = DIV_ROUND_UP(offset_in_page(base) + length, PAGE_SIZE);
	struct stplr_region *region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	int err;

	if (!region)
		return ERR_PTR(-ENOMEM);
	err = stplr_user_get_charged(&region->user, guess, cost(count));
	if (err) {
		kfree(region);
		return ERR_PTR(err);
	}
	refcount_set(&region->refs, 1);
	region->base = base;
	region->length = length;
	region->mm = current->mm;
	mmgrab(region->mm);
	err = -ENOMEM;
	region->pages = kvmalloc_array(count, sizeof(*region->pages), GFP_KERNEL_ACCOUNT);
	if (region->pages)
		err = pin(region, count);
	if (!err)
		return region;
	stplr_user_uncharge(region->user, cost(count));
	free_region(region);
	return ERR_PTR(err);
}

static long put_in_slot(struct stplr_regions *regions, struct stplr_region *region)
{
	long number;

	spin_lock(&regions->lock);
	for (number = 0; number < STPLR_REGIONS; number++)
		if (!regions->slots[number])
			break;
	if (number < STPLR_REGIONS) {
		refcount_inc(&regions->refs);
		region->regions = regions;
		regions->slots[number] = region;
		stplr_exit_watch(&region->watch, stplr_exit_program(current), owner_died);
	}
	spin_unlock(&regions->lock);
	return number < STPLR_REGIONS ? number : -ENOSPC;
}

long stplr_region_register(struct stplr_regions *regions, struct stplr_user *guess, u64 base,
			   u64 length)
{
	struct stplr_region *region;
	long number;

	if (!length || length > REGION_MAX || base + length < base)
		return -EINVAL;
	region = new_region(guess, base, length);
	if (IS_ERR(region))
		return PTR_ERR(region);
	number = put_in_slot(regions, region);
	if (number < 0)
		stplr_region_put(region);
	return number;
}

long stplr_region_unregister(struct stplr_regions *regions, unsigned long number)
{
	struct stplr_region *region;

	if (number >= STPLR_REGIONS)
		return -ENOENT;
	spin_lock(&regions->lock);
	region = take_out_locked(regions, number);
	spin_unlock(&regions->lock);
	if (!region)
		return -ENOENT;
	retire(region);
	return 0;
}

unsigned int stplr_regions_count(struct stplr_regions *regions)
{
	unsigned int count = 0, i;

	spin_lock(&regions->lock);
	for (i = 0; i < STPLR_REGIONS; i++)
		count += regions->slots[i] != NULL;
	spin_unlock(&regions->lock);
	return count;
}

struct stplr_region *stplr_region_find(struct stplr_regions *regions, u32 number, u64 base,
				       size_t length)
{
	struct stplr_region *region;

	if (number >= STPLR_REGIONS)
		return NULL;
	spin_lock(&regions->lock);
	region = regions->slots[number];
	if (region && region->mm == current->mm && base >= region->base &&
	    length <= region->length && base - region->base <= region->length - length)
		refcount_inc(&region->refs);
	else
		region = NULL;
	spin_unlock(&regions->lock);
	return region;
}
