// SPDX-License-Identifier: Apache-2.0
//
// What those who send pulses may not bring about: a stranger against a server with the usual
// limits, and a client that must not notice.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "harness/ancillary_message.hpp"
#include "harness/lingering.hpp"
#include "harness/stalled_page.hpp"
#include "message/channel.hpp"
#include "message/names.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

struct MessagePulseTrust : ::testing::Test {
  std::string name = unique_name("pulse-trust");
  int channel = -1;
  std::unique_ptr<Echo> echo;

  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
    give_up_after(60s);
    channel = farcall_name_attach(name.c_str(), 0, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    echo = std::make_unique<Echo>(channel);
  }
  void TearDown() override {
    if (channel > 0) farcall_channel_destroy(channel);
  }
  // While a stranger does `body`, and goes on living.
  template <class Body>
  void beside_stranger(Body body) {
    const Shared<Event> done;
    Child hostile([&] {
      ::signal(SIGPIPE, SIG_IGN);
      const StalledPage page;
      ASSERT_TRUE(page);
      ASSERT_TRUE(become(kNobody));
      const int connection = farcall_name_open(("0/" + name).c_str());
      ASSERT_GT(connection, 0);
      body(farcall_connection_descriptor(connection), page);
      done->happens();
      for (;;) ::pause();
    });
    ASSERT_TRUE(done->wait());
    in_child([&] {
      const int connection = farcall_name_open(name.c_str());
      ASSERT_GT(connection, 0);
      for (int i = 0; i < 200; ++i) {
        EXPECT_EQ(farcall_pulse(connection, 0, i, 0), 0);
        EXPECT_EQ(send(connection, "x").text, "x");
      }
    });
  }
};

TEST_F(MessagePulseTrust, WhoHoldsTheLocksOfItsSocketsHoldsNobodyUp) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  beside_stranger([&](int connection, const StalledPage& page) {
    std::pair<UniqueFd, UniqueFd> ends = packet_socket_pair();
    const UniqueFd other = ends.second.duplicate();
    const UniqueFd mine = ends.first.duplicate();
    const PulsePacket packet = pulse_packet(1);
    page.hold_lock(other.get());
    ASSERT_GT(::send(mine.get(), &packet, sizeof packet, 0), 0);
    // As the socket of its pulses, which it was once,
    send_descriptors(connection, std::array{other.get()}, kPurposePulses);
    // and as the one to answer at.
    RawPulses pulses(connection, std::move(ends));
    ASSERT_TRUE(pulses.welcome());
    page.hold_lock(pulses.socket.get());
    for (const int socket : {mine.get(), pulses.socket.get()})
      for (int i = 0; i < 10; ++i) (void)!::send(socket, &packet, sizeof packet, MSG_DONTWAIT);
    std::this_thread::sleep_for(50ms);
  });
}

