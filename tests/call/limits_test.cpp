// SPDX-License-Identifier: Apache-2.0
//
// What clients may make a server hold: what programs set, who is charged, and who is not.
#include "call/limits.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "call/request_buffer.hpp"
#include "harness/child.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"

namespace farcall::call {
namespace {

using process::Charge;
using process::Resource;
using test::eventually;
using test::in_child;

constexpr uid_t kStranger = 60'002;

TEST(Limits, AreWhatWasSetAndDefaultsElsewhere) {
  farcall_limits limits{};
  EXPECT_EQ(get_limits(&limits), -1) << "whose size is not said";
  EXPECT_EQ(errno, EINVAL);
  limits.size = sizeof limits + 64;  // of a program that knows more than this library
  limits.sessions_per_user = 7;
  limits.patience_ns = 5'000'000;
  ASSERT_EQ(set_limits(&limits), 0);
  const PortLimits some = limits_of_process();
  EXPECT_EQ(some.sessions, PortLimits{}.sessions);
  EXPECT_EQ(some.request_bytes, PortLimits{}.request_bytes);
  EXPECT_EQ(some.descriptors_per_user, 0U);
  EXPECT_EQ(some.bytes_per_user, 0U);
  limits.sessions = 8;
  limits.request_bytes = 9;
  limits.descriptors_per_user = 10;
  limits.bytes_per_user = 11;
  ASSERT_EQ(set_limits(&limits), 0);
  const PortLimits now = limits_of_process();
  EXPECT_EQ(now.sessions, 8U);
  EXPECT_EQ(now.sessions_per_user, 7U);
  EXPECT_EQ(now.request_bytes, 9U);
  EXPECT_EQ(now.descriptors_per_user, 10U);
  EXPECT_EQ(now.bytes_per_user, 11U);
  EXPECT_EQ(now.patience, std::chrono::milliseconds(5));
  farcall_limits told{};
  told.size = sizeof told;
  ASSERT_EQ(get_limits(&told), 0);
  EXPECT_EQ(told.sessions_per_user, 7U);
  EXPECT_EQ(told.size, sizeof told) << "that is the caller's";
  limits.patience_ns = -1;
  EXPECT_EQ(set_limits(&limits), -1);
  limits.patience_ns = 0;
  limits.size = sizeof limits - 1;
  EXPECT_EQ(set_limits(&limits), -1) << "which are not all there";
  EXPECT_EQ(errno, EINVAL);
}

TEST(Ledger, GivesEachUserAShareOfWhatOthersLeave) {
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
    const auto take_all = [&](uid_t user) {
      std::size_t count = 0;
      while (take(user)) ++count;
      return count;
    };
    EXPECT_EQ(take_all(kStranger), 100U) << "a quarter of the table";
    EXPECT_EQ(take_all(kStranger + 1), 50U);
    EXPECT_EQ(take_all(kStranger + 2), 25U) << "two users use up nobody's share";
    for (uid_t i = 3; i < 20; ++i) take_all(kStranger + i);
    EXPECT_LE(held.size(), 200U) << "half of the table is all they get";
    EXPECT_EQ(take_all(0), 350U);
    held.clear();
    EXPECT_EQ(take_all(kStranger + 2), 100U);
  });
}

TEST(Ledger, BytesOfOneUserLeaveSomeForOthers) {
  const Charge all(Resource::bytes, kStranger, 400, 400);
  ASSERT_TRUE(all);
  EXPECT_TRUE(Charge(Resource::bytes, kStranger + 1, 300, 400)) << "a quarter of what is left";
  EXPECT_FALSE(Charge(Resource::bytes, kStranger + 1, 301, 400));
}

TEST(Ledger, WhatTheOwnUserHeldIsNoOthersOnceTheProcessIsSomebodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  in_child([] {
    ASSERT_EQ(::seteuid(kStranger), 0);
    const Charge own(Resource::descriptors, kStranger, 3);
    ASSERT_EQ(::seteuid(0), 0);
    EXPECT_TRUE(Charge(Resource::descriptors, kStranger, 1));
    EXPECT_TRUE(Charge(Resource::descriptors, kStranger + 1, 1));
  });
}

