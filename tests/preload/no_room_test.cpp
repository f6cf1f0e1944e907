// SPDX-License-Identifier: Apache-2.0
//
// A send that is refused though the kernel has room. These tests run as those of contract_test.cpp
// do.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "contract.hpp"
#include "farcall/memory.hpp"
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

}  // namespace
}  // namespace farcall::preload
