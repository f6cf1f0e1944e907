/* SPDX-License-Identifier: Apache-2.0
 *
 * Every header, in each dialect of C and C++, without a warning.
 */
#define _REENTRANT
#define __EXTENSIONS__
#include <door.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <stropts.h>
#include <synch.h>
#include <sys/door.h>
#include <sys/filio.h>
#include <sys/procset.h>
#include <sys/stat.h>
#include <sys/stropts.h>
#include <sys/synch.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/ucred.h>
#include <sys/varargs.h>
#include <sys/zone.h>
#include <thread.h>
#include <ucred.h>
#include <unistd.h>
#include <zone.h>

static rwlock_t rwlock = DEFAULTRWLOCK;
static sema_t semaphore = DEFAULTSEMA;
static mutex_t mutex = DEFAULTMUTEX;
static cond_t condition = DEFAULTCV;

int
main(void)
{
	thread_key_t key = THR_ONCE_KEY;
	boolean_t good = B_TRUE;
	hrtime_t now = gethrtime();
	struct stat status;
	char name[6];

	if (thr_keycreate_once(&key, 0) != 0 || key == THR_ONCE_KEY)
		good = B_FALSE;
	if (rw_rdlock(&rwlock) != 0 || rw_unlock(&rwlock) != 0)
		good = B_FALSE;
	if (mutex_lock(&mutex) != 0 || cond_signal(&condition) != 0 || mutex_unlock(&mutex) != 0)
		good = B_FALSE;
	if (sema_post(&semaphore) != 0 || sema_wait(&semaphore) != 0)
		good = B_FALSE;
	if (stat("/", &status) != 0 || S_ISDOOR(status.st_mode) || DOOR_UNREF_DATA == 0)
		good = B_FALSE;
	if (ucred_getpid(ucred_get(P_MYID)) != getpid() || isastream(0) != 0)
		good = B_FALSE;
	if (strlcpy(name, "a longer name", sizeof (name)) != 13 || strcmp(name, "a lon") != 0)
		good = B_FALSE;
	if (strlcpy(name, "ab", sizeof (name)) != 2 || strlcat(name, "cdef", sizeof (name)) != 6 ||
	    strcmp(name, "abcde") != 0 || strlcat(name, "f", 3) != 4 || strlcpy(name, "", 0) != 0)
		good = B_FALSE;
	if (getzoneid() != GLOBAL_ZONEID || ucred_getzoneid(ucred_get(P_MYID)) != (zoneid_t)0)
		good = B_FALSE;
#ifndef __cplusplus	/* where the C library says that it is out of fashion */
	if (sigset(SIGUSR1, SIG_IGN) != SIG_DFL || sighold(SIGUSR2) != 0 || sigrelse(SIGUSR2) != 0)
		good = B_FALSE;
#endif
	return good == B_TRUE && gethrtime() >= now ? 0 : 1;
}
