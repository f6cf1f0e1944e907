// SPDX-License-Identifier: Apache-2.0
//
// What the services of this example do, whatever carries their calls.
#pragma once

#include <time.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace farcall::rpc {

inline std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

// Arithmetic that wraps around, as the processor's does.
inline std::int32_t wrapped(std::int64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(value)));
}

struct Tick {
  std::int64_t counter;
  std::int64_t abstime;
};

// Timers of all clients. Any number of threads.
class Timers {
 public:
  static constexpr std::int64_t kInvalid = -1;

  std::int64_t start(std::int64_t interval_us) {
    if (interval_us <= 0) return kInvalid;
    const std::lock_guard guard(lock_);
    timers_[next_] = {.interval_ns = interval_us * 1000, .next_ns = now_ns() + interval_us * 1000};
    return next_++;
  }
  void stop(std::int64_t id) {
    const std::lock_guard guard(lock_);
    timers_.erase(id);
  }
  // When the next interval will have passed; nothing: there is no such timer.
  std::optional<std::int64_t> due(std::int64_t id) {
    const std::lock_guard guard(lock_);
    const auto found = timers_.find(id);
    if (found == timers_.end()) return std::nullopt;
    return found->second.next_ns;
  }
  // It has passed.
  Tick pass(std::int64_t id) {
    const std::lock_guard guard(lock_);
    const auto found = timers_.find(id);
    if (found == timers_.end()) return {.counter = -1, .abstime = 0};
    found->second.next_ns += found->second.interval_ns;
    return {.counter = found->second.counter++, .abstime = now_ns()};
  }
  Tick wait(std::int64_t id) {
    const auto at = due(id);
    if (!at) return {.counter = -1, .abstime = 0};
    const timespec until{.tv_sec = *at / 1'000'000'000, .tv_nsec = *at % 1'000'000'000};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
    return pass(id);
  }
  // The timer whose interval passes first.
  std::optional<std::pair<std::int64_t, std::int64_t>> first() {
    const std::lock_guard guard(lock_);
    std::optional<std::pair<std::int64_t, std::int64_t>> best;
    for (const auto& [id, timer] : timers_)
      if (!best || timer.next_ns < best->second) best = {id, timer.next_ns};
    return best;
  }

 private:
  struct Timer {
    std::int64_t interval_ns;
    std::int64_t next_ns;
    std::int64_t counter = 0;
  };
  std::mutex lock_;
  std::map<std::int64_t, Timer> timers_;
  std::int64_t next_ = 0;
};

}  // namespace farcall::rpc
