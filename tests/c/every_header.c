/* SPDX-License-Identifier: Apache-2.0 */
/* That one program may include all of them, in C and, by every_header.cpp, in C++. */
#include <farcall/doors.h>
#include <farcall/farcall.h>
#include <farcall/limits.h>
#include <farcall/message.h>
