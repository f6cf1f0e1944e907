// SPDX-License-Identifier: Apache-2.0
//
// What strangers try for a while against a channel with the usual limits, each beside clients that
// must not fail. Afterwards its process holds nothing more than before. What it costs those clients
// is for tests/soak/attack_load.cpp to say.
#include <gtest/gtest.h>

#include <deque>

#include "harness/descriptors.hpp"
#include "message/attacks.hpp"
#include "message/pulses.hpp"

namespace farcall::message::test {
namespace {

constexpr auto kAttackTime = 700ms;

class MessageAttack : public ::testing::TestWithParam<Attack> {};

TEST_P(MessageAttack, HarmsItsMakerAlone) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  give_up_after(60s);
  const std::string name = unique_name("attacked");
  const int channel = farcall_name_attach(name.c_str(), FARCALL_UNBLOCK, 0666);
  ASSERT_GT(channel, 0) << std::strerror(errno);
  auto echo = std::make_unique<Echo>(channel, GetParam().threads);
  const Shared<std::atomic<bool>> stop;
  const Shared<std::atomic<int>> calls;
  const Shared<Event> ready;
  std::deque<Child> clients;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&] {
      const int connection = connect_to(name);
      EXPECT_EQ(send(connection, "x").text, "x");
      ready->happens();
      while (!*stop) {
        ASSERT_EQ(send(connection, "x").text, "x");
        ++*calls;
        std::this_thread::sleep_for(1ms);
      }
    });
  for (std::size_t i = 0; i < clients.size(); ++i) ASSERT_TRUE(ready->wait());
  const std::size_t before = open_descriptors();
  in_child([&] { run_as_nobody(GetParam(), "0/" + name, kAttackTime); });
  const int meanwhile = *calls;
  EXPECT_TRUE(eventually([&] { return *calls > meanwhile + 100; })) << "they go on";
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; })) << list_descriptors();
  *stop = true;
  for (Child& client : clients) EXPECT_EQ(client.join(), 0);
  farcall_channel_destroy(channel);
}

INSTANTIATE_TEST_SUITE_P(Each, MessageAttack, ::testing::ValuesIn(attacks()),
                         [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace farcall::message::test
