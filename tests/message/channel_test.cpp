// SPDX-License-Identifier: Apache-2.0
//
// Channels, connections and names: how long they live, who finds them, how they can be waited for.
#include "message/channel.hpp"

#include <grp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <future>

namespace farcall::message::test {
namespace {

TEST(MessageChannel, StaleNumbersAreRefused) {
  const int channel = farcall_channel_create(0);
  ASSERT_GT(channel, 0);
  const int connection = farcall_connect(channel);
  ASSERT_GT(connection, 0);
  EXPECT_EQ(farcall_disconnect(connection), 0);
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
  const Channel other;
  EXPECT_NE(other.id, channel);
  EXPECT_NE(other.connection, connection);
  EXPECT_EQ(farcall_disconnect(connection), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(farcall_channel_destroy(channel), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(farcall_send(connection, "x", 1, nullptr, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(farcall_receive(channel, nullptr, 0, nullptr), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(farcall_connect(0), -1);
  EXPECT_EQ(farcall_connect(-1), -1);
  EXPECT_EQ(farcall_connect(INT32_MAX), -1);
}

TEST(MessageChannel, UnknownFlagsAreRefused) {
  EXPECT_EQ(farcall_channel_create(1U << 20), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(MessageChannel, DestroyingItFailsThoseWhoWait) {
  auto channel = std::make_unique<Channel>();
  const int connection = channel->connection;
  auto blocked = std::async(std::launch::async, [&] { return send(connection, "x").error; });
  const Message message = receive(channel->id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  auto queued = std::async(std::launch::async, [&] { return send(connection, "y").error; });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(farcall_channel_destroy(channel->id), 0);
  EXPECT_EQ(blocked.get(), ESRCH);
  EXPECT_EQ(queued.get(), ESRCH);
  EXPECT_EQ(send(connection, "z").error, ESRCH);
  EXPECT_EQ(answer(message.id, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(MessageChannel, DestroyingItEndsTheThreadsThatReceive) {
  const int channel = farcall_channel_create(0);
  std::vector<std::future<int>> threads;
  for (int i = 0; i < 3; ++i)
    threads.push_back(std::async(std::launch::async, [&] {
      return farcall_receive(channel, nullptr, 0, nullptr) == -1 ? errno : 0;
    }));
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
  for (auto& thread : threads) EXPECT_EQ(thread.get(), EBADF);
}

TEST(MessageChannel, AThreadThatReceivesOneWayAndGoesAwayKeepsNobodyWaiting) {
  EchoServer server;  // one thread that receives
  std::atomic<bool> received{false};
  std::promise<void> done;
  // A second one receives a message that wants no answer, and does something else.
  std::thread distracted([&] {
    while (receive(server.id, 100, 1ms).id != FARCALL_ONE_WAY) continue;
    received = true;
    done.get_future().wait();
  });
  const auto set_patience = [] { farcall_timeout(std::chrono::nanoseconds(kPatience).count()); };
  do {
    set_patience();
    ASSERT_EQ(farcall_send_one_way(server.connection, "x", 1), 0) << std::strerror(errno);
  } while (!received);
  for (int i = 0; i < 100; ++i) {
    set_patience();
    ASSERT_EQ(send(server.connection, "x").status, 0);
  }
  done.set_value();
  distracted.join();
}

TEST(MessageChannel, DestroyingItFailsAClientThatAnotherThreadHasAnswered) {
  const std::string name = unique_name("answered");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  const Shared<Event> answered;
  const Shared<Event> destroyed;
  Child client([&] {
    const int connection = farcall_name_open(name.c_str());
    EXPECT_EQ(send(connection, "x").error, 0);
    answered->happens();
    EXPECT_TRUE(destroyed->wait());
    EXPECT_EQ(send(connection, "y").error, ESRCH);
  });
  // It attends to that client, and then does something else for a long time.
  Event over;
  std::thread server([&] {
    const Message message = receive(channel);
    EXPECT_EQ(answer(message.id, 0), 0);
    EXPECT_TRUE(over.wait(3 * kPatience));
  });
  EXPECT_TRUE(answered->wait());
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
  destroyed->happens();
  EXPECT_EQ(client.join(), 0);
  over.happens();
  server.join();
}

TEST(MessageChannel, DestroyingItFailsAClientThatIsBeingAnswered) {
  for (int i = 0; i < 200; ++i) {
    const int channel = farcall_channel_create(0);
    const int connection = farcall_connect(channel);
    std::atomic<bool> received{false};
    std::thread server([&] {
      const Message message = receive(channel);
      received = true;
      (void)answer(message.id, 0);
      // It does not come back until the client has ended.
      while (received) std::this_thread::yield();
    });
    std::thread client([&] {
      farcall_timeout(std::chrono::nanoseconds(kPatience).count());
      const int first = send(connection, "x").error;
      EXPECT_TRUE(first == 0 || first == ESRCH) << first;
      farcall_timeout(std::chrono::nanoseconds(kPatience).count());
      EXPECT_EQ(send(connection, "y").error, ESRCH);
      received = false;
    });
    while (!received) std::this_thread::yield();
    EXPECT_EQ(farcall_channel_destroy(channel), 0);
    client.join();
    server.join();
    farcall_disconnect(connection);
  }
}

TEST(MessageChannel, ANameIsFoundByOtherProcesses) {
  const std::string name = unique_name("found");
  NamedServer server(name, echo_for_ever);
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0) << std::strerror(errno);
  EXPECT_EQ(send(connection, "hello").text, "hello");
  EXPECT_EQ(farcall_disconnect(connection), 0);
  const int full = farcall_name_open((std::to_string(::geteuid()) + "/" + name).c_str());
  ASSERT_GT(full, 0) << std::strerror(errno);
  EXPECT_EQ(send(full, "again").text, "again");
  EXPECT_EQ(farcall_disconnect(full), 0);
}

TEST(MessageChannel, ANameIsTakenOnceAndFreeAfterDeath) {
  const std::string name = unique_name("taken");
  NamedServer server(name, echo_for_ever);
  EXPECT_EQ(farcall_name_attach(name.c_str(), 0, 0600), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  server.kill();
  EXPECT_TRUE(eventually([&] { return farcall_name_open(name.c_str()) < 0 && errno == ENOENT; }));
  int channel = -1;
  EXPECT_TRUE(
      eventually([&] { return (channel = farcall_name_attach(name.c_str(), 0, 0600)) > 0; }));
  EXPECT_EQ(farcall_channel_destroy(channel), 0);
  EXPECT_EQ(farcall_name_open(name.c_str()), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST(MessageChannel, NamesAreChecked) {
  EXPECT_EQ(farcall_name_attach("", 0, 0600), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(farcall_name_attach("a/b", 0, 0600), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(farcall_name_attach(std::string(49, 'x').c_str(), 0, 0600), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
  EXPECT_EQ(farcall_name_open("no such channel"), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(farcall_name_open("no-such-channel"), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(farcall_name_open("17x/y"), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(MessageChannel, TheModeSaysWhoMayConnect) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const std::string closed = unique_name("closed");
  const std::string open = unique_name("open");
  const int one = farcall_name_attach(closed.c_str(), 0, 0600);
  const int two = farcall_name_attach(open.c_str(), 0, 0622);
  ASSERT_GT(one, 0);
  ASSERT_GT(two, 0);
  Child child([&] {
    if (!become(kNobody)) ::_exit(77);
    EXPECT_EQ(farcall_name_open(closed.c_str()), -1);
    EXPECT_EQ(errno, EACCES);
    const int connection = farcall_name_open(open.c_str());
    EXPECT_GT(connection, 0) << std::strerror(errno);
    EXPECT_EQ(send(connection, "x").status, 0);
  });
  const Message message = receive(two);
  EXPECT_EQ(message.info.uid, kNobody);
  answer(message.id, 0);
  EXPECT_EQ(child.join(), 0);
  farcall_channel_destroy(one);
  farcall_channel_destroy(two);
}

// Whom the server shares its group with is of that class, and no other.
TEST(MessageChannel, TheModeSaysWhetherItsGroupMayConnect) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  const std::string group = unique_name("group");
  const std::string others = unique_name("others");
  const int one = farcall_name_attach(group.c_str(), 0, 0620);
  const int two = farcall_name_attach(others.c_str(), 0, 0602);
  ASSERT_GT(one, 0);
  ASSERT_GT(two, 0);
  const uid_t user = kNobody;
  const auto error_of_opening = [](const std::string& name) {
    return farcall_name_open(name.c_str()) > 0 ? 0 : errno;
  };
  const gid_t servers = ::getegid();
  for (const bool by_list : {false, true}) {
    Child member([&] {
      ASSERT_EQ(::setgroups(by_list ? 1 : 0, &servers), 0);
      if (by_list) {
        ASSERT_EQ(::setresgid(user, user, user), 0);
      }
      ASSERT_EQ(::setresuid(user, user, user), 0);
      EXPECT_EQ(error_of_opening(group), 0);
      EXPECT_EQ(error_of_opening(others), EACCES);
    });
    EXPECT_EQ(member.join(), 0) << by_list;
  }
  Child other([&] {
    ASSERT_EQ(::setgroups(0, nullptr), 0);
    ASSERT_TRUE(become(user));
    EXPECT_EQ(error_of_opening(group), EACCES);
    EXPECT_EQ(error_of_opening(others), 0);
  });
  EXPECT_EQ(other.join(), 0);
  farcall_channel_destroy(one);
  farcall_channel_destroy(two);
}

TEST(MessageChannel, ADisconnectIsTold) {
  Channel channel(FARCALL_DISCONNECT);
  const int connection = farcall_connect(channel.id);
  std::thread client([&] { EXPECT_EQ(send(connection, "x").status, 0); });
  const Message message = receive(channel.id);
  answer(message.id, 0);
  client.join();
  EXPECT_EQ(farcall_disconnect(connection), 0);
  const Message pulse = receive(channel.id);
  EXPECT_EQ(pulse.id, 0);
  EXPECT_EQ(pulse.info.code, FARCALL_PULSE_DISCONNECT);
  EXPECT_EQ(pulse.info.value, message.info.connection);
}

TEST(MessageChannel, EachConnectionHasANumberOfItsOwn) {
  Channel channel;
  const int other = farcall_connect(channel.id);
  std::array<std::int64_t, 4> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::thread client([&] { send(i % 2 == 0 ? channel.connection : other, "x"); });
    const Message message = receive(channel.id);
    numbers[i] = message.info.connection;
    answer(message.id, 0);
    client.join();
  }
  EXPECT_EQ(numbers[0], numbers[2]);
  EXPECT_EQ(numbers[1], numbers[3]);
  EXPECT_NE(numbers[0], numbers[1]);
  farcall_disconnect(other);
}

TEST(MessageChannel, AConnectionIsPassedOnInAMessage) {
  Channel channel;
  EchoServer echo;
  Child child([&] {
    Message message;
    // It has inherited the connection, and is given another.
    farcall_message gift{};
    const int descriptor = farcall_connection_descriptor(echo.connection);
    gift.descriptors = &descriptor;
    gift.descriptor_count = 1;
    EXPECT_EQ(farcall_send_message(channel.connection, &gift), 0);
  });
  const Message message = receive(channel.id);
  ASSERT_EQ(message.info.descriptor_count, 1U);
  answer(message.id, 0);
  EXPECT_EQ(child.join(), 0);
  const int connection = farcall_adopt(message.info.descriptors[0]);
  ASSERT_GT(connection, 0) << std::strerror(errno);
  EXPECT_EQ(send(connection, "through").text, "through");
  farcall_disconnect(connection);
  EXPECT_EQ(farcall_adopt(STDIN_FILENO), -1);
  EXPECT_EQ(errno, EINVAL);
  for (const int none : {-1, 1 << 20}) {
    EXPECT_EQ(farcall_adopt(none), -1);
    EXPECT_EQ(errno, EBADF) << none;
  }
}

TEST(MessageChannel, ItCanBePolled) {
  Channel channel;
  const int descriptor = farcall_channel_descriptor(channel.id);
  ASSERT_GE(descriptor, 0);
  pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 20), 0);
  std::thread client([&] {
    for (int i = 0; i < 200; ++i) ASSERT_EQ(send(channel.connection, "x").status, i);
    ASSERT_EQ(farcall_pulse(channel.connection, 0, 7, 8), 0);
  });
  int answered = 0;
  bool pulsed = false;
  while (!pulsed) {
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1) << answered;
    // What poll() says may be over already.
    const Message message = receive(channel.id, 100, 0ns);
    if (message.id > FARCALL_ONE_WAY)
      ASSERT_EQ(answer(message.id, answered++), 0);
    else if (message.id == 0)
      pulsed = message.info.code == 7;
    else
      ASSERT_EQ(message.error, ETIMEDOUT);
  }
  EXPECT_EQ(answered, 200);
  client.join();
}

TEST(MessageChannel, AChildHasItsParentsConnectionsAndNotItsChannels) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  EchoServer server;
  EXPECT_EQ(send(server.connection, "parent").text, "parent");
  in_child([&] {
    EXPECT_EQ(send(server.connection, "child").text, "child");
    EXPECT_EQ(farcall_receive(server.id, nullptr, 0, nullptr), -1);
    EXPECT_EQ(errno, EBADF);
    // It makes its own.
    EchoServer own;
    EXPECT_EQ(send(own.connection, "own").text, "own");
  });
  EXPECT_EQ(send(server.connection, "parent").text, "parent");
}

}  // namespace
}  // namespace farcall::message::test
