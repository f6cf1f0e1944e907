// SPDX-License-Identifier: Apache-2.0
//
// Who claims to be another, or more urgent than it is.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <random>
#include <set>

#include "message/channel.hpp"
#include "message/names.hpp"
#include "message/priority.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

TEST(MessageImpostor, AForgedIdAnswersNobody) {
  Channel channel;
  Child client([&] { EXPECT_EQ(send(channel.connection, "x").text, "true"); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  std::minstd_rand random(8);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << random() % 64;
    std::int64_t forged = static_cast<std::int64_t>(static_cast<std::uint64_t>(message.id) ^ bit);
    if (random() % 2 == 0)
      forged = static_cast<std::int64_t>(std::uint64_t{random()} << 33 ^ random());
    if (forged == message.id) continue;
    char byte = 0;
    ASSERT_EQ(answer(forged, 0, "forged"), -1);
    ASSERT_EQ(errno, ESRCH);
    ASSERT_EQ(farcall_read(forged, 0, &byte, 1), -1);
    ASSERT_EQ(farcall_write(forged, 0, &byte, 1), -1);
    ASSERT_EQ(farcall_error(forged, EIO), -1);
  }
  EXPECT_EQ(answer(message.id, 0, "true"), 0);
  EXPECT_EQ(client.join(), 0);
}

TEST(MessageImpostor, AnIdIsOfItsProcessAlone) {
  Channel channel;
  Child client([&] { EXPECT_EQ(send(channel.connection, "x").text, "true"); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  in_child([&] {
    EXPECT_EQ(answer(message.id, 0, "forged"), -1);
    EXPECT_EQ(errno, ESRCH);
  });
  EXPECT_EQ(answer(message.id, 0, "true"), 0);
  EXPECT_EQ(client.join(), 0);
}

TEST(MessageImpostor, AnotherUserIsKnownForOne) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Channel channel;
  // The connection was made by root; who uses it counts.
  Child client([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_EQ(send(channel.connection, "x").status, 0);
  });
  const Message message = receive(channel.id);
  EXPECT_EQ(message.info.uid, kNobody);
  EXPECT_EQ(message.info.gid, kNobody);
  EXPECT_EQ(message.info.pid, client.pid());
  answer(message.id, 0);
  EXPECT_EQ(client.join(), 0);
}

TEST(MessageImpostor, SomebodyElsesNameIsNotServed) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const std::string name = unique_name("stolen");
  const Shared<Event> listening;
  Child thief([&] {
    ASSERT_TRUE(become(kNobody));
    const UniqueFd listener = listen_at(kOpenPrefix, "0/" + name);
    listening->happens();
    for (;;) (void)UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  });
  ASSERT_TRUE(listening->wait());
  EXPECT_EQ(farcall_name_open(name.c_str()), -1);
  EXPECT_EQ(errno, EACCES);
}

// A call that says to be of that priority, and of that thread.
void claim_priority(int port, std::uint8_t priority, pid_t thread) {
  Client client(-1);
  std::array<std::byte, 8> room;
  CallResults results;
  results.buffer = room;
  CallArguments claim;
  claim.priority = priority;
  claim.port = port;
  claim.origin = static_cast<std::uint32_t>(thread);
  EXPECT_EQ(client.call(claim, results, Deadline::never()), Outcome::ok);
}

void expect_priorities(int channel, std::initializer_list<int> priorities) {
  for (const int expected : priorities) {
    const Message message = receive(channel);
    ASSERT_GT(message.id, FARCALL_ONE_WAY);
    EXPECT_EQ(message.info.priority, expected);
    answer(message.id, 0);
  }
}

TEST(MessageImpostor, WhoSaysToBeUrgentIsBelievedSoFarAsTheKernelSaysIt) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Channel channel;
  const int descriptor = farcall_connection_descriptor(channel.connection);
  const auto say = [&](std::uint8_t priority, pid_t thread) {
    claim_priority(descriptor, priority, thread);
  };
  const pid_t parent = own_thread();
  const Shared<Event> pulses_came;
  const Shared<Event> tested;
  Child client([&] {
    const pid_t self = own_thread();
    Event lower;
    Event lowered;
    // A thread that is urgent in earnest, of this process, from the time when it was permitted to.
    std::atomic<pid_t> urgent{0};
    std::thread other([&] {
      if (::setpriority(PRIO_PROCESS, static_cast<id_t>(own_thread()), -5) != 0) ::_exit(77);
      urgent = own_thread();
      EXPECT_TRUE(lower.wait());
      EXPECT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(own_thread()), 0), 0);
      lowered.happens();
      EXPECT_TRUE(tested->wait());
    });
    while (urgent == 0) std::this_thread::yield();
    ASSERT_TRUE(become(kNobody));
    say(15, self);
    say(20, self);
    say(255, self);
    say(255, parent);  // somebody else's
    say(255, 0);
    say(255, urgent);
    say(22, urgent);
    // Pulses have the same bounds.
    RawPulses pulses(descriptor);
    ASSERT_TRUE(pulses.welcome());
    for (const pid_t thread : {self, urgent.load()}) {
      const PulsePacket packet = pulse_packet(1, 140, thread);
      EXPECT_EQ(::send(pulses.socket.get(), &packet, sizeof packet, MSG_NOSIGNAL),
                static_cast<ssize_t>(sizeof packet));
    }
    EXPECT_TRUE(pulses_came->wait());
    // What the kernel has said is true for a while only.
    say(255, urgent);
    lower.happens();
    EXPECT_TRUE(lowered.wait());
    std::this_thread::sleep_for(150ms);
    say(255, urgent);
    other.join();
  });
  expect_priorities(channel.id, {15, 20, 20, 20, 20, 25, 22});
  std::multiset<int> pulses;
  for (int i = 0; i < 2; ++i) pulses.insert(receive(channel.id).info.priority);
  EXPECT_EQ(pulses, (std::multiset<int>{20, 25}));
  pulses_came->happens();
  expect_priorities(channel.id, {25, 20});
  tested->happens();
  EXPECT_EQ(client.join(), 0);
}

