// SPDX-License-Identifier: Apache-2.0
//
// Processes that a channel does not let in, for their user has what one may have: what they have
// sent before they could know comes all the same, as much as may wait.
#include <gtest/gtest.h>

#include "farcall/limits.h"
#include "message/channel.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

// A channel of which one user may hold so many descriptors, and whoever may connect.
struct Narrow {
  explicit Narrow(std::uint64_t descriptors) {
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.descriptors_per_user = descriptors;
    EXPECT_EQ(farcall_limits_set(&limits), 0);
    channel = farcall_name_attach(name.c_str(), 0, 0666);
    EXPECT_GT(channel, 0) << std::strerror(errno);
    limits.descriptors_per_user = 0;
    EXPECT_EQ(farcall_limits_set(&limits), 0);
  }
  ~Narrow() { farcall_channel_destroy(channel); }
  Narrow(const Narrow&) = delete;
  Narrow& operator=(const Narrow&) = delete;

  const std::string name = unique_name("narrow");
  int channel;
};

// How many pulses are there, or come within `time` after the last one.
int pulses_at(int channel, std::chrono::nanoseconds time) {
  int count = 0;
  while (receive(channel, 0, time).id == 0) ++count;
  return count;
}

// In order; a slow server may take long to refuse.
TEST(MessageRefused, PulsesThatWereSentComeAllTheSame) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(60s);
  const Narrow server(1);  // which is the connection
  const Shared<std::atomic<int>> sent;
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    const int connection = farcall_name_open(("0/" + server.name).c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    constexpr int kFirst = 20;  // no more than may wait
    while (*sent < kFirst && farcall_pulse(connection, 0, 1, *sent) == 0) ++*sent;
    // Each is a new attempt, and has come if it has returned 0.
    for (int i = 0; i < 5; ++i) {
      if (farcall_pulse(connection, 0, 1, *sent) == 0) ++*sent;
      std::this_thread::sleep_for(5ms);
    }
  });
  EXPECT_GT(*sent, 1);
  for (int i = 0; i < *sent; ++i) {
    const Message pulse = receive(server.channel, 0);
    ASSERT_EQ(pulse.id, 0);
    EXPECT_EQ(pulse.info.value, i);
  }
}

TEST(MessageRefused, AStrangersPulsesAreNoMoreThanMayWait) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(60s);
  const Narrow server(1);  // which is the connection
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    const int connection = farcall_name_open(("0/" + server.name).c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    for (int i = 0; i < 10; ++i) {
      const SharedMemory memory = SharedMemory::create(sizeof(PulsePage));
      const Mapping mapping = memory.map();
      auto* page = reinterpret_cast<PulsePage*>(mapping.data());
      for (PulsePacket& packet : page->pulses) packet = pulse_packet(1);
      page->count = PulsePage::kMost;
      auto [mine, theirs] = packet_socket_pair();
      send_descriptors(farcall_connection_descriptor(connection),
                       std::array{memory.fd(), theirs.get()}, kPurposePulses, Deadline::now());
      theirs.reset();
      pollfd refused{.fd = mine.get(), .events = POLLRDHUP, .revents = 0};
      EXPECT_EQ(::poll(&refused, 1, 10'000), 1);
    }
  });
  EXPECT_EQ(pulses_at(server.channel, 200ms), static_cast<int>(kMostPulses));
}

// Each process has a socket, and there are no more than so many of one connection.
TEST(MessageRefused, PulsesOfAllWhoHaveInheritedAConnectionCome) {
  give_up_after(60s * kSlow);
  const Channel channel;
  const Shared<Event> over;
  std::vector<std::unique_ptr<Child>> children;
  for (std::size_t i = 0; i < kMostPulseSockets + 6; ++i)
    children.push_back(std::make_unique<Child>([&] {
      EXPECT_EQ(farcall_pulse(channel.connection, 0, 1, 0), 0) << std::strerror(errno);
      (void)over->wait(60s);
    }));
  for (std::size_t i = 0; i < children.size(); ++i) EXPECT_EQ(receive(channel.id, 0).id, 0) << i;
}

TEST(MessageRefused, ConnectionsOfAUserAreNoMoreThanItsDescriptors) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  constexpr int kMost = 3;
  const Narrow server(kMost);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    int opened = 0;
    for (int i = 0; i < 50; ++i) {
      if (farcall_name_open(("0/" + server.name).c_str()) > 0)
        ++opened;
      else
        EXPECT_EQ(errno, EDQUOT);
      std::this_thread::sleep_for(2ms);  // the way there counts as well, for a moment
    }
    EXPECT_EQ(opened, kMost);
  });
}

// Sends messages of `size` bytes, and then one that is short.
void expect_refused(int connection, std::size_t size, int error) {
  const std::string text(size, 'x');
  EXPECT_EQ(send(connection, text).error, error) << size;
  EXPECT_EQ(farcall_send_one_way(connection, text.data(), text.size()), -1) << size;
  EXPECT_EQ(errno, error) << size;
  EXPECT_EQ(farcall_send_one_way(connection, "x", 1), 0) << std::strerror(errno);
  EXPECT_EQ(send(connection, "x").text, "x");
}

TEST(MessageRefused, ALongMessageIsRefusedInTheSameWayWhetherItIsOneWayOrNot) {
  give_up_after(60s);
  in_child([] {
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.request_bytes = 10'000;
    ASSERT_EQ(farcall_limits_set(&limits), 0);
    const EchoServer server;
    // The server's threads are this process's: the call is answered, and no second passes in vain.
    for (const std::size_t size : {10'001U, 50'000U, 200'000U})
      expect_refused(server.connection, size, E2BIG);
    const std::string longest(10'000, 'x');
    EXPECT_EQ(farcall_send_one_way(server.connection, longest.data(), longest.size()), 0);
  });
}

}  // namespace
}  // namespace farcall::message::test
