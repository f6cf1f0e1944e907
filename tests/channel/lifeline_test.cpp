// SPDX-License-Identifier: Apache-2.0
//
// Ends and empty messages where the mechanism itself cannot tell them.
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

class Lifelines : public Conformance {};
std::vector<AnyMechanism> with_lifeline() {
  std::vector<AnyMechanism> result;
  for (const char* name : {"unix_dgram", "unix_seqpacket", "udp", "posix_mq", "sysv_mq"})
    result.push_back(*find_mechanism(name));
  return result;
}
INSTANTIATE_TEST_SUITE_P(Channel, Lifelines, testing::ValuesIn(with_lifeline()), test_name);

TEST_P(Lifelines, TellTheEndThoughTheMechanismIsFull) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    for (int i = 0; i < 2000; ++i) out.send(bytes_of("message"));
    return 0;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  std::vector<std::byte> into(16);
  int count = 0;
  while (reader->receive(into)) ++count;
  EXPECT_EQ(count, 2000);
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Lifelines, TellTheEndThatCameBeforeTheReader) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    out.send(bytes_of("a"));
    return 0;
  });
  EXPECT_TRUE(child.wait().success());
  std::vector<std::byte> into(16);
  EXPECT_EQ(reader->receive(into), 1U);
  EXPECT_EQ(reader->receive(into), std::nullopt);
}

TEST_P(Lifelines, TellThousandsOfEmptyMessagesFromTheEnd) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    for (int i = 0; i < 5000; ++i) out.send({});
    return 0;
  });
  std::vector<std::byte> into(16);
  int count = 0;
  while (reader->receive(into)) ++count;
  EXPECT_EQ(count, 5000);
  EXPECT_TRUE(child.wait().success());
}

TEST_P(Lifelines, TellEmptyMessagesFromADeath) {
  auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
    for (int i = 0; i < 5; ++i) out.send({});
    return ::raise(SIGKILL);
  });
  EXPECT_EQ(child.wait().signal, SIGKILL);
  std::vector<std::byte> into(16);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(reader->receive(into), 0U);
  EXPECT_EQ(error_of([&reader = reader, &into] { reader->receive(into); }), ECONNRESET);
  EXPECT_EQ(error_of([&reader = reader, &into] { reader->receive(into); }), ECONNRESET);
}

TEST_P(Lifelines, TellTheEndSoon) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLatest(kSanitized ? 50 : 15);
  auto best = Clock::duration::max();
  // On a machine that is busy the writer may get no processor for so long, but not each time.
  for (int i = 0; i < 50 && best >= kLatest; ++i) {
    auto [child, reader] = spawn_writer(channel(), [](Writer& out) {
      for (int k = 0; k < 1000; ++k) out.send(bytes_of("message"));
      return 0;
    });
    std::vector<std::byte> into(16);
    for (int k = 0; k < 1000; ++k) ASSERT_TRUE(reader->receive(into));
    const auto start = Clock::now();
    EXPECT_EQ(reader->receive(into), std::nullopt);
    best = std::min(best, Clock::now() - start);
  }
  EXPECT_LT(best, kLatest);
}

}  // namespace
}  // namespace farcall::channel::test
