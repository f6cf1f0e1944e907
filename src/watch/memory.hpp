// SPDX-License-Identifier: Apache-2.0
//
// The memory of a process that is watched, and the list of what it maps.
//
//  - Root reads and writes with the rights of the process's user (act_as.hpp).
//  - A process can make whoever reads its memory wait, for as long as it likes and so that not even
//    SIGKILL ends that (a page of a file system that it serves itself). So root has what others own
//    read by a process of its own, which does nothing else, and gives up on both when it does not
//    answer in time. How long it waits for one user, and for all, is bounded.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace farcall::watch {

struct Owner {
  pid_t pid = 0;
  uid_t user = 0;
  gid_t group = 0;
};

// All of it, one place behind the other, or nothing. errno: EPERM, ESRCH, EFAULT; ETIMEDOUT: the
// process does not let itself be read and is not tried again for a while, or its user keeps root
// waiting too much; EAGAIN: there is nobody to read it.
bool read_memory(const Owner& of, std::span<const iovec> there, void* into, std::size_t size);
// How many bytes have been written, up to the first that could not be.
std::size_t write_memory(const Owner& of, std::span<const iovec> there, const void* from,
                         std::size_t size);
// What the kernel reads of a process's memory for a file of /proc/PID.
enum class ProcFile : std::uint8_t { maps, environ };
// With whose rights root reads; it is not held up in either case.
enum class Rights : std::uint8_t { owners, own };
// Such a file. 0, or an errno value, of which ETIMEDOUT is the same.
int read_text(const Owner& of, ProcFile file, std::string& into, Rights rights = Rights::owners);

}  // namespace farcall::watch
