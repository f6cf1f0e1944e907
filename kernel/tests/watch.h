/* SPDX-License-Identifier: GPL-2.0 */
/* Memory whose pages come when a userfaultfd has them come, or never. */
#ifndef WATCH_H
#define WATCH_H

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "tap.h"

/* From here on a userfaultfd watches the memory; returns it. */
static inline int watch(void *memory, size_t size)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { (unsigned long)memory, size },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	CHECK(faults >= 0);
	OK(ioctl(faults, UFFDIO_API, &api));
	OK(ioctl(faults, UFFDIO_REGISTER, &range));
	return faults;
}

/* Until some thread waits for a page of it. */
static inline void await_fault(int faults)
{
	struct uffd_msg fault;

	CHECK(read(faults, &fault, sizeof(fault)) == sizeof(fault));
	CHECK(fault.event == UFFD_EVENT_PAGEFAULT);
}

static inline void let_come(int faults, void *memory, size_t size)
{
	struct uffdio_zeropage pages = { .range = { (unsigned long)memory, size } };

	OK(ioctl(faults, UFFDIO_ZEROPAGE, &pages));
}

/* Whoever waits for a page of it does so in vain. */
static inline void fail_fault(int faults, void *memory, size_t size)
{
	OK(mprotect(memory, size, PROT_NONE));
	close(faults);
}

static inline void need_userfaultfd(void)
{
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (faults < 0)
		SKIP("this kernel has no userfaultfd");
	close(faults);
}

#endif
