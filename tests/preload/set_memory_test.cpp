// SPDX-License-Identifier: Apache-2.0
//
// What sets cost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <vector>

#include "connected.hpp"
#include "farcall/memory.hpp"
#include "readiness.hpp"
#include "stream_pair.hpp"

namespace farcall::preload::readiness {
namespace {

TEST(SetMemory, IsSmallWhereDescriptorsAre) {
  const Pair pair;
  const UniqueFd first = new_set();
  add(first.get(), pair.server.get());
  const long before = number_in_status("VmSize");
  std::array<UniqueFd, 8> sets;
  for (UniqueFd& set : sets) {
    set = new_set();
    add(set.get(), pair.server.get());
  }
  EXPECT_LE(number_in_status("VmSize"), before + 256) << "kB";
}

TEST(SetMemory, IsGivenBack) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2000) GTEST_SKIP() << "no 2,000 descriptors allowed here";
  const rlimit wide{.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2000), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &wide), 0);
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd kept = new_set();
  add(kept.get(), bell.get());
  std::vector<UniqueFd> sets;
  sets.reserve(1000);
  const auto open_and_close = [&] {
    for (int i = 0; i < 1000; ++i) {
      sets.push_back(new_set());
      ASSERT_TRUE(sets.back());
      add(sets.back().get(), bell.get());
    }
    sets.clear();
  };
  const long before = number_in_status("VmSize");
  open_and_close();
  EXPECT_LE(number_in_status("VmSize"), before + 512) << "kB";
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A descriptor far up needs room in its set, which comes without loss of what is known.
TEST(SetMemory, GrowsWithTheHighestDescriptor) {
  const Pair pair;
  const Pair other;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const UniqueFd high(
      ::fcntl(other.server.get(), F_DUPFD_CLOEXEC, static_cast<int>(limit.rlim_cur) - 1));
  ASSERT_TRUE(high);
  add(set.get(), high.get(), EPOLLIN, 1);
  EXPECT_EQ(wait(set.get()), EPOLLIN);
  pair.take();
  exchange(pair, set.get());
  other.put();
  epoll_event event{};
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
  EXPECT_EQ(event.data.u64, 1u);
}

}  // namespace
}  // namespace farcall::preload::readiness
