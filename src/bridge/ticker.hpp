// SPDX-License-Identifier: Apache-2.0
//
// A thread that looks after calls in progress every millisecond, and sleeps while there are none.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "bridge/crowd.hpp"

namespace farcall::bridge {

class Ticker {
 public:
  using Clock = std::chrono::steady_clock;
  // `look` says whether there is anything left to look after.
  explicit Ticker(std::function<bool(Clock::time_point now)> look)
      : look_(std::move(look)), thread_([this] { run(); }) {}
  ~Ticker() { stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // It looks no more.
  void stop() noexcept {
    {
      const std::lock_guard guard(lock_);
      stop_ = true;
      asleep_ = false;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Whether processors are scarce; what it was when there was last something to look after.
  [[nodiscard]] bool crowded() const noexcept { return crowd_.crowded(); }
  // There is something to look after. Costs one load where the thread is awake. What was put where
  // look() finds it, before, is found: both sides are sequentially consistent.
  void wake() noexcept {
    if (!asleep_.load()) [[likely]]
      return;
    const std::lock_guard guard(lock_);
    asleep_ = false;
    changed_.notify_all();
  }

 private:
  void run() {
    constexpr std::chrono::milliseconds kStep{1};
    constexpr int kQuietSteps = 300;  // then it sleeps
    int quiet = 0;
    std::unique_lock lock(lock_);
    while (!stop_) {
      changed_.wait_for(lock, kStep, [this] { return stop_; });
      lock.unlock();
      crowd_.look();
      quiet = look_(Clock::now()) ? 0 : quiet + 1;
      lock.lock();
      if (quiet < kQuietSteps || stop_) continue;
      asleep_ = true;
      lock.unlock();
      const bool anything = look_(Clock::now());
      lock.lock();
      if (!anything) changed_.wait(lock, [this] { return !asleep_.load(); });
      asleep_ = false;
      quiet = 0;
    }
  }

  const std::function<bool(Clock::time_point)> look_;
  Crowd crowd_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::atomic<bool> asleep_{false};
  bool stop_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace farcall::bridge
