// SPDX-License-Identifier: Apache-2.0
//
// What the parts of a random program share: the state of both ends, in memory that survives
// whatever an end does to itself.
#pragma once

#include <sys/time.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace farcall::preload::test {

class Random {
 public:
  void seed(std::uint64_t value) { state_ = mix(mix(value + 1)); }
  std::uint64_t below(std::uint64_t count) { return mix(state_ += 0x9E3779B97F4A7C15) % count; }

 private:
  static std::uint64_t mix(std::uint64_t value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
    value = (value ^ value >> 27) * 0x94D049BB133111EB;
    return value ^ value >> 31;
  }
  std::uint64_t state_;
};

// One end. It is one process at a time, or two of which one waits for the other.
struct End {
  char name;  // 'c' has connected, 's' has accepted
  bool is_tcp;
  bool is_packets;  // bytes come in messages, which are read whole
  bool waits_raw;   // by system calls that no library sees
  int fd;
  std::uint64_t seed, total;
  std::uint64_t habits;  // which kinds of things this program does at all
  Random random;
  std::atomic<std::uint64_t> sent, received;
  std::atomic<bool> shut, ended;
  std::atomic<bool> told_early;  // of the end, while messages were left
  bool interrupted;              // signals come, and calls may end early
  int depth;                     // how many processes wait for this one

  [[nodiscard]] char byte_at(std::uint64_t offset) const {
    return static_cast<char>(1 + ((offset + seed) * 0x9E3779B97F4A7C15 >> 40) % 251);
  }
};

struct Both {
  End client, server;
};

extern End* mine;
extern End* other;

[[noreturn]] void fail(const char* what);
void trace(const char* format, ...) __attribute__((format(printf, 1, 2)));

inline std::uint64_t pick(std::uint64_t count) { return mine->random.below(count); }
inline bool one_in(std::uint64_t count) { return pick(count) == 0; }

// A child's end: it must have been well.
void wait_for(pid_t child);

// Sends, reads or waits, once.
void transfer();

}  // namespace farcall::preload::test
