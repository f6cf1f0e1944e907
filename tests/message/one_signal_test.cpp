// SPDX-License-Identifier: Apache-2.0
//
// One signal, sent once at any moment of a call, ends it. FARCALL_SIGNAL_ROUNDS says how often.
#include "harness/one_signal.hpp"

#include <signal.h>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// What client and server share.
struct Plan {
  Target target;
  std::atomic<std::int64_t> pause{0};
  std::atomic<std::int64_t> over{0};  // so many rounds
  std::atomic<int> in_vain{0};        // signals that ended no call
};

// Sends one signal to the target, which is in a call, and waits for its end.
void signal_once(Plan& plan, std::int64_t round) {
  spin_for(plan.pause);
  plan.target.signal();
  if (!eventually([&] { return plan.over >= round; })) ++plan.in_vain;
}

class MessageOneSignal : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    FARCALL_SKIP_WITHOUT_WRAPPERS();
    give_up_after(600s);
  }
};
INSTANTIATE_TEST_SUITE_P(Message, MessageOneSignal, testing::Bool(), [](const auto& restart) {
  return restart.param ? "ThatRestarts" : "ThatDoesNotRestart";
});

// A server that has received the message, and answers when the call should have ended.
void signal_each_send(Plan& plan, int rounds, int quick_ones, bool restart) {
  const std::string name = unique_name("signals");
  NamedServer server(name, [&](int channel) {
    std::int64_t round = 0;
    for (;;) {
      const std::int64_t id = farcall_receive(channel, &round, sizeof round, nullptr);
      if (id <= 0) continue;
      if (round != 0) signal_once(plan, round);
      farcall_reply(id, 0, nullptr, 0);
    }
  });
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GE(connection, 0);
  let_sigusr1_interrupt(restart);
  plan.target = Target();
  plan.over = 0;
  std::minstd_rand random(static_cast<unsigned>(rounds));
  for (std::int64_t round = 1; round <= rounds; ++round) {
    const std::int64_t quick = 0;
    for (int i = 0; i < quick_ones; ++i)
      ASSERT_EQ(farcall_send(connection, &quick, sizeof quick, nullptr, 0), 0);
    plan.pause = some_moment(random);
    const int result = farcall_send(connection, &round, sizeof round, nullptr, 0);
    const int error = result < 0 ? errno : 0;
    plan.over = round;
    EXPECT_EQ(error, EINTR) << "in round " << round;
    if (plan.in_vain > 3) break;
  }
  EXPECT_EQ(plan.in_vain, 0);
  farcall_disconnect(connection);
}

TEST_P(MessageOneSignal, EndsTheWaitForAReply) {
  const Shared<Plan> plan;
  signal_each_send(*plan, signal_rounds(), 0, GetParam());
}

TEST_P(MessageOneSignal, EndsTheWaitOfWhoHasHadManyQuickReplies) {
  const Shared<Plan> plan;
  signal_each_send(*plan, signal_rounds() / 10, 1000, GetParam());
}

TEST_P(MessageOneSignal, EndsTheWaitOfWhoIsNotReceived) {
  if (!Lonely::kPossible) GTEST_SKIP() << "nobody has said where a handler interrupts a thread";
  const Channel channel;
  Lonely lonely(GetParam());
  using Send = int(int, const void*, std::size_t, void*, std::size_t);
  EXPECT_EQ(lonely.count_lost<Send>(signal_rounds(), "farcall_send", EINTR,
                                    [&](auto* function) {
                                      return function(channel.connection, "x", 1, nullptr, 0) < 0
                                                 ? errno
                                                 : 0;
                                    }),
            0);
  // What is sent one way is still to be received when its sender has been interrupted, so that each
  // of these leaves a session behind.
  using SendOneWay = int(int, const void*, std::size_t);
  EXPECT_EQ(
      lonely.count_lost<SendOneWay>(
          std::min(signal_rounds() / 3, 300), "farcall_send_one_way", EINTR,
          [&](auto* function) { return function(channel.connection, "x", 1) < 0 ? errno : 0; }),
      0);
}

TEST_P(MessageOneSignal, EndsTheWaitForAMessage) {
  if (!Lonely::kPossible) GTEST_SKIP() << "nobody has said where a handler interrupts a thread";
  const Channel channel;
  Lonely lonely(GetParam());
  using Receive = std::int64_t(int, void*, std::size_t, farcall_info*);
  EXPECT_EQ(
      lonely.count_lost<Receive>(signal_rounds(), "farcall_receive", EINTR,
                                 [&](auto* function) {
                                   return function(channel.id, nullptr, 0, nullptr) < 0 ? errno : 0;
                                 }),
      0);
}

// The server has just answered, and looks at that client for some time before it sleeps.
TEST_P(MessageOneSignal, EndsTheWaitForTheNextMessage) {
  const Shared<Plan> plan;
  const Channel channel;
  let_sigusr1_interrupt(GetParam());
  plan->target = Target();
  const int rounds = signal_rounds();
  Child client([&] {
    std::minstd_rand random(3);
    for (std::int64_t round = 1; round <= rounds; ++round) {
      plan->pause = some_moment(random);
      ASSERT_EQ(farcall_send(channel.connection, &round, sizeof round, nullptr, 0), 0);
      // The server is in its next call, which sent the answer.
      signal_once(*plan, round);
      ASSERT_EQ(plan->in_vain, 0);
    }
  });
  std::int64_t round = 0;
  std::int64_t id = 0;
  for (int i = 1; i <= rounds; ++i) {
    if (i == 1) id = farcall_receive(channel.id, &round, sizeof round, nullptr);
    ASSERT_GT(id, 0) << std::strerror(errno);
    ASSERT_EQ(round, i);
    id = farcall_reply_receive(id, 0, nullptr, 0, channel.id, &round, sizeof round, nullptr);
    EXPECT_EQ(id < 0 ? errno : 0, EINTR) << "in round " << i;
    plan->over = i;
    if (i < rounds) id = farcall_receive(channel.id, &round, sizeof round, nullptr);
  }
  EXPECT_EQ(client.join(), 0);
}

TEST_P(MessageOneSignal, IsToldToTheServerThatKeepsItsClients) {
  const Shared<Plan> plan;
  Channel channel(FARCALL_UNBLOCK);
  let_sigusr1_interrupt(GetParam());
  const int rounds = signal_rounds() / 30;
  Child client([&] {
    plan->target = Target();
    for (std::int64_t round = 1; round <= rounds; ++round)
      ASSERT_EQ(farcall_send(channel.connection, &round, sizeof round, nullptr, 0), 5);
  });
  std::minstd_rand random(5);
  for (int i = 1; i <= rounds; ++i) {
    const Message message = receive(channel.id);
    ASSERT_GT(message.id, 0) << std::strerror(message.error);
    spin_for(some_moment(random));
    plan->target.signal();
    const Message pulse = receive(channel.id, 0);
    EXPECT_EQ(pulse.id, 0) << "in round " << i << ": " << std::strerror(pulse.error);
    EXPECT_EQ(pulse.info.value, message.id);
    EXPECT_EQ(farcall_reply(message.id, 5, nullptr, 0), 0);
  }
  EXPECT_EQ(client.join(), 0);
}

}  // namespace
}  // namespace farcall::message::test
