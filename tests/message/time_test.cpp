// SPDX-License-Identifier: Apache-2.0
//
// Timeouts, signals, and clients that stay until they are answered.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

std::int64_t ns(std::chrono::nanoseconds time) { return time.count(); }

// SIGUSR1 does nothing but interrupt.
void let_signals_interrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &action, nullptr);
}

TEST(MessageTime, ATimeoutIsForTheNextCallOnly) {
  Channel channel;
  farcall_timeout(ns(20ms));
  const std::int64_t before = now_ns();
  EXPECT_EQ(farcall_receive(channel.id, nullptr, 0, nullptr), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_GE(now_ns() - before, 20'000'000);
  // The next one waits, until something comes.
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    farcall_pulse(channel.connection, 0, 1, 1);
  });
  EXPECT_EQ(farcall_receive(channel.id, nullptr, 0, nullptr), 0);
  later.join();
}

TEST(MessageTime, ACallThatDoesNotWaitUsesItUpAsWell) {
  Channel channel;
  farcall_pulse(channel.connection, 0, 1, 1);
  farcall_timeout(0);
  EXPECT_EQ(receive(channel.id).id, 0);  // sets its own
  farcall_timeout(ns(1ms));
  EXPECT_EQ(farcall_receive(-1, nullptr, 0, nullptr), -1);
  const auto expect_none_left = [&] {
    std::thread later([&] {
      std::this_thread::sleep_for(50ms);
      farcall_pulse(channel.connection, 0, 1, 1);
    });
    EXPECT_EQ(farcall_receive(channel.id, nullptr, 0, nullptr), 0) << std::strerror(errno);
    later.join();
  };
  expect_none_left();
  farcall_timeout(0);
  EXPECT_EQ(farcall_name_open(nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  expect_none_left();
}

// Who has to do something between the two, as an interpreter has, is not left waiting by a signal.
TEST(MessageTime, ASignalAfterTheBoundWasSetEndsTheCall) {
  Channel channel;
  farcall_timeout(ns(kPatience));
  farcall_caught_signal();
  EXPECT_EQ(farcall_send(channel.connection, "x", 1, nullptr, 0), -1);
  EXPECT_EQ(errno, EINTR);
  // Not one before, nor the next call.
  farcall_caught_signal();
  farcall_timeout(ns(20ms));
  EXPECT_EQ(farcall_send(channel.connection, "x", 1, nullptr, 0), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
}

TEST(MessageTime, NotAtAllMeansAtOnce) {
  Channel channel;
  farcall_timeout(0);
  EXPECT_EQ(farcall_receive(channel.id, nullptr, 0, nullptr), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  farcall_timeout(ns(1s));
  farcall_timeout(-1);  // as if nothing had been said
  farcall_pulse(channel.connection, 0, 1, 1);
  EXPECT_EQ(farcall_receive(channel.id, nullptr, 0, nullptr), 0);
}

TEST(MessageTime, ASenderIsNotKeptLongerThanItsTimeout) {
  Channel channel;
  farcall_timeout(ns(30ms));
  EXPECT_EQ(send(channel.connection, "send-blocked").error, ETIMEDOUT);
  std::promise<void> timed_out;
  std::atomic<bool> received{false};
  std::thread client([&] {
    do {  // once more where nobody has received it in time
      farcall_timeout(ns(100ms));
      EXPECT_EQ(send(channel.connection, "reply-blocked").error, ETIMEDOUT);
    } while (!received);
    timed_out.set_value();
    EXPECT_EQ(send(channel.connection, "another").text, "answer");
  });
  Message message = receive(channel.id);
  // What nobody waited for any more may have been received, or not.
  if (message.text == "send-blocked") message = receive(channel.id);
  EXPECT_EQ(message.text, "reply-blocked");
  received = true;
  timed_out.get_future().wait();
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return farcall_read(message.id, 0, &byte, 1) < 0 && errno == ESRCH;
  }));
  EXPECT_EQ(answer(message.id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  Message another = receive(channel.id);
  while (another.text == "reply-blocked") another = receive(channel.id);
  EXPECT_EQ(another.text, "another");
  EXPECT_EQ(answer(another.id, 0, "answer"), 0);
  client.join();
}

TEST(MessageTime, ASignalInterruptsWhoReceives) {
  let_signals_interrupt();
  Channel channel;
  std::promise<pthread_t> self;
  auto waiting = std::async(std::launch::async, [&] {
    self.set_value(::pthread_self());
    return farcall_receive(channel.id, nullptr, 0, nullptr) < 0 ? errno : 0;
  });
  const pthread_t thread = self.get_future().get();
  do {  // it may not have begun
    ::pthread_kill(thread, SIGUSR1);
  } while (waiting.wait_for(100ms) != std::future_status::ready);
  EXPECT_EQ(waiting.get(), EINTR);
}

TEST(MessageTime, ASignalEndsTheWaitForAReply) {
  let_signals_interrupt();
  Channel channel;
  std::promise<pthread_t> self;
  auto waiting = std::async(std::launch::async, [&] {
    self.set_value(::pthread_self());
    return send(channel.connection, "x").error;
  });
  const pthread_t thread = self.get_future().get();
  const Message message = receive(channel.id);
  do {
    ::pthread_kill(thread, SIGUSR1);
  } while (!kCountsSignals && waiting.wait_for(10ms) != std::future_status::ready);
  EXPECT_EQ(waiting.get(), EINTR);
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return farcall_read(message.id, 0, &byte, 1) < 0 && errno == ESRCH;
  }));
}

