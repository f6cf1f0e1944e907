// SPDX-License-Identifier: GPL-2.0
#include "device.h"

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "debug.h"
#include "include/stplr_handles.h"
#include "mailbox.h"
#include "park.h"

#define DEVICES_MAX 256

static unsigned int devices = 4;
module_param(devices, uint, 0444);
MODULE_PARM_DESC(devices, "How many nodes /dev/stplr-N there are, 1 to 256");

static dev_t first_device;
static struct cdev node;
static struct class *node_class;

/* Who has which node open. */
static DEFINE_SPINLOCK(opens_lock);
static DEFINE_HASHTABLE(opens, 8);

static bool has_open_locked(int minor, const struct pid *tgid)
{
	struct stplr_open *open;

	hash_for_each_possible(opens, open, node, (unsigned long)tgid)
		if (open->minor == minor && open->tgid == tgid)
			return true;
	return false;
}

static int node_open(struct inode *inode, struct file *file)
{
	struct stplr_open *open = kzalloc(sizeof(*open), GFP_KERNEL_ACCOUNT);
	int err;

	if (!open)
		return -ENOMEM;
	err = stplr_user_get_charged(&open->user, NULL, sizeof(*open));
	if (err)
		goto free;
	open->minor = iminor(inode);
	open->tgid = task_tgid(current);
	INIT_LIST_HEAD(&open->mailboxes);

	spin_lock(&opens_lock);
	err = has_open_locked(open->minor, open->tgid) ? -EBUSY : 0;
	if (!err)
		hash_add(opens, &open->node, (unsigned long)open->tgid);
	spin_unlock(&opens_lock);
	if (err)
		goto put_user;
	get_pid(open->tgid);
	file->private_data = open;
	stplr_log(STPLR_DEBUG_OWNERS, "node %d: opened by %d\n", open->minor,
		  pid_nr(open->tgid));
	return nonseekable_open(inode, file);

put_user:
	stplr_user_put_charged(open->user, sizeof(*open));
free:
	kfree(open);
	return err;
}

static int node_release(struct inode *inode, struct file *file)
{
	struct stplr_open *open = file->private_data;

	spin_lock(&opens_lock);
	hash_del(&open->node);
	spin_unlock(&opens_lock);
	stplr_mailbox_release_all(open);
	stplr_log(STPLR_DEBUG_OWNERS, "node %d: closed\n", open->minor);
	put_pid(open->tgid);
	stplr_user_put_charged(open->user, sizeof(*open));
	kfree(open);
	return 0;
}

static long tell_version(void __user *argument)
{
	static const struct stplr_version version = {
		.major = STPLR_VERSION_MAJOR,
		.minor = STPLR_VERSION_MINOR,
		.micro = STPLR_VERSION_MICRO,
	};

	return copy_to_user(argument, &version, sizeof(version)) ? -EFAULT : 0;
}

static long node_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct stplr_open *open = file->private_data;
	void __user *user = (void __user *)argument;

	stplr_unpark();
	switch (command) {
	case STPLR_VERSION:
		return tell_version(user);
	case STPLR_HANDLE_GET:
		return stplr_mailbox_get(open, user);
	case STPLR_HANDLE_PUT:
		return stplr_mailbox_put(open, user);
	case STPLR_MSG_SEND:
		return stplr_mailbox_send(open, user, file);
	case STPLR_MSG_SEND_RECEIVE:
		return stplr_mailbox_send_receive(open, user, file);
	case STPLR_MSG_RECEIVE:
		return stplr_mailbox_receive(open, user);
	case STPLR_MSG_REPLY:
		return stplr_mailbox_reply(open, user);
	default:
		return -ENOTTY;
	}
}

/* No compat_ioctl: the structures hold pointers, and 32-bit programs get ENOTTY. */
static const struct file_operations node_operations = {
	.owner = THIS_MODULE,
	.open = node_open,
	.flush = stplr_unpark_file,
	.release = node_release,
	.unlocked_ioctl = node_ioctl,
	.llseek = noop_llseek,
};

static void destroy_nodes(unsigned int count)
{
	while (count--)
		device_destroy(node_class, first_device + count);
}

static int create_nodes(void)
{
	struct device *device;
	unsigned int i;

	for (i = 0; i < devices; i++) {
		device = device_create(node_class, NULL, first_device + i, NULL, "stplr-%u", i);
		if (IS_ERR(device)) {
			destroy_nodes(i);
			return PTR_ERR(device);
		}
	}
	return 0;
}

int stplr_device_init(void)
{
	int err;

	if (!devices || devices > DEVICES_MAX)
		return -EINVAL;
	err = alloc_chrdev_region(&first_device, 0, devices, "stplr");
	if (err)
		return err;
	node_class = stplr_class_create("stplr");
	if (IS_ERR(node_class)) {
		err = PTR_ERR(node_class);
		goto unregister;
	}
	cdev_init(&node, &node_operations);
	node.owner = THIS_MODULE;
	err = cdev_add(&node, first_device, devices);
	if (err)
		goto destroy_class;
	err = create_nodes();
	if (err)
		goto delete_node;
	return 0;

delete_node:
	cdev_del(&node);
destroy_class:
	class_destroy(node_class);
unregister:
	unregister_chrdev_region(first_device, devices);
	return err;
}

void stplr_device_exit(void)
{
	destroy_nodes(devices);
	cdev_del(&node);
	class_destroy(node_class);
	unregister_chrdev_region(first_device, devices);
}
