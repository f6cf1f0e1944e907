// SPDX-License-Identifier: GPL-2.0
#include "doors/door.h"

#include <linux/err.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "doors/attach.h"
#include "doors/fs.h"
#include "message.h"
#include "park.h"
#include "words.h"

#define CREATE_ATTRIBUTES                                                                        \
	(STPLR_DOOR_UNREF | STPLR_DOOR_PRIVATE | STPLR_DOOR_UNREF_MULTI | STPLR_DOOR_REFUSE_DESC | \
	 STPLR_DOOR_NO_CANCEL | STPLR_DOOR_DEPLETION_CB)

/*
 * Whoever closes a descriptor is through with that a moment after the flush; but a call may hold the file for
 * as long as it lasts, and so may a message that it is on its way in, and neither tells when it lets go. So it is
 * looked for until it is a single one, each time after twice as long, up to 1.3 seconds.
 */
#define COUNT_DELAY_MS 5
#define COUNT_SLOWEST 8U

static struct workqueue_struct *counts;
static atomic64_t ids;

int stplr_door_init(void)
{
	counts = alloc_workqueue("stplr_doors", WQ_UNBOUND, 0);
	return counts ? 0 : -ENOMEM;
}

void stplr_door_exit(void)
{
	destroy_workqueue(counts);
}

void stplr_door_put(struct stplr_door *door)
{
	if (!refcount_dec_and_test(&door->refs))
		return;
	stplr_message_drop(door->spare);
	stplr_user_put_charged(door->user, sizeof(*door));
	stplr_pool_lost(door->pool);
	kfree(door);
}

struct stplr_door *stplr_door_of_notice(struct stplr_item *item)
{
	return container_of(item, struct stplr_door, unref);
}

void stplr_door_noticed(struct stplr_door *door)
{
	clear_bit(STPLR_UNREF_QUEUED, &door->unref_state);
	stplr_door_put(door);
}

static bool is_of_door(const struct stplr_call *call, const void *door)
{
	return container_of(call, struct stplr_message, call)->of_door.door == door;
}

/* Calls that somebody has received go on. */
static void end_queued(struct stplr_door *door)
{
	stplr_port_cancel(&door->pool->port, is_of_door, door, -EBADF);
}

/*
 * Whoever revokes sets the flag, then goes through the queue under the lock of the port. A call that gets into
 * the queue later than that finds the flag here.
 */
void stplr_door_sent(struct stplr_door *door)
{
	if (unlikely(READ_ONCE(door->revoked)))
		end_queued(door);
}

static long revoke(struct stplr_door *door)
{
	bool before;

	if (!stplr_pool_mine(door->pool))
		return -EPERM;
	spin_lock(&door->lock);
	before = door->revoked;
	WRITE_ONCE(door->revoked, true);
	spin_unlock(&door->lock);
	if (before)
		return -EBADF;
	end_queued(door);
	return 0;
}

static void tell_unref(struct stplr_door *door)
{
	const bool multi = door->attributes & STPLR_DOOR_UNREF_MULTI;

	/* The program has been told that nothing more comes. */
	if (READ_ONCE(door->revoked))
		return;
	if ((test_and_set_bit(STPLR_UNREF_TOLD, &door->unref_state) && !multi) ||
	    test_and_set_bit(STPLR_UNREF_QUEUED, &door->unref_state))
		return;
	refcount_inc(&door->refs);
	if (stplr_port_post(&door->pool->port, &door->unref, 0))
		stplr_door_noticed(door);
}

static void count_later(struct stplr_door *door, unsigned int attempts)
{
	door->attempts = attempts;
	queue_delayed_work(counts, &door->count_work,
			   msecs_to_jiffies(COUNT_DELAY_MS << attempts));
}

static void count_anew(struct stplr_door *door)
{
	door->closes_seen = atomic_read(&door->closes);
	count_later(door, 0);
}

/*
 * Whoever counts already may have become slow. Who takes the work away from it has its file with that. Where it is
 * counting at this moment it sees that the number of closes is another.
 */
static void count_soon(struct stplr_door *door, struct file *file)
{
	if (!test_and_set_bit(STPLR_UNREF_COUNTING, &door->unref_state)) {
		door->counted = get_file(file);
		count_anew(door);
	} else if (cancel_delayed_work(&door->count_work)) {
		count_anew(door);
	}
}

/* By whoever counts, whose file and door may be gone as soon as somebody else takes the work away. */
static void count_slower(struct stplr_door *door, int closes)
{
	refcount_inc(&door->refs);
	count_later(door, min(door->attempts + 1, COUNT_SLOWEST));
	/* Whoever has closed one just before that found no work to take away. */
	if (atomic_read(&door->closes) != closes && cancel_delayed_work(&door->count_work))
		count_anew(door);
	stplr_door_put(door);
}

