/* SPDX-License-Identifier: GPL-2.0 */
/* Copies between a pinned page of a peer and the memory of the calling thread. */
#ifndef STPLR_PAGE_H
#define STPLR_PAGE_H

#include <linux/highmem.h>

#include "bytes.h"

/* False: the caller's memory faults. */
static inline bool stplr_page_copy(struct page *page, size_t within, u64 local, size_t length,
				   bool write)
{
	u8 *address = (u8 *)kmap_local_page(page) + within;
	bool fine;

	if (write)
		fine = stplr_bytes_in(address, local, length);
	else
		fine = stplr_bytes_out(local, address, length);
	kunmap_local(address);
	return fine;
}

#endif
