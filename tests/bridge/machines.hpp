// SPDX-License-Identifier: Apache-2.0
//
// Machines of a network of their own, whose lines lose, delay, reorder and double what they carry.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "bridge/harness.hpp"

namespace farcall::test {

// How a line treats each frame that it carries, in either direction.
struct Line {
  std::atomic<unsigned> lost{0};         // of a thousand
  std::atomic<unsigned> doubled{0};      // of a thousand
  std::atomic<unsigned> delay_us{0};     // at least
  std::atomic<unsigned> jitter_us{0};    // and at most so much more: later frames may come first
  std::atomic<std::uint64_t> frames{0};  // carried so far
  std::atomic<std::uint64_t> missed{0};  // lost so far
  std::atomic<std::uint64_t> repeated{0};
};

// Network namespaces m1, m2, ... of the addresses 10.77.0.1, 10.77.0.2, ..., each with a line to
// one switch between them. They go with this process, whose own namespaces these replace. Throws
// where that is forbidden.
class Machines {
 public:
  static constexpr unsigned kMost = 8;

  explicit Machines(unsigned count);
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;
  ~Machines();
  static Machine name(unsigned number) { return "m" + std::to_string(number); }
  static std::string address(unsigned number) { return "10.77.0." + std::to_string(number); }
  // Pulls the plug, or puts it in again.
  void connect(unsigned number, bool on) const;
  [[nodiscard]] Line& line(unsigned number) const noexcept { return lines_[number - 1]; }

 private:
  Line* lines_;  // shared with the process that carries the frames
  pid_t carrier_ = -1;
};

}  // namespace farcall::test
