// SPDX-License-Identifier: Apache-2.0
//
// What clients may make a server hold: what programs set, who is charged, and who is not.
#include "call/limits.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "call/request_buffer.hpp"
#include "door/child.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"

namespace farcall::call {
namespace {

using door::test::in_child;
using process::Charge;
using process::Resource;

constexpr uid_t kStranger = 60'002;

TEST(Limits, AreWhatWasSetAndDefaultsElsewhere) {
  farcall_limits limits{};
  EXPECT_EQ(get_limits(&limits), -1) << "whose size is not said";
  EXPECT_EQ(errno, EINVAL);
  limits.size = sizeof limits;
  limits.sessions_per_user = 7;
  limits.patience_ns = 5'000'000;
  ASSERT_EQ(set_limits(&limits), 0);
  const PortLimits now = limits_of_process();
  EXPECT_EQ(now.sessions_per_user, 7U);
  EXPECT_EQ(now.sessions, PortLimits{}.sessions);
  EXPECT_EQ(now.patience, std::chrono::milliseconds(5));
  farcall_limits told{};
  told.size = sizeof told;
  ASSERT_EQ(get_limits(&told), 0);
  EXPECT_EQ(told.sessions_per_user, 7U);
  limits.patience_ns = -1;
  EXPECT_EQ(set_limits(&limits), -1);
}

TEST(Ledger, GivesOneUserItsShareAndAllOthersTogetherHalf) {
  in_child([] {
    const rlimit table{.rlim_cur = 400, .rlim_max = 400};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &table), 0);
    std::vector<Charge> held;
    const auto take = [&](uid_t user) {
      Charge one(Resource::descriptors, user, 1);
      if (!one) return false;
      held.push_back(std::move(one));
      return true;
    };
    std::size_t count = 0;
    while (take(kStranger)) ++count;
    EXPECT_EQ(count, 100U);
    while (take(kStranger + 1)) ++count;
    EXPECT_EQ(count, 200U);
    EXPECT_FALSE(take(kStranger + 2)) << "half of the table is all they get";
    count = 0;
    while (take(0)) ++count;
    EXPECT_EQ(count, 350U);
    held.clear();
    EXPECT_TRUE(take(kStranger + 2));
  });
}

TEST(Ledger, GivesBackWhatAParentHeldNowhereElse) {
  std::vector<Charge> held;
  for (int i = 0; i < 3; ++i) held.emplace_back(Resource::bytes, kStranger, 100, 350);
  EXPECT_FALSE(Charge(Resource::bytes, kStranger, 100, 350));
  in_child([&] {
    EXPECT_TRUE(Charge(Resource::bytes, kStranger, 100, 350)) << "a child holds nothing yet";
    held.clear();
    EXPECT_TRUE(Charge(Resource::bytes, kStranger, 350, 350));
  });
  held.clear();
  EXPECT_TRUE(Charge(Resource::bytes, kStranger, 350, 350));
}

TEST(Limits, MemoryThatThreadsKeepForTheNextRequestIsBounded) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  std::vector<RequestBuffer> threads(8);
  std::vector<const std::byte*> memory;
  for (RequestBuffer& buffer : threads)
    memory.push_back(buffer.reserve(kBytes, Charge(Resource::bytes, ::geteuid(), kBytes)));
  for (RequestBuffer& buffer : threads) buffer.release();
  std::size_t kept = 0;
  for (const std::byte* start : memory) {
    unsigned char resident = 0;
    ASSERT_NE(start, nullptr);
    // ENOMEM: it is mapped no more.
    if (::mincore(const_cast<std::byte*>(start), 1, &resident) == 0) kept += kBytes;
  }
  EXPECT_GT(kept, 0U);
  EXPECT_LE(kept, RequestBuffer::kMostKept);
}

}  // namespace
}  // namespace farcall::call
