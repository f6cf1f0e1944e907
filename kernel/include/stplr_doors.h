/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Doors: procedures of another process behind file descriptors. What programs and stplr.ko say to each
 * other; libfarcall-doors says it for programs that include door.h.
 *
 * /dev/door gives pools, a pool gives doors, and all are file descriptors, close-on-exec. A pool is where
 * threads of one process wait for calls; only that process, its creator, uses it, and it ends with
 * the process, with exec, or with its last descriptor. A door may be inherited and passed on, and
 * whoever has it may call it. Its last descriptor is its end.
 *
 * Structures grow as those of stplr.h do, reserved fields have to be 0 (EINVAL), and "out" says what is
 * written when the call succeeds. What a user holds in the kernel is bounded (EDQUOT).
 */
#ifndef STPLR_DOORS_H
#define STPLR_DOORS_H

#include "stplr.h"

/* Of a door; the values are those of door.h. The kernel acts by all but the last two of these. */
#define STPLR_DOOR_UNREF 0x01u /* tell once that a single descriptor is left */
#define STPLR_DOOR_UNREF_MULTI 0x10u /* tell so each time */
#define STPLR_DOOR_REFUSE_DESC 0x40u
#define STPLR_DOOR_NO_CANCEL 0x80u /* no notice when a client leaves */
#define STPLR_DOOR_PRIVATE 0x02u
#define STPLR_DOOR_DEPLETION_CB 0x400u

/* In addition, of what a door is to who asks. */
#define STPLR_DOOR_LOCAL 0x04u /* its server is the caller */
#define STPLR_DOOR_REVOKED 0x08u
#define STPLR_DOOR_IS_UNREF 0x20u

/* Of a descriptor that is passed; of a door the above come with it. */
#define STPLR_DOOR_DESCRIPTOR 0x10000u

#define STPLR_DOOR_FILES_MAX 1024 /* descriptors that go along (E2BIG) */

struct stplr_pool_create {
	__u32 flags; /* 0 */
	__u32 spin_us; /* as of a channel */
};

struct stplr_door_create {
	__u64 procedure; /* both are told with each call, and mean nothing to the kernel */
	__u64 cookie;
	__u32 attributes;
	__u32 reserved;
};

struct stplr_door_desc {
	__s32 fd;
	__u32 attributes; /* STPLR_DOOR_DESCRIPTOR has to be there (EINVAL) */
	__u64 id; /* out: of a door, else 0 */
};

#define STPLR_CALL_BARE 1u /* without arguments; a result that is not empty is refused */
#define STPLR_CALL_ARMED 2u /* unless `armed` is 1 by now: a handler that ran just before has cleared it */

struct stplr_door_call {
	__u64 data;
	__u64 size;
	__u64 room; /* for the result */
	__u64 room_size;
	__u64 descriptors; /* address of struct stplr_door_desc that go along */
	__u64 received; /* address of room for those that come back */
	__u32 count;
	__u32 received_room;
	__u32 flags;
	__u32 armed; /* else 0 */
	/* All out from here on. */
	__u64 replied; /* bytes */
	__u64 mapped; /* where they are, if there was no room: pages to be unmapped by the caller */
	__u64 mapped_size;
	__u32 received_count;
	__u32 reserved_too;
};

#define STPLR_RETURN_ONLY 1u /* answer, and do not wait */
#define STPLR_RETURN_REFUSE 2u /* the call fails, with refusal, and where that is 0 with E2BIG */
#define STPLR_RETURN_DEFER 4u /* no answer: any thread may give it later; with STPLR_RETURN_ONLY */
#define STPLR_RETURN_AGAIN 8u /* no answer: the client brings its data and sends it once more */

/* What there is to know of a call beside. */
#define STPLR_NOTE_UNREF 1u /* no call: a single descriptor of the door is left */
#define STPLR_NOTE_LAST 2u /* no other thread waits in this pool */
#define STPLR_NOTE_BARE 4u /* of STPLR_CALL_BARE */

