// SPDX-License-Identifier: Apache-2.0
//
// What a port does where there is no memory left.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <new>

#include "call/port.hpp"
#include "call/raw.hpp"
#include "farcall/call.hpp"
#include "harness/child.hpp"

namespace {

thread_local bool memory_is_out = false;

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

using call::test::RawSession;

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

// Those that nobody attends to, that wait for a thread, and that are served.
TEST(CallNoMemory, AnEndpointClosesAllOfItsSessions) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  Port port;
  const auto endpoint = port.open_endpoint({}, {});
  const UniqueFd way = endpoint->branch();
  std::deque<RawSession> sessions;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(sessions.emplace_back(way.get()).welcome());
  for (int i = 0; i < 3; ++i) sessions[static_cast<std::size_t>(i)].give(call::Kind::request, 1, 5);
  ServerThread thread(port);
  Incoming incoming;
  ASSERT_EQ(thread.receive(incoming, Deadline::after(std::chrono::seconds(20))), Outcome::ok);
  memory_is_out = true;
  endpoint->close();
  memory_is_out = false;
  EXPECT_EQ(port.sessions(), 1U);
  EXPECT_EQ(thread.reply(incoming, {}), Outcome::ok);
  thread.leave();
  EXPECT_EQ(port.sessions(), 0U);
  for (const RawSession& session : sessions) EXPECT_TRUE(session.ended());
}

TEST(CallNoMemory, WhatHasRungIsLookedAt) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  Port port;
  const auto endpoint = port.open_endpoint({}, {});
  const UniqueFd way = endpoint->branch();
  RawSession session(way.get());
  ASSERT_TRUE(session.welcome());
  call::PortState& state = *call::inside(*endpoint).port;
  session.control().server.parked = WaitState::kAwake;  // its doorbell has been told to somebody
  memory_is_out = true;
  state.look_again();
  memory_is_out = false;
  EXPECT_EQ(session.control().server.parked, WaitState::kOnDescriptor);
}

// Who posts has something that only a notice brings to a thread.
TEST(CallNoMemory, WhoPostsIsToldThatThereIsNoneForTheNotice) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
  Port port;
  ServerThread thread(port);
  Incoming incoming;
  const auto endpoint = port.open_endpoint({}, {});
  port.post(endpoint);
  ASSERT_EQ(thread.receive(incoming, Deadline::now()), Outcome::ok);
  bool told = false;
  memory_is_out = true;
  try {
    port.post(endpoint);
  } catch (const std::bad_alloc&) {
    told = true;
  }
  memory_is_out = false;
  EXPECT_TRUE(told);
  EXPECT_EQ(thread.receive(incoming, Deadline::now()), Outcome::would_block);
  port.close();
  port.post(endpoint);
}

}  // namespace
}  // namespace farcall
