// SPDX-License-Identifier: Apache-2.0
//
// Unix sockets of packets (SOCK_SEQPACKET), for tests of what they do.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>

#include <string>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {

inline UniqueFd set_with(int fd) {
  UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event wanted{.events = EPOLLIN, .data = {.fd = fd}};
  EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &wanted), 0);
  return set;
}

// Both ends, each in an epoll set, so that messages lie in memory between two calls.
struct Packets {
  explicit Packets(bool warm = true) : pair(false), set_a(set_with(a())), set_b(set_with(b())) {
    const int before = stream_mappings();
    if (!warm) return;
    talk(30);
    if (preloaded()) {
      EXPECT_EQ(stream_mappings(), before + 2) << "not accelerated";
    }
  }
  void talk(int rounds) const {
    for (int i = 0; i < rounds; ++i)
      for (const bool forth : {true, false}) {
        epoll_event event{};
        ASSERT_EQ(send(forth ? a() : b(), "talk"), "4");
        ASSERT_EQ(::epoll_wait((forth ? set_b : set_a).get(), &event, 1, 20'000), 1);
        ASSERT_EQ(receive(forth ? b() : a()), "talk");
      }
  }
  void put(const std::string& text) const {
    ASSERT_EQ(send(a(), text), std::to_string(text.size()));
  }
  [[nodiscard]] int a() const { return pair.client.get(); }
  [[nodiscard]] int b() const { return pair.server.get(); }

  Pair pair;
  UniqueFd set_a, set_b;
};

}  // namespace farcall::preload