struct stplr_door_return {
	__u64 id; /* of the call that is answered; 0: none */
	__u64 data;
	__u64 size;
	__u64 descriptors; /* address of struct stplr_door_desc that go along */
	__u32 count;
	__u32 flags;
	__u64 room; /* for what the next client sends */
	__u64 room_size;
	__u64 received; /* address of room for struct stplr_door_desc */
	__u32 received_room;
	__u32 refusal; /* an errno, with STPLR_RETURN_REFUSE only */
	/* All out from here on. */
	__u64 next_id; /* to answer by; 0: nothing to answer */
	__u64 procedure;
	__u64 cookie;
	__u64 door; /* its id */
	__u64 length; /* of the data, of which as much is received as there is room; see STPLR_READ */
	__u64 reply_room; /* of the client; more is mapped for it */
	__u32 received_count;
	__u32 notes;
	__u32 attributes; /* that the door was made with */
	__s32 pid; /* of the client; 0: not in this pid namespace */
};

#define STPLR_PARAM_DESC_MAX 1u
#define STPLR_PARAM_DATA_MAX 2u
#define STPLR_PARAM_DATA_MIN 3u

struct stplr_door_set {
	__u32 which;
	__u32 reserved;
	__u64 value;
};

struct stplr_door_info {
	__s32 target; /* pid of the server; 0: not in this pid namespace; -1: it has ended */
	__u32 attributes;
	__u64 procedure;
	__u64 cookie;
	__u64 id; /* of no other door as long as the module is there */
	__u64 data_min;
	__u64 data_max;
	__u64 desc_max;
};

struct stplr_door_cred {
	__u64 id; /* of a call */
	__u64 groups; /* address of room for __u32 */
	__u32 group_room;
	__u32 reserved;
	/* Out: as they were when the client called; more groups than there is room for are counted. */
	__u32 euid;
	__u32 egid;
	__u32 ruid;
	__u32 rgid;
	__u32 suid;
	__u32 sgid;
	__s32 pid;
	__u32 group_count;
};

struct stplr_door_notice {
	__u64 id; /* of the call whose client has left */
	__s32 tid; /* of the thread that has it */
	__u32 reserved;
};

#define STPLR_DOOR_CLOEXEC 1u /* of the descriptor that is returned */
#define STPLR_DOOR_LOOK 2u /* only tell, by 0, that there is one */

struct stplr_door_path {
	__s32 fd; /* a regular file */
	__u32 flags;
};

#define STPLR_DOOR_PATH_SIZE_VER0 8
#define STPLR_POOL_CREATE_SIZE_VER0 8
#define STPLR_DOOR_CREATE_SIZE_VER0 24
#define STPLR_DOOR_CALL_SIZE_VER0 96
#define STPLR_DOOR_RETURN_SIZE_VER0 136
#define STPLR_DOOR_SET_SIZE_VER0 16
#define STPLR_DOOR_INFO_SIZE_VER0 56
#define STPLR_DOOR_CRED_SIZE_VER0 56
#define STPLR_DOOR_NOTICE_SIZE_VER0 16

/* On /dev/door. Returns a descriptor. */
#define STPLR_POOL_CREATE _IOW(STPLR_IOCTL, 96, struct stplr_pool_create)

/*
 * On a pool, by its creator (EPERM). Returns a descriptor of a new door. EINVAL: attributes that are not
 * the creator's to choose, or both of the first two.
 */
#define STPLR_DOOR_CREATE _IOW(STPLR_IOCTL, 97, struct stplr_door_create)

/*
 * On a door: calls its server and waits for the result. In this order: EFAULT (no arguments); EBADF (it
 * is revoked); ENOBUFS, ENOTSUP, ENFILE (not what the door takes); EAGAIN (not armed any more); while it
 * waits for a thread EAGAIN (a signal), EBADF; once there is one E2BIG (more than a server can take),
 * EFAULT, EINVAL (no such descriptor), EMFILE (the server's table is full); from then on EINTR (a signal,
 * or the server's thread has ended), EOVERFLOW (no memory for the result), EFAULT, EMFILE (the caller's
 * table is full). Never restarted.
 */
#define STPLR_DOOR_CALL _IOWR(STPLR_IOCTL, 98, struct stplr_door_call)

