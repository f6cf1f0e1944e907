/* SPDX-License-Identifier: Apache-2.0
 *
 * A server as it is written for Solaris, with nothing in it for Linux: squares of numbers, by
 * threads of its own making. server PATH
 */
#include <sys/types.h>
#include <sys/stat.h>
#include <door.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stropts.h>
#include <synch.h>
#include <thread.h>
#include <ucred.h>
#include <unistd.h>

static mutex_t lock = DEFAULTMUTEX;
static int threads_made = 0;
static sema_t over;

static void *
serve_for_ever(void *arg)
{
	(void) arg;
	(void) door_return(NULL, 0, NULL, 0);
	return (NULL);
}

static void
make_thread(door_info_t *dip)
{
	(void) dip;
	(void) mutex_lock(&lock);
	threads_made++;
	(void) mutex_unlock(&lock);
	if (thr_create(NULL, 0, serve_for_ever, NULL, THR_BOUND | THR_DETACHED, NULL) != 0)
		perror("thr_create");
}

static void
square(void *cookie, char *argp, size_t arg_size, door_desc_t *dp, uint_t n_desc)
{
	ucred_t *uc = NULL;
	long number;
	uint_t i;

	for (i = 0; i < n_desc; i++)
		(void) close(dp[i].d_data.d_desc.d_descriptor);
	if (argp == DOOR_UNREF_DATA || arg_size != sizeof (number)) {
		(void) door_return(NULL, 0, NULL, 0);
		return;
	}
	if (door_ucred(&uc) != 0 || ucred_geteuid(uc) != geteuid()) {
		(void) fprintf(stderr, "a stranger called\n");
		exit(1);
	}
	ucred_free(uc);
	(void) memcpy(&number, argp, sizeof (number));
	if (number == 0)
		(void) sema_post(&over);
	number = number * number + *(long *)cookie;
	if (door_return((char *)&number, sizeof (number), NULL, 0) < 0)
		perror("door_return");
}

int
main(int argc, char *argv[])
{
	static long nothing = 0;
	int did, fd;

	if (argc != 2) {
		(void) fprintf(stderr, "usage: server path\n");
		return (2);
	}
	(void) sema_init(&over, 0, USYNC_THREAD, NULL);
	(void) door_server_create(make_thread);
	if ((did = door_create(square, &nothing, DOOR_UNREF)) < 0) {
		perror("door_create");
		return (1);
	}
	if ((fd = open(argv[1], O_CREAT | O_RDWR, 0600)) < 0) {
		perror(argv[1]);
		return (1);
	}
	(void) close(fd);
	(void) fdetach(argv[1]);
	if (fattach(did, argv[1]) < 0) {
		perror("fattach");
		return (1);
	}
	while (sema_wait(&over) == EINTR)
		continue;
	(void) sleep(1);
	(void) fdetach(argv[1]);
	(void) unlink(argv[1]);
	(void) printf("threads: %s\n", threads_made > 0 ? "made" : "missing");
	return (0);
}
