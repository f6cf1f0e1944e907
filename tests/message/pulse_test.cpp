// SPDX-License-Identifier: Apache-2.0
//
// Pulses: they never wait, and come in order.
#include <sys/resource.h>
#include <unistd.h>

#include "harness/interrupted.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

TEST(MessagePulse, BringsItsCodeAndValue) {
  Channel channel;
  EXPECT_EQ(farcall_pulse(channel.connection, 0, 17, INT64_MIN), 0);
  const Message pulse = receive(channel.id);
  EXPECT_EQ(pulse.id, 0);
  EXPECT_EQ(pulse.info.code, 17);
  EXPECT_EQ(pulse.info.value, INT64_MIN);
  EXPECT_EQ(pulse.info.priority, farcall_priority());
}

// Who decides by it takes nobody for root.
TEST(MessagePulse, TellsWhoHasSentIt) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Channel channel(FARCALL_DISCONNECT);
  Child child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_EQ(farcall_pulse(channel.connection, 0, 1, ::getpid()), 0);
    EXPECT_EQ(farcall_pulse(channel.connection, 0, 2, ::getpid()), 0);
  });
  for (int code = 1; code <= 2; ++code) {
    const farcall_info info = receive(channel.id).info;
    EXPECT_EQ(info.code, code);
    EXPECT_EQ(info.uid, over_module() ? ~0U : kNobody);
    EXPECT_EQ(info.gid, over_module() ? ~0U : kNobody);
    EXPECT_EQ(info.pid, over_module() ? 0 : info.value);
  }
  EXPECT_EQ(child.join(), 0);
  ASSERT_EQ(farcall_disconnect(std::exchange(channel.connection, -1)), 0);
  const farcall_info end = receive(channel.id).info;
  EXPECT_EQ(end.code, FARCALL_PULSE_DISCONNECT);
  EXPECT_EQ(end.uid, ~0U) << "the channel's own";
}

