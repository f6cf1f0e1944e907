// SPDX-License-Identifier: Apache-2.0
//
// Who a sender is that becomes somebody else. With the shared library, whose functions stand in
// front of the C library's, and with the archive, which has none.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <set>
#include <string>
#include <utility>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

void receive_from(int channel, uid_t user, gid_t group) {
  const Message message = receive(channel);
  ASSERT_GT(message.id, 0);
  EXPECT_EQ(message.info.uid, user);
  EXPECT_EQ(message.info.gid, group);
  if (message.id > FARCALL_ONE_WAY) answer(message.id, 0);
}

TEST(MessageIdentity, WhoGivesUpRootIsRootNoMore) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const uid_t user = kNobody;
  Channel channel;
  Child child([&] {
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    ASSERT_TRUE(become(user));
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    EXPECT_EQ(farcall_send_one_way(channel.connection, "x", 1), 0);
  });
  receive_from(channel.id, 0, 0);
  receive_from(channel.id, user, user);
  receive_from(channel.id, user, user);
  EXPECT_EQ(child.join(), 0);
}

TEST(MessageIdentity, WhoIsRootNowAndThenIsKnownEachTime) {
  if (over_module()) GTEST_SKIP() << "the module tells the real ids";
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const uid_t user = kNobody;
  Channel channel;
  Child child([&] {
    ASSERT_EQ(::setegid(user), 0);
    ASSERT_EQ(::seteuid(user), 0);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    ASSERT_EQ(::seteuid(0), 0);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
    ASSERT_EQ(::setreuid(static_cast<uid_t>(-1), user), 0);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
  });
  receive_from(channel.id, user, user);
  receive_from(channel.id, 0, user);
  receive_from(channel.id, user, user);
  EXPECT_EQ(child.join(), 0);
}

// Also those that the channel has not been told of yet when the process becomes somebody else.
TEST(MessageIdentity, PulsesAreOfWhoHasSentThem) {
  if (over_module()) GTEST_SKIP() << "the module tells the real ids";
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const uid_t user = kNobody;
  const std::string name = unique_name("pulses");
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  Child server([&] {
    const int channel = farcall_name_attach(name.c_str(), 0, 0622);
    ASSERT_GT(channel, 0);
    ASSERT_EQ(::write(ends[1], "x", 1), 1);
    std::set<std::pair<int, uid_t>> seen;
    for (int i = 0; i < 2; ++i) {
      const Message pulse = receive(channel);
      EXPECT_EQ(pulse.id, 0);
      seen.emplace(pulse.info.code, pulse.info.uid);
    }
    EXPECT_EQ(seen, (std::set<std::pair<int, uid_t>>{{1, 0}, {2, user}}));
  });
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  Child child([&] {
    const int connection = farcall_name_open(name.c_str());
    ASSERT_GT(connection, 0);
    ASSERT_EQ(::kill(server.pid(), SIGSTOP), 0);
    EXPECT_EQ(farcall_pulse(connection, 0, 1, 0), 0);
    ASSERT_TRUE(become(user));
    EXPECT_EQ(farcall_pulse(connection, 0, 2, 0), 0);
  });
  EXPECT_EQ(child.join(), 0);
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
  EXPECT_EQ(server.join(), 0);
  for (const int end : ends) ::close(end);
}

// By whatever way they come: with the request for a socket, in the socket, in the next one.
TEST(MessageIdentity, PulsesAreOfTheIdsThatTheirSenderActsWith) {
  if (over_module()) GTEST_SKIP() << "the module tells the real ids";
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const uid_t user = kNobody;
  Channel channel;
  const Shared<std::array<Event, 7>> go;
  Child child([&] {
    const auto pulse = [&](std::size_t code) {
      ASSERT_TRUE((*go)[code].wait());
      EXPECT_EQ(farcall_pulse(channel.connection, 0, static_cast<int>(code), 0), 0)
          << std::strerror(errno);
    };
    ASSERT_EQ(::setresgid(0, user, 0), 0);
    ASSERT_EQ(::setresuid(0, user, 0), 0);
    for (std::size_t code = 0; code < 3; ++code) pulse(code);
    ASSERT_EQ(::seteuid(0), 0);
    for (std::size_t code = 3; code < 5; ++code) pulse(code);
    ASSERT_EQ(::seteuid(user), 0);
    for (std::size_t code = 5; code < 7; ++code) pulse(code);
  });
  for (std::size_t code = 0; code < 7; ++code) {
    (*go)[code].happens();
    const Message pulse = receive(channel.id);
    ASSERT_EQ(pulse.id, 0) << std::strerror(pulse.error);
    EXPECT_EQ(pulse.info.code, static_cast<int>(code));
    EXPECT_EQ(pulse.info.uid, code == 3 || code == 4 ? 0 : user) << code;
    EXPECT_EQ(pulse.info.gid, user) << code;
    EXPECT_EQ(pulse.info.pid, child.pid()) << code;
  }
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace farcall::message::test
