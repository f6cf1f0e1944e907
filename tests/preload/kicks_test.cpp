// SPDX-License-Identifier: Apache-2.0
//
// Bytes in memory that the kernel alone must tell of. As contract_test.cpp, these run as they are
// and with the library preloaded.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "preload/real.hpp"
#include "readiness.hpp"

namespace farcall::preload::readiness {
namespace {

// For whoever waits in it otherwise than by the library's calls.
UniqueFd new_set_of_the_kernel() {
  UniqueFd set = new_set();
  pollfd look{.fd = set.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&look, 1, 0), 0);
  return set;
}

// A receive call that waits is looked after in memory, also where the set is not.
TEST(SetOfTheKernel, IsToldOfWhatAWaitingCallHasLeft) {
  const FarPeer peer;
  const UniqueFd set = new_set_of_the_kernel();
  add(set.get(), peer.server.get());
  for (int i = 0; i < 200; ++i) {
    peer.begin('t');
    peer.take();
    peer.await_done();
    ASSERT_EQ(wait(set.get(), 2000), EPOLLIN) << i;
    peer.take();
    ASSERT_EQ(wait(set.get(), 0), 0U) << i;
  }
}

TEST(Sets, AreToldOfWhatAWaitingCallHasLeft) {
  const FarPeer peer;
  const UniqueFd sets[2] = {new_set(), new_set()};
  for (const UniqueFd& set : sets) add(set.get(), peer.server.get());
  for (int i = 0; i < 200; ++i) {
    peer.begin('t');
    peer.take();
    peer.await_done();
    for (const UniqueFd& set : sets) ASSERT_EQ(wait(set.get(), 2000), EPOLLIN) << i;
    peer.take();
    for (const UniqueFd& set : sets) ASSERT_EQ(wait(set.get(), 0), 0U) << i;
  }
}

// Another thread sleeps in the set meanwhile.
TEST(Sleepers, AreToldOfWhatAWaitingCallHasLeft) {
  const FarPeer peer;
  const UniqueFd set = new_set();
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  add(set.get(), over.get(), EPOLLIN, kToken + 1);
  add(set.get(), peer.server.get());
  exchange(peer, set.get());
  std::atomic<int> round{0};
  std::atomic<int> told{0};
  std::atomic<long> id{0};
  std::thread sleeper([&] {
    id = kernel(SYS_gettid);
    epoll_event event{};
    while (::epoll_wait(set.get(), &event, 1, kLongest) == 1 && event.data.u64 == kToken) {
      told = round.load();
      while (told == round) std::this_thread::yield();
    }
  });
  while (id == 0) std::this_thread::yield();
  for (int i = 1; i <= 50; ++i) {
    await_sleep(id);
    round = i;
    peer.begin('t');
    peer.take();
    peer.await_done();
    for (int ms = 0; ms < 5000 && told != i; ++ms) ::usleep(1000);
    EXPECT_EQ(told, i);
    peer.take();
    round = 0;
    if (told != i) break;
  }
  EXPECT_EQ(::eventfd_write(over.get(), 1), 0);
  sleeper.join();
}

}  // namespace
}  // namespace farcall::preload::readiness
