// SPDX-License-Identifier: Apache-2.0
//
// The memory of a program's connections that it shares with its children, of which some may become
// users that it does not trust. The tests run as those of contract_test.cpp do.
#include <grp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "calls.hpp"
#include "children.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

struct Mapping {
  std::uintptr_t begin = 0;
  std::size_t size = 0;
  std::string file;  // its number
};

// Of large memory without a name, which parents and children share.
std::vector<Mapping> shared_with_children() {
  std::vector<Mapping> all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char rights[8] = {};
    char file[32] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %31s", &begin, &end,
                    rights, file) != 4 ||
        rights[3] != 's' || end - begin < (1U << 20) || line.find("/dev/zero") == std::string::npos)
      continue;
    all.push_back({.begin = begin, .size = end - begin, .file = file});
  }
  return all;
}

void become_nobody() {
  ASSERT_EQ(::setgroups(0, nullptr), 0);
  ASSERT_EQ(::setresgid(4711, 4711, 4711), 0);
  ASSERT_EQ(::setresuid(4711, 4711, 4711), 0);
}

TEST(TcpCalls, WhoBecomesSomebodyElseHasNothingThatItsParentReliesOn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes somebody else";
  const UsedPair pair;
  // The C library does not know of the child that it has one thread only.
  std::latch over(1);
  std::thread other([&] { over.wait(); });
  EXPECT_EQ(
      exit_status(in_child([&] {
        EXPECT_EQ(send(pair.client.get(), "the child's"), "11");
        const UsedPair own;
        std::set<std::string> of_parent;
        for (const Mapping& each : shared_with_children()) of_parent.insert(each.file);
        EXPECT_EQ(!of_parent.empty(), preloaded());
        become_nobody();
        for (const Mapping& each : shared_with_children())
          EXPECT_FALSE(of_parent.contains(each.file)) << each.size;
        // What it had goes on, and what comes is accelerated as before.
        EXPECT_EQ(receive(pair.server.get()), "the child's");
        EXPECT_EQ(send(pair.client.get(), "the kernel's"), "12");
        EXPECT_EQ(send(own.client.get(), "its own"), "7");
        EXPECT_EQ(receive(own.server.get()), "its own");
        const UsedPair later;
        EXPECT_EQ(
            exit_status(in_child([&] { EXPECT_EQ(send(later.client.get(), "of both"), "7"); })), 0);
        EXPECT_EQ(receive(later.server.get()), "of both");
      })),
      0);
  over.count_down();
  other.join();
  EXPECT_EQ(receive(pair.server.get()), "the kernel's");
  const UsedPair later;
  EXPECT_EQ(send(later.client.get(), "the parent's"), "12");
  EXPECT_EQ(receive(later.server.get()), "the parent's");
}

// As a child may that has not left it.
TEST(TcpCalls, ATableThatSomebodyHasWrittenToMixesNoConnections) {
  const UsedPair first;
  for (const Mapping& each : shared_with_children())
    if (each.size > (8U << 20))
      std::memset(reinterpret_cast<void*>(each.begin), 0,
                  5 * 65536);  // what stands before the sides
  const Pair second(false);
  const int before = stream_mappings();
  second.talk(100);
  EXPECT_EQ(stream_mappings(), before) << "it has the place of the first one";
  EXPECT_EQ(send(first.client.get(), "first"), "5");
  EXPECT_EQ(receive(second.server.get(), 100, MSG_DONTWAIT), "(EAGAIN)");
  EXPECT_EQ(receive(first.server.get()), "first");
  second.talk(1);
}

}  // namespace
}  // namespace farcall::preload
