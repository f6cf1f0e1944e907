// SPDX-License-Identifier: Apache-2.0
//
// What becomes of messages that want no answer when they cross machines.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "bridge/meaning.hpp"
#include "farcall/message.h"

namespace farcall::test {
namespace {

TEST_F(BridgeMeaning, OneWayMessagesOfAThreadKeepTheirOrder) {
  start_all();
  const int connection = ::farcall_name_open(channel("r").c_str());
  ASSERT_GT(connection, 0);
  for (int i = 0; i < 500; ++i) {
    const std::string number = std::to_string(i);
    ASSERT_EQ(::farcall_send_one_way(connection, number.data(), number.size()), 0);
  }
  EXPECT_TRUE(comes_true([this] { return seen().one_way == 500; })) << seen().one_way;
  EXPECT_EQ(seen().out_of_order, 0);
  ::farcall_disconnect(connection);
}

TEST_F(BridgeMeaning, ALongOneWayMessageKeepsItsPlace) {
  start_all();
  const int connection = ::farcall_name_open(channel("r").c_str());
  ASSERT_GT(connection, 0);
  for (int i = 0; i < 6; ++i) {
    std::string number = std::to_string(i);
    if (i % 2 == 0) number.resize(std::size_t{3} << 20, ' ');
    ASSERT_EQ(::farcall_send_one_way(connection, number.data(), number.size()), 0);
  }
  EXPECT_TRUE(comes_true([this] { return seen().one_way == 6; })) << seen().one_way;
  EXPECT_EQ(seen().out_of_order, 0);
  ::farcall_disconnect(connection);
}

TEST_F(BridgeMeaning, PulsesArriveAndThoseThatNobodyHearsAreCounted) {
  start_all();
  const int connection = ::farcall_name_open(channel("r").c_str());
  ASSERT_GT(connection, 0);
  ASSERT_EQ(::farcall_pulse(connection, 0, 5, 77), 0);
  EXPECT_TRUE(comes_true([this] { return seen().pulses == 1; }));
  EXPECT_EQ(seen().pulse_code, 5);
  EXPECT_EQ(seen().pulse_value, 77);
  exporter_ = nullptr;
  ASSERT_EQ(::farcall_pulse(connection, 0, 5, 78), 0);
  EXPECT_TRUE(comes_true([] {
    return bridge_status(channel("importer")).find("\"undelivered\":1") != std::string::npos;
  })) << bridge_status(channel("importer"));
  ::farcall_disconnect(connection);
}

// Another machine looks whether it might serve the same name.
TEST_F(BridgeMeaning, NoOneWayMessageIsLostUncounted) {
  start_all();
  const int connection = ::farcall_name_open(channel("r").c_str());
  ASSERT_GT(connection, 0);
  std::atomic<bool> stop{false};
  int sent = 0;
  std::thread client([&] { sent = send_one_way_until(stop, connection); });
  for (int i = 0; i < 25; ++i) {
    Options check{FARCALL_COMMAND, "bridge", "--check", "--export", "channel:nobody=c.v1"};
    const Options more = with({});
    check.insert(check.end(), more.begin(), more.end());
    Program program(check, scratch_.file("check"));
    EXPECT_EQ(program.wait(60s), 0) << program.said();
  }
  stop = true;
  client.join();
  ::farcall_disconnect(connection);
  const std::string importer = channel("importer");
  EXPECT_TRUE(comes_true([&] { return seen().one_way + undelivered(importer) == sent; }))
      << seen().one_way << " of " << sent << bridge_status(importer);
}

TEST_F(BridgeMeaning, OneWayMessagesThatAreLostWithTheirServerAreCounted) {
  start_all();
  const int connection = ::farcall_name_open(channel("r").c_str());
  ASSERT_GT(connection, 0);
  ASSERT_EQ(::farcall_send_one_way(connection, "a", 1), 0);
  ASSERT_TRUE(comes_true([this] { return seen().one_way == 1; }));
  service_->kill(SIGSTOP);
  const std::string exporter = channel("exporter");
  ASSERT_EQ(::farcall_send_one_way(connection, "b", 1), 0);
  ASSERT_TRUE(comes_true([&] { return count(exporter, "one_way") == 2; }));
  ASSERT_EQ(::farcall_send_one_way(connection, "c", 1), 0);  // which waits for the other
  service_->kill(SIGKILL);
  EXPECT_TRUE(comes_true([&] {
    return count(exporter, "uncertain") == 1 &&
           undelivered(exporter) + undelivered(channel("importer")) == 1;
  })) << bridge_status(exporter);
  ::farcall_disconnect(connection);
}

// What comes while a bridge looks whether it may listen is served, where it can be.
TEST_F(BridgeMeaning, AnotherExporterThatStartsLosesNoOneWayMessage) {
  start_all();
  const int connection = ::farcall_name_open(channel("r").c_str());
  ASSERT_GT(connection, 0);
  std::atomic<bool> stop{false};
  int sent = 0;
  std::thread client([&] { sent = send_one_way_until(stop, connection); });
  std::vector<std::unique_ptr<Program>> others;
  for (int i = 0; i < 12; ++i)
    others.push_back(start_bridge(scratch_, channel("other" + std::to_string(i)),
                                  with({"--export", "channel:" + channel() + "=c.v1"})));
  stop = true;
  client.join();
  ::farcall_disconnect(connection);
  EXPECT_TRUE(comes_true([&] { return seen().one_way == sent; }))
      << seen().one_way << " of " << sent << bridge_status(channel("importer"));
}

}  // namespace
}  // namespace farcall::test
