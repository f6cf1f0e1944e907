// SPDX-License-Identifier: Apache-2.0
//
// How a signal handler keeps a thread from a sleep that has not begun.
#pragma once

#include <atomic>
#include <cstdint>

#include "farcall/wait.hpp"

namespace farcall {

namespace detail {
// The word that the thread is about to sleep on, or sleeps on.
[[gnu::tls_model(
    "initial-exec")]] extern constinit thread_local std::atomic<std::atomic<std::uint32_t>*>
    sleeps_on;
}  // namespace detail

// Says that the thread is about to sleep while `word` is WaitState::kOnFutex, which note_signal()
// changes. After that, what the handlers have counted is to be looked at once more.
class Sleeper {
 public:
  explicit Sleeper(std::atomic<std::uint32_t>& word) noexcept
      : before_(detail::sleeps_on.load(std::memory_order_relaxed)) {
    detail::sleeps_on.store(&word, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Sleeper() { detail::sleeps_on.store(before_, std::memory_order_relaxed); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  // What a sleeper sleeps on in whose handler, one that tells nothing of itself, this one waits.
  std::atomic<std::uint32_t>* const before_;
};

}  // namespace farcall
