/* SPDX-License-Identifier: GPL-2.0 */
/* The nodes /dev/stplr-0, /dev/stplr-1, … of the first interface. */
#ifndef STPLR_DEVICE_H
#define STPLR_DEVICE_H

int stplr_device_init(void);
void stplr_device_exit(void);

#endif
