/* SPDX-License-Identifier: GPL-2.0 */
/* The nodes /dev/stplr-0, /dev/stplr-1, … of the first interface. */
#ifndef STPLR_DEVICE_H
#define STPLR_DEVICE_H

#ifdef CONFIG_STPLR_HANDLES
/**
 * stplr_device_init() - make the nodes
 *
 * Return: 0, or an error.
 */
int stplr_device_init(void);

/**
 * stplr_device_exit() - take the nodes away
 */
void stplr_device_exit(void);
#else
static inline int stplr_device_init(void)
{
	return 0;
}

static inline void stplr_device_exit(void)
{
}
#endif

#endif
