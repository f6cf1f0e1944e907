// SPDX-License-Identifier: Apache-2.0
//
// In which order many pulses are received: more than a channel takes of one user at a time.
#include <array>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

constexpr int kMany = 150;  // no engine refuses so few

// Sends what it is told to, and is known to wait for its answer.
struct LastMessage {
  Event go;
  std::atomic<bool> sends{false};

  void send_when_told(int connection, std::string_view text, bool one_way = false) {
    EXPECT_TRUE(go.wait(3 * kPatience));
    sends = true;
    if (one_way) {
      EXPECT_EQ(farcall_send_one_way(connection, text.data(), text.size()), 0);
    } else {
      EXPECT_EQ(send(connection, text).status, 0);
    }
  }
  // Tells it; then it sleeps only when its message is there.
  [[nodiscard]] bool has_sent(pid_t process) {
    go.happens();
    return eventually([&] { return sends && state_of(process) == 'S'; });
  }
};

void send_pulses(int connection, int priority, int code, int count) {
  for (int i = 0; i < count; ++i)
    ASSERT_EQ(farcall_pulse(connection, priority, code, i), 0) << std::strerror(errno);
}

void expect_pulses(int channel, int code, int from, int count) {
  for (int i = from; i < count; ++i) {
    const Message pulse = receive(channel);
    ASSERT_EQ(pulse.id, 0) << "a message overtakes pulse " << i;
    ASSERT_EQ(pulse.info.code, code) << i;
    ASSERT_EQ(pulse.info.value, i);
  }
}

// The channel knows the client's socket for pulses, and its session, already; or it does not.
class MessagePulseOrder : public ::testing::TestWithParam<bool> {
 protected:
  void begin(int connection) const {
    if (!GetParam()) return;
    ASSERT_EQ(farcall_pulse(connection, 0, 1, 0), 0) << std::strerror(errno);
    ASSERT_EQ(send(connection, "hello").status, 0);
  }
  void answer_begin() const {
    if (!GetParam()) return;
    ASSERT_EQ(receive(channel.id).id, 0);
    ASSERT_EQ(answer(receive(channel.id).id, 0), 0);
  }
  // A client that sends pulses by `pulses`, and then a message, which is there when this returns.
  template <class Pulses>
  void send_last(Pulses pulses, bool one_way = false) {
    client = std::make_unique<Child>([this, pulses, one_way] {
      begin(channel.connection);
      pulses(channel.connection);
      last->send_when_told(channel.connection, "last", one_way);
    });
    answer_begin();
    ASSERT_TRUE(last->has_sent(client->pid()));
  }
  void expect_last() {
    const Message message = receive(channel.id);
    EXPECT_EQ(message.text, "last") << message.info.code << " " << message.info.value;
    if (message.id > FARCALL_ONE_WAY) answer(message.id, 0);
  }

  const Channel channel;
  const Shared<LastMessage> last;
  std::unique_ptr<Child> client;
};

TEST_P(MessagePulseOrder, ManyAreNotOvertakenByTheirSendersNextMessage) {
  for (const bool one_way : {false, true}) {
    send_last([](int connection) { send_pulses(connection, 0, 1, kMany); }, one_way);
    expect_pulses(channel.id, 1, 0, kMany);
    expect_last();
    EXPECT_EQ(client->join(), 0);
    last->sends = false;
  }
}

// Who is new is let in by a thread that listens to clients, and what it sends is seen bit by bit.
class MessagePulseUrgency : public MessagePulseOrder {};

TEST_P(MessagePulseUrgency, AMessageComesBehindTheEqualAndBeforeTheLessUrgentOnes) {
  if (farcall_priority() < 2) GTEST_SKIP() << "needs a priority above the least";
  send_last([](int connection) {
    send_pulses(connection, 1, 1, kMany - 20);
    send_pulses(connection, 0, 2, 10);
  });
  expect_pulses(channel.id, 2, 0, 10);
  expect_last();
  expect_pulses(channel.id, 1, 0, kMany - 20);
}

