// SPDX-License-Identifier: Apache-2.0
//
// Calls on sets that tell of more than there is room for. As contract_test.cpp, these run as they
// are and with the library preloaded.
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <set>

#include "farcall/memory.hpp"
#include "readiness.hpp"
#include "stream_pair.hpp"

namespace farcall::preload::readiness {
namespace {

TEST(Set, TellsOfNoMoreThanThereIsRoomFor) {
  const std::array<Pair, 3> pairs;
  const UniqueFd set = new_set();
  for (std::uint64_t i = 0; i < pairs.size(); ++i) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pairs[i].server.get(), &event), 0);
  }
  for (int round = 0; round < 60; ++round) {
    for (const Pair& pair : pairs) pair.put();
    for (const int room : {1, 2}) {
      std::array<epoll_event, 4> events{};
      for (epoll_event& event : events) event.data.u64 = kToken;
      const int told = ::epoll_wait(set.get(), events.data(), room, kLongest);
      ASSERT_GE(told, 1);
      ASSERT_LE(told, room);
      std::set<std::uint64_t> different;
      for (int i = 0; i < told; ++i) different.insert(events[static_cast<std::size_t>(i)].data.u64);
      EXPECT_EQ(different.size(), static_cast<std::size_t>(told));
      for (std::size_t i = static_cast<std::size_t>(room); i < events.size(); ++i)
        EXPECT_EQ(events[i].data.u64, kToken) << "in round " << round;
    }
    for (const Pair& pair : pairs) pair.take();
  }
}

TEST(Set, TellsOfNothingWhereThereIsNoRoom) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get(), EPOLLIN);
  exchange(pair, set.get());
  pair.put();
  epoll_event event{};
  for (const int room : {0, -1}) {
    EXPECT_EQ(::epoll_wait(set.get(), &event, room, 0), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(wait(set.get()), EPOLLIN);
  pair.take();
}

}  // namespace
}  // namespace farcall::preload::readiness