// Sends a pulse with descriptors, as many as a packet can have at most. False: it was not sent.
constexpr std::size_t kMostInPacket = 253;
bool send_with(int socket, const std::vector<int>& descriptors) {
  const PulsePacket packet = pulse_packet(1);
  return farcall::test::send_with_descriptors(socket, std::as_bytes(std::span(&packet, 1)),
                                              descriptors, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}
// Something whose last close takes its time; this process closes it here, or, where it could not be
// sent, never.
void send_lingering(int socket) {
  UniqueFd slow = lingering(20);
  if (!send_with(socket, {slow.get()})) (void)slow.release();
}

TEST_F(MessagePulseTrust, WhatLingersInAPulseHoldsNobodyUp) {
  beside_stranger([&](int connection, const StalledPage&) {
    auto [mine, theirs] = packet_socket_pair();
    send_lingering(mine.get());
    send_descriptors(connection, std::array{theirs.release()}, kPurposePulses);
    RawPulses pulses(connection);
    ASSERT_TRUE(pulses.welcome());
    for (int i = 0; i < 3; ++i) send_lingering(pulses.socket.get());
    (void)mine.release();
  });
}

// Connects again and again, and sends as many descriptors as there is room for to all that it gets.
void flood_with_descriptors(const std::string& name, const std::atomic<bool>& enough) {
  const UniqueFd file(::memfd_create("flood", MFD_CLOEXEC));
  const std::vector<int> many(kMostInPacket, file.get());
  while (!enough) {
    const int connection = farcall_name_open(("0/" + name).c_str());
    if (connection < 0) continue;
    try {
      RawPulses pulses(farcall_connection_descriptor(connection));
      while (send_with(farcall_connection_descriptor(connection), many)) {
      }
      if (pulses.welcome())
        while (send_with(pulses.socket.get(), many)) {
        }
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has been turned away
    }
    farcall_disconnect(connection);
  }
}

TEST(MessagePulseFlood, OfDescriptorsLeavesTheServerRoomForOthers) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  give_up_after(60s);
  const std::string name = unique_name("pulse-flood");
  struct State {
    Event up;
    std::atomic<bool> enough{false};
  };
  const Shared<State> state;
  Child server([&] {
    const rlimit few{.rlim_cur = 1024, .rlim_max = 1024};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const int channel = farcall_name_attach(name.c_str(), 0, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    Echo echo(channel, 2);
    state->up.happens();
    int without = 0;
    while (!state->enough) {
      if (!UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC))) ++without;
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(without, 0) << "so often the table was full";
    farcall_channel_destroy(channel);
  });
  ASSERT_TRUE(state->up.wait());
  const auto flood = [&] {
    ::signal(SIGPIPE, SIG_IGN);
    ASSERT_TRUE(become(kNobody));
    flood_with_descriptors(name, state->enough);
  };
  Child one(flood);
  Child other(flood);
  in_child([&] {
    for (int i = 0; i < 300; ++i) {
      const int connection = farcall_name_open(name.c_str());
      ASSERT_GT(connection, 0) << std::strerror(errno);
      EXPECT_EQ(farcall_pulse(connection, 0, i, 0), 0) << std::strerror(errno);
      const Reply reply = send(connection, "x");
      EXPECT_EQ(reply.text, "x") << std::strerror(reply.error);
      farcall_disconnect(connection);
      std::this_thread::sleep_for(5ms);
    }
  });
  state->enough = true;
  EXPECT_EQ(one.join(), 0);
  EXPECT_EQ(other.join(), 0);
  EXPECT_EQ(server.join(), 0);
}

// A stranger gives the socket of its pulses to a program of root's, as what that writes to.
TEST(MessagePulseSocket, BringsNothingOfAnotherProcess) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(60s);
  const std::string name = unique_name("given");
  const int channel = farcall_name_attach(name.c_str(), 0, 0666);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  const auto [given, giving] = packet_socket_pair();
  const Shared<Event> written;
  Child stranger([&] {
    ASSERT_TRUE(become(kNobody));
    const int connection = farcall_name_open(("0/" + name).c_str());
    ASSERT_GT(connection, 0);
    RawPulses pulses(farcall_connection_descriptor(connection));
    ASSERT_TRUE(pulses.welcome());
    const PulsePacket own = pulse_packet(1, kNormalPriority);
    ASSERT_GT(::send(pulses.socket.get(), &own, sizeof own, MSG_DONTWAIT), 0);
    send_descriptors(giving.get(), std::array{pulses.socket.get()});
    ASSERT_TRUE(written->wait());
    // Nothing is taken there any more.
    pollfd end{.fd = pulses.socket.get(), .events = POLLRDHUP, .revents = 0};
    EXPECT_EQ(::poll(&end, 1, static_cast<int>(call::test::kPatience.count())), 1);
    EXPECT_EQ(farcall_pulse(connection, 0, 2, 0), 0) << "by a socket of its own";
  });
  pollfd comes{.fd = given.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&comes, 1, static_cast<int>(call::test::kPatience.count())), 1);
  const UniqueFd socket = call::test::take_only_descriptor(given.get());
  ASSERT_TRUE(socket);
  Child program([&] {
    const PulsePacket text = pulse_packet(7, kHighestPriority);
    ASSERT_GT(::send(socket.get(), &text, sizeof text, MSG_DONTWAIT), 0);
  });
  EXPECT_EQ(program.join(), 0);
  written->happens();
  for (const int code : {1, 2}) {
    const Message pulse = receive(channel);
    ASSERT_EQ(pulse.id, 0) << std::strerror(pulse.error);
    EXPECT_EQ(pulse.info.code, code);
    EXPECT_EQ(pulse.info.uid, kNobody);
    EXPECT_EQ(pulse.info.pid, stranger.pid());
  }
  EXPECT_EQ(stranger.join(), 0);
  farcall_channel_destroy(channel);
}

