/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies of many bytes from and to programs. Callers answer for the kernel's side: its size is known
 * where they are called, and it is no object that the general copy would have to look up.
 */
#ifndef STPLR_BYTES_H
#define STPLR_BYTES_H

#include <linux/fault-inject-usercopy.h>
#include <linux/instrumented.h>
#include <linux/nospec.h>
#include <linux/uaccess.h>

#ifdef CONFIG_X86_64
#include <asm/asm.h>

/* Returns how many words are left to copy: 0 unless the program's memory faults. */
static __always_inline size_t stplr_string_words(void *to, const void *from, size_t words)
{
	asm volatile("1:	rep movsq\n"
		     "2:\n" _ASM_EXTABLE_UA(1b, 2b)
		     : "+c"(words), "+D"(to), "+S"(from)
		     :
		     : "memory");
	return words;
}

/*
 * The general copy goes byte by byte wherever a processor says that it is fast at that. Such a
 * processor is as fast at words if both sides are aligned to them, and emulators are eight times as
 * fast. These do so.
 */
static inline bool stplr_raw_in(u8 *to, const u8 __user *from, size_t length)
{
	size_t done = round_down(length, sizeof(u64));

	if (!IS_ALIGNED((unsigned long)to | (unsigned long)from, sizeof(u64)))
		return !raw_copy_from_user(to, from, length);
	if (!user_read_access_begin(from, length))
		return false;
	if (stplr_string_words(to, (__force const u8 *)from, done / sizeof(u64)))
		goto fault;
	for (; done < length; done++)
		unsafe_get_user(to[done], &from[done], fault);
	user_read_access_end();
	return true;
fault:
	user_read_access_end();
	return false;
}

static inline bool stplr_raw_out(u8 __user *to, const u8 *from, size_t length)
{
	size_t done = round_down(length, sizeof(u64));

	if (!IS_ALIGNED((unsigned long)to | (unsigned long)from, sizeof(u64)))
		return !raw_copy_to_user(to, from, length);
	if (!user_write_access_begin(to, length))
		return false;
	if (stplr_string_words((__force u8 *)to, from, done / sizeof(u64)))
		goto fault;
	for (; done < length; done++)
		unsafe_put_user(from[done], &to[done], fault);
	user_write_access_end();
	return true;
fault:
	user_write_access_end();
	return false;
}
#else
static inline bool stplr_raw_in(u8 *to, const u8 __user *from, size_t length)
{
	return !raw_copy_from_user(to, from, length);
}

static inline bool stplr_raw_out(u8 __user *to, const u8 *from, size_t length)
{
	return !raw_copy_to_user(to, from, length);
}
#endif

/* False: the program's memory faults; then any part of it may have been copied. */
static inline bool stplr_bytes_in(u8 *to, u64 from, size_t length)
{
	const u8 __user *program = u64_to_user_ptr(from);
	bool fine;

	might_fault();
	if (should_fail_usercopy() || !access_ok(program, length))
		return false;
	/* That answer is not to be guessed: what is read may say where to read next. */
	barrier_nospec();
	instrument_copy_from_user_before(to, program, length);
	fine = stplr_raw_in(to, program, length);
	instrument_copy_from_user_after(to, program, length, fine ? 0 : length);
	return fine;
}

static inline bool stplr_bytes_out(u64 to, const u8 *from, size_t length)
{
	u8 __user *program = u64_to_user_ptr(to);

	might_fault();
	if (should_fail_usercopy() || !access_ok(program, length))
		return false;
	instrument_copy_to_user(program, from, length);
	return stplr_raw_out(program, from, length);
}

#endif
