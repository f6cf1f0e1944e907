/* SPDX-License-Identifier: GPL-2.0 */
/* The node /dev/door, where pools come from, and doors by path. */
#ifndef STPLR_DOORS_DEVICE_H
#define STPLR_DOORS_DEVICE_H

/**
 * stplr_doors_init() - make the node, and what doors need
 *
 * Return: 0, or an error.
 */
int stplr_doors_init(void);

/**
 * stplr_doors_exit() - undo stplr_doors_init(), when there is no door any more
 */
void stplr_doors_exit(void);

#endif
