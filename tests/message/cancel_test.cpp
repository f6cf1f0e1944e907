// SPDX-License-Identifier: Apache-2.0
//
// Threads that are cancelled: only where they wait for others, and cleanly.
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <functional>

#include "harness/descriptors.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// A thread that runs `body` and may be cancelled there.
class Cancelled {
 public:
  explicit Cancelled(std::function<void()> body) : body_(std::move(body)) {
    EXPECT_EQ(::pthread_create(
                  &thread_, nullptr,
                  [](void* self) -> void* {
                    static_cast<Cancelled*>(self)->body_();
                    return nullptr;
                  },
                  this),
              0);
  }
  // Whether it was cancelled, and did not end by itself.
  bool join() {
    void* result = nullptr;
    EXPECT_EQ(::pthread_join(thread_, &result), 0);
    return result == PTHREAD_CANCELED;
  }
  void cancel() { EXPECT_EQ(::pthread_cancel(thread_), 0); }

 private:
  std::function<void()> body_;
  pthread_t thread_{};
};

struct Unwound {
  std::atomic<bool>& yes;
  ~Unwound() { yes = true; }
};

TEST(MessageCancel, AThreadThatReceivesIsUnwoundAndTheOthersGoOn) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  EchoServer server;
  EXPECT_EQ(send(server.connection, "before").text, "before");
  std::atomic<bool> unwound{false};
  std::atomic<pid_t> id{0};
  Cancelled thread([&] {
    const Unwound guard{unwound};
    char byte;
    id = own_id();
    (void)farcall_receive(server.id, &byte, 1, nullptr);
    ADD_FAILURE() << "it has received something";
  });
  ASSERT_TRUE(sleeps(id));
  thread.cancel();
  EXPECT_TRUE(thread.join());
  EXPECT_TRUE(unwound);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(send(server.connection, "after").text, "after");
  EXPECT_EQ(farcall_pulse(server.connection, 0, 1, 1), 0);
}

TEST(MessageCancel, TheOnlyThreadThatReceivesLeavesTheChannelToTheNext) {
  Channel channel;
  std::atomic<pid_t> id{0};
  Cancelled thread([&] {
    // It attends to this client, too.
    const Message message = receive(channel.id);
    answer(message.id, 3);
    id = own_id();
    farcall_reply_receive(0, 0, nullptr, 0, channel.id, nullptr, 0, nullptr);
  });
  EXPECT_EQ(send(channel.connection, "x").status, 3);
  ASSERT_TRUE(sleeps(id));
  thread.cancel();
  EXPECT_TRUE(thread.join());
  Echo echo(channel.id);
  EXPECT_EQ(send(channel.connection, "next").text, "next");
  EXPECT_EQ(farcall_channel_destroy(channel.id), 0);
}

