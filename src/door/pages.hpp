// SPDX-License-Identifier: Apache-2.0
//
// Whether a caller's pointer can be used, so that a bad one gives EFAULT and not a signal.
#pragma once

#include <cstddef>

namespace farcall::door {

// Looks at the first and the last of the pages, at each of them where they are few. A page that was
// found readable is not looked at again for a while; looking costs a system call.
bool readable(const void* address, std::size_t size) noexcept;
// The same for memory that will be written to.
bool writable(void* address, std::size_t size) noexcept;

}  // namespace farcall::door
