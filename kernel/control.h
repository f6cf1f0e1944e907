/* SPDX-License-Identifier: GPL-2.0 */
/* The node /dev/stplr, where channels and connections by name come from. */
#ifndef STPLR_CONTROL_H
#define STPLR_CONTROL_H

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

#endif
