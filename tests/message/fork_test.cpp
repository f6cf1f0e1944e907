// SPDX-License-Identifier: Apache-2.0
//
// What a forked child finds of its parent's connections, whatever the parent's other threads were
// doing with them.
#include <unistd.h>

#include <deque>

#include "harness/interrupted.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

TEST(MessageFork, AChildSendsPulsesWhateverItsParentsThreadsAreDoing) {
  EchoServer server;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) farcall_pulse(server.connection, 0, 1, 1);
  });
  for (int i = 0; i < 60 && !HasFailure(); ++i)
    in_child([&] {
      // The queue may be full of the parent's.
      EXPECT_TRUE(farcall_pulse(server.connection, 0, 2, 2) == 0 || errno == EAGAIN)
          << std::strerror(errno);
      EXPECT_EQ(send(server.connection, "child").text, "child");
    });
  stop = true;
  other.join();
}

TEST(MessageFork, AChildThatReceivesGivesOutIdsWhateverItsParentsThreadsAreDoing) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  FARCALL_SKIP_UNDER_ASAN("leaves its allocator locked in the child if another thread allocates");
  std::atomic<bool> stop{false};
  // Threads that come to a channel and leave it again take and give back places for clients.
  std::thread other([&] {
    while (!stop) {
      const Channel channel;
      std::thread([&] { receive(channel.id, 1, 0ns); }).join();
    }
  });
  for (int i = 0; i < 30 && !HasFailure(); ++i)
    in_child([] {
      EchoServer own;
      EXPECT_EQ(send(own.connection, "x").text, "x");
    });
  stop = true;
  other.join();
}

TEST(MessageFork, AnIdOfTheParentsIsGoodForNothingInAChild) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").status, 7); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  in_child([&] {
    Channel own;
    std::thread mine([&] { EXPECT_EQ(send(own.connection, "y").status, 8); });
    const Message another = receive(own.id);
    ASSERT_GT(another.id, FARCALL_ONE_WAY);
    EXPECT_NE(another.id, message.id);
    EXPECT_EQ(answer(message.id, 9), -1);
    EXPECT_EQ(errno, ESRCH);
    EXPECT_EQ(answer(another.id, 8), 0);
    mine.join();
  });
  EXPECT_EQ(answer(message.id, 7), 0);
  client.join();
}

TEST(MessageFork, AChildThatDisconnectsKeepsItsOwnConnections) {
  Channel channel;
  ASSERT_EQ(farcall_watch_death(channel.connection, channel.id, 7), 0);
  in_child([&] {
    // What it watches has the same numbers as what its parent does.
    EchoServer own;
    std::vector<int> more;
    for (int i = 0; i < 16; ++i) more.push_back(farcall_connect(own.id));
    EXPECT_EQ(farcall_disconnect(channel.connection), 0);
    more.push_back(own.connection);
    for (const int connection : more) {
      farcall_timeout(std::chrono::nanoseconds(kPatience).count());
      EXPECT_EQ(send(connection, "x").error, 0);
    }
  });
  // The parent's registration is as it was.
  EXPECT_EQ(farcall_watch_death(channel.connection, channel.id, 8), -1);
  EXPECT_EQ(errno, EBUSY);
}

TEST(MessageFork, ChildrenForkedWhileClientsConnectHideNoDeath) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  FARCALL_SKIP_UNDER_ASAN("leaves its allocator locked in the child if another thread allocates");
  constexpr int kClients = 50;
  const std::string name = unique_name("forks");
  const Shared<Event> over;
  Shared<std::atomic<int>> forked{};
  NamedServer server(name, [&](int channel) {
    std::thread([&] {
      for (int i = 0; i < kClients * 4; ++i) {
        if (::fork() == 0) {
          over->await();
          ::_exit(0);
        }
        forked->fetch_add(1);
      }
    }).detach();
    // Nobody gets an answer.
    for (;;) receive(channel);
  });
  Shared<std::atomic<int>> connected{};
  Shared<std::atomic<int>> told{};
  std::deque<Child> clients;
  for (int i = 0; i < kClients; ++i) {
    EXPECT_TRUE(eventually([&] { return forked->load() >= i * 3; }));
    clients.emplace_back([&] {
      const int connection = farcall_name_open(name.c_str());
      EXPECT_GT(connection, 0) << std::strerror(errno);
      EXPECT_EQ(farcall_send_one_way(connection, "x", 1), 0) << std::strerror(errno);
      connected->fetch_add(1);
      EXPECT_EQ(send(connection, "wait").error, ESRCH);
      told->fetch_add(1);
    });
  }
  EXPECT_TRUE(
      eventually([&] { return connected->load() == kClients && forked->load() == kClients * 4; }));
  server.kill();
  EXPECT_TRUE(eventually([&] { return told->load() == kClients; }))
      << kClients - told->load() << " wait for a server that is dead";
  for (int i = 0; i < forked->load(); ++i) over->happens();
}

TEST(MessageFork, AHandlerMayForkWhateverItsThreadIsLookingFor) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    const Channel channel;
    const int other = farcall_connect(channel.id);
    interrupted(1000, fork_and_wait, [&] {
      EXPECT_GE(farcall_connection_descriptor(channel.connection), 0);
      EXPECT_GE(farcall_connection_descriptor(other), 0);
    });
  });
}

}  // namespace
}  // namespace farcall::message::test
