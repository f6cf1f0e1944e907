// SPDX-License-Identifier: Apache-2.0
//
// What a forked child may not bring about with the memory that its parent shares with others. It
// may have given up its parent's privileges, and be told what to do by who knows whom.
#include <gtest/gtest.h>

#include <vector>

#include "door/raw.hpp"

namespace farcall::door::test {
namespace {

using Sessions = std::vector<call::SessionControl*>;

Sessions sessions_of_this_process() {
  Sessions all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:farcall-session") != std::string::npos)
      all.push_back(reinterpret_cast<call::SessionControl*>(std::stoull(line, nullptr, 16)));
  return all;
}

// As a client does.
void request(call::SessionControl& session, std::uint32_t number) {
  session.slot.turn = call::Turn{.number = number, .kind = call::Kind::request}.pack();
  session.server.parked = WaitState::kAwake;
  ++session.server.bell;
  call::test::wake_sleeper(session.server.parked);
  call::test::wake_sleeper(session.server.bell);
}

// As a server does.
void reply(call::SessionControl& session) {
  call::Turn turn = call::Turn::unpack(session.slot.turn);
  turn.kind = call::Kind::reply;
  turn.flags = 0;
  turn.size = 5;
  std::memcpy(session.slot.data, "wrong", turn.size);
  session.slot.turn = turn.pack();
  session.client.parked = WaitState::kAwake;
  call::test::wake_sleeper(session.client.parked);
}

struct Told {
  pid_t pid;
  int count;
};

TEST(DoorChildTrust, AChildCallsNobodyWithItsParentsSession) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  const ScopedServer server([] {
    static std::atomic<int> count{0};
    static auto tell = [](char*, size_t, door_desc_t*, uint_t) {
      door_cred_t who{};
      ::door_cred(&who);
      const Told now{.pid = who.dc_pid, .count = ++count};
      return Answer(std::string(reinterpret_cast<const char*>(&now), sizeof now));
    };
    return make_door(tell);
  });
  in_child([&] {
    ASSERT_EQ(call(server.door()).number<Told>().count, 1);
    const Sessions sessions = sessions_of_this_process();
    ASSERT_EQ(sessions.size(), 1U);
    const std::uint32_t last = call::Turn::unpack(sessions[0]->slot.turn).number;
    for (const bool told : {true, false}) {
      const pid_t child = told ? ::fork() : ::_Fork();
      if (child == 0) {
        request(*sessions[0], last + 1);
        ::_exit(eventually(
            [&] { return call::Turn::unpack(sessions[0]->slot.turn).kind == call::Kind::reply; },
            kGlance));
      }
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "it has been answered";
    }
    ASSERT_EQ(call::Turn::unpack(sessions[0]->slot.turn).number, last);
    const Told told = call(server.door()).number<Told>();
    EXPECT_EQ(told.pid, ::getpid());
    EXPECT_EQ(told.count, 2);
  });
}

TEST(DoorChildTrust, AChildAnswersNobodyInItsParentsPlace) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  const ScopedServer server([] {
    static auto answer = [](char* data, size_t size, door_desc_t*, uint_t) {
      const Sessions sessions = sessions_of_this_process();
      EXPECT_FALSE(sessions.empty());
      const pid_t child = ::fork();
      if (child == 0) {
        for (call::SessionControl* const session : sessions) reply(*session);
        ::_exit(0);
      }
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      return Answer(std::string(data, size));
    };
    return make_door(answer);
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(call(server.door(), "right").data, "right");
}

}  // namespace
}  // namespace farcall::door::test