/* Counts who has the file, whoever counts left out. */
static void count_references(struct work_struct *work)
{
	struct stplr_door *door = container_of(work, struct stplr_door, count_work.work);
	struct file *file = door->counted;
	int closes = atomic_read(&door->closes);
	bool unref = file_count(file) == 2;

	if (closes != door->closes_seen) {
		door->closes_seen = closes;
		count_later(door, 0);
		return;
	}
	if (file_count(file) > 2) {
		count_slower(door, closes);
		return;
	}
	refcount_inc(&door->refs);
	clear_bit(STPLR_UNREF_COUNTING, &door->unref_state);
	/* Pairs with the count of whoever closes, which comes before its look at the bit. */
	smp_mb__after_atomic();
	if (atomic_read(&door->closes) != closes)
		count_soon(door, file);
	/* It may be the last; and whoever is told finds it gone. */
	fput(file);
	if (unref)
		tell_unref(door);
	stplr_door_put(door);
}

/* Two, or one and whoever counts, which is not waited for then. */
static void close_last(struct stplr_door *door, struct file *file)
{
	if (!test_bit(STPLR_UNREF_COUNTING, &door->unref_state)) {
		if (file_count(file) == 2)
			count_soon(door, file);
	} else if (cancel_delayed_work(&door->count_work)) {
		clear_bit(STPLR_UNREF_COUNTING, &door->unref_state);
		fput(file);
	}
}

void stplr_door_closing(struct file *file)
{
	struct stplr_door *door = file->private_data;

	if (!(door->attributes & (STPLR_DOOR_UNREF | STPLR_DOOR_UNREF_MULTI)))
		return;
	atomic_inc(&door->closes);
	if (file_count(file) > 2)
		count_soon(door, file);
	else
		close_last(door, file);
}

static int door_flush(struct file *file, fl_owner_t owner)
{
	stplr_unpark_file(file, owner);
	stplr_door_closing(file);
	return 0;
}

static int door_release(struct inode *inode, struct file *file)
{
	stplr_door_put(file->private_data);
	return 0;
}

u32 stplr_door_attributes(struct stplr_door *door)
{
	u32 attributes = door->attributes;

	if (test_bit(STPLR_UNREF_TOLD, &door->unref_state))
		attributes &= ~STPLR_DOOR_UNREF;
	if (stplr_pool_mine(door->pool))
		attributes |= STPLR_DOOR_LOCAL;
	if (READ_ONCE(door->revoked) || stplr_port_closed(&door->pool->port))
		attributes |= STPLR_DOOR_REVOKED;
	return attributes;
}

/*
 * Without the reference that the caller itself has just now, if it shares its table with others, and it is
 * this file that it asks through.
 */
static bool is_unreferenced(struct file *file, struct file *through)
{
	const long own = file == through && atomic_read(&current->files->count) > 1 ? 1 : 0;

	return file_count(file) - own == 1;
}

static long tell_info(struct stplr_door *door, struct stplr_door_info __user *user, size_t size,
		      struct file *file, struct file *through)
{
	struct stplr_pool *pool = door->pool;
	struct stplr_door_info info = {
		.target = stplr_port_closed(&pool->port) ? -1 : pid_vnr(pool->tgid),
		.attributes = stplr_door_attributes(door),
		.procedure = door->procedure,
		.cookie = door->cookie,
		.id = door->id,
	};

	if (size < STPLR_DOOR_INFO_SIZE_VER0)
		return -EINVAL;
	if (test_bit(STPLR_UNREF_TOLD, &door->unref_state) && is_unreferenced(file, through))
		info.attributes |= STPLR_DOOR_IS_UNREF;
	spin_lock(&door->lock);
	info.data_min = door->data_min;
	info.data_max = door->data_max;
	info.desc_max = door->desc_max;
	spin_unlock(&door->lock);
	return stplr_put_whole(user, &info, sizeof(info), size);
}

static int set_locked(struct stplr_door *door, u32 which, u64 value)
{
	switch (which) {
	case STPLR_PARAM_DATA_MIN:
		if (value > door->data_max)
			return -EINVAL;
		WRITE_ONCE(door->data_min, value);
		return 0;
	case STPLR_PARAM_DATA_MAX:
		if (value < door->data_min)
			return -EINVAL;
		WRITE_ONCE(door->data_max, value);
		return 0;
	case STPLR_PARAM_DESC_MAX:
		if (value > INT_MAX)
			return -ERANGE;
		if (value && door->attributes & STPLR_DOOR_REFUSE_DESC)
			return -EOPNOTSUPP;
		WRITE_ONCE(door->desc_max, value);
		return 0;
	default:
		return -EINVAL;
	}
}

