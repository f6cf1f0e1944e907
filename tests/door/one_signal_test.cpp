// SPDX-License-Identifier: Apache-2.0
//
// One signal, sent once at any moment of a call, ends it. FARCALL_SIGNAL_ROUNDS says how often.
#include "harness/one_signal.hpp"

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

// What client and server share.
struct Plan {
  Target client;
  std::atomic<std::int64_t> pause{0};
  std::atomic<std::int64_t> over{0};  // so many rounds
  std::atomic<int> in_vain{0};        // signals that ended no call
};

// Sends its client one signal, and answers only if that has no effect. The request is the round.
struct Signaller {
  Plan& plan;
  void operator()(char* data, size_t size, door_desc_t*, uint_t) const {
    std::int64_t round = 0;
    if (size >= sizeof round) {
      std::memcpy(&round, data, sizeof round);
      spin_for(plan.pause);
      plan.client.signal();
      if (!eventually([&] { return plan.over >= round; })) ++plan.in_vain;
    }
    ::door_return(nullptr, 0, nullptr, 0);
  }
};

void signal_each_call(int door, Plan& plan, int rounds, int quick_ones, bool restart) {
  let_sigusr1_interrupt(restart);
  plan.client = Target();
  plan.over = 0;
  std::minstd_rand random(static_cast<unsigned>(rounds));
  // In the slot, and so long that the server reads it from the client's memory.
  for (std::int64_t round = 1; round <= rounds; ++round) {
    for (int i = 0; i < quick_ones; ++i) ASSERT_EQ(error_of(door, "quick"), 0);
    plan.pause = some_moment(random);
    std::string request(round % 16 == 0 ? 200'000 : 100, 'x');
    std::memcpy(request.data(), &round, sizeof round);
    const int error = error_of(door, request);
    plan.over = round;
    EXPECT_EQ(error, EINTR) << "in round " << round;
    if (plan.in_vain > 3) break;
  }
  EXPECT_EQ(plan.in_vain, 0);
}

class OneSignal : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Door, OneSignal, testing::Bool(), [](const auto& restart) {
  return restart.param ? "ThatRestarts" : "ThatDoesNotRestart";
});

TEST_P(OneSignal, EndsTheWaitForAnAnswerOfAnotherProcess) {
  FARCALL_SKIP_WITHOUT_WRAPPERS();
  give_up_after(600s);
  const Shared<Plan> plan;
  Signaller signaller{*plan};
  const ScopedServer server([&] { return make_door(signaller, DOOR_NO_CANCEL); });
  signal_each_call(server.door(), *plan, signal_rounds(), 0, GetParam());
}

TEST_P(OneSignal, EndsTheWaitForAnAnswerOfThisProcess) {
  FARCALL_SKIP_WITHOUT_WRAPPERS();
  give_up_after(600s);
  auto& plan = lasting<Plan>();
  auto& signaller = *new Signaller{plan};
  const int door = make_door(signaller, DOOR_NO_CANCEL);
  signal_each_call(door, plan, signal_rounds() / 4, 0, GetParam());
}

TEST_P(OneSignal, EndsTheWaitOfWhoHasMadeManyQuickCalls) {
  FARCALL_SKIP_WITHOUT_WRAPPERS();
  give_up_after(600s);
  const Shared<Plan> plan;
  Signaller signaller{*plan};
  const ScopedServer server([&] { return make_door(signaller, DOOR_NO_CANCEL); });
  signal_each_call(server.door(), *plan, signal_rounds() / 10, 1000, GetParam());
}

int call_with(int (*door_call_function)(int, door_arg_t*), int door) {
  door_arg_t arguments{};
  char request[] = "x";
  arguments.data_ptr = request;
  arguments.data_size = sizeof request;
  return door_call_function(door, &arguments) == 0 ? 0 : errno;
}

TEST_P(OneSignal, EndsTheWaitForAServerThread) {
  FARCALL_SKIP_WITHOUT_WRAPPERS();
  if (!Lonely::kPossible) GTEST_SKIP() << "nobody has said where a handler interrupts a thread";
  give_up_after(600s);
  const ScopedServer server([] {
    ::door_server_create([](door_info_t*) {});
    return ::door_create(echo, nullptr, DOOR_PRIVATE);
  });
  Lonely lonely(GetParam());
  EXPECT_EQ(lonely.count_lost<int(int, door_arg_t*)>(
                signal_rounds(), "door_call", EAGAIN,
                [&](auto* function) { return call_with(function, server.door()); }),
            0);
}

TEST_P(OneSignal, EndsTheWaitToBeLetIn) {
  FARCALL_SKIP_WITHOUT_WRAPPERS();
  if (!Lonely::kPossible) GTEST_SKIP() << "nobody has said where a handler interrupts a thread";
  give_up_after(600s);
  const ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  // After some hundred clients its socket is full, and they wait for that.
  ASSERT_TRUE(stop_process(server.pid()));
  Lonely lonely(GetParam());
  EXPECT_EQ(lonely.count_lost<int(int, door_arg_t*)>(
                signal_rounds(), "door_call", EAGAIN,
                [&](auto* function) { return call_with(function, server.door()); }),
            0);
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
}

// Beyond 20 ms callers sleep in another way, and change to it at that moment.
TEST_P(OneSignal, EndsALongWait) {
  FARCALL_SKIP_WITHOUT_WRAPPERS();
  give_up_after(600s);
  const Shared<Plan> plan;
  Signaller signaller{*plan};
  const ScopedServer server([&] { return make_door(signaller, DOOR_NO_CANCEL); });
  let_sigusr1_interrupt(GetParam());
  plan->client = Target();
  std::minstd_rand random(7);
  const int rounds = signal_rounds() / 30;
  for (std::int64_t round = 1; round <= rounds; ++round) {
    plan->pause = round % 10 == 0 ? 40'000'000 : 19'900'000 + some_moment(random);
    const std::string_view request(reinterpret_cast<const char*>(&round), sizeof round);
    EXPECT_EQ(error_of(server.door(), request), EINTR);
    plan->over = round;
  }
  EXPECT_EQ(plan->in_vain, 0);
}

}  // namespace
}  // namespace farcall::door::test