// Another kind of socket, or none, could make the client wait.
TEST(MessagePulseSender, TakesOnlyASocketOfPackets) {
  const auto [server, branch] = packet_socket_pair();
  PulseSender sender(branch.get(), {.user = ::geteuid(), .trusted = true}, pulse_packet(1));
  Packet asked = take_packet(server.get());
  ASSERT_EQ(asked.descriptors.size(), 2U);
  const Mapping page = SharedMemory::adopt(std::move(asked.descriptors[0])).map();
  reinterpret_cast<PulsePage*>(page.data())->count = PulsePage::kTaken;
  const auto [stream, other] = socket_pair();
  send_descriptors(asked.descriptors[1].get(), std::array{stream.get()});
  EXPECT_FALSE(sender.send(branch.get(), pulse_packet(2)));
}

// Each that asks may be answered with descriptors that are long in closing.
TEST(MessagePulseSender, AsksNoStrangerOfWhomTooMuchWaitsToBeClosed) {
  struct State {
    std::atomic<bool> closed{false};
    std::atomic<std::size_t> begun{0};
  };
  const auto state = std::make_shared<State>();
  const auto close_one = [state] {
    process::run_later(kNobody, [state] {
      ++state->begun;
      state->closed.wait(false);
    });
  };
  for (std::size_t i = 1; i <= process::kThreadsPerUser; ++i) {
    close_one();
    ASSERT_TRUE(eventually([&] { return state->begun == i; }));
  }
  while (!process::behind(kNobody)) close_one();
  const auto [server, branch] = packet_socket_pair();
  const call::Maker stranger{.user = kNobody, .trusted = false};
  try {
    const PulseSender sender(branch.get(), stranger, pulse_packet(1));
    ADD_FAILURE() << "it is asked all the same";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), EAGAIN);
  }
  EXPECT_EQ(take_packet(server.get()).kind, Packet::Kind::nothing);
  state->closed = true;
  state->closed.notify_all();
  ASSERT_TRUE(eventually([] { return !process::behind(kNobody); }));
  const PulseSender sender(branch.get(), stranger, pulse_packet(1));
  EXPECT_EQ(take_packet(server.get()).descriptors.size(), 2U);
}

TEST(MessagePulseFlood, OthersWaitBehindFewOfThem) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(60s);
  const std::string name = unique_name("flood");
  const int channel = farcall_name_attach(name.c_str(), 0, 0666);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  const Shared<Event> full;
  const Shared<std::atomic<std::size_t>> sent;
  Child hostile([&] {
    ASSERT_TRUE(become(kNobody));
    for (int i = 0; i < 32; ++i) {
      const int connection = farcall_name_open(("0/" + name).c_str());
      ASSERT_GT(connection, 0);
      for (int j = 0; j < 400; ++j)
        if (farcall_pulse(connection, 0, 1, 1) == 0) ++*sent;
    }
    full->happens();
    for (;;) ::pause();
  });
  ASSERT_TRUE(full->wait());
  Child client([&] {
    const int connection = farcall_name_open(name.c_str());
    EXPECT_EQ(send(connection, "x").text, "x");
  });
  ASSERT_TRUE(eventually([&] {
    std::array<char, 4000> text{};
    (void)farcall_channel_status(("0/" + name).c_str(), text.data(), text.size() - 1);
    // It sleeps once it has also rung.
    return std::strstr(text.data(), "send-blocked") != nullptr && state_of(client.pid()) == 'S';
  }));
  std::size_t pulses = 0;
  Message message = receive(channel);
  for (; message.id == 0; message = receive(channel)) ++pulses;
  ASSERT_GT(message.id, FARCALL_ONE_WAY) << std::strerror(message.error);
  EXPECT_EQ(answer(message.id, 0, message.text), 0);
  EXPECT_EQ(client.join(), 0);
  EXPECT_LE(pulses, kMostPulses + 8);
  EXPECT_GT(*sent, 32 * kMostPulses);
  for (; pulses < *sent; ++pulses) ASSERT_EQ(receive(channel).id, 0) << "one is lost";
  farcall_channel_destroy(channel);
}

