// SPDX-License-Identifier: Apache-2.0
//
// Whose message is received first, and with what priority it is served.
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// Becomes less urgent by that much. Anybody may do that.
void be_nice(int nice) {
  EXPECT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), nice), 0);
  farcall_priority_changed();
  EXPECT_EQ(farcall_priority(), 20 - nice);
}

int own_nice() { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(own_id())); }

// A client that the server knows already, and that sends when it is told to.
struct Sender {
  Event go;
  std::atomic<bool> sends{false};

  void send_when_told(int connection, const std::string& text) {
    EXPECT_EQ(send(connection, "hello").status, 0);
    EXPECT_TRUE(go.wait(3 * kPatience));
    sends = true;
    send(connection, text);
  }
  // Tells it; then it sleeps only when its message is there.
  [[nodiscard]] bool has_sent(pid_t process) {
    go.happens();
    return eventually([&] { return sends && state_of(process) == 'S'; });
  }
};

TEST(MessagePriority, TheMostUrgentMessageIsReceivedFirstAndOfEqualsTheOldest) {
  Channel channel;
  std::deque<Child> clients;
  std::array<Shared<Sender>, 6> senders;
  constexpr std::array kNice{5, 10, 0, 10, 5, 1};
  for (std::size_t i = 0; i < kNice.size(); ++i) {
    clients.emplace_back([&, i] {
      be_nice(kNice[i]);
      senders[i]->send_when_told(channel.connection,
                                 std::to_string(kNice[i]) + "." + std::to_string(i + 1));
    });
    answer(receive(channel.id).id, 0);
  }
  // The server is busy with this one.
  clients.emplace_back([&] { send(channel.connection, "busy"); });
  const Message busy = receive(channel.id);
  for (std::size_t i = 0; i < kNice.size(); ++i)
    ASSERT_TRUE(senders[i]->has_sent(clients[i].pid()));
  answer(busy.id, 0);
  for (const char* expected : {"0.3", "1.6", "5.1", "5.5", "10.2", "10.4"}) {
    const Message message = receive(channel.id);
    EXPECT_EQ(message.text, expected);
    answer(message.id, 0);
  }
  for (Child& client : clients) EXPECT_EQ(client.join(), 0);
}

