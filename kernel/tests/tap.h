/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tests that speak TAP. Each runs in a process of its own, in a session of its own, for at most
 * TEST_SECONDS, times STPLR_PATIENCE on slow kernels; whatever it leaves running is killed. A check
 * that fails ends its process; a child's failure is its parent's when the parent asks for it with
 * join(). STPLR_ONLY is the number of a test that is to run alone.
 */
#ifndef TAP_H
#define TAP_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef __x86_64__
#error "await_ioctl() knows only the number of this machine's ioctl"
#endif

#ifndef TEST_SECONDS
#define TEST_SECONDS 20
#endif

#define SKIPPED 77

#define CHECK(condition)                                                                         \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			printf("# %s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition,       \
			       errno);                                                           \
			fflush(stdout);                                                          \
			_exit(1);                                                                \
		}                                                                                \
	} while (0)

/* The call returns 0. */
#define OK(call) CHECK((call) == 0)

/* The call returns -1 with errno. */
#define FAILS(code, call)                                                                        \
	do {                                                                                     \
		errno = 0;                                                                       \
		CHECK((call) == -1);                                                             \
		CHECK(errno == (code));                                                          \
	} while (0)

#define SKIP(reason)                                                                             \
	do {                                                                                     \
		printf("# skip: %s\n", reason);                                                  \
		fflush(stdout);                                                                  \
		_exit(SKIPPED);                                                                  \
	} while (0)

static inline unsigned int patience(void)
{
	const char *text = getenv("STPLR_PATIENCE");

	return text && atoi(text) > 0 ? (unsigned int)atoi(text) : 1;
}

static inline void nap(int milliseconds)
{
	usleep((useconds_t)milliseconds * 1000);
}

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void on_signal(int number)
{
}

static inline void handle_signal(int number, int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };

	OK(sigaction(number, &action, NULL));
}

struct test {
	const char *name;
	void (*run)(void);
};

static inline void join(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Until the process waits in an ioctl; it gets there soon, or the test is ended for its slowness. */
static inline void await_ioctl(pid_t process)
{
	char path[40], call[4] = "";

	snprintf(path, sizeof(path), "/proc/%d/syscall", process);
	do {
		FILE *file = fopen(path, "r");

		CHECK(file);
		if (!fgets(call, sizeof(call), file))
			call[0] = 0;
		fclose(file);
		usleep(2000);
	} while (strcmp(call, "16 "));
}

/* For tests that change settings of the machine: put_back undoes it after each, however that went. */
static inline int run_tests_and(void (*put_back)(void), const struct test *tests, int count)
{
	const char *only = getenv("STPLR_ONLY");
	int failed = 0;

	printf("1..%d\n", count);
	fflush(stdout);
	for (int i = 0; i < count; i++) {
		if (only && atoi(only) != i + 1) {
			printf("ok %d - %s # SKIP not asked for\n", i + 1, tests[i].name);
			continue;
		}
		pid_t child = fork();
		int status;

		if (child == 0) {
			setsid();
			alarm((unsigned int)TEST_SECONDS * patience());
			tests[i].run();
			fflush(stdout);
			_exit(0);
		}
		waitpid(child, &status, 0);
		kill(-child, SIGKILL);
		while (waitpid(-child, NULL, 0) > 0)
			;
		put_back();
		if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
			printf("ok %d - %s # SKIP see above\n", i + 1, tests[i].name);
		} else {
			bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;

			if (WIFSIGNALED(status))
				printf("# ended by signal %d\n", WTERMSIG(status));
			failed += !ok;
			printf("%s %d - %s\n", ok ? "ok" : "not ok", i + 1, tests[i].name);
		}
		fflush(stdout);
	}
	return failed != 0;
}

static inline void put_nothing_back(void)
{
}

static inline int run_tests(const struct test *tests, int count)
{
	return run_tests_and(put_nothing_back, tests, count);
}

#endif
