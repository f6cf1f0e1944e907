// SPDX-License-Identifier: Apache-2.0
//
// The face for C++.
#include <array>
#include <cstring>
#include <thread>

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