TEST(MessagePriority, OneThatNeverPausesDoesNotGetAheadOfAMoreUrgentOne) {
  Channel channel;
  const Shared<std::atomic<bool>> stop;
  Child eager([&] {
    be_nice(10);
    while (!stop->load()) send(channel.connection, "eager");
  });
  for (int i = 0; i < 200; ++i) {
    const Message message = receive(channel.id);
    ASSERT_GT(message.id, FARCALL_ONE_WAY);
    answer(message.id, 0);
  }
  Child urgent([&] { send(channel.connection, "urgent"); });
  const std::int64_t latest = now_ns() + std::chrono::nanoseconds(kPatience).count();
  for (;;) {
    const Message message = receive(channel.id);
    ASSERT_GT(message.id, FARCALL_ONE_WAY);
    answer(message.id, 0);
    if (message.text == "urgent") break;
    // Each is served for some time, in which the urgent one has certainly come in the end.
    std::this_thread::sleep_for(1ms);
    ASSERT_LT(now_ns(), latest);
  }
  *stop = true;
  // Its last one may be long in coming.
  EXPECT_TRUE(eventually([&] {
    const Message message = receive(channel.id, 10, 5ms);
    if (message.id > FARCALL_ONE_WAY) answer(message.id, 0);
    siginfo_t ended{};
    const auto process = static_cast<id_t>(eager.pid());
    return ::waitid(P_PID, process, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0;
  }));
  EXPECT_EQ(urgent.join(), 0);
  EXPECT_EQ(eager.join(), 0);
}

TEST(MessagePriority, APulseIsQueuedAmongMessages) {
  if (farcall_priority() < 20) GTEST_SKIP() << "needs the priority of an ordinary thread";
  Channel channel;
  const Shared<Sender> sender;
  Child client([&] {
    be_nice(5);
    sender->send_when_told(channel.connection, "message");
  });
  answer(receive(channel.id).id, 0);
  // The first pulse of a connection comes in another way than the others.
  ASSERT_EQ(farcall_pulse(channel.connection, 1, 2, 2), 0);
  EXPECT_EQ(receive(channel.id).info.code, 2);
  ASSERT_TRUE(sender->has_sent(client.pid()));
  ASSERT_EQ(farcall_pulse(channel.connection, 1, 1, 1), 0);
  ASSERT_EQ(farcall_pulse(channel.connection, 18, 18, 18), 0);
  EXPECT_EQ(receive(channel.id).info.code, 18);
  const Message message = receive(channel.id);
  EXPECT_EQ(message.text, "message");
  EXPECT_EQ(message.info.priority, 15);
  EXPECT_EQ(receive(channel.id).info.code, 1);
  answer(message.id, 0);
  EXPECT_EQ(client.join(), 0);
}

// Whatever its nice value is, which counts for nothing meanwhile.
TEST(MessagePriority, WhoRunsWhenNobodyElseDoesIsTheLeastUrgent) {
  Channel channel;
  Child client([&] {
    const sched_param none{};
    EXPECT_EQ(send(channel.connection, "hello").status, 0);
    EXPECT_EQ(farcall_pulse(channel.connection, 0, 2, 0), 0);
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    EXPECT_EQ(farcall_priority_changed(), 0);
    EXPECT_EQ(farcall_priority(), 1);
    EXPECT_EQ(farcall_pulse(channel.connection, farcall_priority(), 1, 0), 0);
    send(channel.connection, "message");
    (void)::sched_setscheduler(0, SCHED_OTHER, &none);  // where that is permitted
  });
  answer(receive(channel.id).id, 0);
  EXPECT_EQ(receive(channel.id).info.code, 2);
  // Where others are busy the rest takes its time.
  EXPECT_EQ(receive(channel.id, 10, 6 * kPatience).info.priority, 1);
  const Message message = receive(channel.id, 10, 6 * kPatience);
  EXPECT_EQ(message.info.priority, 1);
  answer(message.id, 0);
  EXPECT_EQ(client.join(), 0);
}

// A server that is less urgent than its client.
void expect_inherited(int client_nice, int server_nice) {
  const Shared<Event> ready;
  Channel channel(FARCALL_INHERIT);
  std::thread client([&] {
    be_nice(client_nice);
    send(channel.connection, "x");
  });
  std::thread([&] {
    be_nice(server_nice);
    const Message message = receive(channel.id);
    ASSERT_GT(message.id, FARCALL_ONE_WAY);
    EXPECT_EQ(own_nice(), std::min(client_nice, server_nice));
    answer(message.id, 0);
    EXPECT_EQ(own_nice(), server_nice);
  }).join();
  client.join();
}

// Who is nice cannot always become less so again.
bool may_raise_priority() {
  const int before = ::getpriority(PRIO_PROCESS, 0);
  if (::setpriority(PRIO_PROCESS, 0, before - 1) != 0) return false;
  ::setpriority(PRIO_PROCESS, 0, before);
  return true;
}

TEST(MessagePriority, WhoServesInheritsItUntilTheAnswer) {
  if (!may_raise_priority()) GTEST_SKIP() << "no permission to raise it";
  expect_inherited(2, 8);
  expect_inherited(8, 2);
}

TEST(MessagePriority, WhoRunsWhenNobodyElseDoesServesAsItsClientRuns) {
  if (!may_raise_priority()) GTEST_SKIP() << "no permission to raise it";
  Channel channel(FARCALL_INHERIT);
  Event idle;
  const auto own_policy = [] { return ::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK; };
  std::thread client([&] {
    be_nice(2);
    send(channel.connection, "hello");
    EXPECT_TRUE(idle.wait(6 * kPatience));
    send(channel.connection, "x");
  });
  std::thread([&] {
    be_nice(2);
    answer(receive(channel.id).id, 0);
    be_nice(8);
    const sched_param none{};
    EXPECT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    farcall_priority_changed();
    idle.happens();
    const Message message = receive(channel.id, 10, 6 * kPatience);
    EXPECT_EQ(own_policy(), SCHED_OTHER);
    EXPECT_EQ(own_nice(), 2);
    answer(message.id, 0);
    EXPECT_EQ(own_policy(), SCHED_IDLE);
    EXPECT_EQ(own_nice(), 8);
  }).join();
  client.join();
}

TEST(MessagePriority, WhoeverAnswersEndsTheInheritanceOfWhoHasReceived) {
  if (!may_raise_priority()) GTEST_SKIP() << "no permission to raise it";
  constexpr int kClient = 2;
  constexpr int kServer = 8;
  Channel channel(FARCALL_INHERIT);
  std::deque<std::thread> clients;
  for (int i = 0; i < 2; ++i)
    clients.emplace_back([&] {
      be_nice(kClient);
      EXPECT_EQ(send(channel.connection, "x").status, 0);
    });
  struct Serving {
    Event received;
    Event go;
    Event gone;
    Event end;
    Message message;
    pid_t thread = 0;
    int priority = 0;
    std::thread runs;
  };
  std::array<Serving, 2> servers;
  for (Serving& self : servers) {
    self.runs = std::thread([&] {
      self.thread = static_cast<pid_t>(::syscall(SYS_gettid));
      be_nice(kServer);
      self.message = receive(channel.id);
      self.received.happens();
      EXPECT_TRUE(self.go.wait());
      self.priority = farcall_priority();
      self.gone.happens();
      EXPECT_TRUE(self.end.wait());
    });
    ASSERT_TRUE(self.received.wait());
  }
  const auto nice = [](const Serving& of) {
    return ::getpriority(PRIO_PROCESS, static_cast<id_t>(of.thread));
  };
  EXPECT_EQ(nice(servers[0]), kClient);
  EXPECT_EQ(nice(servers[1]), kClient);
  EXPECT_EQ(answer(servers[0].message.id, 0), 0);
  EXPECT_EQ(nice(servers[0]), kServer);
  EXPECT_EQ(nice(servers[1]), kClient);
  for (Serving& self : servers) {
    self.go.happens();
    EXPECT_TRUE(self.gone.wait());
  }
  EXPECT_EQ(servers[0].priority, 20 - kServer);
  // The module raises it unseen by the library.
  EXPECT_EQ(servers[1].priority, 20 - (over_module() ? kServer : kClient));
  EXPECT_EQ(answer(servers[1].message.id, 0), 0);
  for (Serving& self : servers) {
    self.end.happens();
    self.runs.join();
  }
  for (std::thread& client : clients) client.join();
}

TEST(MessagePriority, WhoAnswersForAnotherKeepsWhatItHasInherited) {
  if (!may_raise_priority()) GTEST_SKIP() << "no permission to raise it";
  constexpr int kClient = 2;
  constexpr int kServer = 8;
  Channel channel(FARCALL_INHERIT);
  std::deque<std::thread> clients;
  for (int i = 0; i < 2; ++i)
    clients.emplace_back([&] {
      be_nice(kClient);
      EXPECT_EQ(send(channel.connection, "x").status, 0);
    });
  Message other;
  Event received;
  Event done;
  std::thread another([&] {
    other = receive(channel.id);
    received.happens();
    EXPECT_TRUE(done.wait());
  });
  ASSERT_TRUE(received.wait());
  std::thread([&] {
    be_nice(kServer);
    const Message message = receive(channel.id);
    EXPECT_EQ(own_nice(), kClient);
    EXPECT_EQ(answer(other.id, 0), 0);
    EXPECT_EQ(own_nice(), kClient);
    EXPECT_EQ(answer(message.id, 0), 0);
    EXPECT_EQ(own_nice(), kServer);
  }).join();
  done.happens();
  another.join();
  for (std::thread& client : clients) client.join();
}

TEST(MessagePriority, WhoseThreadHasEndedIsAnsweredByAnother) {
  if (!may_raise_priority()) GTEST_SKIP() << "no permission to raise it";
  Channel channel(FARCALL_INHERIT);
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").status, 0); });
  Message message;
  std::thread([&] {
    be_nice(8);
    message = receive(channel.id);
  }).join();
  EXPECT_EQ(answer(message.id, 0), 0);
  client.join();
}

TEST(MessagePriority, TheEndOfTheChannelEndsTheInheritance) {
  if (!may_raise_priority()) GTEST_SKIP() << "no permission to raise it";
  const int channel = farcall_channel_create(FARCALL_INHERIT);
  const int connection = farcall_connect(channel);
  std::thread client([&] {
    be_nice(2);
    EXPECT_EQ(send(connection, "x").error, ESRCH);
  });
  std::thread([&] {
    be_nice(8);
    ASSERT_GT(receive(channel).id, FARCALL_ONE_WAY);
    EXPECT_EQ(own_nice(), 2);
    EXPECT_EQ(farcall_channel_destroy(channel), 0);
    EXPECT_EQ(own_nice(), 8);
  }).join();
  client.join();
  farcall_disconnect(connection);
}

// A child has inherited it, too, and not the answer that it is for.
TEST(MessagePriority, AChildGivesBackItsOwnWhenItReceives) {
  if (!may_raise_priority()) GTEST_SKIP() << "no permission to raise it";
  if (over_module()) GTEST_SKIP() << "the module is here";
  Channel channel(FARCALL_INHERIT);
  std::thread client([&] {
    be_nice(2);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
  });
  std::thread([&] {
    be_nice(8);
    const Message message = receive(channel.id);
    ASSERT_EQ(own_nice(), 2);
    in_child([] {
      const Channel own;
      EXPECT_EQ(receive(own.id, 1, 0ns).error, ETIMEDOUT);
      EXPECT_EQ(own_nice(), 8);
    });
    EXPECT_EQ(own_nice(), 2) << "until the answer";
    EXPECT_EQ(answer(message.id, 0), 0);
    EXPECT_EQ(own_nice(), 8);
  }).join();
  client.join();
}

TEST(MessagePriority, ARealTimeClientIsServedInRealTime) {
  const sched_param real_time{.sched_priority = 7};
  if (::sched_setscheduler(0, SCHED_FIFO, &real_time) != 0)
    GTEST_SKIP() << "no permission for real time";
  farcall_priority_changed();
  EXPECT_EQ(farcall_priority(), 47);
  const sched_param usual{.sched_priority = 0};
  ::sched_setscheduler(0, SCHED_OTHER, &usual);
  farcall_priority_changed();
  Channel channel(FARCALL_INHERIT);
  std::thread client([&] {
    ::sched_setscheduler(0, SCHED_FIFO, &real_time);
    farcall_priority_changed();
    send(channel.connection, "x");
  });
  const Message message = receive(channel.id);
  EXPECT_EQ(message.info.priority, 47);
  EXPECT_EQ(::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_FIFO);
  sched_param now{};
  ::sched_getparam(0, &now);
  EXPECT_EQ(now.sched_priority, 7);
  answer(message.id, 0);
  EXPECT_EQ(::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_OTHER);
  client.join();
}

// As rtkit makes them, and as a server is that has been lent a priority.
TEST(MessagePriority, AThreadWhoseChildrenAreNotInRealTimeIsStillInRealTime) {
  const sched_param lower{.sched_priority = 7};
  const sched_param higher{.sched_priority = 50};
  const sched_param usual{.sched_priority = 0};
  if (::sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &lower) != 0)
    GTEST_SKIP() << "no permission for real time";
  farcall_priority_changed();
  EXPECT_EQ(farcall_priority(), 47);
  ::sched_setscheduler(0, SCHED_OTHER, &usual);
  farcall_priority_changed();
  Channel channel(FARCALL_INHERIT);
  const auto served = [&](const sched_param* own) {
    std::thread client([&] {
      ::sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &lower);
      farcall_priority_changed();
      send(channel.connection, "x");
    });
    if (own != nullptr) ::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, own);
    farcall_priority_changed();
    const Message message = receive(channel.id);
    EXPECT_EQ(message.info.priority, 47);
    sched_param now{};
    ::sched_getparam(0, &now);
    answer(message.id, 0);
    client.join();
    ::sched_setscheduler(0, SCHED_OTHER, &usual);
    farcall_priority_changed();
    return now.sched_priority;
  };
  EXPECT_EQ(served(nullptr), 7);
  EXPECT_EQ(served(&higher), 50);
}

