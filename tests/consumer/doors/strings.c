/* SPDX-License-Identifier: Apache-2.0
 *
 * What <strings.h> of Solaris declares: all of <string.h>, too.
 */
#include <strings.h>

int
main(void)
{
	char name[4];

	bzero(name, sizeof (name));
	return strlcpy(name, "ab", sizeof (name)) == 2 && memcmp(name, "ab", 3) == 0 ? 0 : 1;
}
