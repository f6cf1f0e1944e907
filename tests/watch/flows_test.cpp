// SPDX-License-Identifier: Apache-2.0
//
// Which ends are one flow, and what has passed since the last look.
#include "watch/flows.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

namespace farcall::test {
namespace {

using observe::Carrier;
using observe::Kind;
using observe::Role;
using watch::End;
using watch::Flow;
using watch::Flows;
using watch::Process;

// Numbers that no process has.
constexpr pid_t kOne = 1 << 23;
constexpr pid_t kOther = kOne + 1;

End end_of(Role role, std::uint64_t session, std::uint64_t sent, std::uint64_t received) {
  End end;
  end.kind = Kind::tcp;
  end.role = role;
  end.carrier = Carrier::memory;
  end.session = {.device = session == 0 ? 0U : 1U, .inode = session};
  end.generation = 2;
  end.index = static_cast<std::uint32_t>(session) + 1;
  end.counters.sent.messages = sent;
  end.counters.sent.bytes = 10 * sent;
  end.counters.received.messages = received;
  end.counters.received.bytes = 10 * received;
  return end;
}

Process process_of(pid_t pid, std::vector<End> ends) {
  Process process;
  process.pid = pid;
  process.command = "p" + std::to_string(pid - kOne);
  process.started = 1;
  process.ends = std::move(ends);
  return process;
}

observe::Address address(std::uint16_t port) {
  observe::Address at{};
  at.known = 1;
  at.port = port;
  return at;
}

TEST(WatchFlows, TwoEndsOfOneMemoryAreAFlow) {
  Flows flows({.timed = false});
  flows.look({process_of(kOther, {end_of(Role::server, 5, 3, 4)}),
              process_of(kOne, {end_of(Role::client, 5, 4, 3)})});
  ASSERT_EQ(flows.flows().size(), 1U);
  const Flow& flow = flows.flows()[0];
  EXPECT_EQ(flow.left.pid, kOne);
  EXPECT_EQ(flow.right.pid, kOther);
  EXPECT_EQ(flow.left.command, "p0");
  EXPECT_EQ(flow.total.forward.messages, 4U);
  EXPECT_EQ(flow.total.forward.bytes, 40U);
  EXPECT_EQ(flow.total.back.messages, 3U);
}

TEST(WatchFlows, ConnectionsOfTheSameTwoAreOneFlow) {
  Flows flows({.timed = false});
  flows.look({process_of(kOne, {end_of(Role::client, 5, 4, 3), end_of(Role::client, 6, 1, 1)}),
              process_of(kOther, {end_of(Role::server, 5, 3, 4), end_of(Role::server, 6, 1, 1)})});
  ASSERT_EQ(flows.flows().size(), 1U);
  EXPECT_EQ(flows.flows()[0].connections, 2U);
  EXPECT_EQ(flows.flows()[0].total.forward.messages, 5U);
}

TEST(WatchFlows, AnEndWhosePeerIsNotSeenTellsBothWays) {
  Flows flows({.timed = false});
  flows.look({process_of(kOne, {end_of(Role::client, 5, 4, 3)})});
  ASSERT_EQ(flows.flows().size(), 1U);
  EXPECT_EQ(flows.flows()[0].right.pid, 0);
  EXPECT_FALSE(flows.flows()[0].right.seen);
  EXPECT_EQ(flows.flows()[0].total.forward.messages, 4U);
  EXPECT_EQ(flows.flows()[0].total.back.messages, 3U);
}

TEST(WatchFlows, TcpOfTheKernelIsKnownByItsAddresses) {
  End client = end_of(Role::client, 0, 4, 3);
  client.carrier = Carrier::kernel;
  client.local = address(40'000);
  client.remote = address(80);
  End server = end_of(Role::server, 0, 3, 4);
  server.carrier = Carrier::kernel;
  server.local = address(80);
  server.remote = address(40'000);
  Flows flows({.timed = false});
  flows.look({process_of(kOne, {client}), process_of(kOther, {server})});
  ASSERT_EQ(flows.flows().size(), 1U);
  EXPECT_EQ(flows.flows()[0].left.pid, kOne);
  EXPECT_EQ(flows.flows()[0].right.pid, kOther);
  EXPECT_EQ(flows.flows()[0].name, "[::]:80");
}

TEST(WatchFlows, AnEndThatHasLeftMemoryTellsOfBoth) {
  constexpr std::uint8_t kOption = 11;
  for (const bool told : {false, true}) {
    End client = end_of(Role::client, 5, 4, 3);
    End server = end_of(Role::server, 5, 3, 4);
    server.carrier = Carrier::kernel;
    server.reason = kOption;
    if (told) {
      client.carrier = Carrier::kernel;
      client.reason = observe::kLeftByPeer;
    }
    Flows flows({.timed = false});
    flows.look({process_of(kOne, {client}), process_of(kOther, {server})});
    ASSERT_EQ(flows.flows().size(), 1U);
    EXPECT_EQ(flows.flows()[0].carrier, Carrier::kernel) << told;
    EXPECT_EQ(flows.flows()[0].reason, kOption) << told;
    // Of one whose other end cannot be seen.
    flows.look({process_of(kOne, {client})});
    EXPECT_EQ(flows.flows()[0].reason, told ? observe::kLeftByPeer : 0);
  }
  EXPECT_STREQ(watch::reason_text(observe::kLeftByPeer),
               "the other end gave it back to the kernel");
}

TEST(WatchFlows, WhatHasPassedSinceIsTheDifference) {
  Flows flows({.timed = false});
  flows.look({process_of(kOne, {end_of(Role::client, 5, 4, 3)})});
  flows.look({process_of(kOne, {end_of(Role::client, 5, 10, 3)})});
  ASSERT_EQ(flows.flows().size(), 1U);
  EXPECT_EQ(flows.flows()[0].total.forward.messages, 10U);
  EXPECT_EQ(flows.flows()[0].since.forward.messages, 6U);
  EXPECT_EQ(flows.flows()[0].since.back.messages, 0U);
  // Another process of that number, or another end at that place.
  Process again = process_of(kOne, {end_of(Role::client, 5, 2, 0)});
  again.started = 2;
  again.ends[0].opened = flows.looked_at();
  flows.look({again});
  EXPECT_EQ(flows.flows()[0].since.forward.messages, 2U);
  again.ends[0].generation = 4;
  again.ends[0].opened = flows.looked_at();
  flows.look({again});
  EXPECT_EQ(flows.flows()[0].since.forward.messages, 2U);
  // A counter that goes back is nobody's.
  again.ends[0].counters.sent.messages = 1;
  flows.look({again});
  EXPECT_EQ(flows.flows()[0].since.forward.messages, 0U);
}

// What is a counter to who reads it does not go back.
TEST(WatchFlows, WhatIsSeenLateHasNotPassedSinceTheLastLook) {
  Flows flows({.timed = false});
  flows.look({});
  End late = end_of(Role::client, 5, 1000, 1000);  // opened long ago
  End fresh = end_of(Role::client, 6, 7, 7);
  fresh.opened = flows.looked_at() + 1;
  const std::vector<Process> all{process_of(kOne, {late}), process_of(kOther, {fresh})};
  flows.look(all);
  ASSERT_EQ(flows.flows().size(), 2U);
  for (const Flow& flow : flows.flows()) {
    const bool is_late = flow.left.pid == kOne;
    EXPECT_EQ(flow.since.forward.messages, is_late ? 0U : 7U);
    EXPECT_EQ(flow.total.forward.messages, is_late ? 1000U : 7U);
    EXPECT_EQ(flow.grown.forward.messages, is_late ? 1000U : 7U);
  }
}

// Of an end that is not seen, for a look or from the beginning, the other one tells meanwhile.
TEST(WatchFlows, WhatTheOtherEndHasToldIsNotCountedAgain) {
  Flows flows({.timed = false});
  const pid_t other = ::getpid();  // which is not looked at, but there is one
  const auto look = [&](std::uint64_t asked, std::uint64_t answered, bool server_seen) {
    End client = end_of(Role::client, 5, asked, answered);
    End server = end_of(Role::server, 5, answered, asked);
    client.peer = other;
    client.name = server.name = "a name";
    std::vector<Process> all{process_of(kOne, {client})};
    if (server_seen) all.push_back(process_of(other, {server}));
    all[0].user = ::geteuid();
    flows.look(all);
    return flows.flows().at(0).grown.back.messages;
  };
  EXPECT_EQ(look(100, 100, false), 100U);
  EXPECT_EQ(look(100, 100, true), 100U);
  EXPECT_EQ(look(110, 110, true), 110U);
  EXPECT_EQ(look(120, 120, false), 120U);
  EXPECT_EQ(look(120, 120, true), 120U);
}

TEST(WatchFlows, WhatHasPassedStaysCountedWhenAConnectionGoes) {
  Flows flows({.timed = false});
  const auto look = [&](std::vector<End> ends) {
    flows.look({process_of(kOne, std::move(ends))});
    return flows.flows().empty() ? 0 : flows.flows()[0].grown.forward.messages;
  };
  End short_one = end_of(Role::client, 1, 100, 0);
  EXPECT_EQ(look({short_one, end_of(Role::client, 2, 10, 0)}), 110U);
  EXPECT_EQ(look({end_of(Role::client, 2, 12, 0)}), 112U);
  EXPECT_EQ(flows.flows()[0].total.forward.messages, 12U);
  EXPECT_EQ(look({end_of(Role::client, 2, 12, 0), end_of(Role::client, 3, 5, 0)}), 117U);
  // One that has gone as a whole begins anew.
  EXPECT_EQ(look({}), 0U);
  EXPECT_EQ(look({end_of(Role::client, 4, 7, 0)}), 7U);
}

TEST(WatchFlows, ABroadcastIsAFlowToEachReader) {
  End writer = end_of(Role::writer, 5, 9, 0);
  writer.name = "news";
  Flows flows({.timed = false});
  flows.look({process_of(kOne, {writer}), process_of(kOther, {end_of(Role::reader, 5, 0, 9)}),
              process_of(kOther + 1, {end_of(Role::reader, 5, 0, 7)})});
  ASSERT_EQ(flows.flows().size(), 2U);
  EXPECT_EQ(flows.flows()[0].left.pid, kOne);
  EXPECT_EQ(flows.flows()[1].left.pid, kOne);
  EXPECT_EQ(flows.flows()[1].name, "news");
  EXPECT_NE(flows.flows()[0].right.pid, flows.flows()[1].right.pid);
}

TEST(WatchFlows, SeveralEndsOfOneProcessAreOneFlow) {
  End writer = end_of(Role::writer, 5, 9, 0);
  End other = end_of(Role::reader, 5, 0, 7);
  other.index += 1;
  Flows flows({.timed = false});
  flows.look(
      {process_of(kOne, {writer}), process_of(kOther, {end_of(Role::reader, 5, 0, 9), other})});
  ASSERT_EQ(flows.flows().size(), 1U);
  const Flow& flow = flows.flows()[0];
  EXPECT_EQ(flow.connections, 2U);
  EXPECT_TRUE(flow.left.seen);
  EXPECT_TRUE(flow.right.seen);
  EXPECT_EQ(flow.total.forward.messages, 9U + 7U);
}

TEST(WatchFlows, EachReasonHasANameAndWhatIsNoneIsOne) {
  EXPECT_STREQ(watch::reason_text(0), "");
  End end = end_of(Role::client, 0, 1, 1);
  end.carrier = Carrier::kernel;
  std::vector<End> ends;
  for (unsigned reason = 1; reason < 256; ++reason) {
    end.reason = static_cast<std::uint8_t>(reason);
    EXPECT_EQ(watch::reason_text(end.reason) == std::string("unknown"),
              reason >= watch::kUnknownReason && reason != observe::kLeftByPeer)
        << reason;
    end.index = reason;
    ends.push_back(end);
  }
  Flows flows({.timed = false});
  flows.look({process_of(kOne, ends)});
  EXPECT_EQ(flows.flows().size(), std::size_t{watch::kUnknownReason} + 1);
}

TEST(WatchFlows, PercentilesAreOfTheClassesThatHoldThem) {
  observe::Times times{};
  EXPECT_EQ(watch::percentile(times, 50), 0U);
  times.classes[observe::class_of(1000)] = 98;
  times.classes[observe::class_of(1'000'000)] = 2;
  EXPECT_NEAR(static_cast<double>(watch::percentile(times, 50)), 1000, 150);
  EXPECT_NEAR(static_cast<double>(watch::percentile(times, 99)), 1'000'000, 150'000);
  times.classes.fill(UINT32_MAX);
  EXPECT_GT(watch::percentile(times, 100), 0U);
}

}  // namespace
}  // namespace farcall::test