TEST(MessageImpostor, APulseIsOfWhoHasAskedForTheSocketAndOfNobodyElse) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Channel channel;
  RawPulses pulses(farcall_connection_descriptor(channel.connection));
  ASSERT_TRUE(pulses.welcome());
  const auto say = [&](int code) {
    const PulsePacket packet = pulse_packet(code, kHighestPriority, own_thread());
    EXPECT_EQ(::send(pulses.socket.get(), &packet, sizeof packet, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof packet));
  };
  say(1);
  EXPECT_EQ(receive(channel.id).info.priority, kHighestPriority);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    say(2);
  });
  EXPECT_EQ(receive(channel.id, 10, 200ms).error, ETIMEDOUT);
}

TEST(MessageImpostor, NobodyUnblocksWhatHasComeThroughAnotherConnection) {
  Channel channel(FARCALL_UNBLOCK);
  std::atomic<pid_t> thread{0};
  std::thread client([&] {
    thread = own_thread();
    EXPECT_EQ(send(channel.connection, "x").status, 0);
  });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  const int other = farcall_connect(channel.id);
  for (const int connection : {other, channel.connection}) {
    RawPulses pulses(farcall_connection_descriptor(connection));
    ASSERT_TRUE(pulses.welcome());
    for (std::uint32_t number = 0; number < 4; ++number) {
      PulsePacket packet = pulse_packet(PulsePacket::kUnblock);
      packet.value = static_cast<std::uint32_t>(thread) | number << kThreadBits;
      EXPECT_EQ(::send(pulses.socket.get(), &packet, sizeof packet, MSG_NOSIGNAL),
                static_cast<ssize_t>(sizeof packet));
    }
    const Message pulse = receive(channel.id, 10, connection == other ? 200ms : kPatience);
    if (connection == other) {
      EXPECT_EQ(pulse.error, ETIMEDOUT);
    } else {
      EXPECT_EQ(pulse.info.value, message.id) << "its own does";
    }
  }
  EXPECT_EQ(answer(message.id, 0), 0);
  client.join();
  farcall_disconnect(other);
}

// Whoever has the connection, too, is somebody else.
TEST(MessageImpostor, NobodyUnblocksWhatAnotherProcessHasSent) {
  Channel channel(FARCALL_UNBLOCK);
  const Shared<Event> said;
  Child client([&] { EXPECT_EQ(send(channel.connection, "x").status, 0); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  in_child([&] {
    RawPulses pulses(farcall_connection_descriptor(channel.connection));
    ASSERT_TRUE(pulses.welcome());
    for (std::uint32_t number = 0; number < 4; ++number) {
      PulsePacket packet = pulse_packet(PulsePacket::kUnblock);
      packet.value = static_cast<std::uint32_t>(client.pid()) | number << kThreadBits;
      EXPECT_EQ(::send(pulses.socket.get(), &packet, sizeof packet, MSG_NOSIGNAL),
                static_cast<ssize_t>(sizeof packet));
    }
    const PulsePacket last = pulse_packet(7);
    EXPECT_EQ(::send(pulses.socket.get(), &last, sizeof last, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof last));
  });
  EXPECT_EQ(receive(channel.id).info.code, 7);
  EXPECT_EQ(answer(message.id, 0), 0);
  EXPECT_EQ(client.join(), 0);
}

}  // namespace
}  // namespace farcall::message::test
