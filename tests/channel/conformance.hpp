// SPDX-License-Identifier: Apache-2.0
//
// What the tests of every mechanism share. A test that hangs is ended by SIGALRM, its children
// with it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "farcall/channel/mechanism.hpp"
#include "farcall/channel/subprocess.hpp"
#include "farcall/error.hpp"
#include "harness/error_of.hpp"

namespace farcall::channel {

inline std::ostream& operator<<(std::ostream& out, const AnyMechanism& mechanism) {
  return out << mechanism.properties().name;
}

}  // namespace farcall::channel

namespace farcall::channel::test {

using namespace farcall::test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline bool on_valgrind() {
  const char* preload = std::getenv("LD_PRELOAD");
  return preload != nullptr && std::strstr(preload, "vgpreload") != nullptr;
}

class Conformance : public testing::TestWithParam<AnyMechanism> {
 protected:
  void SetUp() override {
    ::alarm(on_valgrind() ? 200 : kSanitized ? 120 : 50);
    const std::string_view name = GetParam().properties().name;
    if (on_valgrind() && (name == "anonymous_mapping" || name == "sysv_shm"))
      GTEST_SKIP() << "valgrind cannot map shared memory without a descriptor twice";
  }
  void TearDown() override { ::alarm(0); }

  static const AnyMechanism& mechanism() { return GetParam(); }
  static const Properties& properties() { return GetParam().properties(); }
  static AnyChannel channel(std::size_t buffer_bytes = 0) {
    return {GetParam(), Options{.buffer_bytes = buffer_bytes}};
  }
};

inline std::string test_name(const testing::TestParamInfo<AnyMechanism>& info) {
  return std::string(info.param.properties().name);
}

// The mechanisms that have a property, or lack it.
inline std::vector<AnyMechanism> mechanisms_where(bool Properties::*property, bool value = true) {
  std::vector<AnyMechanism> result;
  for (const AnyMechanism& mechanism : all_mechanisms())
    if (mechanism.properties().*property == value) result.push_back(mechanism);
  return result;
}

// For children, where a failure must become an exit status.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("required: " + what);
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A long sequence of bytes that both ends can make. Its period is a prime, larger than any ring's
// step, so that bytes lost, repeated or moved do not look right.
class Pattern {
 public:
  explicit Pattern(std::size_t start = 0) : position_(start % kPeriod) {}

  void fill(std::span<std::byte> into) {
    walk(into.size(), [&](std::size_t at, const std::byte* expected, std::size_t count) {
      std::memcpy(into.data() + at, expected, count);
    });
  }
  bool check(std::span<const std::byte> bytes) {
    bool right = true;
    walk(bytes.size(), [&](std::size_t at, const std::byte* expected, std::size_t count) {
      right = right && std::memcmp(bytes.data() + at, expected, count) == 0;
    });
    return right;
  }

 private:
  static constexpr std::size_t kPeriod = 1'000'003;

  static const std::vector<std::byte>& table() {
    static const std::vector<std::byte> bytes = [] {
      std::vector<std::byte> made(kPeriod);
      std::mt19937 random(2024);
      for (std::byte& byte : made) byte = static_cast<std::byte>(random());
      return made;
    }();
    return bytes;
  }
  template <class Visit>
  void walk(std::size_t size, Visit visit) {
    for (std::size_t at = 0; at < size;) {
      const std::size_t count = std::min(size - at, kPeriod - position_);
      visit(at, table().data() + position_, count);
      at += count;
      position_ = (position_ + count) % kPeriod;
    }
  }

  std::size_t position_;
};

// Sizes from 1 to `most`, small ones as often as large ones.
class RandomSizes {
 public:
  RandomSizes(unsigned seed, std::size_t most) : random_(seed), most_(most) {}
  std::size_t next() {
    const auto bits = std::uniform_int_distribution<unsigned>(0, 20)(random_);
    return std::min(most_, std::uniform_int_distribution<std::size_t>(1, 1U << bits)(random_));
  }

 private:
  std::mt19937 random_;
  std::size_t most_;
};

// The writer's part, on a thread of its own until destroyed: some mechanisms hold nothing, so that
// a write() waits for its reader.
class Meanwhile {
 public:
  template <class Part>
  explicit Meanwhile(Part part) : thread_(std::move(part)) {}
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;
  ~Meanwhile() { thread_.join(); }

 private:
  std::thread thread_;
};

inline constexpr std::size_t kLargestStep = std::size_t{300} * 1024;

// Writes `total` bytes of the pattern in random steps.
inline void write_pattern(Writer& out, std::size_t total, unsigned seed = 1) {
  Pattern pattern;
  RandomSizes sizes(seed, kLargestStep);
  std::vector<std::byte> buffer(kLargestStep);
  for (std::size_t done = 0; done < total;) {
    const std::span step(buffer.data(), std::min(sizes.next(), total - done));
    pattern.fill(step);
    out.write(step);
    done += step.size();
  }
}

// Reads in random steps until the end or `most` bytes; returns how many came. Throws
// std::runtime_error at the first byte that is wrong.
inline std::size_t read_pattern(Reader& in, std::size_t most = SIZE_MAX, unsigned seed = 2) {
  Pattern pattern;
  RandomSizes sizes(seed, kLargestStep);
  std::vector<std::byte> buffer(kLargestStep);
  std::size_t total = 0;
  while (total < most) {
    const std::size_t count = in.read({buffer.data(), std::min(sizes.next(), most - total)});
    if (count == 0) break;
    if (!pattern.check({buffer.data(), count}))
      throw std::runtime_error("wrong bytes after the first " + std::to_string(total));
    total += count;
  }
  return total;
}

}  // namespace farcall::channel::test
