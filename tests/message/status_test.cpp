// SPDX-License-Identifier: Apache-2.0
//
// What a channel over shared memory tells of itself, to whom, and how much of it.
#include "message/status.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <array>

namespace farcall::message::test {
namespace {

TEST(MessageStatus, SaysWhatItIsAskedForAndWhatHasCome) {
  const std::string name = unique_name("counts");
  const int channel = farcall_name_attach(
      name.c_str(), FARCALL_UNBLOCK | FARCALL_DISCONNECT | FARCALL_INHERIT, 0600);
  ASSERT_GT(channel, 0);
  const int connection = farcall_connect(channel);
  ASSERT_GT(connection, 0);
  EXPECT_TRUE(says_of(name, " engine shared flags unblock,disconnect,inherit\n"));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(farcall_pulse(connection, 0, 1, i), 0);
  EXPECT_EQ(receive(channel).info.value, 0);
  EXPECT_TRUE(says_of(name, " messages 0 replies 0 pulses 1 queued 2 connections 1 "));
  for (int i = 1; i < 3; ++i) EXPECT_EQ(receive(channel).info.value, i);
  std::thread client([&] { EXPECT_EQ(send(connection, "x").status, 0); });
  const Message message = receive(channel);
  EXPECT_TRUE(says_of(name, " messages 1 replies 0 pulses 3 queued 0 connections 1 "));
  EXPECT_EQ(answer(message.id, 0), 0);
  EXPECT_TRUE(says_of(name, " messages 1 replies 1 pulses 3 queued 0 connections 1 "));
  client.join();
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
}

TEST(MessageStatus, CountsWhatThreadsReceivedThatHaveEnded) {
  const std::string name = unique_name("ended");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0);
  const int connection = farcall_connect(channel);
  ASSERT_GT(connection, 0);
  for (int i = 1; i <= 2; ++i) {
    std::thread server([&] {
      EXPECT_EQ(answer(receive(channel).id, 0), 0);
      EXPECT_EQ(receive(channel).info.value, i);
    });
    EXPECT_EQ(send(connection, "x").status, 0);
    EXPECT_EQ(farcall_pulse(connection, 0, 1, i), 0);
    server.join();
    const std::string count = std::to_string(i);
    EXPECT_TRUE(says_of(
        name, " messages " + count + " replies " + count + " pulses " + count + " queued 0"));
  }
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
}

TEST(MessageStatus, SaysNothingToOtherUsers) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const std::string name = unique_name("secret");
  const int channel = farcall_name_attach(name.c_str(), 0, 0666);
  ASSERT_GT(channel, 0);
  EXPECT_TRUE(says_of(name, name));
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    std::array<char, 1000> text{};
    EXPECT_EQ(farcall_channel_status(("0/" + name).c_str(), text.data(), text.size()), -1);
    EXPECT_EQ(text[0], 0);
    EXPECT_GT(farcall_name_open(("0/" + name).c_str()), 0) << "though it may connect";
  });
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
}

TEST(MessageStatus, TellsNoMoreThanThereIsRoomFor) {
  const std::string name = unique_name("room");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0);
  std::string text(5, '.');
  EXPECT_GT(farcall_channel_names(text.data(), 4), 4);
  EXPECT_EQ(text[4], '.');
  text.assign(5, '.');
  const std::string full = std::to_string(::geteuid()) + "/" + name;
  EXPECT_GT(farcall_channel_status(full.c_str(), text.data(), 4), 4);
  EXPECT_EQ(text, "chan.");
  EXPECT_GT(farcall_channel_status(full.c_str(), nullptr, 0), 4) << "how much there would be";
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
}

TEST(MessageStatus, SaysNothingOfABlockedClientThatHasDied) {
  const std::string name = unique_name("died");
  const int channel = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0600);
  ASSERT_GT(channel, 0);
  Child client([&] { send(farcall_name_open(name.c_str()), "x"); });
  const Message message = receive(channel);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_TRUE(says_of(name, "reply-blocked"));
  client.kill();
  EXPECT_EQ(receive(channel).info.code, FARCALL_PULSE_DISCONNECT);
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return farcall_read(message.id, 0, &byte, 1) < 0 && errno == ESRCH;
  }));
  EXPECT_EQ(answer(message.id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_FALSE(says_of(name, "reply-blocked"));
  farcall_channel_destroy(channel);
}

// Who waits, for what, and how urgently.
TEST(MessageStatus, SaysWhoIsBlocked) {
  if (farcall_priority() < 10) GTEST_SKIP() << "needs the priority of an ordinary thread";
  const std::string name = unique_name("blocked");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0);
  const int connection = farcall_connect(channel);
  ASSERT_GT(connection, 0);
  const int nice = 20 - farcall_priority();
  const auto who = [](pid_t process) {
    return "-blocked " + std::to_string(process) + " " + std::to_string(process);
  };
  std::atomic<pid_t> receiver{0};
  std::thread served([&] {
    receiver = own_id();
    EXPECT_EQ(receive(channel).info.code, 5);
  });
  EXPECT_TRUE(eventually([&] {
    return receiver != 0 && says_of(name, "\nreceive-blocked " + std::to_string(::getpid()) + " " +
                                              std::to_string(receiver) + "\n");
  }));
  EXPECT_EQ(farcall_pulse(connection, 0, 5, 0), 0);
  served.join();
  EXPECT_TRUE(eventually([&] { return !says_of(name, "receive-blocked"); }));
  Child client([&] {
    ASSERT_EQ(::setpriority(PRIO_PROCESS, 0, nice + 3), 0);
    EXPECT_EQ(farcall_priority_changed(), 0);
    EXPECT_EQ(send(connection, "x").status, 0);
  });
  const std::string priority = " priority " + std::to_string(20 - nice - 3);
  EXPECT_TRUE(
      eventually([&] { return says_of(name, "\nsend" + who(client.pid()) + priority + "\n"); }));
  const Message message = receive(channel);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_TRUE(says_of(
      name, "\nreply" + who(client.pid()) + priority + " id " + std::to_string(message.id) + "\n"));
  EXPECT_FALSE(says_of(name, "send-blocked"));
  EXPECT_EQ(answer(message.id, 0), 0);
  EXPECT_FALSE(says_of(name, "reply-blocked"));
  EXPECT_EQ(client.join(), 0);
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
}

}  // namespace
}  // namespace farcall::message::test