void is_told_of_ends_as_an_ordinary_thread() {
  Channel channel(FARCALL_DISCONNECT);
  const Channel watched;
  ASSERT_EQ(farcall_watch_death(watched.connection, channel.id, 5), 0) << std::strerror(errno);
  ASSERT_EQ(farcall_disconnect(farcall_connect(channel.id)), 0);
  const Message gone = receive(channel.id);
  EXPECT_EQ(gone.info.code, FARCALL_PULSE_DISCONNECT);
  EXPECT_EQ(gone.info.priority, 20);
  EXPECT_EQ(farcall_channel_destroy(watched.id), 0);
  const Message death = receive(channel.id);
  EXPECT_EQ(death.info.code, FARCALL_PULSE_DEATH);
  EXPECT_EQ(death.info.priority, 20);
}

// Else a server that is busy with anybody's messages would not learn of it.
TEST(MessagePriority, WhatHasEndedIsToldAsByAnOrdinaryThreadHoweverNiceTheServerIs) {
  Child nice([] {
    be_nice(10);
    Child server(is_told_of_ends_as_an_ordinary_thread);  // with all threads that it will have
    EXPECT_EQ(server.join(), 0);
  });
  EXPECT_EQ(nice.join(), 0);
}

}  // namespace
}  // namespace farcall::message::test
