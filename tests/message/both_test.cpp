// SPDX-License-Identifier: Apache-2.0
//
// A program of doors and of messages: one of the two libraries stands behind the other.
#include <door.h>
#include <sys/syscall.h>

#include "harness/forbidden_call.hpp"
#include "harness/one_signal.hpp"
#include "message/channel.hpp"

extern "C" int become_by_another_library(uid_t user);
extern "C" farcall::test::Lonely::Install handle_by_another_library;

namespace farcall::message::test {
namespace {

void echo(void*, char* data, size_t size, door_desc_t*, uint_t) {
  ::door_return(data, size, nullptr, 0);
}

void expect_answers(int connection, int door) {
  EXPECT_EQ(send(connection, "x"), (Reply{.status = 0, .error = 0, .text = "x"}));
  char text[] = "x";
  door_arg_t call{};
  call.data_ptr = text;
  call.data_size = 1;
  EXPECT_EQ(::door_call(door, &call), 0) << std::strerror(errno);
}

// Both are told who changes its ids: neither has to ask with each call.
TEST(DoorsAndMessages, DoNotAskWhoTheyAreWithEachCall) {
  EchoServer server;
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    expect_answers(server.connection, door);
    ASSERT_TRUE(forbid_call(SYS_geteuid));
    expect_answers(server.connection, door);
  });
}

// `become` makes this process that user.
template <class Become>
void expect_to_be_known(Become become) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const uid_t user = kNobody;
  Channel channel;
  static uid_t caller;
  const int door = ::door_create(
      [](void*, char*, size_t, door_desc_t*, uint_t) {
        door_cred_t credentials{};
        EXPECT_EQ(::door_cred(&credentials), 0);
        caller = credentials.dc_euid;
        ::door_return(reinterpret_cast<char*>(&caller), sizeof caller, nullptr, 0);
      },
      nullptr, 0);
  Child child([&] {
    const auto expect_to_be = [&](uid_t expected) {
      EXPECT_EQ(send(channel.connection, "x").status, 0);
      uid_t seen = ~0U;
      door_arg_t call{};
      call.rbuf = reinterpret_cast<char*>(&seen);
      call.rsize = sizeof seen;
      EXPECT_EQ(::door_call(door, &call), 0);
      EXPECT_EQ(seen, expected);
    };
    expect_to_be(0);
    ASSERT_TRUE(become(user));
    expect_to_be(user);
  });
  for (const uid_t expected : {uid_t{0}, user}) {
    const Message message = receive(channel.id);
    EXPECT_EQ(message.info.uid, expected);
    answer(message.id, 0);
  }
  EXPECT_EQ(child.join(), 0);
}

TEST(DoorsAndMessages, KnowBothWhoTheyHaveBecome) {
  expect_to_be_known([](uid_t user) { return become(user); });
}

TEST(DoorsAndMessages, KnowBothWhoTheyHaveBecomeByAnotherLibrary) {
  expect_to_be_known([](uid_t user) { return become_by_another_library(user) == 0; });
}

TEST(DoorsAndMessages, AreBothInterruptedByTheHandlersOfAnotherLibrary) {
  FARCALL_SKIP_WITHOUT_WRAPPERS();
  if (!Lonely::kPossible) GTEST_SKIP() << "nobody has said where a handler interrupts a thread";
  Lonely lonely(true, handle_by_another_library);
  const Channel channel;
  using Receive = std::int64_t(int, void*, std::size_t, farcall_info*);
  EXPECT_EQ(
      lonely.count_lost<Receive>(signal_rounds() / 6, "farcall_receive", EINTR,
                                 [&](auto* function) {
                                   return function(channel.id, nullptr, 0, nullptr) < 0 ? errno : 0;
                                 }),
      0);
  // Nobody serves a private pool that no thread has been bound to.
  ::door_server_create([](door_info_t*) {});
  const int door = ::door_create(echo, nullptr, DOOR_PRIVATE);
  EXPECT_EQ(lonely.count_lost<decltype(::door_call)>(
                signal_rounds() / 6, "door_call", EAGAIN,
                [&](auto* function) { return function(door, nullptr) < 0 ? errno : 0; }),
            0);
}

}  // namespace
}  // namespace farcall::message::test
