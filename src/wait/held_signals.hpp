// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <mutex>

namespace farcall {

// Keeps handlers from running on this thread, so that nothing comes between a look at what they
// have counted and a sleep that lets them run again (ppoll(2) and its like, with before()). All
// signals, but for those by which the C library cancels threads.
class HeldSignals {
 public:
  HeldSignals() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  [[nodiscard]] const sigset_t* before() const noexcept { return &before_; }

 private:
  sigset_t before_;
};

// Holds a lock that handlers need as well, those that fork above all.
class QuietGuard {
 public:
  explicit QuietGuard(std::mutex& lock) : guard_(lock) {}

 private:
  const HeldSignals held_;  // from before until after
  const std::lock_guard<std::mutex> guard_;
};

}  // namespace farcall
