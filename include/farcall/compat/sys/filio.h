/* SPDX-License-Identifier: Apache-2.0
 *
 * Solaris has FIONREAD, FIONBIO and their like here.
 */
#include <sys/ioctl.h>
