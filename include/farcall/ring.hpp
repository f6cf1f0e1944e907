// SPDX-License-Identifier: Apache-2.0
//
// Rings: one direction of bytes or messages in shared memory, between two processes or threads.
#pragma once

#include "farcall/ring/broadcast_ring.hpp"  // IWYU pragma: export
#include "farcall/ring/byte_ring.hpp"       // IWYU pragma: export
#include "farcall/ring/memory.hpp"          // IWYU pragma: export
#include "farcall/ring/message_ring.hpp"    // IWYU pragma: export
