/* SPDX-License-Identifier: GPL-2.0 */
/*
 * doorfs: a file system of one file, which is a door. Mounted over a file it makes that a door for every
 * program that opens it.
 */
#ifndef STPLR_DOORS_FS_H
#define STPLR_DOORS_FS_H

struct file;

/**
 * stplr_doorfs_init() - make the file system known
 *
 * Return: 0, or an error.
 */
int stplr_doorfs_init(void);

/**
 * stplr_doorfs_exit() - undo stplr_doorfs_init(); a mount keeps the module
 */
void stplr_doorfs_exit(void);

/**
 * stplr_doorfs_behind() - find the door behind a file of doorfs
 * @file: any file
 *
 * Return: the door's own file, which stays as long as @file, or @file itself where it is no such file.
 */
const struct file *stplr_doorfs_behind(const struct file *file);

#endif
