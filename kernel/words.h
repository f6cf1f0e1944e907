/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies of a few words from and to programs: the structures that ioctls take, and the bytes of
 * small messages. The general copy starts a string instruction and looks the kernel's side up
 * among the slabs, for each of the six copies of a small round trip; these do neither. Callers
 * answer for the kernel's side themselves: its size is known where they are called.
 */
#ifndef STPLR_WORDS_H
#define STPLR_WORDS_H

#include <linux/build_bug.h>
#include <linux/ioctl.h>
#include <linux/uaccess.h>

static __always_inline int stplr_words_in(u64 *to, const u64 __user *from, size_t count)
{
	size_t i;

	if (!user_read_access_begin(from, count * sizeof(*to)))
		return -EFAULT;
#pragma GCC unroll 32
	for (i = 0; i < count; i++)
		unsafe_get_user(to[i], &from[i], fault);
	user_read_access_end();
	return 0;
fault:
	user_read_access_end();
	return -EFAULT;
}

static __always_inline int stplr_words_out(u64 __user *to, const u64 *from, size_t count)
{
	size_t i;

	if (!user_write_access_begin(to, count * sizeof(*from)))
		return -EFAULT;
#pragma GCC unroll 32
	for (i = 0; i < count; i++)
		unsafe_put_user(from[i], &to[i], fault);
	user_write_access_end();
	return 0;
fault:
	user_write_access_end();
	return -EFAULT;
}

/* Any number of bytes; worth it up to some hundreds. */
static __always_inline int stplr_few_in(u8 *to, const u8 __user *from, size_t length)
{
	if (!user_read_access_begin(from, length))
		return -EFAULT;
	for (; length >= 32; length -= 32, to += 32, from += 32) {
		unsafe_get_user(((u64 *)to)[0], (const u64 __user *)from, fault);
		unsafe_get_user(((u64 *)to)[1], (const u64 __user *)from + 1, fault);
		unsafe_get_user(((u64 *)to)[2], (const u64 __user *)from + 2, fault);
		unsafe_get_user(((u64 *)to)[3], (const u64 __user *)from + 3, fault);
	}
	for (; length >= 8; length -= 8, to += 8, from += 8)
		unsafe_get_user(*(u64 *)to, (const u64 __user *)from, fault);
	for (; length; length--)
		unsafe_get_user(*to++, from++, fault);
	user_read_access_end();
	return 0;
fault:
	user_read_access_end();
	return -EFAULT;
}

static __always_inline int stplr_few_out(u8 __user *to, const u8 *from, size_t length)
{
	if (!user_write_access_begin(to, length))
		return -EFAULT;
	for (; length >= 32; length -= 32, to += 32, from += 32) {
		unsafe_put_user(((const u64 *)from)[0], (u64 __user *)to, fault);
		unsafe_put_user(((const u64 *)from)[1], (u64 __user *)to + 1, fault);
		unsafe_put_user(((const u64 *)from)[2], (u64 __user *)to + 2, fault);
		unsafe_put_user(((const u64 *)from)[3], (u64 __user *)to + 3, fault);
	}
	for (; length >= 8; length -= 8, to += 8, from += 8)
		unsafe_put_user(*(const u64 *)from, (u64 __user *)to, fault);
	for (; length; length--)
		unsafe_put_user(*from++, to++, fault);
	user_write_access_end();
	return 0;
fault:
	user_write_access_end();
	return -EFAULT;
}

#define stplr_get_first_bytes(to, from, size)                                                    \
	({                                                                                       \
		BUILD_BUG_ON((size) % 8);                                                        \
		stplr_words_in((u64 *)(to), (const u64 __user *)(from), (size) / 8);             \
	})

/* 0 or -EFAULT. to is a structure; from is where the program says that it has one. */
#define stplr_get_arguments(to, from) stplr_get_first_bytes(to, from, sizeof(*(to)))

/* Only what comes before member end. */
#define stplr_get_arguments_before(to, from, end)                                                \
	stplr_get_first_bytes(to, from, offsetof(typeof(*(to)), end))

/*
 * Arguments of a program whose structure has size bytes, at least those of the first version, and may know
 * more or less of it than this kernel. 0, -EFAULT, -EINVAL, -E2BIG.
 */
#define stplr_get_sized(to, from, size, version0)                                                \
	(likely((size) == sizeof(*(to))) ? stplr_get_arguments(to, from) :                       \
	 (size) < (version0)		 ? -EINVAL :                                             \
					   copy_struct_from_user(to, sizeof(*(to)), from, size))

/* Likewise, but where it is known well only what comes before member end. */
#define stplr_get_sized_before(to, from, size, version0, end)                                    \
	(likely((size) == sizeof(*(to))) ? stplr_get_arguments_before(to, from, end) :           \
	 (size) < (version0)		 ? -EINVAL :                                             \
					   copy_struct_from_user(to, sizeof(*(to)), from, size))

/* What comes from member first on, as far as the program knows it. 0 or -EFAULT. */
#define stplr_put_sized(to, from, size, first)                                                   \
	({                                                                                       \
		const size_t first_ = offsetof(typeof(*(from)), first);                          \
		likely((size) >= sizeof(*(from))) ?                                              \
			stplr_put_arguments(to, from, first) :                                   \
			copy_to_user((u8 __user *)(to) + first_, (const u8 *)(from) + first_,    \
				     (size) - first_) ?                                          \
			-EFAULT :                                                                \
			0;                                                                       \
	})

/* A whole structure of known bytes, of which the program has size; what this kernel does not know is cleared. */
static inline int stplr_put_whole(void __user *to, const void *from, size_t known, size_t size)
{
	const size_t both = min(known, size);

	if (copy_to_user(to, from, both) || clear_user((u8 __user *)to + both, size - both))
		return -EFAULT;
	return 0;
}

/* A command, whatever size its structure has. */
#define STPLR_SIZELESS(command) ((command) & ~IOCSIZE_MASK)

/* Only what comes from member first on. */
#define stplr_put_arguments(to, from, first)                                                     \
	({                                                                                       \
		const size_t offset_ = offsetof(typeof(*(from)), first);                         \
		BUILD_BUG_ON(sizeof(*(from)) % 8 || offsetof(typeof(*(from)), first) % 8);       \
		stplr_words_out((u64 __user *)((u8 __user *)(to) + offset_),                     \
				(const u64 *)((const u8 *)(from) + offset_),                     \
				(sizeof(*(from)) - offset_) / 8);                                \
	})

#endif