TEST(MessageCancel, ATimedReceiveIsAPointToo) {
  Channel channel;
  std::atomic<pid_t> id{0};
  Cancelled thread([&] {
    farcall_timeout(60'000'000'000);
    id = own_id();
    farcall_receive(channel.id, nullptr, 0, nullptr);
  });
  ASSERT_TRUE(sleeps(id));
  thread.cancel();
  EXPECT_TRUE(thread.join());
}

TEST(MessageCancel, WhatNeedsNotWaitIsAPointToo) {
  FARCALL_SKIP_UNDER_ASAN("does not follow how a thread that is cancelled is unwound");
  Channel channel;
  ASSERT_EQ(farcall_pulse(channel.connection, 0, 1, 2), 0);
  Cancelled receiver([&] {
    ::pthread_cancel(::pthread_self());
    receive(channel.id, 16, 0ns);
  });
  EXPECT_TRUE(receiver.join());
  EXPECT_EQ(receive(channel.id).info.value, 2);  // it has received nothing
  Echo echo(channel.id);
  Cancelled client([&] {
    for (int i = 0; i < 100; ++i) send(channel.connection, "x");
    ::pthread_cancel(::pthread_self());
    send(channel.connection, "y");
  });
  EXPECT_TRUE(client.join());
  farcall_channel_destroy(channel.id);
}

TEST(MessageCancel, AClientThatIsCancelledHasGone) {
  FARCALL_SKIP_UNDER_ASAN("does not follow how a thread that is cancelled is unwound");
  Channel channel;
  Cancelled client([&] { send(channel.connection, "x"); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  client.cancel();
  EXPECT_TRUE(client.join());
  EXPECT_TRUE(eventually([&] { return farcall_read(message.id, 0, nullptr, 0) < 0; }));
  EXPECT_EQ(answer(message.id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(MessageCancel, WhoMayNotBeCancelledIsNot) {
  Channel channel;
  std::atomic<pid_t> id{0};
  std::atomic<bool> done{false};
  Cancelled thread([&] {
    int before = 0;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    id = own_id();
    const Message message = receive(channel.id);
    EXPECT_EQ(answer(message.id, 4), 0);
    done = true;
    ::pthread_setcancelstate(before, nullptr);
    ::pthread_testcancel();
  });
  ASSERT_TRUE(sleeps(id));
  thread.cancel();
  EXPECT_EQ(send(channel.connection, "x").status, 4);
  EXPECT_TRUE(thread.join());
  EXPECT_TRUE(done);
}

TEST(MessageCancel, NothingElseIsAPoint) {
  Channel channel;
  const std::string name = unique_name("not-a-point");
  std::vector<char> large(1 << 20, 'x');
  Event ready;
  Event pending;
  std::atomic<bool> all_done{false};
  std::int64_t id = 0;
  Cancelled thread([&] {
    farcall_info info{};
    std::vector<char> buffer(1 << 20);
    id = farcall_receive(channel.id, buffer.data(), buffer.size(), &info);
    int before = 0;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    ready.happens();
    EXPECT_TRUE(pending.wait());
    ::pthread_setcancelstate(before, nullptr);
    // From here on whatever is a point of cancellation ends it.
    EXPECT_EQ(farcall_read(id, 0, buffer.data(), buffer.size()), ssize_t{1 << 20});
    EXPECT_EQ(farcall_write(id, 0, "abc", 3), 3);
    EXPECT_EQ(farcall_reply(id, 5, buffer.data(), buffer.size()), 0);
    const int own = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0600);
    EXPECT_GT(own, 0);
    const int connection = farcall_name_open(name.c_str());
    EXPECT_GT(connection, 0);
    const int other = farcall_connect(own);
    EXPECT_GT(other, 0);
    EXPECT_GE(farcall_channel_descriptor(own), 0);
    EXPECT_EQ(farcall_pulse(connection, 0, 1, 1), 0);
    EXPECT_EQ(farcall_watch_death(connection, own, 1), 0);
    char text[4096];
    EXPECT_GT(farcall_channel_names(text, sizeof text), 0);
    EXPECT_EQ(farcall_disconnect(other), 0);
    EXPECT_EQ(farcall_disconnect(connection), 0);
    EXPECT_EQ(farcall_channel_destroy(own), 0);
    all_done = true;
    ::pthread_testcancel();
  });
  std::thread client([&] {
    EXPECT_EQ(
        farcall_send(channel.connection, large.data(), large.size(), large.data(), large.size()),
        5);
  });
  ASSERT_TRUE(ready.wait());
  thread.cancel();
  pending.happens();
  EXPECT_TRUE(thread.join());
  EXPECT_TRUE(all_done);
  client.join();
}

TEST(MessageCancel, NothingIsLeftOfThreadsThatWereCancelled) {
  FARCALL_SKIP_UNDER_ASAN("does not follow how a thread that is cancelled is unwound");
  const int channel = farcall_channel_create(0);
  const int connection = farcall_connect(channel);
  const auto cancel_some = [&] {
    for (int i = 0; i < 20; ++i) {
      std::atomic<pid_t> id{0};
      Cancelled receiver([&] {
        for (;;) {
          const Message message = receive(channel);
          answer(message.id, 0);
          id = own_id();
        }
      });
      EXPECT_EQ(send(connection, "x").error, 0);
      ASSERT_TRUE(sleeps(id));
      receiver.cancel();
      EXPECT_TRUE(receiver.join());
      const std::string text(static_cast<std::size_t>(i) * 10'000, 'x');
      Cancelled client([&] { send(connection, text); });
      const Message message = receive(channel, 1 << 20);
      client.cancel();
      EXPECT_TRUE(client.join());
      // Who answers before that is known keeps the session until it receives again.
      EXPECT_TRUE(eventually([&] { return farcall_read(message.id, 0, nullptr, 0) < 0; }));
      EXPECT_EQ(answer(message.id, 0), -1);
    }
  };
  cancel_some();
  const std::size_t before = open_descriptors();
  cancel_some();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << open_descriptors() << " instead of " << before << "\n"
      << list_descriptors();
  farcall_disconnect(connection);
  farcall_channel_destroy(channel);
}

// Answers until it is cancelled, which it can be only where it waits for a message.
void answer_all(int channel) {
  char text[16];
  for (;;) {
    farcall_info info{};
    const std::int64_t id = farcall_receive(channel, text, sizeof text, &info);
    if (id > 0) farcall_reply(id, 0, text, info.received);
  }
}

// Three threads that do so, of which one after another is cancelled and replaced.
class Receivers {
 public:
  explicit Receivers(int channel) : channel_(channel) {
    for (int i = 0; i < 3; ++i) add();
  }
  ~Receivers() {
    for (Cancelled& each : all_) each.cancel();
    for (Cancelled& each : all_) EXPECT_TRUE(each.join());
  }
  Receivers(const Receivers&) = delete;
  Receivers& operator=(const Receivers&) = delete;

  void replace_oldest() {
    add();
    all_.front().cancel();
    EXPECT_TRUE(all_.front().join());
    all_.pop_front();
  }

 private:
  void add() {
    all_.emplace_back([channel = channel_] { answer_all(channel); });
  }
  const int channel_;
  std::deque<Cancelled> all_;
};

// Clients that come and go make a receiver do more than to receive.
TEST(MessageCancel, AReceiverIsCancelledOnlyWhereItWaitsWhoeverComesAndGoes) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  FARCALL_SKIP_UNDER_ASAN("does not follow how a thread that is cancelled is unwound");
  const Channel channel;
  Receivers receivers(channel.id);
  constexpr int kRounds = 3'000 / kSlow;
  std::atomic<int> rounds{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client)
    clients.emplace_back([&] {
      while (rounds++ < kRounds) {
        const int connection = farcall_connect(channel.id);
        for (int i = 0; i < 8; ++i) {
          (void)farcall_pulse(connection, 0, 1, i);
          EXPECT_EQ(send(connection, "x", 16), (Reply{0, 0, "x"}));
        }
        farcall_disconnect(connection);
      }
    });
  while (rounds < kRounds) receivers.replace_oldest();
  for (std::thread& each : clients) each.join();
}

TEST(MessageCancel, OfSeveralReceiversOneThatIsCancelledTakesNoMessageAlong) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  FARCALL_SKIP_UNDER_ASAN("does not follow how a thread that is cancelled is unwound");
  const Channel channel;
  Receivers receivers(channel.id);
  constexpr int kMessages = 40'000 / kSlow;
  std::atomic<int> answered{0};
  std::atomic<bool> failed{false};
  std::vector<std::thread> clients;
  for (int client = 0; client < 2; ++client)
    clients.emplace_back([&, client] {
      const int connection = farcall_connect(channel.id);
      for (int i = client; answered < kMessages && !failed; ++i) {
        farcall_timeout(std::chrono::nanoseconds(kPatience).count());
        const Reply reply = send(connection, std::to_string(i), 16);
        EXPECT_EQ(reply, (Reply{0, 0, std::to_string(i)})) << "message " << i;
        if (reply.error != 0) failed = true;
        ++answered;
        // Now and then all receivers are asleep.
        if (i % 64 == 0) ::usleep(static_cast<useconds_t>(i * 7919 % 500));
      }
      farcall_disconnect(connection);
    });
  for (useconds_t i = 0; answered < kMessages && !failed; ++i) {
    ::usleep(i * 7919 % 1000);
    receivers.replace_oldest();
  }
  for (std::thread& each : clients) each.join();
}

}  // namespace
}  // namespace farcall::message::test
