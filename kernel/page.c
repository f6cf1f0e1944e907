// SPDX-License-Identifier: GPL-2.0
#include "page.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/shmem_fs.h>
#include <linux/userfaultfd_k.h>

#include "compat.h"

/* What brings pages of tmpfs, which the kernel does not tell modules. */
static vm_fault_t (*shmem_fault)(struct vm_fault *fault);

int stplr_page_init(void)
{
	struct vm_area_struct *vma;
	struct file *file;
	unsigned long at;
	int err = -EOPNOTSUPP;

	if (!current->mm)
		return err;
	file = shmem_file_setup("stplr", PAGE_SIZE, STPLR_NO_VMA_FLAGS);
	if (IS_ERR(file))
		return PTR_ERR(file);
	at = vm_mmap(file, 0, PAGE_SIZE, PROT_READ, MAP_SHARED, 0);
	fput(file);
	if (IS_ERR_VALUE(at))
		return at;
	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, at);
	if (vma && vma->vm_start == at && vma->vm_ops && vma->vm_ops->fault) {
		shmem_fault = vma->vm_ops->fault;
		err = 0;
	}
	mmap_read_unlock(current->mm);
	vm_munmap(at, PAGE_SIZE);
	return err;
}

static bool is_plain(struct vm_area_struct *vma)
{
	if (userfaultfd_armed(vma))
		return false;
	return vma_is_anonymous(vma) || (vma->vm_file && shmem_mapping(vma->vm_file->f_mapping) &&
					 vma->vm_ops->fault == shmem_fault);
}

bool stplr_is_mapped_locked(struct mm_struct *mm, u64 address)
{
	struct vm_area_struct *vma;

	address = stplr_untagged(mm, address);
	vma = find_vma(mm, address);
	/* A stack grows when its owner gets there. */
	return vma && (vma->vm_start <= address || vma->vm_flags & VM_GROWSDOWN);
}

bool stplr_is_plain_locked(struct mm_struct *mm, u64 base, size_t length)
{
	struct vm_area_struct *vma;

	base = stplr_untagged(mm, base);
	vma = find_vma(mm, base);
	while (vma && vma->vm_start < base + length) {
		if (!is_plain(vma))
			return false;
		vma = find_vma(mm, vma->vm_end);
	}
	return true;
}
