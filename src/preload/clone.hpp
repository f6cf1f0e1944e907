// SPDX-License-Identifier: Apache-2.0
//
// A task with this process's memory, for what must not be done by one that the program has.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/real.hpp"

namespace farcall::preload {

// Of a thread with descriptors of its own.
inline constexpr int kThreadApart =
    CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;

// clone(2), in the child `function` on that stack; no handler of the program's runs there.
// `cleared` is for CLONE_CHILD_CLEARTID. Returns the child's number, or -1.
template <std::size_t Size>
int clone_without_handlers(int (*function)(void*) noexcept, std::byte (&stack)[Size], int flags,
                           std::atomic<std::uint32_t>* cleared = nullptr) noexcept {
  using Clone = int(int (*)(void*), void*, int, void*, ...);
  const std::uint64_t all = ~std::uint64_t{0};
  std::uint64_t before = 0;
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, kKernelMaskSize);
  const int child = real::next<"clone", Clone>()(function, stack + Size, flags, nullptr, nullptr,
                                                 nullptr, cleared);
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kKernelMaskSize);
  return child;
}

}  // namespace farcall::preload