// Where a process does not know other users, they all look alike, and like itself.
TEST(Ledger, WhoCannotBeKnownIsNotTheOwnUser) {
  in_child([] {
    if (::unshare(CLONE_NEWUSER) != 0) GTEST_SKIP() << "no user namespaces here";
    const uid_t unknown = ::geteuid();
    EXPECT_FALSE(process::is_own(unknown));
    EXPECT_TRUE(Charge(Resource::bytes, unknown, 350, 350));
    EXPECT_FALSE(Charge(Resource::bytes, unknown, 351, 350));
  });
}

TEST(Ledger, GivesBackWhatAParentHeldNowhereElse) {
  std::vector<Charge> held;
  for (int i = 0; i < 3; ++i) held.emplace_back(Resource::bytes, kStranger, 100, 350);
  EXPECT_FALSE(Charge(Resource::bytes, kStranger, 100, 350));
  in_child([&] {
    EXPECT_TRUE(Charge(Resource::bytes, kStranger, 100, 350)) << "a child holds nothing yet";
    {
      const Charge own(Resource::bytes, kStranger, 350, 350);
      ASSERT_TRUE(own);
      held.clear();
      EXPECT_FALSE(Charge(Resource::bytes, kStranger, 100, 350)) << "what it holds itself stays";
    }
    EXPECT_TRUE(Charge(Resource::bytes, kStranger, 350, 350));
  });
  held.clear();
  EXPECT_TRUE(Charge(Resource::bytes, kStranger, 350, 350));
}

// The memory of a request that is over is kept, and nobody's.
TEST(Limits, NobodyIsChargedForMemoryThatIsKept) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  RequestBuffer buffer;
  for (int i = 0; i < 3; ++i) {
    Charge held(Resource::bytes, kStranger, kBytes, kBytes);
    ASSERT_TRUE(held) << i;
    ASSERT_NE(buffer.reserve(kBytes, std::move(held), kStranger), nullptr);
    EXPECT_FALSE(Charge(Resource::bytes, kStranger, 1, kBytes)) << "as long as it is served";
    buffer.release();
  }
}

TEST(Limits, MemoryThatThreadsKeepForTheNextRequestIsBounded) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  constexpr std::uint64_t kMark = 0x6b65707420686572;
  std::vector<RequestBuffer> threads(8);
  std::vector<const std::byte*> memory;
  for (RequestBuffer& buffer : threads) {
    Charge charge(Resource::bytes, ::geteuid(), kBytes);
    std::byte* start = buffer.reserve(kBytes, std::move(charge), ::geteuid());
    ASSERT_NE(start, nullptr);
    std::memcpy(start, &kMark, sizeof kMark);
    memory.push_back(start);
  }
  for (RequestBuffer& buffer : threads) buffer.release();
  const UniqueFd own(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(own);
  // Something else may have come to be where it was.
  const auto kept = [&] {
    std::size_t bytes = 0;
    for (const std::byte* start : memory) {
      std::uint64_t there = 0;
      const auto at = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(start));
      if (::pread(own.get(), &there, sizeof there, at) == sizeof there && there == kMark)
        bytes += kBytes;
    }
    return bytes;
  };
  // What is too much is given up by a thread that serves nobody.
  EXPECT_TRUE(eventually([&] { return kept() <= RequestBuffer::kMostKept; }));
  EXPECT_GT(kept(), 0U);
}

// What one has given up another may keep.
TEST(Limits, MemoryThatIsKeptNoMoreLeavesRoom) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  for (std::size_t i = 0; i < RequestBuffer::kMostKept / kBytes + 2; ++i) {
    RequestBuffer buffer;
    const auto reserve = [&] {
      return buffer.reserve(kBytes, Charge(Resource::bytes, ::geteuid(), kBytes), ::geteuid());
    };
    std::byte* const start = reserve();
    ASSERT_NE(start, nullptr);
    ASSERT_EQ(*start, std::byte{});
    *start = std::byte{7};
    buffer.release();
    std::byte* const again = reserve();
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(*again, std::byte{7}) << "it was not kept, in round " << i;
    buffer.free();
  }
}

}  // namespace
}  // namespace farcall::call
