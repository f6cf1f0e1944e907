// SPDX-License-Identifier: Apache-2.0
//
// What the C library of Solaris has in <zone.h>, as far as it makes sense here.
#include "farcall/compat/zone.h"

extern "C" zoneid_t getzoneid(void) { return GLOBAL_ZONEID; }
