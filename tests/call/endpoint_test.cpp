// SPDX-License-Identifier: Apache-2.0
//
// Several ways in to one port, and what is told of each.
#include <grp.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <vector>

#include "call/raw.hpp"
#include "call/server.hpp"

namespace farcall::call::test {
namespace {

// One thread serves them in turn.
TEST(CallEndpoint, EachRequestSaysThroughWhichItCame) {
  std::atomic<const Endpoint*> last{nullptr};
  Server server([&](ServerThread& thread, Incoming& incoming) {
    last = incoming.endpoint();
    thread.reply(incoming, {});
  });
  const auto one = server.port.open_endpoint({}, {});
  const auto other = server.port.open_endpoint({}, {});
  const UniqueFd way_to_one = one->branch();
  const UniqueFd way_to_other = other->branch();
  Client first(way_to_one.get());
  Client second(way_to_other.get());
  for (int i = 0; i < 3; ++i) {
    ask(first, "x");
    EXPECT_EQ(last, one.get()) << i;
    ask(second, "x");
    EXPECT_EQ(last, other.get()) << i;
  }
}

TEST(CallEndpoint, TellsNewTermsToThoseWhoHaveAsked) {
  Server server;
  const auto endpoint = server.port.open_endpoint({}, {1, 2});
  const auto other = server.port.open_endpoint({}, {3, 4});
  const UniqueFd way_in = endpoint->branch();
  const UniqueFd way_to_other = other->branch();
  Client client(way_in.get());
  Client stranger(way_to_other.get());
  Terms terms{};
  ASSERT_EQ(client.terms(terms, Deadline::after(20s)), Outcome::ok);
  EXPECT_EQ(terms[0], 1U);
  ASSERT_EQ(stranger.terms(terms, Deadline::after(20s)), Outcome::ok);
  endpoint->set_terms({5, 6});
  ASSERT_EQ(client.terms(terms, Deadline::after(20s)), Outcome::ok);
  EXPECT_EQ(terms[0], 5U);
  EXPECT_EQ(terms[1], 6U);
  ASSERT_EQ(stranger.terms(terms, Deadline::after(20s)), Outcome::ok);
  EXPECT_EQ(terms[0], 3U) << "they are another's";
}

TEST(CallEndpoint, ARequestThatIsLongerThanItsMemoryEndsItsSession) {
  Server server;
  Client other(server.port.descriptor());
  RawSession session(server.port.descriptor());
  ASSERT_TRUE(session.welcome());
  const SharedMemory memory = SharedMemory::create(std::size_t{64} << 10);
  send_descriptors(session.socket.get(), std::array{memory.fd()}, kPurposeData);
  const std::uint64_t size = memory.size() + 1;
  std::memcpy(session.control().slot.data, &size, sizeof size);
  session.give(Kind::request, 1, 0, kTransfer | kTransferComes);
  EXPECT_TRUE(eventually([&] { return session.ended(); }));
  EXPECT_EQ(ask(other, "after"), "after");
}

TEST(CallEndpoint, ARequestThatSaysWhatNobodyKnowsEndsItsSession) {
  Server server;
  Client other(server.port.descriptor());
  for (const unsigned unknown : {8U, 64U, 128U}) {
    ASSERT_EQ(unknown & (kFlags | kAfterOthers), 0U);
    RawSession session(server.port.descriptor());
    ASSERT_TRUE(session.welcome());
    session.give(Kind::request, 1, 0, static_cast<std::uint8_t>(unknown));
    EXPECT_TRUE(eventually([&] { return session.ended(); })) << unknown;
  }
  EXPECT_EQ(ask(other, "after"), "after");
}

// ---- who is let in ----

// They are kept with each session.
TEST(CallEndpoint, LongListsOfGroupsCountAsMemory) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  constexpr std::size_t kGroups = 65'536;
  Server server(echo, 1, WaitMode::adaptive, {.bytes_per_user = 2 * kGroups * sizeof(gid_t) - 1});
  const auto in_groups = [port = server.port.descriptor()](std::size_t count, auto body) {
    in_child([&] {
      std::vector<gid_t> groups(count);
      for (std::size_t i = 0; i < count; ++i) groups[i] = static_cast<gid_t>(100'000 + i);
      ASSERT_EQ(::setgroups(groups.size(), groups.data()), 0);
      ASSERT_TRUE(become(kNobody));
      body(port);
    });
  };
  in_groups(kGroups, [](int port) {
    RawSession first(port);
    ASSERT_TRUE(first.welcome());
    RawSession second(port);
    EXPECT_FALSE(second.welcome());
    EXPECT_EQ(second.control().terms.refusal, static_cast<std::uint32_t>(EAGAIN));
    first.socket.reset();
    EXPECT_TRUE(eventually([port] { return RawSession(port).welcome(); }));
  });
  in_groups(1024, [](int port) {
    std::deque<RawSession> all;
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(all.emplace_back(port).welcome()) << i;
  });
}

}  // namespace
}  // namespace farcall::call::test
