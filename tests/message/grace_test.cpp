// SPDX-License-Identifier: Apache-2.0
//
// Servers whose clients stay until they are answered, and who do not answer: another user's keeps
// nobody for longer than a moment.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <future>

#include "message/channel.hpp"
#include "message/kernel.hpp"
#include "message/names.hpp"

namespace farcall::message::test {
namespace {

constexpr auto kGrace = 1s;

void let_sigusr1_end_waits() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &action, nullptr);
}

// Signals a thread until it has done `body`. Returns the errno of that.
template <class Body>
int while_signalled(Body body) {
  let_sigusr1_end_waits();
  std::promise<pthread_t> self;
  auto waiting = std::async(std::launch::async, [&] {
    self.set_value(::pthread_self());
    return body();
  });
  const pthread_t thread = self.get_future().get();
  do {  // it may not have begun
    ::pthread_kill(thread, SIGUSR1);
  } while (waiting.wait_for(100ms) != std::future_status::ready);
  return waiting.get();
}

// A stranger's, that receives and never answers.
class MessageGrace : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
    give_up_after(60s);
    server_ = std::make_unique<Child>([this] {
      ASSERT_TRUE(become(kNobody));
      const int channel = farcall_name_attach(name_.c_str(), FARCALL_UNBLOCK, 0666);
      ASSERT_GT(channel, 0) << std::strerror(errno);
      ready_->happens();
      for (;;) (void)farcall_receive(channel, nullptr, 0, nullptr);
    });
    ASSERT_TRUE(ready_->wait());
    connection = farcall_name_open((std::to_string(kNobody) + "/" + name_).c_str());
    ASSERT_GT(connection, 0) << std::strerror(errno);
  }
  int connection = -1;

 private:
  const std::string name_ = unique_name("grace");
  const Shared<Event> ready_;
  std::unique_ptr<Child> server_;
};

TEST_F(MessageGrace, AStrangersServerKeepsNobodyLongPastATimeout) {
  const std::int64_t begin = now_ns();
  farcall_timeout(100'000'000);
  EXPECT_EQ(send(connection, "x").error, ETIMEDOUT);
  EXPECT_GE(now_ns() - begin, std::chrono::nanoseconds(kGrace).count());
}

TEST_F(MessageGrace, AStrangersServerKeepsNobodyLongPastASignal) {
  EXPECT_EQ(while_signalled([&] { return send(connection, "x").error; }), EINTR);
}

TEST_F(MessageGrace, WhoKeepsWaitingHasATimeoutAsWell) {
  farcall_message message{};
  message.flags = FARCALL_KEEP_WAITING;
  const int error = while_signalled([&] {
    farcall_timeout(100'000'000);
    return farcall_send_message(connection, &message) < 0 ? errno : 0;
  });
  EXPECT_EQ(error, ETIMEDOUT);
}

TEST(MessageStay, AClientOfItsOwnUsersServerStaysUntilItIsAnswered) {
  give_up_after(60s);
  const Channel channel(FARCALL_UNBLOCK);
  auto client = std::async(std::launch::async, [&] {
    farcall_timeout(50'000'000);
    return send(channel.connection, "x");
  });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  std::this_thread::sleep_for(kGrace + 500ms);
  EXPECT_EQ(answer(message.id, 7), 0);
  EXPECT_EQ(client.get().status, 7);
}

// It takes nobody in, and says nothing.
TEST(MessageName, ASignalEndsTheWaitForAServer) {
  give_up_after(60s);
  const std::string name = unique_name("silent");
  const UniqueFd listener = listen_at(kOpenPrefix, own_name(name));
  const int error =
      while_signalled([&] { return farcall_name_open(name.c_str()) < 0 ? errno : 0; });
  EXPECT_EQ(error, EINTR);
}

// The module cannot tell a channel in shared memory of a death.
TEST(MessageDeath, IsNotWatchedForAChannelOfAnotherEngine) {
  const auto channel = shared_engine().create({}, 0, 0);
  KernelConnection connection(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  int error = 0;
  try {
    connection.watch_death(channel, 0);
  } catch (const SystemError& failure) {
    error = failure.code().value();
  }
  EXPECT_EQ(error, EINVAL);
}

}  // namespace
}  // namespace farcall::message::test
