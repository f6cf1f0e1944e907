// SPDX-License-Identifier: Apache-2.0
//
// The end of a channel or a connection, whatever other threads are doing with it.
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

constexpr std::int64_t kLongest = std::chrono::nanoseconds(kPatience).count();

TEST(MessageEnd, ADisconnectIsToldWhileAThreadThatHasSentDoesSomethingElse) {
  Channel channel(FARCALL_DISCONNECT);
  const int connection = farcall_connect(channel.id);
  Event over;
  std::thread client([&] {
    EXPECT_EQ(send(connection, "x").status, 0);
    EXPECT_TRUE(over.wait(3 * kPatience));
  });
  const Message message = receive(channel.id);
  answer(message.id, 0);
  EXPECT_EQ(farcall_disconnect(connection), 0);
  const Message pulse = receive(channel.id);
  EXPECT_EQ(pulse.id, 0) << std::strerror(pulse.error);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DISCONNECT);
  EXPECT_EQ(pulse.info.value, message.info.connection);
  over.happens();
  client.join();
}

// Whoever sends the first pulse keeps the others waiting, who have found the connection by then.
TEST(MessageEnd, OfAConnectionMayMeetTheBeginningOfAWatchOfIt) {
  Channel channel(FARCALL_DISCONNECT);
  for (int i = 0; i < 600 / kSlow && !HasFailure(); ++i) {
    const int connection = farcall_connect(channel.id);
    ASSERT_GE(connection, 0) << std::strerror(errno);
    std::atomic<int> begun{0};
    std::thread sender([&] {
      ++begun;
      EXPECT_TRUE(farcall_pulse(connection, 0, 1, 1) == 0 || errno == EBADF);
    });
    std::thread watcher([&] {
      ++begun;
      EXPECT_TRUE(farcall_watch_death(connection, channel.id, 1) == 0 || errno == EBADF)
          << std::strerror(errno);
    });
    while (begun < 2) {
    }
    for (int turns = 0; turns < i % 50 * 100; ++turns) begun.load();
    EXPECT_EQ(farcall_disconnect(connection), 0);
    sender.join();
    watcher.join();
    Message pulse = receive(channel.id);
    if (pulse.id == 0 && pulse.info.code == 1) pulse = receive(channel.id);
    EXPECT_EQ(pulse.id, 0) << i << std::strerror(pulse.error);
    EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DISCONNECT);
  }
}

