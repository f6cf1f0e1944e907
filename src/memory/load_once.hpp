// SPDX-License-Identifier: Apache-2.0
//
// A word of memory that others may write to at any time. What is checked of it is what is used: of
// an ordinary load a compiler may make two, the second one after the check.
#pragma once

#include <atomic>
#include <concepts>

namespace farcall {

// `from` is aligned as a T. relaxed: what came before it is ordered by what was looked at before.
template <std::integral T>
[[nodiscard]] T load_once(const void* from) noexcept {
  // Only read: C++20 has none for constants.
  return std::atomic_ref(*static_cast<T*>(const_cast<void*>(from))).load(std::memory_order_relaxed);
}

}  // namespace farcall
