// SPDX-License-Identifier: Apache-2.0
//
// Rings (io_uring) that the program asks the kernel for by syscall(2).
//
// What is done through a ring is not seen here, but for what the program submits by a call that is.
// libuv has one in each loop, and through it changes what its epoll set listens to, nothing else:
// those requests go to the kernel one by one, and what it answers is noted as the results of
// epoll_ctl() are. Whoever asks for anything else is left to the kernel for good before the kernel
// hears of it; and so is who sets up a ring that the kernel reads by itself.
#pragma once

namespace farcall::preload {

// Arguments and results are those of the system calls; errors in errno.
long set_up_ring(unsigned entries, void* parameters) noexcept;
long enter_ring(const long (&arguments)[6]) noexcept;
long register_with_ring(const long (&arguments)[6]) noexcept;

[[nodiscard]] bool is_ring(int fd) noexcept;
// The descriptor is closed.
void forget_ring(int fd) noexcept;
void forget_rings(unsigned first, unsigned last) noexcept;

}  // namespace farcall::preload