TEST(MessageTime, WhoKeepsWaitingIsNotInterrupted) {
  let_signals_interrupt();
  Channel channel;
  std::promise<pthread_t> self;
  std::atomic<pid_t> id{0};
  auto waiting = std::async(std::launch::async, [&] {
    self.set_value(::pthread_self());
    id = own_id();
    farcall_message message{};
    message.flags = FARCALL_KEEP_WAITING;
    return farcall_send_message(channel.connection, &message);
  });
  const pthread_t thread = self.get_future().get();
  const auto interrupt = [&] {
    for (int i = 0; i < 20; ++i) {
      ::pthread_kill(thread, SIGUSR1);
      std::this_thread::sleep_for(3ms);
    }
  };
  ASSERT_TRUE(sleeps(id));
  interrupt();
  const Message message = receive(channel.id);
  interrupt();
  EXPECT_EQ(answer(message.id, 9), 0);
  EXPECT_EQ(waiting.get(), 9);
}

TEST(MessageTime, AnInterruptedClientStaysUntilItIsAnsweredWhereTheChannelAsksForThat) {
  let_signals_interrupt();
  Channel channel(FARCALL_UNBLOCK);
  std::promise<pthread_t> self;
  auto waiting = std::async(std::launch::async, [&] {
    self.set_value(::pthread_self());
    return send(channel.connection, "x");
  });
  const pthread_t thread = self.get_future().get();
  const Message message = receive(channel.id);
  Message pulse;
  int tries = 0;
  do {  // where a signal is lost that comes before the thread sleeps, until it does
    ::pthread_kill(thread, SIGUSR1);
    pulse = receive(channel.id, 10, kCountsSignals ? 10s : 100ms);
  } while (!kCountsSignals && pulse.error == ETIMEDOUT && ++tries < 100);
  EXPECT_EQ(pulse.id, 0) << std::strerror(pulse.error);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_UNBLOCK);
  EXPECT_EQ(pulse.info.value, message.id);
  EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout);
  // Once is enough.
  EXPECT_EQ(receive(channel.id, 10, 150ms).error, ETIMEDOUT);
  EXPECT_EQ(answer(message.id, 4, "late"), 0);
  EXPECT_EQ(waiting.get(), (Reply{.status = 4, .error = 0, .text = "late"}));
}

