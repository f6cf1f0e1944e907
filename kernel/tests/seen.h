/* SPDX-License-Identifier: GPL-2.0 */
/* What the module shows in debugfs, and its parameters, as tests read and set them. */
#ifndef SEEN_H
#define SEEN_H

#include <stdarg.h>

#include "tap.h"

#define FOLDER "/sys/kernel/debug/stplr/"
#define PARAMETERS "/sys/module/stplr/parameters/"

/* All of a file; the caller frees it. */
static inline char *contents(const char *path)
{
	FILE *file = fopen(path, "r");
	size_t size = 0, room = 1 << 16;
	char *text = malloc(room);

	CHECK(file && text);
	for (;;) {
		size_t got = fread(text + size, 1, room - size - 1, file);

		if (!got)
			break;
		size += got;
		if (size == room - 1)
			CHECK((text = realloc(text, room *= 2)));
	}
	CHECK(!ferror(file));
	fclose(file);
	text[size] = 0;
	return text;
}

/* How many lines of a file contain a text. */
__attribute__((format(printf, 2, 3))) static inline int lines(const char *path,
							     const char *format, ...)
{
	char wanted[200], *text = contents(path), *rest = text;
	int count = 0;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(wanted, sizeof(wanted), format, arguments);
	va_end(arguments);
	for (char *line; (line = strsep(&rest, "\n"));)
		count += strstr(line, wanted) != NULL;
	free(text);
	return count;
}

#define AWAIT_LINE(...)                                                                          \
	do {                                                                                     \
		while (!lines(__VA_ARGS__))                                                      \
			nap(2);                                                                  \
	} while (0)

static inline long counter(const char *name)
{
	char *text = contents(FOLDER "counters"), *line = strstr(text, name);
	long value;

	CHECK(line && (line == text || line[-1] == '\n') && line[strlen(name)] == ' ');
	value = atol(line + strlen(name));
	free(text);
	return value;
}

/* The number of the channel of that name. */
static inline unsigned int number_of(const char *name)
{
	char *text = contents(FOLDER "channels"), *rest = text, wanted[80];
	unsigned int number = 0;

	snprintf(wanted, sizeof(wanted), " name %s", name);
	for (char *line; (line = strsep(&rest, "\n"));)
		if (strstr(line, wanted))
			number = (unsigned int)atoi(line);
	free(text);
	CHECK(number);
	return number;
}

/* What a user is charged for; 0 for one that is not listed. */
static inline long bytes_of(unsigned int uid)
{
	char *text = contents(FOLDER "users"), start[20];
	char *line;
	long bytes;

	snprintf(start, sizeof(start), "\n%u ", uid);
	line = strstr(text, start);
	bytes = line ? atol(line + strlen(start)) : 0;
	free(text);
	return bytes;
}

/* The same, once all that processes before have left is given back, which takes a moment. */
static inline long settled_bytes_of(unsigned int uid)
{
	long bytes = bytes_of(uid), before;

	do {
		before = bytes;
		nap(50);
		bytes = bytes_of(uid);
	} while (bytes != before);
	return bytes;
}

static inline void write_to(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	CHECK(file && fputs(text, file) >= 0);
	OK(fclose(file));
}

#endif
