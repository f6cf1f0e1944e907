/* SPDX-License-Identifier: GPL-2.0 */
/* Copies between a pinned page of a peer and the memory of the calling thread. */
#ifndef STPLR_PAGE_H
#define STPLR_PAGE_H

#include <linux/highmem.h>
#include <linux/uaccess.h>

/* False: the caller's memory faults. */
static inline bool stplr_page_copy(struct page *page, size_t within, u64 local, size_t length,
				   bool write)
{
	u8 *address = kmap_local_page(page);
	bool done;

	if (write)
		done = !copy_from_user(address + within, u64_to_user_ptr(local), length);
	else
		done = !copy_to_user(u64_to_user_ptr(local), address + within, length);
	kunmap_local(address);
	return done;
}

#endif