TEST(MessageEnd, OfAConnectionMayMeetItsPulses) {
  Channel channel(FARCALL_DISCONNECT);
  for (int i = 0; i < 1000 / kSlow && !HasFailure(); ++i) {
    const int connection = farcall_connect(channel.id);
    ASSERT_GE(connection, 0) << std::strerror(errno);
    int sent = 0;
    std::thread client([&] {
      for (int k = 0; k < 5; ++k) {
        if (farcall_pulse(connection, 0, 1, k) != 0) {
          EXPECT_EQ(errno, EBADF);
          return;
        }
        ++sent;
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(i % 100));
    EXPECT_EQ(farcall_disconnect(connection), 0);
    client.join();
    // What has been sent comes, and comes before the end.
    for (int k = 0; k < sent && !HasFailure(); ++k) EXPECT_EQ(receive(channel.id).info.value, k);
    EXPECT_EQ(receive(channel.id).info.code, FARCALL_PULSE_DISCONNECT);
  }
}

TEST(MessageEnd, OfAChannelIsKnownToAllWhoSend) {
  constexpr int kClients = 6;
  for (int i = 0; i < 30 / kSlow && !HasFailure(); ++i) {
    const int channel = farcall_channel_create(0);
    Event over;
    // Those that serve do something else afterwards, and keep what they have of the channel.
    std::vector<std::thread> threads;
    for (int k = 0; k < 2; ++k)
      threads.emplace_back([&] {
        for (;;) {
          const Message message = receive(channel, 16);
          if (message.id < 0) break;
          (void)answer(message.id, 0);
        }
        EXPECT_TRUE(over.wait(3 * kPatience));
      });
    std::vector<std::thread> clients;
    std::atomic<int> sending{0};
    for (int k = 0; k < kClients; ++k)
      clients.emplace_back([&] {
        const int connection = farcall_connect(channel);
        ++sending;
        int error = 0;
        while (error == 0) {
          farcall_timeout(kLongest);
          error = send(connection, "x", 16).error;
        }
        EXPECT_EQ(error, ESRCH);
        farcall_disconnect(connection);
      });
    while (sending < kClients) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(i * 97 % 500));
    EXPECT_EQ(farcall_channel_destroy(channel), 0);
    for (std::thread& client : clients) client.join();
    for (std::size_t k = 0; k < threads.size(); ++k) over.happens();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(MessageEnd, OfAChannelFreesItsNameAlthoughClientsCome) {
  const std::string name = unique_name("in-turns");
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (int k = 0; k < 2; ++k)
    clients.emplace_back([&] {
      while (!stop) {
        farcall_timeout(kLongest);
        const int connection = farcall_name_open(name.c_str());
        if (connection >= 0)
          farcall_disconnect(connection);
        else
          EXPECT_EQ(errno, ENOENT) << std::strerror(errno);
      }
    });
  for (int i = 0; i < 1000 / kSlow && !HasFailure(); ++i) {
    const int channel = farcall_name_attach(name.c_str(), 0, 0600);
    EXPECT_GE(channel, 0) << i << ": " << std::strerror(errno);
    std::this_thread::sleep_for(std::chrono::microseconds(i % 200));
    EXPECT_EQ(farcall_channel_destroy(channel), 0);
  }
  stop = true;
  for (std::thread& client : clients) client.join();
}

TEST(MessageEnd, OfAChannelMayMeetAnswersOfThreadsThatDoNotReceive) {
  for (int i = 0; i < 400 / kSlow && !HasFailure(); ++i) {
    const int channel = farcall_channel_create(0);
    const int connection = farcall_connect(channel);
    std::atomic<std::int64_t> received{0};
    std::thread receiver([&] {
      const Message message = receive(channel, 16);
      received = message.id;
      EXPECT_EQ(farcall_receive(channel, nullptr, 0, nullptr), -1);
    });
    std::thread answerer([&] {
      while (received == 0) {
      }
      EXPECT_TRUE(received < 0 || answer(received, 0) == 0 || errno == ESRCH)
          << std::strerror(errno);
    });
    std::thread client([&] {
      farcall_timeout(kLongest);
      const int error = send(connection, "x", 16).error;
      EXPECT_TRUE(error == 0 || error == ESRCH) << std::strerror(error);
    });
    std::this_thread::sleep_for(std::chrono::microseconds(i * 3 % 200));
    EXPECT_EQ(farcall_channel_destroy(channel), 0);
    receiver.join();
    answerer.join();
    client.join();
    farcall_disconnect(connection);
  }
}

// The message is copied while the channel ends, so that its id is given afterwards: then nobody but
// the thread that answers may have to do with the channel any more.
TEST(MessageEnd, OfAChannelMayBeLeftToTheLastWhoAnswers) {
  const std::string text(std::size_t{8} << 20, 'x');
  // Found out: the end is to come while the message is copied.
  std::chrono::microseconds pause = 3ms;
  for (int i = 0; i < 200 / kSlow && !HasFailure(); ++i) {
    const int channel = farcall_channel_create(0);
    const int connection = farcall_connect(channel);
    std::atomic<std::int64_t> received{0};
    std::atomic<bool> sending{false};
    std::atomic<bool> destroyed{false};
    bool early = false;
    bool late = false;
    std::atomic<bool> answering{false};
    std::thread receiver([&] {
      const Message message = receive(channel, 16);
      early = message.id < 0;
      late = message.id > 0 && destroyed;
      received = message.id;
      while (!answering) {
      }
      for (int turns = 0; turns < i % 40 * 50; ++turns) answering.load();
      EXPECT_EQ(farcall_receive(channel, nullptr, 0, nullptr), -1);
    });
    std::thread answerer([&] {
      while (received == 0) {
      }
      answering = true;
      EXPECT_TRUE(received < 0 || answer(received, 0) == 0 || errno == ESRCH)
          << std::strerror(errno);
    });
    std::thread client([&] {
      sending = true;
      farcall_timeout(kLongest);
      const int error = send(connection, text, 16).error;
      EXPECT_TRUE(error == 0 || error == ESRCH) << std::strerror(error);
    });
    while (!sending) {
    }
    std::this_thread::sleep_for(pause);
    EXPECT_EQ(farcall_channel_destroy(channel), 0);
    destroyed = true;
    receiver.join();
    answerer.join();
    client.join();
    farcall_disconnect(connection);
    if (early) pause += pause / 4;
    if (!early && !late) pause -= pause / 8;
  }
}

}  // namespace
}  // namespace farcall::message::test
