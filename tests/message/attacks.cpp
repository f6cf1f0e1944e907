// SPDX-License-Identifier: Apache-2.0
#include "message/attacks.hpp"

#include <deque>
#include <random>

#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

using call::test::RawSession;

std::chrono::nanoseconds attack_time{};

bool over() {
  static const std::int64_t end = now_ns() + attack_time.count();
  return now_ns() > end;
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

constexpr std::array kAttacks{Attack{"ConnectAndLeave", connect_and_leave},
                              Attack{"PulseWithoutEnd", pulse_without_end},
                              Attack{"AskForPulsesWithoutEnd", ask_for_pulses_without_end},
                              Attack{"FillPagesWhileTheyAreRead", fill_pages_while_they_are_read},
                              Attack{"UnblockEverybody", unblock_everybody},
                              Attack{"SendOneWayWithoutEnd", send_one_way_without_end},
                              Attack{"GiveUpLongMessages", give_up_long_messages},
                              Attack{"ClaimToBeUrgent", claim_to_be_urgent},
                              Attack{"TieKnots", tie_knots},
                              Attack{"AskForTheStatus", ask_for_the_status},
                              Attack{"UnblockOneThread", unblock_everybody, 1},
                              Attack{"UnblockThroughManySockets", unblock_through_many_sockets, 1},
                              Attack{"AskThroughManySessions", ask_through_many_sessions, 1},
                              Attack{"RingManySessions", ring_many_sessions, 1}};

}  // namespace

int connect_to(const std::string& name) {
  const int connection = farcall_name_open(name.c_str());
  EXPECT_GT(connection, 0) << std::strerror(errno);
  return connection;
}

std::span<const Attack> attacks() { return kAttacks; }

void run_as_nobody(const Attack& attack, const std::string& name, std::chrono::nanoseconds time) {
  ::signal(SIGPIPE, SIG_IGN);
  ASSERT_TRUE(become(kNobody));
  attack_time = time;
  (void)over();
  try {
    attack.run(name);
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it is turned out
  }
}

}  // namespace farcall::message::test
