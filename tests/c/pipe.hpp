// SPDX-License-Identifier: Apache-2.0
//
// Ends of pipes for tests of the C interface.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farcall/farcall.h"
#include "harness/child.hpp"
#include "harness/descriptors.hpp"
#include "harness/thread_state.hpp"

namespace farcall::c::test {

using namespace std::chrono_literals;
using namespace farcall::test;

// Longer than anything that must happen takes; then the watchdog has ended the test.
inline constexpr std::int64_t kLong = 60'000'000'000;
inline constexpr std::int64_t kShort = 20'000'000;

inline bool readable(int fd, int timeout_ms) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

struct Close {
  void operator()(farcall_pipe* end) const noexcept { farcall_pipe_close(end); }
};
using End = std::unique_ptr<farcall_pipe, Close>;

inline farcall_pipe_options options_of(std::size_t capacity, int wait = FARCALL_WAIT_ADAPTIVE,
                                       int kind = FARCALL_PIPE_MESSAGES) {
  return {.size = sizeof(farcall_pipe_options), .capacity = capacity, .wait = wait, .kind = kind};
}

struct Ends {
  explicit Ends(std::size_t capacity = 0, int wait = FARCALL_WAIT_ADAPTIVE,
                int kind = FARCALL_PIPE_MESSAGES) {
    const farcall_pipe_options options = options_of(capacity, wait, kind);
    farcall_pipe* first = nullptr;
    farcall_pipe* second = nullptr;
    EXPECT_EQ(farcall_pipe_create(&options, &first, &second), 0);
    one.reset(first);
    other.reset(second);
  }
  End one;
  End other;
};
struct ByteEnds : Ends {
  explicit ByteEnds(std::size_t capacity = 0, int wait = FARCALL_WAIT_ADAPTIVE)
      : Ends(capacity, wait, FARCALL_PIPE_BYTES) {}
};

inline int send(const End& end, std::string_view text, std::int64_t timeout = kLong) {
  return farcall_pipe_send(end.get(), text.data(), text.size(), timeout);
}
// The message, or the symbolic name of the error.
inline std::string receive(const End& end, std::int64_t timeout = kLong) {
  std::string text(1'000, 0);
  const std::int64_t size =
      farcall_pipe_receive(end.get(), text.data(), text.size(), nullptr, timeout);
  if (size < 0) return ::strerrorname_np(static_cast<int>(-size));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

inline std::int64_t write(const End& end, std::string_view text, std::int64_t timeout = kLong) {
  return farcall_pipe_write(end.get(), text.data(), text.size(), timeout);
}
// What is there, or the symbolic name of the error; nothing at the end.
inline std::string read(const End& end, std::int64_t timeout = kLong, std::size_t room = 1'000) {
  std::string text(room, 0);
  const std::int64_t size = farcall_pipe_read(end.get(), text.data(), text.size(), timeout);
  if (size < 0) return ::strerrorname_np(static_cast<int>(-size));
  text.resize(static_cast<std::size_t>(size));
  return text;
}
// So many bytes, however they come; fewer where something else happens first.
inline std::string read_all(const End& end, std::size_t size, std::int64_t timeout = kLong) {
  std::string text(size, 0);
  std::size_t count = 0;
  while (count < size) {
    const std::int64_t got =
        farcall_pipe_read(end.get(), text.data() + count, size - count, timeout);
    if (got <= 0) break;
    count += static_cast<std::size_t>(got);
  }
  text.resize(count);
  return text;
}
inline std::string long_text(std::size_t size, std::uint32_t seed = 1) {
  std::string text(size, 0);
  for (char& byte : text) byte = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
  return text;
}

// Bytes of which no part is like another.
inline std::vector<std::uint32_t> long_message(std::size_t words, std::uint32_t seed = 1) {
  std::vector<std::uint32_t> message(words);
  for (std::uint32_t& word : message) word = seed = seed * 1664525 + 1013904223;
  return message;
}
inline int send(const End& end, const std::vector<std::uint32_t>& words,
                std::int64_t timeout = kLong) {
  return farcall_pipe_send(end.get(), words.data(), words.size() * 4, timeout);
}

// None where a sanitizer has its own, whenever it likes.
inline long mappings() {
  if (kSlow > 1) return 0;
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

}  // namespace farcall::c::test
