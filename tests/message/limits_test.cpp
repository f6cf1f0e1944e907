// SPDX-License-Identifier: Apache-2.0
//
// What one user can make a server of messages hold.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>

#include "call/raw.hpp"
#include "harness/usage.hpp"
#include "message/channel.hpp"
#include "message/names.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

using call::test::RawSession;

// A server of few descriptors, and a user whose processes take as many of them as they get.
void hoard(const std::function<void(const std::string& full_name)>& hoarder) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const std::string name = unique_name("hoarded");
  const Shared<Event> ready;
  Child server([&] {
    rlimit few{.rlim_cur = 300, .rlim_max = 300};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    ready->happens();
    echo_for_ever(channel);
  });
  ASSERT_TRUE(ready->wait());
  const Shared<Event> hoarded;
  Child hostile([&] {
    ASSERT_TRUE(become(kNobody));
    ::signal(SIGPIPE, SIG_IGN);
    hoarder("0/" + name);
    hoarded->happens();
    for (;;) ::pause();
  });
  ASSERT_TRUE(hoarded->wait());
  in_child([&] {
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    const int connection = farcall_name_open(name.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    const Reply reply = send(connection, "x");
    EXPECT_EQ(reply.text, "x") << std::strerror(reply.error);
    EXPECT_EQ(farcall_pulse(connection, 0, 1, 1), 0) << std::strerror(errno);
    // A pulse that nobody can receive ends with its socket.
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    EXPECT_EQ(send(connection, std::string(50'000, 'x'), 50'000).text.size(), 50'000U);
    EXPECT_EQ(farcall_pulse(connection, 0, 1, 1), 0) << std::strerror(errno);
  });
  ASSERT_EQ(::waitpid(server.pid(), nullptr, WNOHANG), 0);
}

TEST(MessageLimits, ManyConnectionsOfOneUserLeaveRoomForOthers) {
  hoard([](const std::string& name) {
    for (int i = 0; i < 400; ++i) (void)farcall_name_open(name.c_str());
  });
}

TEST(MessageLimits, ManySocketsForPulsesOfOneUserLeaveRoomForOthers) {
  hoard([](const std::string& name) {
    std::deque<RawPulses> kept;
    for (int i = 0; i < 30; ++i) {
      const int connection = farcall_name_open(name.c_str());
      if (connection < 0) continue;
      for (int j = 0; j < 60; ++j) {
        try {
          if (!kept.emplace_back(farcall_connection_descriptor(connection)).welcome()) break;
        } catch (const SystemError&) {
          break;
        }
      }
    }
    // Kept as long as the process lives.
    for (RawPulses& one : kept) (void)one.socket.release();
  });
}

TEST(MessageLimits, ClientsThatLeaveInTheMiddleOfLargeMessagesTakeNoMemory) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers keep what is freed";
  EchoServer server;
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  auto attack = [&](int times) {
    in_child([&] {
      for (int i = 0; i < times; ++i) {
        RawSession session(farcall_connection_descriptor(server.connection));
        ASSERT_TRUE(session.welcome());
        const SharedMemory memory = SharedMemory::create(kBytes, "transfer");
        send_descriptors(session.socket.get(), std::array{memory.fd()}, call::kPurposeData);
        std::memcpy(session.control().slot.data, &kBytes, sizeof kBytes);
        // Gone while it is being copied, mostly.
        session.give(call::Kind::request, 1, 0, call::kTransfer | call::kTransferComes);
        if (i % 2 == 0) (void)session.answered(1, 20ms);
      }
    });
    EXPECT_EQ(send(server.connection, "x").text, "x");
  };
  attack(3);
  const Usage before;
  attack(20);
  EXPECT_TRUE(eventually([&] { return Usage::resident_bytes() <= before.resident + 3 * kBytes; }))
      << Usage::resident_bytes() << " instead of " << before.resident;
}

TEST(MessageLimits, AConnectionThatItsServerIsMadeToHoldEndsAllTheSame) {
  const std::string name = unique_name("held");
  const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0600);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  in_child([&] {
    int connections[2];
    for (int& fd : connections) fd = farcall_connection_descriptor(farcall_name_open(name.c_str()));
    // Each by the other.
    const SharedMemory memory = SharedMemory::create(sizeof(PulsePage));
    send_descriptors(connections[0], std::array{memory.fd(), connections[1]}, kPurposePulses);
    RawSession session(connections[1], true, false);
    send_descriptors(connections[1], std::array{session.memory.fd(), connections[0]},
                     call::kPurposeSession);
  });
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(receive(channel, 10).info.code, FARCALL_PULSE_DISCONNECT) << i;
  farcall_channel_destroy(channel);
}

TEST(MessageLimits, ConnectingAndLeavingWithoutEndTakesNoMemory) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(60s);
  const std::string name = unique_name("coming-and-going");
  const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0666);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const auto most = static_cast<int>(std::min<rlim_t>(files.rlim_cur, 800) / 4);
  const rlimit few{.rlim_cur = 800, .rlim_max = files.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  Child hostile([&] {
    ASSERT_TRUE(become(kNobody));
    int refused = 0;
    for (int i = 0; i < 3 * most; ++i) {
      const int connection = farcall_name_open(("0/" + name).c_str());
      if (connection < 0) {
        EXPECT_EQ(errno, EDQUOT) << std::strerror(errno);
        ++refused;
      }
      if (connection > 0) farcall_disconnect(connection);
    }
    EXPECT_GT(refused, 0) << "each leaves a pulse that nobody has received";
  });
  EXPECT_EQ(hostile.join(), 0);
  int told = 0;
  while (receive(channel, 10, told == 0 ? kPatience : 100ms).id == 0) ++told;
  EXPECT_GT(told, 0);
  EXPECT_LE(told, most);
  // Now that they have been told, there is room again.
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    // What they held is given back when it has been closed.
    EXPECT_TRUE(eventually([&] { return farcall_name_open(("0/" + name).c_str()) > 0; }))
        << std::strerror(errno);
  });
  ::setrlimit(RLIMIT_NOFILE, &files);
  farcall_channel_destroy(channel);
}

}  // namespace
}  // namespace farcall::message::test
