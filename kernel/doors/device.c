// SPDX-License-Identifier: GPL-2.0
#include "doors/device.h"

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

#include "doors/attach.h"
#include "doors/door.h"
#include "doors/fs.h"
#include "park.h"
#include "words.h"

static long device_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	const size_t size = _IOC_SIZE(command);
	void __user *user = (void __user *)argument;

	stplr_unpark();
	switch (STPLR_SIZELESS(command)) {
	case STPLR_SIZELESS(STPLR_POOL_CREATE):
		return stplr_pool_create(user, size);
	case STPLR_SIZELESS(STPLR_DOOR_DETACH):
		return stplr_door_detach(user, size);
	case STPLR_SIZELESS(STPLR_DOOR_OPEN):
		return stplr_door_open(user, size);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "door",
	.fops = &device_operations,
	.mode = 0600,
};

int stplr_doors_init(void)
{
	int err = stplr_door_init();

	if (err)
		return err;
	err = stplr_attach_init();
	if (err)
		goto exit_door;
	err = misc_register(&device);
	if (err)
		goto exit_attach;
	err = stplr_doorfs_init();
	if (!err)
		return 0;
	misc_deregister(&device);
exit_attach:
	stplr_attach_exit();
exit_door:
	stplr_door_exit();
	return err;
}

void stplr_doors_exit(void)
{
	stplr_doorfs_exit();
	misc_deregister(&device);
	stplr_attach_exit();
	stplr_door_exit();
}
