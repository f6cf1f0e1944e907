/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies between a pinned page of a peer and the memory of the calling thread. A page of a program is
 * none of the objects that copy_to_user() looks for at the kernel's address, once for each page; so
 * this does what iov_iter does for pages.
 */
#ifndef STPLR_PAGE_H
#define STPLR_PAGE_H

#include <linux/fault-inject-usercopy.h>
#include <linux/highmem.h>
#include <linux/instrumented.h>
#include <linux/uaccess.h>

/* False: the caller's memory faults. */
static inline bool stplr_page_copy(struct page *page, size_t within, u64 local, size_t length,
				   bool write)
{
	void __user *program = u64_to_user_ptr(local);
	unsigned long left;
	u8 *address;

	might_fault();
	if (should_fail_usercopy() || !access_ok(program, length))
		return false;
	address = (u8 *)kmap_local_page(page) + within;
	if (write) {
		instrument_copy_from_user_before(address, program, length);
		left = raw_copy_from_user(address, program, length);
		instrument_copy_from_user_after(address, program, length, left);
	} else {
		instrument_copy_to_user(program, address, length);
		left = raw_copy_to_user(program, address, length);
	}
	kunmap_local(address);
	return !left;
}

#endif
