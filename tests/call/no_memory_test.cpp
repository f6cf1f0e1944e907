// SPDX-License-Identifier: Apache-2.0
//
// What a port does where there is no memory left.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "door/child.hpp"
#include "farcall/call.hpp"

namespace {

std::atomic<bool> memory_is_out{false};

}  // namespace

// Sanitizers have an allocator of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t size) {
  void* const memory = memory_is_out ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace farcall {
namespace {

TEST(CallNoMemory, APortClosesAndTellsItsClients) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  Port port;
  const auto one = port.open_endpoint({}, {});
  const auto other = port.open_endpoint({}, {});
  const UniqueFd way = one->branch();
  memory_is_out = true;
  port.close();
  memory_is_out = false;
  EXPECT_TRUE(one->closed());
  EXPECT_TRUE(other->closed());
  Client client(way.get());
  CallResults results;
  EXPECT_EQ(client.call({}, results, Deadline::after(std::chrono::seconds(20))),
            Outcome::peer_gone);
}

}  // namespace
}  // namespace farcall
