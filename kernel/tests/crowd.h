/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Crowds: processes that are interrupted, killed and started anew at random, and the memory that
 * they pass, which may be none, or stop to be while it is used, or come late.
 *
 * STPLR_SECONDS says how long each test goes on, 2 by default.
 */
#ifndef CROWD_H
#define CROWD_H

/* Only what comes on top takes longer on slow kernels. */
#define TEST_SECONDS (seconds() / patience() + 40)
static unsigned int seconds(void);

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "new.h"

static unsigned int seconds(void)
{
	const char *text = getenv("STPLR_SECONDS");

	return text && atoi(text) > 0 ? (unsigned int)atoi(text) : 2;
}

static unsigned long long seed;

static unsigned int dice(unsigned int sides)
{
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (unsigned int)(seed >> 33) % sides;
}

/* A signal every few milliseconds, with or without SA_RESTART. */
static void be_interrupted(void)
{
	struct sigaction action = { .sa_handler = on_signal,
				    .sa_flags = dice(2) ? SA_RESTART : 0 };
	int microseconds = 500 + (int)dice(5000);
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

#define MOST (200 * 1024)

static void *new_memory(void)
{
	return mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static bool write_setting(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return done;
}

static bool short_of_memory;

/* Whether what the kernel does for this thread fails at random. */
static void let_fail(bool fail)
{
	if (!short_of_memory)
		return;
	/* That may fail for the same reason. */
	for (int i = 0; i < 1000; i++)
		if (write_setting("/proc/thread-self/make-it-fail", fail ? "1" : "0"))
			return;
	abort();
}

static inline void be_short_of_memory(void)
{
	short_of_memory = true;
	let_fail(true);
}

/*
 * New threads and processes are had at any time: the kernel itself warns when it fails to make room
 * for their stacks, which is none of the module's business.
 */
static void start_thread(void *(*run)(void *))
{
	pthread_t thread;

	let_fail(false);
	pthread_create(&thread, NULL, run, NULL);
	let_fail(true);
}

static inline void fork_and_end(void)
{
	let_fail(false);
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	let_fail(true);
}

static int late_faults = -1;
static char *late;

/* Lets pages come some time after they were wanted, or never, and go again. */
static void *bring_pages(void *argument)
{
	struct pollfd faults = { .fd = late_faults, .events = POLLIN };
	struct uffd_msg fault;

	for (;;) {
		if (poll(&faults, 1, 5) <= 0) {
			madvise(late, MOST, MADV_DONTNEED);
			continue;
		}
		if (read(late_faults, &fault, sizeof(fault)) != sizeof(fault) || !dice(30))
			continue;
		struct uffdio_zeropage page = {
			.range = { fault.arg.pagefault.address & ~4095ULL, 4096 }
		};

		usleep(dice(1000));
		ioctl(late_faults, UFFDIO_ZEROPAGE, &page);
	}
	return NULL;
}

/* Memory whose pages come late, or the other kind where the kernel has none such. */
static void *late_memory(void)
{
	struct uffdio_api api = { .api = UFFD_API };

	if (late)
		return late;
	late = new_memory();
	late_faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffdio_register range = { .range = { (unsigned long)late, MOST },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };

	if (late_faults >= 0 && !ioctl(late_faults, UFFDIO_API, &api) &&
	    !ioctl(late_faults, UFFDIO_REGISTER, &range))
		start_thread(bring_pages);
	return late;
}

/* Memory, or something that is none, or that stops to be while it is used. */
static void *some_memory(void)
{
	static char *fine, *turning;

	if (!fine) {
		fine = new_memory();
		turning = new_memory();
	}
	switch (dice(16)) {
	case 0:
		return (void *)(unsigned long)dice(1 << 16);
	case 1:
		return (void *)0xffff800000000000UL;
	case 2:
		mprotect(turning, MOST, dice(2) ? PROT_READ : PROT_NONE);
		return turning;
	case 3:
		mprotect(turning, MOST, PROT_READ | PROT_WRITE);
		madvise(turning, MOST, MADV_DONTNEED);
		return turning;
	case 4:
		/* Half of it becomes another mapping, just now. */
		mmap(turning, MOST / 2, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		return turning + dice(MOST / 2);
	case 5:
		return fine + MOST - dice(9000); /* its end is nobody's */
	case 6:
	case 7:
		return late_memory();
	default:
		return fine;
	}
}

static size_t some_size(void)
{
	static const size_t sizes[] = { 0, 1, 64, 256, 257, 4096, 16384, 16385, 65536, MOST };

	return sizes[dice(sizeof(sizes) / sizeof(*sizes))];
}

static inline struct stplr_buffer some_buffer(void)
{
	void *memory = some_memory();
	size_t size = some_size();

	return dice(4) ? stplr_bytes(memory, size) : stplr_registered(dice(4), memory, size);
}

typedef void worker(int fd);

static pid_t start(worker *run, int fd, int unused, unsigned int number)
{
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		seed = (unsigned long long)getpid() * 7919 + number;
		close(unused);
		run(fd);
		_exit(1);
	}
	CHECK(child > 0);
	return child;
}

/* Workers are killed at random and started anew. */
static void a_crowd(worker *server, int channel, worker *client, int connection)
{
	double end = now() + seconds();
	pid_t crowd[10];
	unsigned int started = 0;

	for (int i = 0; i < 10; i++)
		crowd[i] = i < 3 ? start(server, channel, connection, started++) :
				   start(client, connection, channel, started++);
	while (now() < end) {
		unsigned int i = dice(10);

		usleep(dice(20000));
		/* A thread that waits to be killed may leave SIGTERM pending behind other signals. */
		if (dice(4) == 0) {
			kill(crowd[i], SIGTERM);
			usleep(dice(3000));
		}
		kill(crowd[i], SIGKILL);
		waitpid(crowd[i], NULL, 0);
		crowd[i] = i < 3 ? start(server, channel, connection, started++) :
				   start(client, connection, channel, started++);
	}
	for (int i = 0; i < 10; i++) {
		kill(crowd[i], SIGKILL);
		waitpid(crowd[i], NULL, 0);
	}
	printf("# %u came and went\n", started);
}

/* From now on allocations and copies of those who ask for it fail at random. False: not here. */
static bool let_memory_run_short(void)
{
	static const char *const faults[] = { "failslab", "fail_page_alloc", "fail_usercopy" };
	static const char *const settings[][2] = {
		{ "task-filter", "Y" }, { "probability", "10" }, { "interval", "1" },
		{ "times", "-1" },	{ "verbose", "0" },
	};
	char path[100];

	if (access("/sys/kernel/debug/failslab", F_OK))
		return false;
	for (size_t f = 0; f < sizeof(faults) / sizeof(*faults); f++)
		for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
			snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", faults[f],
				 settings[i][0]);
			CHECK(write_setting(path, settings[i][1]));
		}
	CHECK(write_setting("/sys/kernel/debug/failslab/ignore-gfp-wait", "N"));
	CHECK(write_setting("/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N"));
	CHECK(write_setting("/sys/kernel/debug/fail_page_alloc/min-order", "0"));
	return true;
}

#endif
