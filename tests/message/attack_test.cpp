// SPDX-License-Identifier: Apache-2.0
//
// What strangers try for a while against a channel with the usual limits, each beside clients that
// must not fail. Afterwards its process holds nothing more than before.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "door/usage.hpp"
#include "message/channel.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

using call::test::RawSession;
using door::test::become;
using door::test::is_root;
using door::test::kNobody;
using door::test::list_descriptors;
using door::test::open_descriptors;

constexpr auto kAttackTime = 700ms;

bool over() {
  static const std::int64_t end = now_ns() + std::chrono::nanoseconds(kAttackTime).count();
  return now_ns() > end;
}

int connect_to(const std::string& name) {
  const int connection = farcall_name_open(name.c_str());
  EXPECT_GT(connection, 0) << std::strerror(errno);
  return connection;
}
int socket_of(const std::string& name) { return farcall_connection_descriptor(connect_to(name)); }

void connect_and_leave(const std::string& name) {
  while (!over()) {
    const int connection = farcall_name_open(name.c_str());
    if (connection > 0 && ::rand() % 2 == 0) (void)send(connection, "x");
    farcall_disconnect(connection);
  }
}

void pulse_without_end(const std::string& name) {
  std::array<int, 4> connections{};
  for (int& connection : connections) connection = connect_to(name);
  while (!over())
    for (const int connection : connections) (void)farcall_pulse(connection, 0, 1, 2);
}

void ask_for_pulses_without_end(const std::string& name) {
  const int connection = socket_of(name);
  while (!over()) {
    RawPulses pulses(connection);
    if (::rand() % 2 == 0) (void)pulses.welcome();
  }
}

void fill_pages_while_they_are_read(const std::string& name) {
  const int connection = socket_of(name);
  std::minstd_rand random(3);
  while (!over()) {
    RawPulses pulses(connection);
    for (int i = 0; i < 2000; ++i) {
      pulses.page().pulses[random() % PulsePage::kMost] = pulse_packet(static_cast<int>(random()));
      pulses.page().count = static_cast<std::uint32_t>(random());
    }
  }
}

