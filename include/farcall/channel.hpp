// SPDX-License-Identifier: Apache-2.0
//
// Channels: every Linux way to move bytes between two processes, behind one interface.
#pragma once

#include "farcall/channel/anonymous_mapping.hpp"  // IWYU pragma: export
#include "farcall/channel/clean.hpp"              // IWYU pragma: export
#include "farcall/channel/end.hpp"                // IWYU pragma: export
#include "farcall/channel/fifo.hpp"               // IWYU pragma: export
#include "farcall/channel/file_mapping.hpp"       // IWYU pragma: export
#include "farcall/channel/mechanism.hpp"          // IWYU pragma: export
#include "farcall/channel/memfd.hpp"              // IWYU pragma: export
#include "farcall/channel/pipe.hpp"               // IWYU pragma: export
#include "farcall/channel/posix_mq.hpp"           // IWYU pragma: export
#include "farcall/channel/posix_shm.hpp"          // IWYU pragma: export
#include "farcall/channel/process_vm.hpp"         // IWYU pragma: export
#include "farcall/channel/pty.hpp"                // IWYU pragma: export
#include "farcall/channel/ring.hpp"               // IWYU pragma: export
#include "farcall/channel/subprocess.hpp"         // IWYU pragma: export
#include "farcall/channel/sysv_mq.hpp"            // IWYU pragma: export
#include "farcall/channel/sysv_shm.hpp"           // IWYU pragma: export
#include "farcall/channel/tcp.hpp"                // IWYU pragma: export
#include "farcall/channel/udp.hpp"                // IWYU pragma: export
#include "farcall/channel/unix_dgram.hpp"         // IWYU pragma: export
#include "farcall/channel/unix_seqpacket.hpp"     // IWYU pragma: export
#include "farcall/channel/unix_stream.hpp"        // IWYU pragma: export
#include "farcall/channel/vmsplice.hpp"           // IWYU pragma: export