TEST(MessageTime, ATimeoutIsToldInTheSameWay) {
  Channel channel(FARCALL_UNBLOCK);
  std::atomic<bool> answered{false};
  auto waiting = std::async(std::launch::async, [&] {
    Reply reply;
    do {  // once more where nobody has received it in time
      farcall_timeout(ns(50ms));
      reply = send(channel.connection, "x");
    } while (!answered && reply.error == ETIMEDOUT);
    return reply;
  });
  Message message = receive(channel.id);
  Message pulse = receive(channel.id);
  while (pulse.id > FARCALL_ONE_WAY) {  // nobody waited for the one before any more
    message = std::move(pulse);
    pulse = receive(channel.id);
  }
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_UNBLOCK);
  EXPECT_EQ(pulse.info.value, message.id);
  answered = true;
  EXPECT_EQ(farcall_error(message.id, ETIMEDOUT), 0);
  EXPECT_EQ(waiting.get().error, ETIMEDOUT);
}

// How often a thread of this process has gone to sleep.
std::int64_t sleeps_of(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  std::string name;
  std::int64_t count = -1;
  while (status >> name && name != "voluntary_ctxt_switches:") status.ignore(4096, '\n');
  status >> count;
  return count;
}

// What a client asks for lies behind its pulses, which nobody receives.
TEST(MessageTime, AnOldWishToLeaveIsNotThatOfALaterMessage) {
  let_signals_interrupt();
  std::future<void> client;  // waited for when the channel has gone
  Channel channel(FARCALL_UNBLOCK);
  constexpr int kMarker = 9;
  std::atomic<pid_t> thread{0};
  std::atomic<int> sending{0};
  std::promise<pthread_t> self;
  client = std::async(std::launch::async, [&, connection = channel.connection] {
    self.set_value(::pthread_self());
    thread = own_id();
    for (int i = 1; i <= 20; ++i) {
      sending = i;
      EXPECT_EQ(send(connection, std::to_string(i)).status, 0);
    }
  });
  // It is more urgent than the pulses, once it is there.
  const auto receive_message = [&](int number) {
    EXPECT_TRUE(eventually([&] { return sending == number; }) && sleeps(thread));
    Message message;
    do message = receive(channel.id);
    while (message.id == 0);
    EXPECT_EQ(message.text, std::to_string(number));
    return message;
  };
  Message message = receive_message(1);
  for (int i = 0; i < 150; ++i) ASSERT_EQ(farcall_pulse(channel.connection, 1, 1, i), 0);
  ASSERT_TRUE(sleeps(thread));
  const std::int64_t before = sleeps_of(thread);
  ::pthread_kill(self.get_future().get(), SIGUSR1);
  ASSERT_TRUE(eventually([&] { return sleeps_of(thread) > before; })) << "it has asked";
  // The fourth after it looks like it, and is not answered until all pulses have been received.
  for (int i = 2; i <= 5; ++i) {
    ASSERT_EQ(answer(message.id, 0), 0);
    message = receive_message(i);
  }
  ASSERT_EQ(farcall_pulse(channel.connection, 1, kMarker, 0), 0);
  for (Message pulse = receive(channel.id); pulse.info.code != kMarker;
       pulse = receive(channel.id)) {
    ASSERT_EQ(pulse.id, 0) << std::strerror(pulse.error);
    EXPECT_NE(pulse.info.value, message.id) << "nobody has asked that";
  }
  for (int i = 6; i <= 20; ++i) {
    ASSERT_EQ(answer(message.id, 0), 0);
    message = receive(channel.id);
    ASSERT_EQ(message.text, std::to_string(i));
  }
  ASSERT_EQ(answer(message.id, 0), 0);
}

TEST(MessageTime, WhoIsStillSendBlockedIsNotKept) {
  Channel channel(FARCALL_UNBLOCK);
  farcall_timeout(ns(30ms));
  EXPECT_EQ(send(channel.connection, "x").error, ETIMEDOUT);
}

TEST(MessageTime, AHandlerEndsTheWaitOfEachOfSeveralThreads) {
  let_signals_interrupt();
  Channel channel;
  std::vector<std::thread> threads;
  std::array<std::atomic<pid_t>, 3> ids{};
  std::atomic<int> interrupted{0};
  for (auto& id : ids) {
    threads.emplace_back([&] {
      id = own_id();
      if (receive(channel.id).error == EINTR) ++interrupted;
    });
    ASSERT_TRUE(sleeps(id));
  }
  for (std::thread& thread : threads) ::pthread_kill(thread.native_handle(), SIGUSR1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(interrupted, 3);
}

}  // namespace
}  // namespace farcall::message::test
