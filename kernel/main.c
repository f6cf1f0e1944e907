// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>

#include "control.h"
#include "debug.h"
#include "debugfs.h"
#include "doors/device.h"
#include "exit.h"
#include "files.h"
#include "handles/device.h"
#include "inherit.h"
#include "message.h"
#include "page.h"
#include "park.h"

int stplr_debug;
module_param_named(debug, stplr_debug, int, 0644);
MODULE_PARM_DESC(debug, "How much to log: 0 nothing, 1 errors, 2 owners, 3 deaths, 4 calls");

static int __init stplr_init(void)
{
	int err;

	err = stplr_page_init();
	if (err)
		return err;
	err = stplr_message_init();
	if (err)
		return err;
	err = stplr_files_init();
	if (err)
		goto exit_message;
	err = stplr_exit_init();
	if (err)
		goto exit_files;
	err = stplr_park_init();
	if (err)
		goto exit_exit;
	err = stplr_inherit_init();
	if (err)
		goto exit_park;
	err = stplr_device_init();
	if (err)
		goto exit_inherit;
	err = stplr_control_init();
	if (err)
		goto exit_device;
	err = stplr_doors_init();
	if (err)
		goto exit_control;
	stplr_debugfs_init();
	return 0;

exit_control:
	stplr_control_exit();
exit_device:
	stplr_device_exit();
exit_inherit:
	stplr_inherit_exit();
exit_park:
	stplr_park_exit();
exit_exit:
	stplr_exit_exit();
exit_files:
	stplr_files_exit();
exit_message:
	stplr_message_exit();
	return err;
}

static void __exit stplr_exit(void)
{
	stplr_debugfs_exit();
	stplr_doors_exit();
	stplr_control_exit();
	stplr_device_exit();
	/* First the work of what has ended: after that nobody inherits, and nothing is parked. */
	stplr_exit_exit();
	stplr_inherit_exit();
	stplr_park_exit();
	stplr_files_exit();
	stplr_message_exit();
}

module_init(stplr_init);
module_exit(stplr_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Synchronous messages between threads: send, receive, reply");
MODULE_VERSION("0.0.7");
MODULE_ALIAS("stapler");
