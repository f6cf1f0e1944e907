// SPDX-License-Identifier: Apache-2.0
//
// What a channel does where there is no memory left.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "farcall/error.hpp"
#include "harness/child.hpp"
#include "message/shared.hpp"

namespace {

// By this thread; any number where it is negative.
thread_local int allocations_left = -1;

}  // namespace

// Sanitizers have an allocator of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t size) {
  void* const memory = allocations_left == 0 ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace farcall::message::test {
namespace {

// The value of the next pulse; none where there is none.
std::optional<std::int64_t> next_pulse(SharedChannel& channel) {
  farcall_info info{};
  try {
    EXPECT_EQ(channel.receive({}, Deadline::now(), &info, SignalCount::now()), 0);
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), ETIMEDOUT);
    return std::nullopt;
  }
  return info.value;
}

Pulse pulse_of(std::int64_t value) {
  return {.code = 1, .value = value, .priority = 10, .link = nullptr};
}

// Each notice takes the most urgent of those that there are: one that has no notice would be taken
// in the place of another.
TEST(MessageNoMemory, APulseWithoutANoticeIsNotKept) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  const auto channel = std::make_shared<SharedChannel>(0, 0);
  constexpr std::int64_t kBefore = 1000;
  constexpr int kEnough = 20;
  int lost = 0;
  for (int allocations = 0; allocations < kEnough; ++allocations) {
    SCOPED_TRACE(allocations);
    channel->queue(pulse_of(kBefore + allocations));
    allocations_left = allocations;
    channel->queue(pulse_of(allocations));
    allocations_left = -1;
    EXPECT_EQ(next_pulse(*channel), kBefore + allocations);
    const auto next = next_pulse(*channel);
    if (next) {
      EXPECT_EQ(*next, allocations);
      EXPECT_EQ(next_pulse(*channel), std::nullopt);
    } else {
      ++lost;
    }
  }
  EXPECT_GT(lost, 1) << "the first is for the pulse, and another for its notice";
  EXPECT_LT(lost, kEnough);
  channel->close();
}

}  // namespace
}  // namespace farcall::message::test
