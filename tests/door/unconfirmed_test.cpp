// SPDX-License-Identifier: Apache-2.0
//
// Clients that do not take the descriptors of a reply, and the one thread that serves them all.
#include <gtest/gtest.h>

#include "door/impostor.hpp"
#include "farcall/limits.h"

namespace farcall::door::test {
namespace {

void give_or_echo(void*, char* data, size_t size, door_desc_t*, uint_t) {
  door_desc_t passed = pass(0);
  if (std::string_view(data, size) == "give") ::door_return(nullptr, 0, &passed, 1);
  ::door_return(data, size, nullptr, 0);
}

// A door that one thread serves and never another, which has all the time in the world.
int make_door_of_one_thread() {
  farcall_limits limits{};
  limits.size = sizeof limits;
  limits.patience_ns = std::int64_t{3600} * 1'000'000'000;
  EXPECT_EQ(::door_limits_set(&limits), 0);
  ::door_server_create([](door_info_t*) {});
  const int door = ::door_create(give_or_echo, nullptr, DOOR_PRIVATE);
  std::thread([door] {
    ::door_bind(door);
    ::door_return(nullptr, 0, nullptr, 0);
  }).detach();
  return door;
}

// Asks for a descriptor, and says nothing when it comes.
void ask(RawSession& session, std::uint32_t number) {
  std::memcpy(session.control().slot.data, "give", 4);
  session.control().slot.extra = 0;
  session.give(call::Kind::request, number, 4);
  ASSERT_TRUE(session.answered(number));
  ASSERT_NE(session.turn().flags & call::kDescriptors, 0);
}

TEST(DoorUnconfirmed, ClientsThatNeverTakeDescriptorsHoldNobodyUp) {
  give_up_after(40s);
  const ScopedServer server(make_door_of_one_thread);
  const Shared<Event> asked;
  Child hostile([&] {
    std::deque<RawSession> sessions;
    for (int i = 0; i < 6; ++i) {
      ASSERT_TRUE(sessions.emplace_back(server.door()).welcome());
      ask(sessions.back(), 1);
      asked->happens();
    }
    ::pause();
  });
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(asked->wait());
    EXPECT_EQ(call(server.door(), "x").data, "x");
  }
}

TEST(DoorUnconfirmed, WhoSaysTooLateThatThereIsNoRoomIsRefused) {
  give_up_after(40s);
  const ScopedServer server(make_door_of_one_thread);
  RawSession late(server.door());
  ASSERT_TRUE(late.welcome());
  for (std::uint32_t number = 1; number < 6; number += 2) {
    ask(late, number);
    EXPECT_EQ(call(server.door(), "x").data, "x") << "the thread has gone on";
    // A client of this library waits for another reply now.
    late.give(call::Kind::done, number, EMFILE);
    ASSERT_TRUE(late.answered(number));
    EXPECT_NE(late.turn().flags & call::kRefused, 0);
    EXPECT_EQ(late.control().slot.extra, EMFILE);
    (void)call::test::take_only_descriptor(late.answers.get());
    std::memcpy(late.control().slot.data, "echo", 4);
    late.give(call::Kind::request, number + 1, 4);
    ASSERT_TRUE(late.answered(number + 1));
    EXPECT_EQ(late.turn().size, 4);
  }
}

TEST(DoorUnconfirmed, ASocketThatIsNeverEmptiedIsWaitedForByNobody) {
  give_up_after(60s);
  const ScopedServer server(make_door_of_one_thread);
  constexpr std::int64_t kLong = 1'000'000'000 * std::int64_t{kSlow};
  std::int64_t took = kLong;
  // Once more where it may have been the machine that stopped.
  for (int tries = 0; tries < 3 && took >= kLong; ++tries) {
    RawSession full(server.door());
    ASSERT_TRUE(full.welcome());
    const auto ended = [&] {
      pollfd end{.fd = full.socket.get(), .events = POLLRDHUP, .revents = 0};
      return ::poll(&end, 1, 0) == 1;
    };
    std::int64_t begun = 0;
    for (std::uint32_t number = 1; number < 5000 && !ended(); ++number) {
      begun = now_ns();
      std::memcpy(full.control().slot.data, "give", 4);
      full.give(call::Kind::request, number, 4);
      ASSERT_TRUE(eventually([&] { return full.answered(number, 0ms) || ended(); }));
      full.give(call::Kind::done, number);
    }
    ASSERT_TRUE(ended()) << "the socket takes all there is";
    took = now_ns() - begun;
  }
  EXPECT_LT(took, kLong);
  EXPECT_EQ(call(server.door(), "x").data, "x");
}

}  // namespace
}  // namespace farcall::door::test
