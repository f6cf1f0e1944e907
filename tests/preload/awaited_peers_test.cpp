// SPDX-License-Identifier: Apache-2.0
#include "preload/awaited_peers.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace farcall::preload {
namespace {

struct Table {
  explicit Table(std::size_t size) : slots(size), those(slots.data(), size) {}
  // The numbers of peers that were found, by the indices of sides.
  [[nodiscard]] std::map<std::uint32_t, std::uint32_t> found() const {
    std::map<std::uint32_t, std::uint32_t> all;
    those.for_each_found([&](const AwaitedPeers::Slot& slot) {
      all[slot.index] = slot.peer.inode;
      EXPECT_EQ(slot.peer.cookie, slot.peer.inode + 1000U);
    });
    return all;
  }
  void hear(std::uint32_t number, std::uint32_t peer) {
    those.note({.socket = {.cookie = number + 1000U, .inode = number, .uid = 0, .queued = 0},
                .peer = peer});
  }
  std::vector<AwaitedPeers::Slot> slots;
  AwaitedPeers those;
};

using Peers = std::map<std::uint32_t, std::uint32_t>;

TEST(AwaitedPeers, EachIsToldItsOwn) {
  Table table(8);
  table.those.add(17, 1, 1);
  table.those.add(25, 2, 1);  // in the same place
  table.those.add(30, 3, 1);
  table.hear(17, 18);
  table.hear(33, 25);
  table.hear(18, 17);
  table.hear(25, 33);
  table.hear(41, 49);  // of others
  EXPECT_EQ(table.found(), (Peers{{1, 18}, {2, 33}}));
  EXPECT_EQ(table.those.noted(), 5U);
}

TEST(AwaitedPeers, BothEndsMayWait) {
  Table table(8);
  table.those.add(4, 1, 1);
  table.those.add(5, 2, 1);
  table.hear(4, 5);
  table.hear(5, 4);
  EXPECT_EQ(table.found(), (Peers{{1, 5}, {2, 4}}));
}

TEST(AwaitedPeers, WhatOnlyOneOfThemSaysIsNotBelieved) {
  Table table(8);
  table.those.add(4, 1, 1);
  table.those.add(6, 2, 1);
  table.hear(4, 5);  // 5 is another's meanwhile
  table.hear(5, 9);
  table.hear(7, 6);  // and nothing is said of 6
  EXPECT_EQ(table.found(), Peers{});
}

TEST(AwaitedPeers, WhoHasNoPeerIsNotFound) {
  Table table(8);
  table.those.add(4, 1, 1);
  table.hear(4, 0);
  table.hear(0, 0);
  EXPECT_EQ(table.found(), Peers{});
}

}  // namespace
}  // namespace farcall::preload
