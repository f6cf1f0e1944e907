// SPDX-License-Identifier: Apache-2.0
//
// Channels: every Linux way to move bytes between two processes, behind one interface.
#pragma once

#include "farcall/channel/anonymous_mapping.hpp"  // IWYU pragma: export
#include "farcall/channel/end.hpp"                // IWYU pragma: export
#include "farcall/channel/file_mapping.hpp"       // IWYU pragma: export
#include "farcall/channel/mechanism.hpp"          // IWYU pragma: export
#include "farcall/channel/memfd.hpp"              // IWYU pragma: export
#include "farcall/channel/pipe.hpp"               // IWYU pragma: export
#include "farcall/channel/posix_shm.hpp"          // IWYU pragma: export
#include "farcall/channel/ring.hpp"               // IWYU pragma: export
#include "farcall/channel/subprocess.hpp"         // IWYU pragma: export
#include "farcall/channel/sysv_shm.hpp"           // IWYU pragma: export
#include "farcall/channel/unix_stream.hpp"        // IWYU pragma: export
