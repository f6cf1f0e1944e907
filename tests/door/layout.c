/* SPDX-License-Identifier: Apache-2.0
 *
 * The layouts and values that programs and bindings of other languages depend on, as C sees them.
 */
#include <door.h>
#include <stddef.h>
#include <stropts.h>
#include <sys/door.h>
#include <sys/stat.h>
#include <ucred.h>
#include <unistd.h>

#include "layout_assertions.h"

int layout_seen_by_c(void) { return (int)sizeof(door_arg_t); }
