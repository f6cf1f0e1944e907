/* SPDX-License-Identifier: GPL-2.0 */
/* Memory whose pages come when a userfaultfd has them come, or never. */
#ifndef WATCH_H
#define WATCH_H

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
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

static inline void need_userfaultfd(void)
{
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (faults < 0)
		SKIP("this kernel has no userfaultfd");
	close(faults);
}

#endif
