/* SPDX-License-Identifier: GPL-2.0 */
/* The node /dev/stplr, where channels and connections by name come from. */
#ifndef STPLR_CONTROL_H
#define STPLR_CONTROL_H

int stplr_control_init(void);
void stplr_control_exit(void);

#endif
