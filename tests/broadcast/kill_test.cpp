// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL at random moments: who is left learns of it, and goes on where it can.
// FARCALL_KILL_ROUNDS sets the number of rounds.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "broadcast/pattern.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/killer.hpp"

namespace farcall {
namespace {

using test::Child;
using test::eventually;
using test::Killer;
using test::Latencies;
using test::receive;
using test::Received;
using test::send;
using test::soon;
using test::unique_name;

int rounds() { return test::setting("FARCALL_KILL_ROUNDS", 100 / test::kSlow); }
constexpr unsigned kBusy = 3000;  // us
constexpr WaitMode kModes[] = {WaitMode::spin, WaitMode::adaptive, WaitMode::block};

TEST(BroadcastKill, ReadersGetWholeMessagesAndLearnOfTheWritersDeath) {
  Latencies latencies;
  for (int round = 0; round < rounds(); ++round) {
    const std::string name = unique_name();
    const WaitMode mode = kModes[round % 3];
    const SlowReader slow = round % 2 == 0 ? SlowReader::block : SlowReader::overwrite;
    Child writer([&] {
      Publisher publisher(name, {.capacity = 1 << 13, .slow = slow, .wait = mode});
      // Not before somebody listens: a reader that comes later does not know where to begin.
      while (publisher.readers() == 0) std::this_thread::yield();
      ADD_FAILURE() << to_string(send(publisher, 0, UINT64_MAX, publisher.longest()));
    });
    Subscriber subscriber =
        Subscriber::open(name, {.start = Subscriber::Start::oldest, .wait = mode}, soon());
    Killer killer(writer.pid(), kBusy, static_cast<unsigned>(round));
    const Received all = receive(subscriber);
    const std::int64_t noticed = monotonic_ns();
    ASSERT_EQ(all.end, Outcome::peer_gone);
    ASSERT_EQ(all.wrong, 0U);
    latencies.add(killer.late(noticed));
  }
  latencies.expect_prompt("from the writer's death to the reader's outcome");
}

TEST(BroadcastKill, AWriterThatWaitsForADeadReaderGoesOn) {
  Latencies latencies;
  for (int round = 0; round < rounds(); ++round) {
    Publisher publisher({.capacity = 1 << 13, .wait = kModes[round % 3]});
    UniqueFd end = publisher.invite();
    Child reader([&] {
      Subscriber subscriber = Subscriber::adopt(std::move(end), {});
      receive(subscriber, 100);
      (void)::pause();  // and reads no more
    });
    end.reset();
    Killer killer(reader.pid(), kBusy, static_cast<unsigned>(round));
    ASSERT_EQ(send(publisher, 0, 500), Outcome::ok);
    const std::int64_t noticed = monotonic_ns();
    latencies.add(killer.late(noticed));
    ASSERT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  }
  latencies.expect_prompt("from the reader's death to the end of the writer's wait");
}

// A child that a publisher or a reader has forked does not stand for its parent.
TEST(BroadcastKill, ForkedChildrenHideNoDeath) {
  const std::string name = unique_name();
  const test::Shared<std::atomic<pid_t>> grandchild;
  Child writer([&] {
    Publisher publisher(name, {});
    while (publisher.readers() == 0) std::this_thread::yield();
    const pid_t child = ::fork();
    if (child == 0) {
      ::sleep(30);
      ::_exit(0);
    }
    *grandchild = child;
    (void)::pause();
  });
  Subscriber subscriber = Subscriber::open(name, {}, soon());
  ASSERT_TRUE(eventually([&] { return *grandchild > 0; }));
  writer.kill();
  EXPECT_EQ(receive(subscriber).end, Outcome::peer_gone);
  ::kill(*grandchild, SIGKILL);
}

// Nor does one that is forked, by another thread, while its parent waits to be let in.
TEST(BroadcastKill, AChildOfWhoIsNotYetAReaderHidesNoDeath) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const std::string name = unique_name();
  const NamedListener publisher(name);
  const test::Shared<test::Event> connected;
  const test::Shared<std::atomic<pid_t>> grandchild;
  Child reader([&] {
    std::thread opener([&] { (void)Subscriber::open(name, {}, Deadline::never()); });
    ASSERT_TRUE(connected->wait());
    const pid_t child = ::fork();
    if (child == 0) {
      ::sleep(60);
      ::_exit(0);
    }
    *grandchild = child;
    opener.join();
  });
  const UniqueFd client = publisher.accept(soon());
  connected->happens();
  ASSERT_TRUE(eventually([&] { return *grandchild > 0; }));
  reader.kill();
  pollfd gone{.fd = client.get(), .events = POLLRDHUP, .revents = 0};
  EXPECT_EQ(::poll(&gone, 1, 20'000), 1);
  ::kill(*grandchild, SIGKILL);
}

}  // namespace
}  // namespace farcall