static long set(struct stplr_door *door, const struct stplr_door_set __user *user, size_t size)
{
	struct stplr_door_set arguments;
	int err = stplr_get_sized(&arguments, user, size, STPLR_DOOR_SET_SIZE_VER0);

	if (err)
		return err;
	if (arguments.reserved)
		return -EINVAL;
	if (!stplr_pool_mine(door->pool))
		return -EPERM;
	spin_lock(&door->lock);
	err = set_locked(door, arguments.which, arguments.value);
	spin_unlock(&door->lock);
	return err;
}

long stplr_door_ioctl(struct file *file, struct file *through, unsigned int command,
		      unsigned long argument)
{
	struct stplr_door *door = file->private_data;
	const size_t size = _IOC_SIZE(command);
	void __user *user = (void __user *)argument;

	stplr_unpark();
	switch (STPLR_SIZELESS(command)) {
	case STPLR_SIZELESS(STPLR_DOOR_CALL):
		return stplr_door_call(door, user, size, through);
	case STPLR_SIZELESS(STPLR_DOOR_INFO):
		return tell_info(door, user, size, file, through);
	case STPLR_SIZELESS(STPLR_DOOR_SET):
		return set(door, user, size);
	case STPLR_SIZELESS(STPLR_DOOR_REVOKE):
		return revoke(door);
	case STPLR_SIZELESS(STPLR_DOOR_ATTACH):
		return stplr_door_attach(file, user, size);
	default:
		return -ENOTTY;
	}
}

static long door_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	return stplr_door_ioctl(file, file, command, argument);
}

static void door_show_fdinfo(struct seq_file *to, struct file *file)
{
	struct stplr_door *door = file->private_data;
	struct stplr_pool *pool = door->pool;
	int server = -1;

	if (!stplr_port_closed(&pool->port))
		server = pid_nr_ns(pool->tgid, proc_pid_ns(file_inode(to->file)->i_sb));
	seq_printf(to, "door:\t%llu\nserver:\t%d\nattributes:\t%x\n", door->id, server,
		   stplr_door_attributes(door) & ~STPLR_DOOR_LOCAL);
}

static const struct file_operations door_operations = {
	.owner = THIS_MODULE,
	.flush = door_flush,
	.release = door_release,
	.unlocked_ioctl = door_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = door_show_fdinfo,
	.llseek = noop_llseek,
};

struct stplr_door *stplr_door_of_file(const struct file *file)
{
	file = stplr_doorfs_behind(file);
	return file->f_op == &door_operations ? file->private_data : NULL;
}

static struct stplr_door *door_new(struct stplr_pool *pool,
				   const struct stplr_door_create *arguments)
{
	struct stplr_door *door = kzalloc(sizeof(*door), GFP_KERNEL_ACCOUNT);
	int err;

	if (!door)
		return ERR_PTR(-ENOMEM);
	err = stplr_user_charge(pool->user, sizeof(*door));
	if (err) {
		kfree(door);
		return ERR_PTR(err);
	}
	door->user = pool->user;
	refcount_inc(&door->user->refs);
	refcount_inc(&pool->refs);
	atomic_inc(&pool->doors);
	door->pool = pool;
	refcount_set(&door->refs, 1);
	door->id = atomic64_inc_return(&ids);
	door->procedure = arguments->procedure;
	door->cookie = arguments->cookie;
	door->attributes = arguments->attributes;
	spin_lock_init(&door->lock);
	door->data_max = U64_MAX;
	door->desc_max = door->attributes & STPLR_DOOR_REFUSE_DESC ? 0 : INT_MAX;
	INIT_DELAYED_WORK(&door->count_work, count_references);
	return door;
}

long stplr_door_create(struct stplr_pool *pool, const struct stplr_door_create __user *user,
		       size_t size)
{
	const u32 both = STPLR_DOOR_UNREF | STPLR_DOOR_UNREF_MULTI;
	struct stplr_door_create arguments;
	struct stplr_door *door;
	long fd;

	fd = stplr_get_sized(&arguments, user, size, STPLR_DOOR_CREATE_SIZE_VER0);
	if (fd)
		return fd;
	if (arguments.attributes & ~CREATE_ATTRIBUTES || arguments.reserved ||
	    (arguments.attributes & both) == both)
		return -EINVAL;
	door = door_new(pool, &arguments);
	if (IS_ERR(door))
		return PTR_ERR(door);
	fd = stplr_anon_fd("[stplr-door]", &door_operations, door);
	if (fd < 0)
		stplr_door_put(door);
	return fd;
}
