/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials of a process, as door_ucred(3) gives them. See ucred(3).
 */
#ifndef FARCALL_COMPAT_UCRED_H
#define FARCALL_COMPAT_UCRED_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct farcall_ucred ucred_t; /* NOLINT(modernize-use-using): C's, too */

#ifndef FARCALL_ZONEID_T
#define FARCALL_ZONEID_T
typedef int zoneid_t; /* NOLINT(modernize-use-using) */
#endif

/* For ucred_get(): the process that calls. Also in <sys/procset.h>. */
#ifndef P_MYID
#define P_MYID (-1)
#endif

/* The credentials of a process, or NULL with errno: ESRCH, ENOMEM. To be freed with ucred_free().
 */
ucred_t* ucred_get(pid_t pid);
void ucred_free(ucred_t* credentials);
size_t ucred_size(void); /* of the largest ucred_t, in bytes */

/* Each returns -1 where it is not known. */
pid_t ucred_getpid(const ucred_t* credentials);
uid_t ucred_geteuid(const ucred_t* credentials);
uid_t ucred_getruid(const ucred_t* credentials);
uid_t ucred_getsuid(const ucred_t* credentials);
gid_t ucred_getegid(const ucred_t* credentials);
gid_t ucred_getrgid(const ucred_t* credentials);
gid_t ucred_getsgid(const ucred_t* credentials);
zoneid_t ucred_getzoneid(const ucred_t* credentials); /* 0: Linux has one zone */
/* The number of supplementary groups; `groups` names them and lives as long as `credentials`. */
int ucred_getgroups(const ucred_t* credentials, const gid_t** groups);

#ifdef __cplusplus
}
#endif

#endif /* FARCALL_COMPAT_UCRED_H */
