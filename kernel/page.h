/* SPDX-License-Identifier: GPL-2.0 */
/* Pages of a peer: which are to be had, and copies between one and the calling thread's memory. */
#ifndef STPLR_PAGE_H
#define STPLR_PAGE_H

#include <linux/highmem.h>
#include <linux/uaccess.h>

struct mm_struct;

/**
 * stplr_page_init() - find out what pages of tmpfs are known by
 *
 * By a process, before anything else here.
 * Return: 0, or an error.
 */
int stplr_page_init(void);

/**
 * stplr_is_plain_locked() - look what kind of memory somebody has, with mmap_lock held
 * @mm: whose
 * @base: where they begin
 * @length: bytes
 *
 * Return: whether pages are to be had, or not, in a time that only the kernel decides; under the lock it
 * stays so. What is not mapped counts: there is nothing to wait for.
 *
 * Files are not such memory: some ways to a page of theirs wait for it to be read whatever
 * FOLL_NOWAIT says, and can be made writable by their file system alone, which with FUSE is a
 * program. Nor is what a userfaultfd watches: where the kernel lacks what 6.15 mended, a page that is
 * wanted just as the userfaultfd is closed, be it for the death of its process, is tried again and
 * again with mmap_lock held, for which whoever closes it waits, and cannot be killed. Nor is memory of a
 * driver that only borrows its pages from tmpfs.
 */
bool stplr_is_plain_locked(struct mm_struct *mm, u64 base, size_t length);

/**
 * stplr_is_mapped_locked() - look for memory at an address, with mmap_lock held
 * @mm: whose
 * @address: where
 *
 * Return: false if there is none, and nobody need be asked for it.
 */
bool stplr_is_mapped_locked(struct mm_struct *mm, u64 address);

/* Without waiting for pages of the caller's to come. False: one of them is not there. */
static inline bool stplr_page_copy(struct page *page, size_t within, u64 local, size_t length,
				   bool write)
{
	u8 *address = (u8 *)kmap_local_page(page) + within;
	long err;

	if (write)
		err = copy_from_user_nofault(address, u64_to_user_ptr(local), length);
	else
		err = copy_to_user_nofault(u64_to_user_ptr(local), address, length);
	kunmap_local(address);
	return !err;
}

#endif
