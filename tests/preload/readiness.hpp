// SPDX-License-Identifier: Apache-2.0
//
// What the tests of readiness share.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "harness/eventually.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload::readiness {

inline constexpr int kLongest = 20'000;  // milliseconds, for what must come
template <class Condition>
bool comes(Condition condition) {
  return test::eventually(condition, std::chrono::milliseconds(kLongest));
}
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

// A connection whose other end is in a process of its own: what it sends lies where it has put it
// when this one waits, and nobody settles it before.
class FarPeer {
 public:
  FarPeer() {
    preload::Pair pair(false);
    int to_child[2];
    int from_child[2];
    EXPECT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(from_child, O_CLOEXEC), 0);
    child_ = in_child([&] {
      pair.server.reset();
      ::close(to_child[1]);
      const int fd = pair.client.get();
      char command;
      while (kernel(SYS_read, to_child[0], &command, 1) == 1) {
        if (command == 's') (void)::send(fd, "x", 1, MSG_NOSIGNAL);
        if (command == 'a') answer(fd);
        if (command == 't' || command == 'a') send_two(fd);
        if (command == 'd') drain(fd);
        if (command == 'r') (void)::recv(fd, &command, 1, 0);
        kernel(SYS_write, from_child[1], &command, 1);
      }
    });
    ::close(to_child[0]);
    ::close(from_child[1]);
    command_ = UniqueFd(to_child[1]);
    done_ = UniqueFd(from_child[0]);
    server = std::move(pair.server);
    pair.client.reset();
    const int before = stream_mappings();
    for (int i = 0; i < 60; ++i) {
      put();
      take();
      EXPECT_EQ(::send(server.get(), "y", 1, MSG_NOSIGNAL), 1);
      tell('r');
    }
    if (preloaded()) {
      EXPECT_EQ(stream_mappings(), before + 1) << "not accelerated";
    }
  }
  FarPeer(const FarPeer&) = delete;
  FarPeer& operator=(const FarPeer&) = delete;
  ~FarPeer() {
    command_.reset();
    EXPECT_EQ(exit_status(child_), 0);
  }
  // The peer has sent a byte when this returns.
  void put() const { tell('s'); }
  void take() const {
    char byte = 0;
    EXPECT_EQ(::recv(server.get(), &byte, 1, 0), 1);
  }
  // What the peer is to do: send a byte ('s') or two ('t'), the same after it has answered
  // kAnswers bytes ('a'), receive one ('r') or all that has come ('d').
  void begin(char what) const { EXPECT_EQ(kernel(SYS_write, command_.get(), &what, 1), 1); }
  void await_done() const {
    char done;
    EXPECT_EQ(kernel(SYS_read, done_.get(), &done, 1), 1);
  }
  void tell(char what) const {
    begin(what);
    await_done();
  }
  static constexpr int kAnswers = 300;
  UniqueFd server;

 private:
  static void send_two(int fd) {
    if (!over_packets()) return (void)::send(fd, "xx", 2, MSG_NOSIGNAL);
    for (int i = 0; i < 2; ++i) (void)::send(fd, "x", 1, MSG_NOSIGNAL);
  }
  static void answer(int fd) {
    char byte;
    for (int i = 0; i < kAnswers && ::recv(fd, &byte, 1, 0) == 1; ++i)
      if (i != kAnswers - 1) (void)::send(fd, "x", 1, MSG_NOSIGNAL);
  }
  static void drain(int fd) {
    char bytes[4096];
    while (::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
  }
  UniqueFd command_, done_;
  pid_t child_;
};

// One whose server has waited in a receive call: what the peer puts then lies in memory.
struct WaitingPeer : FarPeer {
  WaitingPeer() {
    // Who came too late for bytes in memory is not believed for a while.
    bool in_memory = false;
    for (int i = 0; i < 1000 && !in_memory; ++i) {
      wait_in_a_call();
      put();
      in_memory = !preloaded() || !readable_for_kernel(server.get());
      take();
    }
  }
  void wait_in_a_call() const {
    std::thread later([&, waits = kernel(SYS_gettid)] {
      await_sleep(waits);
      put();
    });
    take();
    later.join();
  }
  // Into memory.
  void put_there() const {
    put();
    if (preloaded()) {
      EXPECT_FALSE(readable_for_kernel(server.get())) << "not in memory";
    }
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
template <class Pair>
void exchange(const Pair& pair, int set, int rounds = 20) {
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
