/* SPDX-License-Identifier: GPL-2.0 */
/* The node /dev/stplr, where channels and connections by name come from. */
#ifndef STPLR_CONTROL_H
#define STPLR_CONTROL_H

#include <linux/types.h>

struct stplr_info;

/**
 * stplr_control_init() - make the node
 *
 * Return: 0, or an error.
 */
int stplr_control_init(void);

/**
 * stplr_control_exit() - take the node away
 */
void stplr_control_exit(void);

/**
 * stplr_put_info() - tell a program what its descriptor is
 * @user: where
 * @size: how many bytes of it the program knows; those that this kernel does not are cleared
 * @info: what to tell, but for the interface
 *
 * Return: 0, -EINVAL, -EFAULT.
 */
long stplr_put_info(struct stplr_info __user *user, size_t size, struct stplr_info *info);

#endif
