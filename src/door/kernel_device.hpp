// SPDX-License-Identifier: Apache-2.0
//
// /dev/door, as this process has it.
#pragma once

namespace farcall::door::kernel {

// Does `command` on it. Returns what ioctl(2) does, with errno; ENOENT or EACCES where there is no
// such device, or not for this process.
int on_device(unsigned long command, void* argument) noexcept;

// Whether there is one for this process. Leaves errno alone.
bool has_device() noexcept;

}  // namespace farcall::door::kernel