/*
 * On a pool, by a thread of its creator (EPERM): answers the call that this thread has, and waits for the
 * next of any door of the pool. A client that is gone is passed over. What the client has no room
 * for is mapped there. E2BIG (the client takes no result, or too many descriptors), EFAULT, EINVAL (no
 * such descriptor), EFBIG (more to be mapped than RLIMIT_FSIZE) fail before anything is sent or received,
 * and the client waits on. A call ends with the thread that has it, unless it is deferred: then it is the
 * pool's, and any thread of the creator answers it by its id, once, also where its client is gone. ENOMEM,
 * EDQUOT; ESRCH: this thread has no such call, or the client has gone: there is nothing to answer. Whatever
 * a thread that ends in its wait has received is told in received_count, if that was 0 before. ESRCH: the
 * pool has ended; EINTR.
 */
#define STPLR_DOOR_RETURN _IOWR(STPLR_IOCTL, 99, struct stplr_door_return)

/* On a door: what it is. EFAULT. */
#define STPLR_DOOR_INFO _IOR(STPLR_IOCTL, 100, struct stplr_door_info)

/* On a door, by its creator (EPERM). ERANGE, ENOTSUP (descriptors, with REFUSE_DESC), EINVAL. */
#define STPLR_DOOR_SET _IOW(STPLR_IOCTL, 101, struct stplr_door_set)

/* On a door, by its creator (EPERM): nobody can call it any more. EBADF: it is revoked. */
#define STPLR_DOOR_REVOKE _IO(STPLR_IOCTL, 102)

/* On a pool, by the thread that has the call: who its client is. EINVAL: it has no such call (any more). */
#define STPLR_DOOR_CRED _IOWR(STPLR_IOCTL, 103, struct stplr_door_cred)

/*
 * On a pool, by its creator: a client that has left without its answer. EAGAIN: there is none to tell of.
 * poll: the pool is readable where there is. A thread that has answered meanwhile is to be left in peace.
 * POLLRDHUP: the pool has no door, so that threads wait in it in vain until one is made.
 */
#define STPLR_POOL_NOTICE _IOR(STPLR_IOCTL, 104, struct stplr_door_notice)

/*
 * On a door, by who owns the file (EPERM) and has it open for writing (EACCES): the file leads to the
 * door, until that is undone, the file is deleted, or its file system is unmounted. It counts as a
 * descriptor of the door. EBUSY: a door is attached there, or mounted; EINVAL: no regular file, or one of the
 * kernel's own, as in /proc; EOPNOTSUPP: the kernel was built without marks on inodes.
 */
#define STPLR_DOOR_ATTACH _IOW(STPLR_IOCTL, 105, struct stplr_door_path)

/*
 * On /dev/door: undoes that, by who owns the file (EPERM), which need not be open for anything (O_PATH).
 * EINVAL: no door is attached there.
 */
#define STPLR_DOOR_DETACH _IOW(STPLR_IOCTL, 106, struct stplr_door_path)

/*
 * On /dev/door: returns a descriptor of the door that is attached to an open file. ENXIO: there is none.
 * With STPLR_DOOR_LOOK the file need not be open for anything (O_PATH).
 */
#define STPLR_DOOR_OPEN _IOW(STPLR_IOCTL, 107, struct stplr_door_path)

/*
 * The file system "doorfs", mounted over a file by root: every program that opens the file has a door. Its
 * options are fd=, a descriptor of the door, and mode=, uid= and gid= of the file (0600, 0, 0). EINVAL: no
 * such option, or no door of the kernel; EBADF. It counts as a descriptor of the door until it is unmounted
 * and nobody has it open. statfs(2) has the first of these in f_type, stat(2) the second as the minor
 * number in st_rdev.
 */
#define STPLR_DOORFS_MAGIC 0x446f6f72
#define STPLR_DOORFS_MINOR 0xd00

/*
 * STPLR_READ on a pool, by the thread that has the call: what it had no room for. EAGAIN: the client's memory
 * is not at hand, perhaps for long; STPLR_RETURN_AGAIN is for that. EFAULT; ESRCH: it has no such call.
 */

#endif /* STPLR_DOORS_H */
