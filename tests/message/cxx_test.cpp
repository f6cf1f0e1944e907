// SPDX-License-Identifier: Apache-2.0
//
// The face for C++.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "farcall/message.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(MessageCxx, SendsReceivesAndReplies) {
  const std::string name = unique_name("cxx");
  const MessageChannel channel(name);
  std::thread client([&] {
    const MessageConnection connection(name);
    std::array<std::byte, 100> room{};
    const auto reply = connection.send(bytes_of("question"), room);
    EXPECT_EQ(reply.status, 3);
    EXPECT_EQ(text_of(reply.data), "answer");
    connection.send_one_way(bytes_of("one way"));
    connection.pulse(5, 6);
  });
  std::array<std::byte, 100> buffer{};
  set_message_timeout(kPatience);
  ReceivedMessage message = channel.receive(buffer);
  ASSERT_TRUE(message);
  EXPECT_EQ(text_of(std::span(buffer).first(message.info().received)), "question");
  EXPECT_EQ(message.read(4, std::span(buffer).first(4)), 4U);
  EXPECT_EQ(text_of(std::span(buffer).first(4)), "tion");
  message.reply(bytes_of("answer"), 3);
  EXPECT_FALSE(message);
  message = channel.receive(buffer);
  EXPECT_TRUE(message.is_one_way());
  message = channel.receive(buffer);
  EXPECT_TRUE(message.is_pulse());
  EXPECT_EQ(message.info().code, 5);
  EXPECT_EQ(message.info().value, 6);
  client.join();
}

TEST(MessageCxx, AMessageThatIsForgottenIsAnsweredWithAnError) {
  const MessageChannel channel;
  const MessageConnection connection = channel.connect();
  std::thread client([&] {
    try {
      connection.send(bytes_of("x"));
      ADD_FAILURE() << "answered";
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code().value(), ECANCELED);
    }
  });
  { const ReceivedMessage message = channel.receive({}); }
  client.join();
}

// Sends this process's standard input along, `count` times.
void send_descriptors(const MessageConnection& connection, int count) {
  const std::vector<int> all(static_cast<std::size_t>(count), STDIN_FILENO);
  std::array<std::byte, 10> room{};
  EXPECT_EQ(connection.send({}, room, all).status, 0);
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(MessageCxx, DescriptorsAreClosedWithTheMessage) {
  const MessageChannel channel;
  const MessageConnection connection = channel.connect();
  std::thread client([&] {
    for (int i = 0; i < 3; ++i) send_descriptors(connection, 3);
  });
  set_message_timeout(kPatience);
  ReceivedMessage message = channel.receive({});
  ASSERT_EQ(message.descriptors().size(), 3U);
  const int first = message.descriptors()[0];
  EXPECT_TRUE(is_open(first));
  set_message_timeout(kPatience);
  message = channel.reply_receive(message, {}, {});
  EXPECT_TRUE(eventually([&] { return !is_open(first); })) << "replaced by another";
  ASSERT_EQ(message.descriptors().size(), 3U);
  const int second = message.descriptors()[0];
  {
    ReceivedMessage moved = std::move(message);
    EXPECT_TRUE(message.descriptors().empty());
    EXPECT_EQ(moved.descriptors().size(), 3U);
    EXPECT_TRUE(is_open(second));
    moved.reply();
  }
  EXPECT_TRUE(eventually([&] { return !is_open(second); })) << "destroyed";
  set_message_timeout(kPatience);
  std::vector<int> taken;
  {
    ReceivedMessage last = channel.receive({});
    taken = last.take_descriptors();
    last.reply();
  }
  ASSERT_EQ(taken.size(), 3U);
  for (const int fd : taken) EXPECT_EQ(::close(fd), 0) << "the caller's";
  client.join();
}

TEST(MessageCxx, AnAnswerThatCannotBeLeavesTheClientToBeAnswered) {
  const MessageChannel channel;
  const MessageConnection connection = channel.connect();
  std::thread client([&] {
    std::array<std::byte, 10> room{};
    EXPECT_EQ(connection.send(bytes_of("x"), room).status, 4);
    EXPECT_EQ(connection.send(bytes_of("y"), room).status, 5);
  });
  std::array<std::byte, 10> buffer{};
  set_message_timeout(kPatience);
  ReceivedMessage message = channel.receive(buffer);
  EXPECT_THROW(message.reply({}, -1), std::system_error);
  EXPECT_THROW(message.error(0), std::system_error);
  ASSERT_TRUE(message) << "it waits on";
  EXPECT_THROW((void)channel.reply_receive(message, {}, buffer, -1), std::system_error);
  ASSERT_TRUE(message) << "it waits on";
  set_message_timeout(kPatience);
  ReceivedMessage next = channel.reply_receive(message, {}, buffer, 4);
  EXPECT_FALSE(message);
  set_message_timeout(std::chrono::nanoseconds(0));
  EXPECT_THROW((void)channel.reply_receive(next, {}, buffer, 5), std::system_error);
  EXPECT_FALSE(next) << "answered, and nothing came";
  client.join();
}

TEST(MessageCxx, ErrorsAreExceptions) {
  EXPECT_THROW(MessageConnection("no-such-name"), std::system_error);
  const MessageChannel channel;
  set_message_timeout(std::chrono::milliseconds(1));
  EXPECT_THROW((void)channel.receive({}), std::system_error);
  ReceivedMessage none;
  EXPECT_THROW(none.reply(), std::system_error);
}

}  // namespace
}  // namespace farcall::message::test
