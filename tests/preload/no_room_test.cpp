// SPDX-License-Identifier: Apache-2.0
//
// A send that finds no room in memory, or is refused though the kernel has room. These tests run as
// those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "contract.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "preload/stream.hpp"
#include "raw_word.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// What the client of the only connection of this process sends.
Direction* first_direction() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(over_unix() ? "memfd:farcall-unix" : "memfd:farcall-tcp") != std::string::npos)
      return reinterpret_cast<Direction*>(std::strtoull(line.c_str(), nullptr, 16));
  return nullptr;
}

// As while the peer leaves the ring, which may take long. Nobody else would tell of an edge.
TEST(Contract, WhoIsRefusedOnAccountOfALeavingPeerIsToldWhenToTryAgain) {
  if (!preloaded()) return;
  const Pair pair;
  const int fd = pair.client.get();
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLOUT | EPOLLET, .data = {.u64 = 7}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 1000), 1);
  ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 0), 0);
  Direction* const out = first_direction();
  ASSERT_NE(out, nullptr);
  raw(out->handback).store(HandbackWord::kAsked);
  EXPECT_EQ(send(fd, "x", MSG_DONTWAIT | MSG_NOSIGNAL), "(EAGAIN)");
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 1000), 1);
  EXPECT_EQ(event.events, EPOLLOUT);
  raw(out->handback).store(HandbackWord::kNone);
  EXPECT_EQ(send(fd, "x", MSG_DONTWAIT | MSG_NOSIGNAL), "1");
  EXPECT_EQ(receive(pair.server.get()), "x");
}

TEST(Contract, WhoHasATimeLimitWaitsNoLongerForALeavingPeer) {
  if (!preloaded()) return;
  const Pair pair;
  const int fd = pair.client.get();
  const timeval limit{.tv_sec = 0, .tv_usec = 20'000};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  Direction* const out = first_direction();
  ASSERT_NE(out, nullptr);
  raw(out->handback).store(HandbackWord::kAsked);
  EXPECT_EQ(send(fd, "x"), "(EAGAIN)");
  EXPECT_EQ(send(fd, "x"), "(EAGAIN)");
  raw(out->handback).store(HandbackWord::kNone);
  EXPECT_EQ(send(fd, "x"), "1");
  EXPECT_EQ(receive(pair.server.get()), "x");
}

// When this thread sleeps, in another one.
template <class Work>
std::thread once_asleep(Work work) {
  return std::thread([work, waits = kernel(SYS_gettid)] {
    await_sleep(waits);
    work();
  });
}
// As often as it takes, for between two of its sleeps one ends nothing.
class Interrupted {
 public:
  Interrupted() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    EXPECT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  }
  Interrupted(const Interrupted&) = delete;
  Interrupted& operator=(const Interrupted&) = delete;
  ~Interrupted() {
    over_ = true;
    thread_.join();
    ::signal(SIGUSR1, SIG_DFL);
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_ = once_asleep([this, self = ::pthread_self()] {
    for (; !over_; ::usleep(1111)) ::pthread_kill(self, SIGUSR1);
  });
};

TEST(Contract, WhoMayWaitForALeavingPeerSendsWhenThatHasLeft) {
  if (!preloaded()) return;
  const Pair pair;
  const int fd = pair.client.get();
  Direction* const out = first_direction();
  ASSERT_NE(out, nullptr);
  raw(out->handback).store(HandbackWord::kAsked);
  std::thread leaves = once_asleep([out] {
    // For longer than who may not wait is kept.
    ::usleep(100'000);
    raw(out->handback).store(HandbackWord::kNone);
  });
  EXPECT_EQ(send(fd, "x"), "1");
  leaves.join();
  raw(out->handback).store(HandbackWord::kAsked);
  {
    const Interrupted interrupted;
    EXPECT_EQ(send(fd, "y"), "(EINTR)");
  }
  raw(out->handback).store(HandbackWord::kNone);
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
}

// Memory is full, and so is the kernel, past the library.
struct FullPair : Pair {
  FullPair() {
    EXPECT_EQ(begins_in_memory(), preloaded());
    const std::string block(1000, 'x');
    const int fd = client.get();
    while (kernel(SYS_sendto, fd, block.data(), block.size(), MSG_DONTWAIT, nullptr, 0) > 0)
      continue;
    while (send(fd, block, MSG_DONTWAIT | MSG_NOSIGNAL)[0] != '(') continue;
  }
  // What a send is told that has to wait. The kernel may make some room later.
  [[nodiscard]] std::string refusal() const {
    std::string told;
    const std::string block(1000, 'x');
    for (int i = 0; i < 100'000 && (i == 0 || told[0] != '('); ++i)
      told = send(client.get(), block);
    return told;
  }
  // Who has slept in a call has what comes next in memory.
  [[nodiscard]] bool begins_in_memory() const {
    for (int i = 0; i < 1000 && preloaded(); ++i) {
      std::thread sends = once_asleep([this] { put("x"); });
      EXPECT_EQ(receive(server.get()), "x");
      sends.join();
      put("x");
      if (!readable_for_kernel(server.get())) return true;
      EXPECT_EQ(receive(server.get()), "x");
    }
    return false;
  }
};

TEST(Contract, ASendThatFindsNoRoomAnywhereIsEndedByASignal) {
  const FullPair pair;
  const Interrupted interrupted;
  EXPECT_EQ(pair.refusal(), "(EINTR)");
}

TEST(Contract, ASendThatFindsNoRoomAnywhereIsEndedByItsTimeLimit) {
  const FullPair pair;
  const timeval limit{.tv_sec = 0, .tv_usec = 20'000};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(pair.refusal(), "(EAGAIN)");
}

}  // namespace
}  // namespace farcall::preload
