// SPDX-License-Identifier: GPL-2.0
#include "control.h"

#include <linux/err.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "channel.h"
#include "connection.h"
#include "info.h"
#include "park.h"
#include "words.h"

static long connect_by_name(const struct stplr_connect __user *user, size_t size)
{
	struct stplr_connect arguments;
	struct stplr_channel *channel;
	int err = stplr_get_sized(&arguments, user, size, STPLR_CONNECT_SIZE_VER0);

	if (err)
		return err;
	if (!arguments.name[0] || strnlen(arguments.name, STPLR_NAME_MAX) == STPLR_NAME_MAX)
		return -EINVAL;
	err = stplr_name_complete(arguments.name);
	if (err)
		return err;
	channel = stplr_name_find(arguments.name);
	if (IS_ERR(channel))
		return PTR_ERR(channel);
	return stplr_connection_create(channel, stplr_connection_label());
}

static long control_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct stplr_info info = { .kind = STPLR_KIND_CONTROL };
	const size_t size = _IOC_SIZE(command);
	void __user *user = (void __user *)argument;

	stplr_unpark();
	switch (STPLR_SIZELESS(command)) {
	case STPLR_SIZELESS(STPLR_CHANNEL_CREATE):
		return stplr_channel_create(user, size);
	case STPLR_SIZELESS(STPLR_CONNECT):
		return connect_by_name(user, size);
	case STPLR_SIZELESS(STPLR_INFO):
		return stplr_put_info(user, size, &info);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations control_operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = control_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice control = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "stplr",
	.fops = &control_operations,
	.mode = 0600,
};

int stplr_control_init(void)
{
	return misc_register(&control);
}

void stplr_control_exit(void)
{
	misc_deregister(&control);
}