TEST(MessagePulse, NeverWaitsAndKeepsOrder) {
  Channel channel;
  int sent = 0;
  const std::int64_t before = now_ns();
  while (farcall_pulse(channel.connection, 0, 1, sent) == 0) {
    ++sent;
    ASSERT_LT(sent, 10'000'000);
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_LT(now_ns() - before, 5'000'000'000 * kSlow);
  EXPECT_GE(sent, 100);
  for (int i = 0; i < sent; ++i) {
    const Message pulse = receive(channel.id);
    ASSERT_EQ(pulse.id, 0) << std::strerror(pulse.error);
    ASSERT_EQ(pulse.info.value, i);
  }
  // There is room again.
  EXPECT_EQ(farcall_pulse(channel.connection, 0, 1, -1), 0);
  EXPECT_EQ(receive(channel.id).info.value, -1);
}

TEST(MessagePulse, ComesFromOtherProcessesInOrderWhileOthersReceive) {
  Channel channel;
  constexpr int kPulses = 2000;
  Child child([&] {
    for (int i = 0; i < kPulses; ++i)
      while (farcall_pulse(channel.connection, 0, 1, i) != 0) {
        ASSERT_EQ(errno, EAGAIN);
        std::this_thread::sleep_for(100us);
      }
  });
  for (int i = 0; i < kPulses; ++i) {
    const Message pulse = receive(channel.id);
    ASSERT_EQ(pulse.id, 0) << std::strerror(pulse.error);
    ASSERT_EQ(pulse.info.value, i);
  }
  EXPECT_EQ(child.join(), 0);
}

// Receives pulses and messages that bring their numbers in turn.
void expect_in_turn(int channel, int count) {
  for (int i = 0; i < count; ++i) {
    const Message pulse = receive(channel);
    ASSERT_EQ(pulse.id, 0) << "the message was first, round " << i;
    ASSERT_EQ(pulse.info.value, i);
    const Message message = receive(channel);
    ASSERT_GT(message.id, FARCALL_ONE_WAY) << "round " << i;
    ASSERT_EQ(message.text, std::to_string(i));
    ASSERT_EQ(answer(message.id, 0), 0);
  }
}

TEST(MessagePulse, IsNotOvertakenByItsSendersNextMessage) {
  Channel channel;
  constexpr int kRounds = 5000 / kSlow;
  Child child([&] {
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(farcall_pulse(channel.connection, 0, 1, i), 0);
      ASSERT_EQ(send(channel.connection, std::to_string(i)).status, 0);
    }
  });
  expect_in_turn(channel.id, kRounds);
  EXPECT_EQ(child.join(), 0);
}

TEST(MessagePulse, IsNotOvertakenByWhatNobodyWaitsForAnAnswerTo) {
  Channel channel;
  constexpr int kRounds = 2000 / kSlow;
  Child child([&] {
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(farcall_pulse(channel.connection, 0, 1, i), 0);
      const std::string text = std::to_string(i);
      ASSERT_EQ(farcall_send_one_way(channel.connection, text.data(), text.size()), 0);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const Message pulse = receive(channel.id);
    ASSERT_EQ(pulse.id, 0) << "the message was first, round " << i;
    ASSERT_EQ(pulse.info.value, i);
    const Message message = receive(channel.id);
    ASSERT_EQ(message.id, FARCALL_ONE_WAY) << "round " << i;
    ASSERT_EQ(message.text, std::to_string(i));
  }
  EXPECT_EQ(child.join(), 0);
}

TEST(MessagePulse, TheFirstOfAConnectionIsNotOvertakenEither) {
  Channel channel;
  constexpr int kRounds = 300 / kSlow;
  for (int i = 0; i < kRounds; ++i) {
    const Shared<Event> answered;
    Child child([&] {
      // The server knows this client well before its first pulse.
      ASSERT_EQ(send(channel.connection, "hello").status, 0);
      ASSERT_EQ(farcall_pulse(channel.connection, 0, 1, 0), 0);
      ASSERT_EQ(send(channel.connection, "0").status, 0);
    });
    ASSERT_EQ(answer(receive(channel.id).id, 0), 0);
    expect_in_turn(channel.id, 1);
    ASSERT_EQ(child.join(), 0);
    if (HasFatalFailure()) return;
  }
}

TEST(MessagePulse, ALessUrgentOneWaitsForItsSendersNextMessage) {
  if (farcall_priority() < 2) GTEST_SKIP() << "needs a priority above the least";
  Channel channel;
  // A server that always finds a message lets all pulses lie. No engine refuses so few of them.
  constexpr int kRounds = 150 / kSlow;
  Child child([&] {
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(farcall_pulse(channel.connection, 1, 1, i), 0) << std::strerror(errno);
      ASSERT_EQ(send(channel.connection, std::to_string(i)).status, 0);
    }
  });
  // Both may have come when the server looks, or the pulse alone; the message never waits for it.
  int pulses = 0;
  int messages = 0;
  while (pulses < kRounds || messages < kRounds) {
    const Message message = receive(channel.id);
    ASSERT_GE(message.id, 0) << std::strerror(message.error);
    if (message.id == 0) {
      ASSERT_EQ(message.info.value, pulses++);
    } else {
      ASSERT_EQ(message.text, std::to_string(messages++));
      ASSERT_EQ(answer(message.id, 0), 0);
    }
  }
  EXPECT_EQ(child.join(), 0);
}

TEST(MessagePulse, TheFirstOfAConnectionMayMeetTheEndOfItsChannel) {
  for (int i = 0; i < 2000 / kSlow; ++i) {
    const int channel = farcall_channel_create(0);
    const int connection = farcall_connect(channel);
    ASSERT_GE(connection, 0);
    std::thread client([&] {
      for (int k = 0; k < 3; ++k)
        EXPECT_TRUE(farcall_pulse(connection, 0, 1, k) == 0 || errno == ESRCH) << errno;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(i % 100));
    EXPECT_EQ(farcall_channel_destroy(channel), 0);
    client.join();
    EXPECT_EQ(farcall_disconnect(connection), 0);
  }
}

TEST(MessagePulse, NobodySendsThoseOfTheSystem) {
  Channel channel;
  for (const int code : {-1, -2, -3, INT32_MIN}) {
    EXPECT_EQ(farcall_pulse(channel.connection, 0, code, 0), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(farcall_pulse(channel.connection, farcall_priority() + 1, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(farcall_pulse(channel.connection, -1, 0, 0), -1);
}

TEST(MessagePulse, TheMoreUrgentOneComesFirst) {
  if (farcall_priority() < 20) GTEST_SKIP() << "needs the priority of an ordinary thread";
  Channel channel;
  // After the first one of a connection they all lie where whoever receives finds them.
  ASSERT_EQ(farcall_pulse(channel.connection, 1, 7, 7), 0);
  EXPECT_EQ(receive(channel.id).info.code, 7);
  for (const int priority : {3, 9, 1, 9, 20}) {
    ASSERT_EQ(farcall_pulse(channel.connection, priority, 0, priority * 100), 0);
  }
  for (const int priority : {20, 9, 9, 3, 1}) {
    const Message pulse = receive(channel.id);
    EXPECT_EQ(pulse.info.priority, priority);
    EXPECT_EQ(pulse.info.value, priority * 100);
  }
}

TEST(MessagePulse, AServerThatHasGoneIsTold) {
  auto channel = std::make_unique<Channel>();
  const int connection = channel->connection;
  EXPECT_EQ(farcall_pulse(connection, 0, 1, 1), 0);
  farcall_channel_destroy(channel->id);
  EXPECT_TRUE(eventually([&] { return farcall_pulse(connection, 0, 1, 1) < 0 && errno == ESRCH; }));
}

// Whether the server has received none of its pulses before, one, or more.
TEST(MessagePulse, NoneIsSentToAChannelThatHasBeenDestroyed) {
  for (int i = 0; i < 200 / kSlow; ++i) {
    const int before = i % 4;
    const int channel = farcall_channel_create(0);
    const int connection = farcall_connect(channel);
    ASSERT_GE(connection, 0);
    for (int k = 0; k < before; ++k) {
      ASSERT_EQ(farcall_pulse(connection, 0, 1, k), 0);
      if (i % 8 < 4) {
        ASSERT_EQ(receive(channel).info.value, k);
      }
    }
    ASSERT_EQ(farcall_channel_destroy(channel), 0);
    EXPECT_EQ(farcall_pulse(connection, 0, 1, before), -1) << "round " << i;
    EXPECT_EQ(errno, ESRCH);
    EXPECT_EQ(farcall_disconnect(connection), 0);
  }
}

TEST(MessagePulse, AServersDeathIsToldAtOnceWhereItHasHappened) {
  Channel own;
  auto channel = std::make_unique<Channel>();
  const int connection = channel->connection;
  EXPECT_EQ(farcall_channel_destroy(channel->id), 0);
  EXPECT_EQ(farcall_watch_death(connection, own.id, 5), 0) << std::strerror(errno);
  const Message pulse = receive(own.id);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DEATH);
  EXPECT_EQ(pulse.info.value, 5);
}

TEST(MessagePulse, AServersDeathIsWatchedOnceForEachConnection) {
  Channel own;
  Channel another;
  Channel channel;
  EXPECT_EQ(farcall_watch_death(channel.connection, own.id, 5), 0) << std::strerror(errno);
  for (const int told : {own.id, another.id}) {
    EXPECT_EQ(farcall_watch_death(channel.connection, told, 6), -1);
    EXPECT_EQ(errno, EBUSY);
  }
}

TEST(MessagePulse, OfAServersDeathAChildIsToldForItself) {
  const std::string name = unique_name("watched");
  NamedServer server(name, echo_for_ever);
  Channel told;
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0);
  ASSERT_EQ(farcall_watch_death(connection, told.id, 1), 0);
  const Shared<Event> watching;
  Child child([&] {
    Channel own;
    ASSERT_EQ(farcall_watch_death(connection, own.id, 2), 0) << std::strerror(errno);
    watching->happens();
    const Message pulse = receive(own.id);
    EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DEATH);
    EXPECT_EQ(pulse.info.value, 2);
  });
  ASSERT_TRUE(watching->wait());
  server.kill();
  EXPECT_EQ(receive(told.id).info.value, 1);
  EXPECT_EQ(child.join(), 0);
}

// Another thread has used it last, and does nothing more with the library.
TEST(MessagePulse, TheEndOfAConnectionIsToldWhateverThreadHasUsedIt) {
  Channel channel(FARCALL_DISCONNECT);
  Event over;
  std::thread user([&] {
    EXPECT_EQ(farcall_pulse(channel.connection, 0, 1, 1), 0);
    EXPECT_TRUE(over.wait(6 * kPatience));
  });
  EXPECT_EQ(receive(channel.id).info.code, 1);
  EXPECT_EQ(farcall_disconnect(std::exchange(channel.connection, -1)), 0);
  const Message pulse = receive(channel.id);
  EXPECT_EQ(pulse.id, 0) << std::strerror(pulse.error);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DISCONNECT);
  over.happens();
  user.join();
}

TEST(MessagePulse, IsSentByAHandlerWhateverThatHasInterrupted) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  constexpr int kTimes = 5000;
  const Channel channel;
  static int connection = -1;
  static int by_handler = 0;
  static int by_thread = 0;
  const auto expect = [](int code, int& next, const farcall_info& pulse) {
    EXPECT_EQ(pulse.code, code);
    EXPECT_EQ(pulse.value, next++);
  };
  Child child([&] {
    connection = channel.connection;
    const int other = farcall_connect(channel.id);
    // Which needs memory.
    ASSERT_EQ(farcall_pulse(connection, 0, 3, 0), 0);
    ASSERT_EQ(send(connection, "x").status, 0);
    interrupted(
        kTimes,
        [] {
          if (farcall_pulse(connection, 0, 1, by_handler) == 0) ++by_handler;
        },
        [&] {
          if (farcall_pulse(connection, 0, 2, by_thread) == 0) ++by_thread;
          farcall_connection_descriptor(other);
        });
    EXPECT_GT(by_handler, 0);
    EXPECT_EQ(send(connection, "last").status, 0);
  });
  int from_handler = 0;
  int from_thread = 0;
  for (int messages = 0; messages < 2 && !HasFailure();) {
    const Message came = receive(channel.id);
    ASSERT_GE(came.id, 0) << std::strerror(came.error);
    if (came.id > 0) {
      ++messages;
      answer(came.id, 0);
    } else if (came.info.code != 3) {
      const bool handlers = came.info.code == 1;
      expect(handlers ? 1 : 2, handlers ? from_handler : from_thread, came.info);
    }
  }
  EXPECT_EQ(child.join(), 0);
}

TEST(MessagePulse, IsSentByAHandlerThatHasInterruptedWhoGivesAPriorityBack) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  in_child([] {
    const Channel channel(FARCALL_INHERIT);
    static int connection;
    connection = channel.connection;
    ASSERT_EQ(farcall_pulse(connection, 0, 1, 0), 0);
    EXPECT_EQ(receive(channel.id).info.code, 1);
    const Child client([&] {
      while (send(connection, "x").error == 0) continue;
    });
    const int nice = ::getpriority(PRIO_PROCESS, 0) + 1;
    ASSERT_EQ(::setpriority(PRIO_PROCESS, 0, nice), 0);
    farcall_priority_changed();
    const auto serve = [&] {
      const Message message = receive(channel.id);
      const bool lent = ::getpriority(PRIO_PROCESS, 0) < nice;
      if (message.id > 0) answer(message.id, 0);
      return lent || message.id <= 0;
    };
    if (!serve()) GTEST_SKIP() << "no permission to raise it";
    interrupted(
        3000, [] { farcall_pulse(connection, 0, 1, 0); }, serve);
  });
}

// Its pulses wait in memory, where one thread at a time puts them.
TEST(MessagePulse, IsSentByAHandlerThatHasInterruptedOneToAServerThatHasStopped) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  const std::string name = unique_name("stopped");
  NamedServer server(name, echo_for_ever);
  static int connection;
  connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0);
  ASSERT_TRUE(stop_process(server.pid()));
  in_child([] {
    ASSERT_EQ(farcall_pulse(connection, 0, 1, 0), 0);
    interrupted(
        5000, [] { farcall_pulse(connection, 0, 1, 0); },
        [] { farcall_pulse(connection, 0, 1, 0); });
    EXPECT_TRUE(farcall_pulse(connection, 0, 1, 0) < 0 && errno == EAGAIN);
  });
  EXPECT_EQ(farcall_disconnect(connection), 0);
}

}  // namespace
}  // namespace farcall::message::test
