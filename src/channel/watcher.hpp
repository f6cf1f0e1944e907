// SPDX-License-Identifier: Apache-2.0
//
// A thread that sleeps on a lifeline, for a mechanism whose calls nothing but itself can wake.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <thread>

#include "channel/lifeline.hpp"

namespace farcall::channel {

class Watcher {
 public:
  enum class News { finished, gone };

  // `tell` is called once, on a thread with all signals blocked: when the other end says that it
  // has finished, or goes without saying so.
  Watcher(Lifeline lifeline, std::function<void(News)> tell);
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher() { stop(); }

  // Starts to watch, if it does not yet. Not done before the end is used: a process that opens
  // several channels and forks can so do it with one thread. Throws SystemError.
  void start() {
    if (!thread_.joinable()) start_thread();
  }
  // Tells the other end; from the owner's thread.
  void say_finished() noexcept;
  // Whether the other end, or the handle of it, still exists somewhere.
  [[nodiscard]] bool other_exists() const noexcept;
  // Ends the thread, and the lifeline for the other end; `tell` is not called after that. If
  // `tell` can wait for something, the owner must have ended that.
  void stop() noexcept;
  // False in a forked child, which has a copy of the object, but no thread.
  [[nodiscard]] bool is_owner() const noexcept;

 private:
  void start_thread();
  void run();

  Lifeline lifeline_;  // only the thread receives from it
  std::function<void(News)> tell_;
  pid_t owner_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace farcall::channel
