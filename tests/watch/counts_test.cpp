// SPDX-License-Identifier: Apache-2.0
//
// What is shown is what has passed, to the byte.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "call/server.hpp"
#include "farcall/broadcast.hpp"
#include "farcall/call.hpp"
#include "farcall/channel/ring.hpp"
#include "farcall/ring.hpp"
#include "harness/eventually.hpp"
#include "watch/ends.hpp"
#include "watch/flows.hpp"

namespace farcall::test {
namespace {

using observe::Kind;
using observe::Role;

std::vector<std::byte> bytes(std::size_t size) { return std::vector<std::byte>(size); }

// What is known of the flow of that kind between this process and itself.
watch::Flow own_flow(Kind kind) {
  std::vector<watch::Process> processes(1);
  EXPECT_EQ(watch::look(::getpid(), processes[0]), watch::Seen::yes);
  watch::Flows flows({.timed = false});
  flows.look(processes);
  watch::Flow found;
  int count = 0;
  for (const watch::Flow& flow : flows.flows())
    if (flow.kind == kind) {
      found = flow;
      ++count;
    }
  EXPECT_EQ(count, 1);
  return found;
}

TEST(WatchCounts, RingsOfMessages) {
  channel::Handles handles = channel::Ring::create({});
  const auto reader = channel::Ring::open_reader(std::move(handles.reader), {});
  const auto writer = channel::Ring::open_writer(std::move(handles.writer), {});
  std::vector<std::byte> into = bytes(1000);
  for (std::size_t size = 0; size < 100; ++size) {
    writer->send(bytes(size));
    if (size % 2 == 0) continue;
    ASSERT_EQ(reader->receive(into), size - 1);
    ASSERT_EQ(reader->receive(into), size);
  }
  const watch::Flow flow = own_flow(Kind::ring);
  EXPECT_EQ(flow.left.pid, ::getpid());
  EXPECT_EQ(flow.right.pid, ::getpid());
  EXPECT_EQ(flow.total.forward.messages, 100U);
  EXPECT_EQ(flow.total.forward.bytes, 4950U);
  EXPECT_EQ(flow.total.back.messages, 0U);
  const auto read = own_ends(Kind::ring, Role::reader);
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].counters.received.messages, 100U);
  EXPECT_EQ(read[0].counters.received.bytes, 4950U);
}

