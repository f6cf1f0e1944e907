// SPDX-License-Identifier: Apache-2.0
//
// What strangers try for a while against a server with the usual limits, each beside clients that
// must not fail. Afterwards the server holds nothing more than before. What it costs those clients
// is for tests/soak/attack_load.cpp to say.
#include <gtest/gtest.h>

#include "door/attacks.hpp"

namespace farcall::door::test {
namespace {

constexpr auto kAttackTime = 700ms;

struct DoorAttack : DoorImpostor, ::testing::WithParamInterface<Attack> {
  DoorAttack() { giver.door = door = ::door_create(echo_or_long, nullptr, 0); }
  void expect_harm_to_its_maker_alone();
};

// The same door, with one thread and never another.
struct DoorOfOneThreadAttack : DoorAttack {
  DoorOfOneThreadAttack() {
    const auto create = [](door_info_t*, void* (*start)(void*), void* argument, void*) {
      std::thread(start, argument).detach();
      return 1;
    };
    giver.door = door =
        ::door_xcreate(echo_or_long, nullptr, DOOR_NO_DEPLETION_CB, create, nullptr, nullptr, 1);
  }
};

void DoorAttack::expect_harm_to_its_maker_alone() {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  if (GetParam().has_threads) FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  give_up_after(60s);
  EXPECT_EQ(call(door, "x").data, "x");
  const std::size_t before = open_descriptors();
  const Shared<std::atomic<bool>> stop;
  const Shared<std::atomic<int>> calls;
  std::deque<Child> clients;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&] {
      while (!*stop) {
        ASSERT_EQ(call(door, "x").data, "x");
        ++*calls;
        std::this_thread::sleep_for(1ms);
      }
    });
  EXPECT_TRUE(eventually([&] { return *calls > 0; }));
  const int earlier = *calls;
  in_child([&] {
    const UniqueFd mine(receive_door(giving));
    run_as_nobody(GetParam(), mine.get(), kAttackTime);
  });
  const int meanwhile = *calls;
  EXPECT_GT(meanwhile, earlier);
  EXPECT_TRUE(eventually([&] { return *calls > meanwhile + 8; })) << "they go on";
  *stop = true;
  for (Child& client : clients) EXPECT_EQ(client.join(), 0);
  expect_all_well();
  EXPECT_TRUE(eventually([&] {
    return open_descriptors() <= before + 2 * call::kSessionDescriptors;
  })) << list_descriptors();
}

TEST_P(DoorAttack, HarmsItsMakerAlone) { expect_harm_to_its_maker_alone(); }
TEST_P(DoorOfOneThreadAttack, HarmsItsMakerAlone) { expect_harm_to_its_maker_alone(); }

INSTANTIATE_TEST_SUITE_P(Each, DoorOfOneThreadAttack, ::testing::ValuesIn(attacks_on_one_thread()),
                         [](const auto& given) { return std::string(given.param.name); });
INSTANTIATE_TEST_SUITE_P(Each, DoorAttack, ::testing::ValuesIn(attacks()),
                         [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace farcall::door::test
