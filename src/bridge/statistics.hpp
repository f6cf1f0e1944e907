// SPDX-License-Identifier: Apache-2.0
//
// What is counted for each name. Any thread counts.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>

namespace farcall::bridge {

// How long calls took: eight steps in each power of two of nanoseconds.
class Latencies {
 public:
  void add(std::chrono::nanoseconds time) noexcept {
    const auto ns = static_cast<std::uint64_t>(time.count() > 0 ? time.count() : 0);
    steps_[index(ns)].fetch_add(1, std::memory_order_relaxed);  // only counted: pairs with nothing
  }
  // Nanoseconds within which that share of the calls was, to an eighth; 0 where there are none.
  [[nodiscard]] std::uint64_t percentile(double share) const noexcept {
    std::uint64_t all = 0;
    for (const auto& step : steps_) all += step.load(std::memory_order_relaxed);
    auto left = static_cast<std::uint64_t>(static_cast<double>(all) * share);
    for (std::size_t i = 0; all != 0 && i < steps_.size(); ++i) {
      const std::uint64_t here = steps_[i].load(std::memory_order_relaxed);
      if (here > left) return upper(i);
      left -= here;
    }
    return all == 0 ? 0 : upper(steps_.size() - 1);
  }

 private:
  static constexpr std::size_t kSteps = 8;
  static std::size_t index(std::uint64_t ns) noexcept {
    if (ns < kSteps) return static_cast<std::size_t>(ns);
    const auto power = static_cast<std::size_t>(std::bit_width(ns)) - 4;  // of the step's width
    const std::size_t at = (power + 1) * kSteps + ((ns >> power) & (kSteps - 1));
    return at < kAll ? at : kAll - 1;
  }
  static std::uint64_t upper(std::size_t at) noexcept {
    if (at < kSteps) return at;
    const std::size_t power = at / kSteps - 1;
    return ((std::uint64_t{at % kSteps} + kSteps + 1) << power) - 1;
  }
  static constexpr std::size_t kAll = 41 * kSteps;  // up to some hours
  std::array<std::atomic<std::uint64_t>, kAll> steps_{};
};

struct Statistics {
  std::atomic<std::uint64_t> calls{0};     // begun
  std::atomic<std::uint64_t> answered{0};  // with whatever the server said
  std::atomic<std::uint64_t> errors{0};    // of the bridge: nobody served, died, refused, ...
  std::atomic<std::uint64_t> cancelled{0};
  std::atomic<std::uint64_t> resent{0};
  std::atomic<std::uint64_t> one_way{0};
  std::atomic<std::uint64_t> pulses{0};
  std::atomic<std::uint64_t> undelivered{0};  // pulses and one-way messages that nobody received
  std::atomic<std::uint64_t> uncertain{0};    // those lost with a connection or a server, or not
  std::atomic<std::uint64_t> malformed{0};    // that came, and could not be
  std::atomic<std::int64_t> in_progress{0};
  std::atomic<int> last_error{0};
  Latencies latencies;

  void failed(int error) noexcept {
    ++errors;
    last_error = error;
  }
  // What became of a pulse or one-way message.
  void lost(int error) noexcept {
    if (error != 0) ++(error == ECONNRESET ? uncertain : undelivered);
  }
};

}  // namespace farcall::bridge