TEST(WatchCounts, AMessageLongerThanTheRingIsOne) {
  channel::Handles handles = channel::Ring::create({.buffer_bytes = 65'536});
  const auto reader = channel::Ring::open_reader(std::move(handles.reader), {});
  const auto writer = channel::Ring::open_writer(std::move(handles.writer), {});
  constexpr std::size_t kLong = 1'000'001;
  std::thread sender([&] {
    writer->send(bytes(kLong));
    writer->send(bytes(3));
    writer->send(bytes(kLong));
  });
  std::vector<std::byte> into = bytes(kLong);
  EXPECT_EQ(reader->receive(into), kLong);
  EXPECT_EQ(reader->receive(into), 3U);
  EXPECT_EQ(reader->receive(into), kLong);
  sender.join();
  const auto written = own_ends(Kind::ring, Role::writer);
  const auto read = own_ends(Kind::ring, Role::reader);
  ASSERT_EQ(written.size(), 1U);
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(written[0].session, read[0].session);
  EXPECT_TRUE(written[0].session);
  EXPECT_EQ(written[0].counters.sent.messages, 3U);
  EXPECT_EQ(written[0].counters.sent.bytes, 2 * kLong + 3);
  EXPECT_EQ(read[0].counters.received.messages, 3U);
  EXPECT_EQ(read[0].counters.received.bytes, 2 * kLong + 3);
}

TEST(WatchCounts, BroadcastsWithTheirReaders) {
  const std::string name = "watch-" + std::to_string(::getpid());
  Publisher publisher(name, Publisher::Options{});
  Subscriber one = Subscriber::open(name, {}, Deadline::after(std::chrono::seconds(10)));
  Subscriber other = Subscriber::open(name, {}, Deadline::after(std::chrono::seconds(10)));
  for (int i = 0; i < 10; ++i)
    ASSERT_EQ(publisher.write(bytes(50), Deadline::after(std::chrono::seconds(10))), Outcome::ok);
  std::vector<std::byte> into = bytes(100);
  for (int i = 0; i < 7; ++i) {
    std::size_t size = 0;
    std::uint64_t missed = 0;
    ASSERT_EQ(one.read(into, size, missed, Deadline::after(std::chrono::seconds(10))), Outcome::ok);
  }
  const auto written = own_ends(Kind::broadcast, Role::writer);
  const auto read = own_ends(Kind::broadcast, Role::reader);
  ASSERT_EQ(written.size(), 1U);
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(written[0].name, name);
  EXPECT_EQ(written[0].counters.sent.messages, 10U);
  EXPECT_EQ(written[0].counters.sent.bytes, 500U);
  EXPECT_EQ(read[0].counters.received.messages + read[1].counters.received.messages, 7U);
  EXPECT_EQ(read[0].session, written[0].session);
  EXPECT_EQ(read[1].session, written[0].session);
}

TEST(WatchCounts, CallsShortAndLong) {
  Server server;
  Client client(server.port.descriptor());
  std::size_t all = 0;
  std::vector<std::byte> into = bytes(64);
  for (const std::size_t size : {0UL, 48UL, 3568UL, 3569UL, 100'000UL}) {
    CallResults results;
    results.buffer = into;
    const auto request = bytes(size);
    ASSERT_EQ(client.call({.data = request, .descriptors = {}}, results, Deadline::never()),
              Outcome::ok);
    ASSERT_EQ(results.data.size(), size);
    all += size;
  }
  // A server counts a reply after it has been given, so that its client need not wait for that.
  watch::Flow flow = own_flow(Kind::call);
  for (int i = 0; i < 10'000 && flow.total.back.messages < 5; ++i) {
    ::usleep(1000);
    flow = own_flow(Kind::call);
  }
  EXPECT_EQ(flow.connections, 1U);
  EXPECT_EQ(flow.total.forward.messages, 5U);
  EXPECT_EQ(flow.total.forward.bytes, all);
  EXPECT_EQ(flow.total.back.messages, 5U);
  EXPECT_EQ(flow.total.back.bytes, all);
  const auto clients = own_ends(Kind::call, Role::client);
  ASSERT_EQ(clients.size(), 1U);
  EXPECT_EQ(clients[0].counters.received.messages, 5U);
  EXPECT_EQ(clients[0].counters.received.bytes, all);
  EXPECT_EQ(clients[0].peer, ::getpid());
}

TEST(WatchCounts, CallsAreTimedForWhoLooks) {
  Server server;
  Client client(server.port.descriptor());
  const auto call = [&] {
    CallResults results;
    ASSERT_EQ(client.call({.data = {}, .descriptors = {}}, results, Deadline::never()),
              Outcome::ok);
  };
  call();
  std::vector<watch::Process> processes(1);
  watch::Flows flows({.timed = true});
  const auto look = [&] {
    ASSERT_EQ(watch::look(::getpid(), processes[0]), watch::Seen::yes);
    flows.look(processes);
  };
  look();
  std::uint64_t called = 1;
  // Who looks asks for some seconds: calls that get no processor for so long are not timed.
  for (int tries = 0; tries < 20; ++tries) {
    for (int i = 0; i < 500; ++i) call();
    called += 500;
    look();
    ASSERT_EQ(flows.flows().size(), 1U);
    if (flows.flows()[0].since.times.count != 0) break;
  }
  const watch::Flow& flow = flows.flows()[0];
  EXPECT_EQ(flow.total.forward.messages, called);
  EXPECT_EQ(flow.since.forward.messages, 500U);
  EXPECT_GT(flow.since.times.count, 0U);
  EXPECT_GT(watch::percentile(flow.since.times, 50), 0U);
  EXPECT_GE(watch::percentile(flow.since.times, 99), watch::percentile(flow.since.times, 50));
}

// Who waits is shown to wait, and for how long it did.
TEST(WatchCounts, AWaitIsSeen) {
  Port port;
  Client client(port.descriptor());
  std::thread caller([&] {
    CallResults results;
    EXPECT_EQ(client.call({.data = {}, .descriptors = {}}, results, Deadline::never()),
              Outcome::ok);
  });
  const auto asleep = [] {
    const auto ends = own_ends(Kind::call, Role::client);
    return ends.size() == 1 && ends[0].counters.received.waiting_since != 0;
  };
  EXPECT_TRUE(eventually(asleep));
  ServerThread thread(port);
  Incoming incoming;
  ASSERT_EQ(thread.receive(incoming, Deadline::never()), Outcome::ok);
  ASSERT_EQ(thread.reply(incoming, {}, {}, 0), Outcome::ok);
  caller.join();
  const auto ends = own_ends(Kind::call, Role::client);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].counters.received.waiting_since, 0U);
  EXPECT_EQ(ends[0].counters.received.sleeps, 1U);
  EXPECT_GT(ends[0].counters.received.slept_ns, 0U);
}

}  // namespace
}  // namespace farcall::test
