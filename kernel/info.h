/* SPDX-License-Identifier: GPL-2.0 */
/* STPLR_INFO, which all descriptors answer. */
#ifndef STPLR_INFO_H
#define STPLR_INFO_H

#include "include/stplr.h"
#include "words.h"

/**
 * stplr_put_info() - tell a program what its descriptor is
 * @user: where
 * @size: how many bytes of it the program knows; those that this kernel does not are cleared
 * @info: what to tell, but for the interface
 *
 * Return: 0, -EINVAL, -EFAULT.
 */
static inline long stplr_put_info(struct stplr_info __user *user, size_t size, struct stplr_info *info)
{
	if (size < STPLR_INFO_SIZE_VER0)
		return -EINVAL;
	info->interface = STPLR_INTERFACE;
	return stplr_put_whole(user, info, sizeof(*info), size);
}

#endif
