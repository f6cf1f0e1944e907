// SPDX-License-Identifier: Apache-2.0
//
// What is told of the death of others.
#include <sys/syscall.h>
#include <unistd.h>

#include <future>
#include <memory>

#include "harness/killer.hpp"
#include "harness/usage.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

int rounds() { return setting("FARCALL_KILL_ROUNDS", kSlow > 1 ? 20 : 100); }

TEST(MessageKill, AReplyBlockedClientSeesADeadServerAtOnce) {
  give_up_after(100s);
  Latencies latencies;
  for (int i = 0; i < rounds() / 2; ++i) {
    const std::string name = unique_name("dies");
    NamedServer server(name, [](int channel) {
      farcall_receive(channel, nullptr, 0, nullptr);
      for (;;) ::pause();
    });
    const int connection = farcall_name_open(name.c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
    Killer killer(server.pid(), 20'000, static_cast<unsigned>(i));
    EXPECT_EQ(send(connection, "x").error, ESRCH);
    latencies.add(killer.late(now_ns()));
    EXPECT_EQ(send(connection, "x").error, ESRCH);
    EXPECT_EQ(farcall_disconnect(connection), 0);
  }
  latencies.expect_prompt("from the server's death to its client's error");
}

// A child by a system call of the server's own has copies of its sockets, and never uses the
// library, which would close them.
struct MessageKillHeld : ::testing::Test {
  const std::string name = unique_name("held");
  const Shared<std::atomic<pid_t>> child{};
  std::unique_ptr<NamedServer> server;

  void SetUp() override {
    // There a channel lives as long as somebody has its file, such a child as well.
    if (over_module()) GTEST_SKIP() << "the module is here";
    if (!kernel_sends_pidfds()) GTEST_SKIP() << "the kernel sends no pidfds (Linux 6.5)";
    give_up_after(100s);
    server = std::make_unique<NamedServer>(name, [this](int channel) { serve(channel); });
  }
  void TearDown() override {
    if (*child > 0) {
      EXPECT_EQ(::kill(*child, SIGKILL), 0);
    }
  }
  // With a child from the first message on.
  void serve(int channel) const {
    const Message message = receive(channel);
    const auto made =
        static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (made == 0) {
      ::alarm(100);
      for (;;) ::syscall(SYS_pause);
    }
    child->store(made);
    answer(message.id, 0, message.text);
    echo_for_ever(channel);
  }
  [[nodiscard]] int open() const {
    const int connection = farcall_name_open(name.c_str());
    EXPECT_GT(connection, 0) << std::strerror(errno);
    return connection;
  }
};

TEST_F(MessageKillHeld, ANameEndsWithAServerWhoseSocketsAChildHolds) {
  const int before = open();
  EXPECT_EQ(send(before, "x").text, "x");
  EXPECT_EQ(farcall_disconnect(before), 0);
  server->kill();
  EXPECT_EQ(farcall_name_open(name.c_str()), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(MessageKillHeld, TheDeathOfAServerWhoseSocketsAChildHoldsComesAsAPulse) {
  Channel own;
  const int before = open();
  const int after = open();
  ASSERT_EQ(farcall_watch_death(before, own.id, 77), 0) << std::strerror(errno);
  EXPECT_EQ(send(before, "x").text, "x");
  EXPECT_EQ(receive(own.id, 10, 20ms).error, ETIMEDOUT);
  server->kill();
  const Message pulse = receive(own.id);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DEATH);
  EXPECT_EQ(pulse.info.value, 77);
  ASSERT_EQ(farcall_watch_death(after, own.id, 78), 0) << std::strerror(errno);
  EXPECT_EQ(receive(own.id).info.value, 78) << "where it has happened, at once";
  for (const int connection : {before, after}) EXPECT_EQ(farcall_disconnect(connection), 0);
}

TEST_F(MessageKillHeld, NoPulseIsSentToAServerWhoseSocketsAChildHolds) {
  const int first = open();
  const int later = open();
  const int never = open();
  // The server has had these, and its socket is in use.
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(farcall_pulse(first, 0, 1, 1), 0) << std::strerror(errno);
    EXPECT_EQ(send(first, "x").text, "x");
  }
  ASSERT_TRUE(stop_process(server->pid()));
  EXPECT_EQ(farcall_pulse(later, 0, 1, 1), 0) << std::strerror(errno);
  server->kill();
  for (const int connection : {first, later, never}) {
    EXPECT_EQ(farcall_pulse(connection, 0, 1, 1), -1);
    EXPECT_EQ(errno, ESRCH);
    EXPECT_EQ(farcall_disconnect(connection), 0);
  }
}

TEST(MessageKill, ServersOutliveClientsThatAreKilledAtAnyMoment) {
  give_up_after(100s);
  EchoServer server(0, 2);
  std::minstd_rand random(1);
  for (int i = 0; i < rounds(); ++i) {
    Child client([&] {
      std::minstd_rand sizes(static_cast<unsigned>(i) + 1);
      for (;;) {
        const std::string text(sizes() % 4 == 0 ? sizes() % 100'000 : sizes() % 300, 'x');
        ASSERT_EQ(send(server.connection, text, text.size()).text, text);
        farcall_pulse(server.connection, 0, 1, 1);
      }
    });
    pause_up_to(4000, random);
    client.kill();
    farcall_timeout(std::chrono::nanoseconds(kPatience).count());
    ASSERT_EQ(send(server.connection, "alive").text, "alive") << "round " << i;
  }
}

TEST(MessageKill, ADeadClientIsNotAnsweredAndItsConnectionIsTold) {
  Channel channel(FARCALL_DISCONNECT);
  const std::string name = unique_name("server");
  const int named = farcall_name_attach(name.c_str(), FARCALL_DISCONNECT, 0600);
  ASSERT_GT(named, 0);
  Child client([&] { send(farcall_name_open(name.c_str()), "x"); });
  const Message message = receive(named);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  client.kill();
  const Message pulse = receive(named);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DISCONNECT);
  EXPECT_EQ(pulse.info.value, message.info.connection);
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return farcall_read(message.id, 0, &byte, 1) < 0 && errno == ESRCH;
  }));
  EXPECT_EQ(farcall_write(message.id, 0, "x", 1), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_EQ(answer(message.id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  farcall_channel_destroy(named);
}

// Who answers and receives the next in one go does not stop for it.
TEST(MessageKill, ADeadClientIsPassedOver) {
  Channel channel;
  Child client([&] { send(channel.connection, "from the dead"); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  client.kill();
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    return farcall_read(message.id, 0, &byte, 1) < 0 && errno == ESRCH;
  }));
  ASSERT_EQ(farcall_pulse(channel.connection, 0, 3, 7), 0);
  farcall_timeout(std::chrono::nanoseconds(kPatience).count());
  farcall_info info{};
  EXPECT_EQ(farcall_reply_receive(message.id, 0, "x", 1, channel.id, nullptr, 0, &info), 0);
  EXPECT_EQ(info.value, 7);
}

TEST(MessageKill, TheServersDeathComesAsAPulse) {
  const std::string name = unique_name("dies");
  NamedServer server(name, echo_for_ever);
  Channel own;
  const int connection = farcall_name_open(name.c_str());
  ASSERT_EQ(farcall_watch_death(connection, own.id, 77), 0) << std::strerror(errno);
  EXPECT_EQ(farcall_watch_death(connection, own.id, 78), -1);
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(send(connection, "alive").text, "alive");
  EXPECT_EQ(receive(own.id, 10, 20ms).error, ETIMEDOUT);
  server.kill();
  const Message pulse = receive(own.id);
  EXPECT_EQ(pulse.id, 0);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DEATH);
  EXPECT_EQ(pulse.info.value, 77);
  if (!over_module()) {  // which does not say who has sent a pulse
    EXPECT_EQ(pulse.info.uid, static_cast<uid_t>(-1));
    EXPECT_EQ(pulse.info.pid, 0);
    EXPECT_EQ(pulse.info.tid, 0);
  }
  EXPECT_EQ(send(connection, "x").error, ESRCH);
  farcall_disconnect(connection);
}

TEST(MessageKill, NothingIsLeftOfClientsThatDied) {
  give_up_after(100s);
  const std::string name = unique_name("server");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  Echo echo(channel, 1);
  auto one = [&](int i) {
    Child client([&] {
      const int connection = farcall_name_open(name.c_str());
      farcall_pulse(connection, 0, 1, 1);
      for (;;) send(connection, std::string(static_cast<std::size_t>(i) * 1000, 'x'));
    });
    std::this_thread::sleep_for(3ms);
    client.kill();
  };
  for (int i = 0; i < 10; ++i) one(i);
  const Usage before;
  for (int i = 0; i < rounds() / 2; ++i) one(i % 10);
  expect_no_growth(before);
  farcall_channel_destroy(channel);
}

}  // namespace
}  // namespace farcall::message::test
