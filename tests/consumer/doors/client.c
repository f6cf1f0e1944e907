/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of server.c, as it is written for Solaris. client PATH
 */
#include <sys/types.h>
#include <sys/stat.h>
#include <door.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int
main(int argc, char *argv[])
{
	struct stat st;
	door_info_t info;
	door_arg_t d_arg;
	long number, result;
	int fd, i;

	if (argc != 2) {
		(void) fprintf(stderr, "usage: client path\n");
		return (2);
	}
	for (i = 0; i < 20; i++) {
		if (stat(argv[1], &st) == 0 && S_ISDOOR(st.st_mode))
			break;
		(void) sleep(1);
	}
	if ((fd = open(argv[1], O_RDWR)) < 0) {
		perror(argv[1]);
		return (1);
	}
	if (door_info(fd, &info) < 0) {
		perror("door_info");
		return (1);
	}
	(void) printf("attributes: %s%s\n",
	    (info.di_attributes & DOOR_UNREF) ? "unref" : "",
	    (info.di_attributes & DOOR_LOCAL) ? " local" : "");
	for (number = 12; number >= 0; number -= 6) {
		d_arg.data_ptr = (char *)&number;
		d_arg.data_size = sizeof (number);
		d_arg.desc_ptr = NULL;
		d_arg.desc_num = 0;
		d_arg.rbuf = (char *)&result;
		d_arg.rsize = sizeof (result);
		if (door_call(fd, &d_arg) < 0) {
			perror("door_call");
			return (1);
		}
		(void) printf("%ld: %ld\n", number, result);
	}
	return (0);
}
