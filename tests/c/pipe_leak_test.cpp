// SPDX-License-Identifier: Apache-2.0
//
// Pipes that come and go leave nothing behind, whatever became of them.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "c/pipe.hpp"

namespace farcall::c::test {
namespace {

constexpr int kCycles = kSlow > 1 ? 1'000 : 10'000;

// All that can become of a pipe, in turn.
void cycle(int turn) {
  Ends pipe(4096);
  if (turn % 4 == 0) return;
  ASSERT_EQ(send(pipe.one, "one"), 0);
  if (turn % 4 == 1) return;
  ASSERT_EQ(receive(pipe.other), "one");
  if (turn % 4 == 2) pipe.other.reset();
  if (turn % 4 == 3) {
    EXPECT_EQ(send(pipe.other, long_message(5'000), 0), -EAGAIN);
  }
  if (turn % 8 == 3) {
    std::vector<std::uint32_t> part(5'000);
    ASSERT_EQ(farcall_pipe_receive(pipe.one.get(), part.data(), 20'000, nullptr, 0), -EAGAIN);
  }
}

TEST(CPipeLeak, TenThousandPipesLeaveNothing) {
  for (int i = 0; i < 100; ++i) cycle(i);
  const std::size_t open = open_descriptors();
  const long mapped = mappings();
  const std::size_t heap = ::mallinfo2().uordblks;
  for (int i = 0; i < kCycles; ++i) cycle(i);
  EXPECT_EQ(open_descriptors(), open);
  EXPECT_LE(mappings(), mapped + 2);  // the heap's own
  if (kSlow == 1) {
    EXPECT_LE(::mallinfo2().uordblks, heap + 4096);
  }
}

TEST(CPipeLeak, WhatFailsLeavesNothing) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  const std::size_t open = open_descriptors();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  farcall_pipe* one = nullptr;
  farcall_pipe* other = nullptr;
  int failed = 0;
  for (rlim_t limit = 3; limit < 1'000 && one == nullptr; ++limit) {
    const rlimit few{.rlim_cur = limit, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const int result = farcall_pipe_create(nullptr, &one, &other);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    if (result == 0) break;
    ++failed;
    EXPECT_EQ(result, -EMFILE) << limit;
    EXPECT_EQ(one, nullptr);
    EXPECT_EQ(open_descriptors(), open);
  }
  EXPECT_GE(failed, 8) << "at each of its descriptors";
  ASSERT_NE(one, nullptr);
  farcall_pipe_close(one);
  farcall_pipe_close(other);
  EXPECT_EQ(open_descriptors(), open);
}

TEST(CPipeLeak, AUsedEndHoldsTwoDescriptors) {
  const std::size_t before = open_descriptors();
  const Ends pipe;
  EXPECT_EQ(open_descriptors(), before + 8);
  EXPECT_EQ(send(pipe.one, "a"), 0);
  EXPECT_EQ(receive(pipe.other), "a");
  EXPECT_EQ(open_descriptors(), before + 4);
}

}  // namespace
}  // namespace farcall::c::test
