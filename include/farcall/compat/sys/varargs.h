/* SPDX-License-Identifier: Apache-2.0
 *
 * Solaris has va_list and its macros here, too.
 */
#include <stdarg.h>
