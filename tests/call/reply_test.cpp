// SPDX-License-Identifier: Apache-2.0
//
// Replies that are longer than their client wants them, or has time for.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

#include "call/limits.hpp"
#include "call/raw.hpp"
#include "call/server.hpp"
#include "harness/child.hpp"
#include "harness/forbidden_call.hpp"

namespace farcall::call::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLongReply = std::size_t{4} << 20;

void reply_at_length(ServerThread& thread, Incoming& incoming) {
  const std::vector<std::byte> reply(static_cast<std::size_t>(incoming.word()), std::byte{1});
  thread.reply(incoming, reply);
}

CallArguments asking_for(std::size_t bytes) {
  return {.data = {}, .descriptors = {}, .word = static_cast<std::int32_t>(bytes)};
}

TEST(Reply, LongerThanItsClientTakesIsGivenNoMemory) {
  Server server(reply_at_length);
  Client client(server.port.descriptor());
  std::array<std::byte, 100> buffer;
  CallResults results;
  results.buffer = buffer;
  results.most = kLongReply - 1;
  EXPECT_EQ(client.call(asking_for(kLongReply), results, before_long()), Outcome::broken);
  EXPECT_FALSE(results.large);
  EXPECT_EQ(client.call(asking_for(kLongReply - 1), results, before_long()), Outcome::ok);
  EXPECT_TRUE(results.large);
}

// What is written to one's own buffer costs nothing.
TEST(Reply, OfAStrangersServerIsGivenNoMoreMemoryThanAUserMayHave) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  in_child([] {
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.bytes_per_user = kLongReply - 1;
    ASSERT_EQ(set_limits(&limits), 0);
    ASSERT_EQ(::seteuid(kNobody), 0);
    Server server(reply_at_length);
    const int port = server.port.descriptor();
    ASSERT_EQ(::seteuid(0), 0);
    Client client(port);
    CallResults results;
    EXPECT_EQ(client.call(asking_for(kLongReply), results, before_long()), Outcome::too_big);
    EXPECT_FALSE(results.large);
    EXPECT_EQ(client.call(asking_for(kLongReply - 1), results, before_long()), Outcome::ok);
    EXPECT_TRUE(results.large);
    std::vector<std::byte> buffer(kLongReply);
    results.buffer = buffer;
    EXPECT_EQ(client.call(asking_for(kLongReply), results, before_long()), Outcome::ok);
    EXPECT_EQ(results.data.size(), kLongReply);
  });
}

std::span<std::byte> guarded;
std::atomic<std::int64_t> until{0};

// Who first touches the buffer waits.
void on_touch(int) {
  while (monotonic_ns() < until) ::usleep(1000);
  ::mprotect(guarded.data(), guarded.size(), PROT_READ | PROT_WRITE);
}

// It has no more time by the moment when its reply is there.
void expect_cut_short(RetryPolicy* policy) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  Server server(reply_at_length);
  Client client(server.port.descriptor());
  const Mapping memory(
      ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
      kBytes);
  guarded = {memory.data(), kBytes};
  struct sigaction action {};
  action.sa_handler = on_touch;
  ASSERT_EQ(::sigaction(SIGSEGV, &action, nullptr), 0);
  CallResults results;
  results.buffer = guarded;
  const Deadline deadline = Deadline::after(2s * kSlow);
  until = deadline.at() + 1'000'000;
  CallArguments arguments = asking_for(kBytes);
  arguments.retry_policy = policy;
  EXPECT_EQ(client.call(arguments, results, deadline), Outcome::timed_out);
  EXPECT_TRUE(Client::dispatched());
  // Another call is answered as ever.
  EXPECT_EQ(client.call(asking_for(kBytes), results, before_long()), Outcome::ok);
  EXPECT_EQ(results.data.size(), kBytes);
  EXPECT_EQ(results.data.back(), std::byte{1});
}

// A client that stays when its time is over.
struct Stays final : RetryPolicy {
  bool stay(Outcome, Deadline& deadline) override {
    ++times;
    deadline = before_long();
    return true;
  }
  [[nodiscard]] bool before_dispatch() const noexcept override { return true; }
  std::atomic<int> times{0};
};

TEST(Reply, IsCopiedNoLongerThanItsClientHasTime) {
  in_child([] { expect_cut_short(nullptr); });
}

TEST(Reply, ThatIsThereIsNotStayedFor) {
  in_child([] {
    Stays policy;
    expect_cut_short(&policy);
    EXPECT_EQ(policy.times, 0);
  });
}

TEST(Reply, OfWhoStaysBeyondItsTimeIsCopiedToTheEnd) {
  constexpr std::size_t kBytes = std::size_t{40} << 20;
  Stays policy;
  bool first = true;
  Server server([&](ServerThread& thread, Incoming& incoming) {
    if (!std::exchange(first, false)) eventually([&] { return policy.times != 0; });
    reply_at_length(thread, incoming);
  });
  Client client(server.port.descriptor());
  CallResults results;
  // No part of its time is for the session.
  ASSERT_EQ(client.call(asking_for(1), results, before_long()), Outcome::ok);
  CallArguments arguments = asking_for(kBytes);
  arguments.retry_policy = &policy;
  EXPECT_EQ(client.call(arguments, results, Deadline::after(5ms)), Outcome::ok);
  EXPECT_EQ(policy.times, 1);
  EXPECT_EQ(results.data.size(), kBytes);
}

// What else came with it is not taken for what comes with the next.
TEST(Reply, WhoseMemoryFindsNoRoomLeavesNothingBehind) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
  Server server([](ServerThread& thread, Incoming& incoming) {
    const std::vector<std::byte> reply(static_cast<std::size_t>(incoming.word()), std::byte{1});
    thread.reply(incoming, reply, std::array{STDERR_FILENO});
  });
  in_child([port = server.port.descriptor()] {
    Client client(port);
    const auto outcome_of = [&](std::size_t bytes) {
      CallResults results;
      const Outcome outcome = client.call(asking_for(bytes), results, before_long());
      EXPECT_EQ(results.descriptors.size(), outcome == Outcome::ok ? 1U : 0U);
      return outcome;
    };
    ASSERT_EQ(outcome_of(1), Outcome::ok);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    // None but the standard streams, whatever is closed meanwhile.
    const rlimit full{.rlim_cur = STDERR_FILENO + 1, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
    EXPECT_EQ(outcome_of(200'000), Outcome::too_big);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(outcome_of(1), Outcome::ok);
  });
}

// A process that it has forked may hold the socket by which the memory would be sent.
TEST(Reply, AtLengthIsGivenNoMemoryForWhoHasGone) {
  Port port;
  RawSession session(port.descriptor());
  ASSERT_TRUE(session.welcome());
  session.give(Kind::request, 1);
  std::thread([&] {
    ServerThread thread(port);
    Incoming incoming;
    ASSERT_EQ(thread.receive(incoming, before_long()), Outcome::ok);
    session.socket.reset();
    ASSERT_TRUE(forbid_call(SYS_memfd_create, ENOMEM));
    const std::vector<std::byte> reply(kLongReply);
    EXPECT_EQ(thread.reply(incoming, reply), Outcome::peer_gone);
  }).join();
}

}  // namespace
}  // namespace farcall::call::test
