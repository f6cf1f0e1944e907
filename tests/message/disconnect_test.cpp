// SPDX-License-Identifier: Apache-2.0
//
// What becomes of threads that send through a connection which another closes, while somebody else
// has it, too.
#include <fcntl.h>
#include <signal.h>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// A connection and another handle of it.
struct Twice {
  explicit Twice(int number)
      : connection(number),
        other(farcall_adopt(::fcntl(farcall_connection_descriptor(number), F_DUPFD_CLOEXEC, 0))) {
    EXPECT_GT(connection, 0);
    EXPECT_GT(other, 0);
  }
  ~Twice() { farcall_disconnect(other); }
  Twice(const Twice&) = delete;
  Twice& operator=(const Twice&) = delete;
  const int connection;
  const int other;
};

// A thread that sends, and what it gets.
class Sender {
 public:
  template <class Body>
  explicit Sender(Body body)
      : runs_([this, body] {
          farcall_timeout(std::chrono::nanoseconds(kPatience).count());
          thread_ = static_cast<pid_t>(::syscall(SYS_gettid));
          result_ = body();
          error_ = result_ < 0 ? errno : 0;
        }) {}
  ~Sender() { (void)error(); }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  [[nodiscard]] bool sleeps() const {
    return eventually([&] { return thread_ != 0 && state_of(thread_) == 'S'; });
  }
  int error() {
    if (runs_.joinable()) runs_.join();
    return error_;
  }

 private:
  std::atomic<pid_t> thread_{0};
  int result_ = 0;
  int error_ = 0;
  std::thread runs_;
};

TEST(MessageDisconnect, WhoseMessageHasNotBeenReceivedIsToldAtOnce) {
  Channel channel;
  const Twice twice(farcall_connect(channel.id));
  char reply = 0;
  Sender sender([&] { return farcall_send(twice.connection, "x", 1, &reply, 1); });
  Sender one_way([&] { return farcall_send_one_way(twice.connection, "x", 1); });
  ASSERT_TRUE(sender.sleeps());
  ASSERT_TRUE(one_way.sleeps());
  EXPECT_EQ(farcall_disconnect(twice.connection), 0);
  EXPECT_EQ(sender.error(), ESRCH);
  EXPECT_EQ(one_way.error(), ESRCH);
  // Nor is it received, and who has the connection goes on.
  Sender next([&] { return farcall_send(twice.other, "y", 1, &reply, 1); });
  const Message message = receive(channel.id);
  EXPECT_EQ(message.text, "y");
  EXPECT_EQ(answer(message.id, 0), 0);
  EXPECT_EQ(next.error(), 0);
}

// Its time is over while it is still to be told that the connection has been closed.
TEST(MessageDisconnect, WhatIsNotReceivedIsNotSaidToBe) {
  using namespace std::chrono_literals;
  Channel channel;
  for (int i = 0; i < 20; ++i) {
    const Twice twice(farcall_connect(channel.id));
    Sender sender([&] {
      farcall_timeout(std::chrono::nanoseconds(12ms).count());
      return farcall_send_one_way(twice.connection, "x", 1);
    });
    std::this_thread::sleep_for(4ms);  // it may have begun or not, and even be over
    EXPECT_EQ(farcall_disconnect(twice.connection), 0);
    const int error = sender.error();
    EXPECT_TRUE(error == ESRCH || error == ETIMEDOUT || error == EBADF) << error;
    char byte = 0;
    farcall_timeout(0);
    EXPECT_EQ(farcall_receive(channel.id, &byte, 1, nullptr), -1);
    EXPECT_EQ(errno, ETIMEDOUT);
  }
}

TEST(MessageDisconnect, WhoseMessageHasBeenReceivedGetsTheAnswer) {
  Channel channel;
  const Twice twice(farcall_connect(channel.id));
  char reply = 0;
  Sender sender([&] { return farcall_send(twice.connection, "x", 1, &reply, 1); });
  const Message message = receive(channel.id);
  ASSERT_TRUE(sender.sleeps());
  EXPECT_EQ(farcall_disconnect(twice.connection), 0);
  EXPECT_EQ(answer(message.id, 0, "r"), 0);
  EXPECT_EQ(sender.error(), 0);
  EXPECT_EQ(reply, 'r');
}

TEST(MessageDisconnect, WhoWaitsToBeLetInIsToldAtOnce) {
  const std::string name = unique_name("stopped");
  NamedServer server(name, [](int) {
    for (;;) ::pause();
  });
  const Twice twice(farcall_name_open(name.c_str()));
  ASSERT_TRUE(stop_process(server.pid()));
  char reply = 0;
  Sender sender([&] { return farcall_send(twice.connection, "x", 1, &reply, 1); });
  ASSERT_TRUE(sender.sleeps());
  EXPECT_EQ(farcall_disconnect(twice.connection), 0);
  EXPECT_EQ(sender.error(), ESRCH);
}

}  // namespace
}  // namespace farcall::message::test