TEST_P(MessagePulseUrgency, AnUrgentOneDoesNotWaitForManyOfAnotherProcess) {
  if (farcall_priority() < 2) GTEST_SKIP() << "needs a priority above the least";
  const Shared<LastMessage> urgent;
  Child other([&] {
    ASSERT_EQ(farcall_pulse(channel.connection, 0, 2, 0), 0) << std::strerror(errno);
    urgent->send_when_told(channel.connection, "hello");
    ASSERT_TRUE(last->go.wait(3 * kPatience));
    send_pulses(channel.connection, 0, 2, 10);
    last->sends = true;
    for (;;) ::pause();
  });
  urgent->go.happens();
  ASSERT_EQ(receive(channel.id).info.code, 2);
  ASSERT_EQ(answer(receive(channel.id).id, 0), 0);
  const Shared<Event> sent;
  Child many([&] {
    begin(channel.connection);
    send_pulses(channel.connection, 1, 1, kMany);
    sent->happens();
    for (;;) ::pause();
  });
  answer_begin();
  ASSERT_TRUE(sent->wait());
  expect_pulses(channel.id, 1, 0, 1);
  last->go.happens();
  ASSERT_TRUE(eventually([&] { return last->sends.load(); }));
  expect_pulses(channel.id, 2, 0, 10);
  expect_pulses(channel.id, 1, 1, kMany);
}

INSTANTIATE_TEST_SUITE_P(OfAClient, MessagePulseUrgency, ::testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Client, MessagePulseOrder, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "ThatIsKnown" : "ThatIsNew"; });

// There is an end to those that are taken because a message is behind them.
TEST(MessagePulseBound, WhoseMessageHasTooManyPulsesBeforeItIsRefused) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  if (farcall_priority() < 2) GTEST_SKIP() << "needs a priority above the least";
  const Channel channel;
  struct State {
    std::atomic<int> sent{0};
    std::atomic<int> rounds{0};
    Event over;
    Event drained;
  };
  const Shared<State> state;
  Child client([&] {
    // The server knows it: from now on it sleeps only when its message is there.
    ASSERT_EQ(farcall_pulse(channel.connection, 1, 1, state->sent++), 0);
    Reply reply = send(channel.connection, "hello");
    do {
      while (farcall_pulse(channel.connection, 1, 1, state->sent) == 0) ++state->sent;
      ASSERT_EQ(errno, EAGAIN);
      ++state->rounds;
      reply = send(channel.connection, "more urgent than all of them");
    } while (reply.status == 0 && state->rounds < 100);
    EXPECT_EQ(reply.error, EAGAIN);
    state->over.happens();
    ASSERT_TRUE(state->drained.wait());
    EXPECT_EQ(send(channel.connection, "again").status, 0);
  });
  int rounds = 0;
  int pulses = 0;
  Message message = receive(channel.id);
  for (; message.id == 0; message = receive(channel.id)) ++pulses;
  EXPECT_EQ(answer(message.id, 0), 0);
  while (!state->over.wait(0ms)) {
    if (state->rounds == rounds) {
      std::this_thread::sleep_for(1ms);
      continue;
    }
    // What is asked for is there; who is refused is told by a thread that receives.
    ASSERT_TRUE(eventually([&] { return state_of(client.pid()) == 'S'; }));
    ++rounds;
    message = receive(channel.id);
    if (message.id == 0) {
      EXPECT_EQ(message.info.value, pulses++);
      break;
    }
    ASSERT_EQ(answer(message.id, 0), 0);
  }
  EXPECT_GT(rounds, 1);
  EXPECT_LT(rounds, 100);
  expect_pulses(channel.id, 1, pulses, state->sent);
  state->drained.happens();
  message = receive(channel.id);
  EXPECT_EQ(message.text, "again");
  answer(message.id, 0);
  EXPECT_EQ(client.join(), 0);
}

}  // namespace
}  // namespace farcall::message::test