void unblock_everybody(const std::string& name) {
  RawPulses pulses(socket_of(name));
  ASSERT_TRUE(pulses.welcome());
  for (int number = 0; !over(); ++number) {
    PulsePacket packet = pulse_packet(PulsePacket::kUnblock);
    packet.value = number;
    (void)!::send(pulses.socket.get(), &packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void unblock_through_many_sockets(const std::string& name) {
  std::deque<RawPulses> all;
  for (int i = 0; i < 4; ++i) {
    const int connection = socket_of(name);
    for (int j = 0; j < 20; ++j) ASSERT_TRUE(all.emplace_back(connection).welcome());
  }
  const PulsePacket packet = pulse_packet(PulsePacket::kUnblock);
  while (!over())
    for (const RawPulses& pulses : all)
      (void)!::send(pulses.socket.get(), &packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void ask_through_many_sessions(const std::string& name) {
  std::deque<RawSession> all;
  const int connection = socket_of(name);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(all.emplace_back(connection).welcome());
  for (RawSession& session : all) session.give(call::Kind::request, 1, 5);
  while (!over())
    for (RawSession& session : all)
      if (const call::Turn turn = session.turn(); turn.kind == call::Kind::reply)
        session.give(call::Kind::request, turn.number + 1, 5);
}

void ring_many_sessions(const std::string& name) {
  std::deque<RawSession> all;
  const int connection = socket_of(name);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(all.emplace_back(connection).welcome());
  while (!over())
    for (RawSession& session : all)
      (void)!::send(session.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void send_one_way_without_end(const std::string& name) {
  const int connection = connect_to(name);
  while (!over()) (void)farcall_send_one_way(connection, "flood", 5);
}

void give_up_long_messages(const std::string& name) {
  const int connection = connect_to(name);
  const std::string text(512 * 1024, 'l');
  while (!over()) {
    farcall_timeout(::rand() % 200'000);
    (void)send(connection, text);
  }
}

void claim_to_be_urgent(const std::string& name) {
  std::deque<RawSession> sessions;
  const int connection = socket_of(name);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(sessions.emplace_back(connection).welcome());
  for (std::uint32_t number = 1; !over(); ++number)
    for (RawSession& session : sessions) {
      session.control().slot.extra = 0xff;
      session.give(call::Kind::request, number, 5,
                   number % 2 == 0 ? call::kAfterOthers : std::uint8_t{0});
    }
}

void tie_knots(const std::string& name) {
  const int connection = socket_of(name);
  while (!over()) {
    RawSession session(connection);
    if (!session.welcome()) continue;
    const int mine[] = {session.socket.get(), session.answers.get(), connection};
    for (int i = 0; i < 4; ++i) send_descriptors(session.socket.get(), mine, call::kPurposeData);
    session.give(call::Kind::request, 1, 5, call::kDescriptors);
    (void)session.answered(1, 5ms);
  }
}

void ask_for_the_status(const std::string& name) {
  std::array<char, 8000> text{};
  while (!over()) (void)farcall_channel_status(name.c_str(), text.data(), text.size());
}

struct Attack {
  const char* name;
  void (*run)(const std::string& name);
  int threads = 2;
};
std::ostream& operator<<(std::ostream& out, const Attack& attack) { return out << attack.name; }

class MessageAttack : public ::testing::TestWithParam<Attack> {};

TEST_P(MessageAttack, HarmsItsMakerAlone) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(60s);
  const std::string name = unique_name("attacked");
  const int channel = farcall_name_attach(name.c_str(), FARCALL_UNBLOCK, 0666);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  auto echo = std::make_unique<Echo>(channel, GetParam().threads);
  const Shared<std::atomic<bool>> stop;
  const Shared<std::atomic<int>> calls;
  const Shared<Event> ready;
  std::deque<Child> clients;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&] {
      const int connection = connect_to(name);
      EXPECT_EQ(send(connection, "x").text, "x");
      ready->happens();
      while (!*stop) {
        ASSERT_EQ(send(connection, "x").text, "x");
        ++*calls;
        std::this_thread::sleep_for(1ms);
      }
    });
  for (std::size_t i = 0; i < clients.size(); ++i) ASSERT_TRUE(ready->wait());
  const std::size_t before = open_descriptors();
  in_child([&] {
    ::signal(SIGPIPE, SIG_IGN);
    ASSERT_TRUE(become(kNobody));
    (void)over();
    try {
      GetParam().run("0/" + name);
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it is turned out
    }
  });
  const int meanwhile = *calls;
  EXPECT_TRUE(eventually([&] { return *calls > meanwhile + 100; })) << "they go on";
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; })) << list_descriptors();
  *stop = true;
  for (Child& client : clients) EXPECT_EQ(client.join(), 0);
  farcall_channel_destroy(channel);
}

INSTANTIATE_TEST_SUITE_P(
    Each, MessageAttack,
    ::testing::Values(Attack{"ConnectAndLeave", connect_and_leave},
                      Attack{"PulseWithoutEnd", pulse_without_end},
                      Attack{"AskForPulsesWithoutEnd", ask_for_pulses_without_end},
                      Attack{"FillPagesWhileTheyAreRead", fill_pages_while_they_are_read},
                      Attack{"UnblockEverybody", unblock_everybody},
                      Attack{"SendOneWayWithoutEnd", send_one_way_without_end},
                      Attack{"GiveUpLongMessages", give_up_long_messages},
                      Attack{"ClaimToBeUrgent", claim_to_be_urgent}, Attack{"TieKnots", tie_knots},
                      Attack{"AskForTheStatus", ask_for_the_status},
                      Attack{"UnblockOneThread", unblock_everybody, 1},
                      Attack{"UnblockThroughManySockets", unblock_through_many_sockets, 1},
                      Attack{"AskThroughManySessions", ask_through_many_sessions, 1},
                      Attack{"RingManySessions", ring_many_sessions, 1}),
    [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace farcall::message::test
