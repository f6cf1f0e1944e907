// SPDX-License-Identifier: Apache-2.0
//
// Which threads receive and answer messages, and in which order.

#include <array>
#include <cstring>
#include <future>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

TEST(Message, ReplyAndReceiveInOneCall) {
  Channel channel;
  std::thread client([&] {
    for (int i = 0; i < 100; ++i) {
      const std::string text = std::to_string(i);
      ASSERT_EQ(send(channel.connection, text).text, text + "!");
    }
  });
  std::int64_t id = 0;
  std::string last;
  for (int i = 0; i < 100; ++i) {
    std::array<char, 100> buffer{};
    farcall_info info{};
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    id = farcall_reply_receive(id, 0, last.data(), last.size(), channel.id, buffer.data(),
                               buffer.size(), &info);
    ASSERT_GT(id, FARCALL_ONE_WAY);
    last = std::string(buffer.data(), info.received) + "!";
  }
  EXPECT_EQ(answer(id, 0, last), 0);
  client.join();
}

TEST(Message, AnyThreadMayAnswer) {
  Channel channel;
  std::thread client([&] {
    for (int i = 0; i < 200; ++i) ASSERT_EQ(send(channel.connection, "x").status, i);
  });
  for (int i = 0; i < 200; ++i) {
    const Message message = receive(channel.id);
    ASSERT_GT(message.id, FARCALL_ONE_WAY);
    std::thread([&] { EXPECT_EQ(answer(message.id, i), 0); }).join();
  }
  client.join();
}

// Another thread may have been faster.
TEST(Message, WhoAnswersWhatHasBeenAnsweredReceivesTheNext) {
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").status, 0); });
  const Message message = receive(channel.id);
  EXPECT_EQ(answer(message.id, 0), 0);
  client.join();
  for (const std::int64_t id : {message.id, std::int64_t{12345}, std::int64_t{-7}, INT64_MAX}) {
    farcall_info info;
    ASSERT_EQ(farcall_pulse(channel.connection, 0, 7, id), 0);
    EXPECT_EQ(farcall_reply_receive(id, 0, "x", 1, channel.id, nullptr, 0, &info), 0) << id;
    EXPECT_EQ(info.value, id);
  }
}

TEST(Message, AThreadThatAnswersAndReceivesElsewhereKeepsNobodyWaiting) {
  EchoServer server;  // one thread that receives
  Channel other;
  std::thread elsewhere([&] {
    Message message;
    while (message.id <= FARCALL_ONE_WAY) message = receive(server.id, 100, 1ms);
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    EXPECT_EQ(farcall_reply_receive(message.id, 5, nullptr, 0, other.id, nullptr, 0, nullptr),
              FARCALL_ONE_WAY);
  });
  while (send(server.connection, "x").status != 5) {
  }
  farcall_timeout(std::chrono::nanoseconds(kPatience).count());
  EXPECT_EQ(send(server.connection, "y"), (Reply{.status = 0, .error = 0, .text = "y"}));
  EXPECT_EQ(farcall_send_one_way(other.connection, "z", 1), 0);
  elsewhere.join();
}

TEST(Message, AThreadThatAnswersAndGoesAwayKeepsNobodyWaiting) {
  EchoServer server;  // one thread that receives
  Channel& channel = server;
  std::promise<void> answered;
  std::promise<void> done;
  // A second one receives a message, answers it, and does something else.
  std::thread distracted([&] {
    bool once = false;
    while (!once) {
      const Message message = receive(channel.id, 100, 1ms);
      if (message.id > FARCALL_ONE_WAY) once = answer(message.id, 5) == 0;
    }
    answered.set_value();
    done.get_future().wait();
  });
  int fives = 0;
  while (fives == 0) fives += send(channel.connection, "x").status == 5 ? 1 : 0;
  answered.get_future().wait();
  for (int i = 0; i < 100; ++i) {
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    ASSERT_EQ(send(channel.connection, "x").status, 0);
  }
  done.set_value();
  distracted.join();
}

TEST(Message, SeveralThreadsReceive) {
  EchoServer server(0, 4);
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i)
    clients.emplace_back([&, i] {
      for (int j = 0; j < 500; ++j) {
        const std::string text = std::to_string(i) + "/" + std::to_string(j);
        ASSERT_EQ(send(server.connection, text).text, text);
      }
    });
  for (std::thread& client : clients) client.join();
}

TEST(Message, AServerMayAnswerInAnyOrder) {
  Channel channel;
  std::vector<std::future<Reply>> replies;
  std::vector<Message> messages;
  for (int i = 0; i < 5; ++i) {
    replies.push_back(std::async(std::launch::async,
                                 [&, i] { return send(channel.connection, std::to_string(i)); }));
    messages.push_back(receive(channel.id));
    ASSERT_EQ(messages.back().text, std::to_string(i));
  }
  for (const int i : {3, 0, 4, 2, 1}) {
    EXPECT_EQ(answer(messages[static_cast<std::size_t>(i)].id, i), 0);
    EXPECT_EQ(replies[static_cast<std::size_t>(i)].get().status, i);
  }
}

}  // namespace
}  // namespace farcall::message::test
