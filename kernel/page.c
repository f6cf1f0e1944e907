// SPDX-License-Identifier: GPL-2.0
#include "page.h"

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include <linux/userfaultfd_k.h>

static bool is_plain(struct vm_area_struct *vma)
{
	if (userfaultfd_armed(vma))
		return false;
	return vma_is_anonymous(vma) || (vma->vm_file && shmem_mapping(vma->vm_file->f_mapping));
}

bool stplr_is_plain_locked(struct mm_struct *mm, u64 base, size_t length)
{
	struct vm_area_struct *vma = find_vma(mm, base);

	while (vma && vma->vm_start < base + length) {
		if (!is_plain(vma))
			return false;
		vma = find_vma(mm, vma->vm_end);
	}
	return true;
}