TEST(MessagePulseFlood, WhoAsksToUnblockInVainIsHeardInTurnWithMessages) {
  give_up_after(60s);
  const std::string name = unique_name("unblock");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0);
  RawPulses pulses(farcall_connection_descriptor(connection));
  ASSERT_TRUE(pulses.welcome());
  const PulsePacket packet = pulse_packet(PulsePacket::kUnblock);
  for (int i = 0; i < 250; ++i)
    ASSERT_GT(::send(pulses.socket.get(), &packet, sizeof packet, MSG_DONTWAIT), 0);
  const auto lying = [&] {
    int bytes = 0;
    EXPECT_EQ(::ioctl(pulses.socket.get(), SIOCOUTQ, &bytes), 0);
    return bytes;
  };
  Child client([&] { EXPECT_EQ(send(connection, "x").text, "x"); });
  ASSERT_TRUE(eventually([&] {
    std::array<char, 4000> text{};
    (void)farcall_channel_status(own_name(name).c_str(), text.data(), text.size() - 1);
    return std::strstr(text.data(), "send-blocked") != nullptr && state_of(client.pid()) == 'S';
  }));
  const Message message = receive(channel);
  ASSERT_GT(message.id, FARCALL_ONE_WAY) << std::strerror(message.error);
  EXPECT_GT(lying(), 0) << "not all of them have been taken before the message";
  EXPECT_EQ(answer(message.id, 0, message.text), 0);
  EXPECT_EQ(client.join(), 0);
  EXPECT_TRUE(eventually([&] {
    (void)receive(channel, 4096, 1ms);
    return lying() == 0;
  })) << "and the others when nobody else waits";
  farcall_disconnect(connection);
  farcall_channel_destroy(channel);
}

TEST_F(MessagePulseTrust, PulsesBeforeTheSocketHasComeAreNotLostOrOvertaken) {
  // A server that is stopped takes nothing; nobody waits for it.
  const Shared<Event> ready;
  const std::string stopped_name = unique_name("stopped");
  Child server([&] {
    const int own = farcall_name_attach(stopped_name.c_str(), 0, 0600);
    ready->happens();
    int next = 0;
    for (farcall_info info{}; next < static_cast<int>(PulsePage::kMost) + 10;) {
      const std::int64_t id = farcall_receive(own, nullptr, 0, &info);
      ASSERT_EQ(id, 0);
      EXPECT_EQ(info.code, next++);
    }
  });
  ASSERT_TRUE(ready->wait());
  const int connection = farcall_name_open(stopped_name.c_str());
  ASSERT_GT(connection, 0);
  ASSERT_EQ(::kill(server.pid(), SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(server.pid(), &status, WUNTRACED), server.pid());
  int sent = 0;
  while (farcall_pulse(connection, 0, sent, 0) == 0) ++sent;
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(sent, static_cast<int>(PulsePage::kMost));
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
  for (; sent < static_cast<int>(PulsePage::kMost) + 10; ++sent)
    ASSERT_TRUE(eventually([&] { return farcall_pulse(connection, 0, sent, 0) == 0; }));
  EXPECT_EQ(server.join(), 0);
  farcall_disconnect(connection);
}

}  // namespace
}  // namespace farcall::message::test
