// SPDX-License-Identifier: Apache-2.0
//
// What the tests of readiness share.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload::readiness {

inline constexpr int kLongest = 20'000;  // milliseconds, for what must come
inline constexpr std::uint64_t kToken = 77;

// Bytes one by one.
struct Pair : preload::Pair {
  void put(int count = 1) const {
    preload::Pair::put(std::string(static_cast<std::size_t>(count), 'x'));
  }
  void take() const {
    char byte = 0;
    EXPECT_EQ(::recv(server.get(), &byte, 1, 0), 1);
  }
};

inline UniqueFd new_set(int flags = EPOLL_CLOEXEC) { return UniqueFd(::epoll_create1(flags)); }

inline void add(int set, int fd, std::uint32_t events = EPOLLIN, std::uint64_t token = kToken) {
  epoll_event event{.events = events, .data = {.u64 = token}};
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
}

// The events of the one socket in a set; 0 for none.
inline std::uint32_t wait(int set, int timeout = kLongest) {
  epoll_event event{};
  const int count = ::epoll_wait(set, &event, 1, timeout);
  EXPECT_EQ(count == 1 ? event.data.u64 : kToken, kToken);
  return count == 1 ? event.events : 0;
}

// Rounds in which a byte is put, waited for in the set and taken.
inline void exchange(const Pair& pair, int set, int rounds = 20) {
  for (int i = 0; i < rounds; ++i) {
    pair.put();
    ASSERT_EQ(wait(set), EPOLLIN) << "round " << i;
    pair.take();
  }
}

// Memory whose last bytes are followed by a page that nobody may touch.
class GuardedMemory {
 public:
  GuardedMemory() {
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, kSize + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::mprotect(memory_ + kSize, kPage, PROT_NONE), 0);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { ::munmap(memory_, kSize + kPage); }
  [[nodiscard]] void* last(std::size_t bytes) const { return memory_ + kSize - bytes; }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kSize = 64 * kPage;
  std::byte* memory_;
};

}  // namespace farcall::preload::readiness
