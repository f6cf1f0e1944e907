// SPDX-License-Identifier: Apache-2.0
//
// Signals while a call stays awake. The kernel would have interrupted a sleeper; a handler that
// runs while the library spins would otherwise be followed by a sleep that nobody ends.
#pragma once

#include <signal.h>

#include <cstdint>

#include "preload/real.hpp"

namespace farcall::preload {

// What a call that waits owes to the signals that came.
enum class Interruption : std::uint8_t { none, restarts, ends };

constexpr std::uint64_t signal_bit(int number) noexcept { return std::uint64_t{1} << (number - 1); }

// Keeps signals of this thread from being handled, until it goes.
class HeldSignals {
 public:
  HeldSignals() noexcept {
    kernel(SYS_rt_sigprocmask, SIG_BLOCK, &kHeld, &before_, kKernelMaskSize);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() { kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, kKernelMaskSize); }

  // Of those that have come meanwhile, and will be handled as soon as this goes.
  [[nodiscard]] Interruption interruption() const noexcept {
    std::uint64_t waiting = 0;
    kernel(SYS_rt_sigpending, &waiting, kKernelMaskSize);
    waiting &= ~before_ & kHeld;
    Interruption worst = Interruption::none;
    for (; waiting != 0; waiting &= waiting - 1) {
      struct {
        void (*handler)(int);
        unsigned long flags;
        void* restorer;
        std::uint64_t mask;
      } action{};
      const int number = __builtin_ctzll(waiting) + 1;
      if (kernel(SYS_rt_sigaction, number, nullptr, &action, kKernelMaskSize) < 0) continue;
      if (action.handler == SIG_DFL || action.handler == SIG_IGN) continue;
      if ((action.flags & SA_RESTART) == 0) return Interruption::ends;
      worst = Interruption::restarts;
    }
    return worst;
  }

 private:
  // Not those by which the processor complains, nor those of the C library itself (32 and 33).
  static constexpr std::uint64_t kHeld =
      ~(signal_bit(SIGSEGV) | signal_bit(SIGBUS) | signal_bit(SIGFPE) | signal_bit(SIGILL) |
        signal_bit(SIGTRAP) | signal_bit(SIGSYS) | signal_bit(32) | signal_bit(33));
  std::uint64_t before_ = 0;
};

// Keeps those blocked that a call's own mask blocks, from block() until it goes: what comes
// meanwhile is handled behind the call, and does not end it.
class MaskedSignals {
 public:
  MaskedSignals() = default;
  MaskedSignals(const MaskedSignals&) = delete;
  MaskedSignals& operator=(const MaskedSignals&) = delete;
  ~MaskedSignals() {
    if (blocks_) kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, kKernelMaskSize);
  }
  void block(const sigset_t* mask) noexcept {
    if (mask == nullptr || blocks_) return;
    blocks_ = kernel(SYS_rt_sigprocmask, SIG_BLOCK, mask, &before_, kKernelMaskSize) == 0;
  }

 private:
  bool blocks_ = false;
  std::uint64_t before_ = 0;
};

}  // namespace farcall::preload
