// SPDX-License-Identifier: Apache-2.0
//
// Timeouts, signals, and clients that stay until they are answered.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

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
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    farcall_pulse(channel.connection, 0, 1, 1);
  });
  EXPECT_EQ(farcall_receive(channel.id, nullptr, 0, nullptr), 0);
  later.join();
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
  std::thread client([&] {
    farcall_timeout(ns(100ms));
    EXPECT_EQ(send(channel.connection, "reply-blocked").error, ETIMEDOUT);
    timed_out.set_value();
    EXPECT_EQ(send(channel.connection, "another").text, "answer");
  });
  Message message = receive(channel.id);
  // What nobody waited for any more may have been received, or not.
  if (message.text == "send-blocked") message = receive(channel.id);
  EXPECT_EQ(message.text, "reply-blocked");
  timed_out.get_future().wait();
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return farcall_read(message.id, 0, &byte, 1) < 0 && errno == ESRCH;
  }));
  EXPECT_EQ(answer(message.id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  const Message another = receive(channel.id);
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
  std::this_thread::sleep_for(100ms);  // it has begun by then
  ::pthread_kill(thread, SIGUSR1);
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
  auto waiting = std::async(std::launch::async, [&] {
    self.set_value(::pthread_self());
    farcall_message message{};
    message.flags = FARCALL_KEEP_WAITING;
    return farcall_send_message(channel.connection, &message);
  });
  const pthread_t thread = self.get_future().get();
  const Message message = receive(channel.id);
  for (int i = 0; i < 20; ++i) {
    ::pthread_kill(thread, SIGUSR1);
    std::this_thread::sleep_for(3ms);
  }
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
  if (!kCountsSignals) std::this_thread::sleep_for(33ms);  // then it sleeps
  ::pthread_kill(thread, SIGUSR1);
  const Message pulse = receive(channel.id);
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
  auto waiting = std::async(std::launch::async, [&] {
    farcall_timeout(ns(50ms));
    return send(channel.connection, "x");
  });
  const Message message = receive(channel.id);
  const Message pulse = receive(channel.id);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_UNBLOCK);
  EXPECT_EQ(pulse.info.value, message.id);
  EXPECT_EQ(farcall_error(message.id, ETIMEDOUT), 0);
  EXPECT_EQ(waiting.get().error, ETIMEDOUT);
}

TEST(MessageTime, WhoIsStillSendBlockedIsNotKept) {
  Channel channel(FARCALL_UNBLOCK);
  farcall_timeout(ns(30ms));
  EXPECT_EQ(send(channel.connection, "x").error, ETIMEDOUT);
}

// The state of a process's first thread: S, T, ...
char state_of(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char text[128]{};
  (void)!::read(fd, text, sizeof text - 1);
  ::close(fd);
  const char* end = std::strrchr(text, ')');
  return end == nullptr ? '?' : end[2];
}

// Threads of a process that is stopped and continued while they receive.
void stop_and_continue(int threads, bool with_handlers) {
  const std::string name = unique_name("stopped");
  const Shared<Event> ready;
  Child server([&] {
    for (const int signal : {SIGALRM, SIGUSR1})  // of the watchdog, of other tests
      if (!with_handlers) ::signal(signal, SIG_DFL);
    const int channel = farcall_name_attach(name.c_str(), 0, 0600);
    const auto serve = [&] {
      char byte;
      const std::int64_t id = farcall_receive(channel, &byte, 1, nullptr);
      EXPECT_GT(id, FARCALL_ONE_WAY) << std::strerror(errno);
      if (id > FARCALL_ONE_WAY) answer(id, 0);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(serve);
    ready->happens();
    serve();
    for (std::thread& other : others) other.join();
  });
  ASSERT_TRUE(ready->wait());
  std::this_thread::sleep_for(50ms * kSlow);  // all of them sleep by now
  ASSERT_TRUE(eventually([&] { return state_of(server.pid()) == 'S'; }));
  ASSERT_EQ(::kill(server.pid(), SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] { return state_of(server.pid()) == 'T'; }));
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
  ASSERT_TRUE(eventually([&] { return state_of(server.pid()) == 'S'; }));
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0) << std::strerror(errno);
  for (int i = 0; i < threads; ++i) EXPECT_EQ(send(connection, "x").error, 0);
  EXPECT_EQ(server.join(), 0);
  farcall_disconnect(connection);
}

TEST(MessageTime, AProcessThatWasStoppedReceivesOn) { stop_and_continue(1, false); }
TEST(MessageTime, SoItDoesWhereItHasHandlersOfSignals) { stop_and_continue(1, true); }
TEST(MessageTime, SoDoThreadsThatReceiveTogether) { stop_and_continue(3, false); }

TEST(MessageTime, AHandlerEndsTheWaitOfEachOfSeveralThreads) {
  let_signals_interrupt();
  Channel channel;
  std::vector<std::thread> threads;
  std::atomic<int> interrupted{0};
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      if (receive(channel.id).error == EINTR) ++interrupted;
    });
  std::this_thread::sleep_for(50ms * kSlow);  // all of them sleep by now
  for (std::thread& thread : threads) ::pthread_kill(thread.native_handle(), SIGUSR1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(interrupted, 3);
}

}  // namespace
}  // namespace farcall::message::test
