// SPDX-License-Identifier: Apache-2.0
//
// What who looks sees of pipes and broadcasts (farcall/observe.hpp).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "c/broadcast.hpp"
#include "farcall/farcall.h"
#include "watch/process.hpp"

namespace farcall::test {
namespace {

std::vector<watch::End> ends_of(pid_t pid, observe::Kind kind) {
  watch::Process process;
  EXPECT_NE(watch::look(pid, process), watch::Seen::gone);
  std::erase_if(process.ends, [&](const watch::End& end) { return end.kind != kind; });
  return process.ends;
}
std::vector<watch::End> rings_of(pid_t pid) { return ends_of(pid, observe::Kind::ring); }

// An end is its user's, whoever has made it.
TEST(PipeObserve, EndsShowWhatTheirUsersHavePassed) {
  farcall_pipe* mine = nullptr;
  farcall_pipe* theirs = nullptr;
  ASSERT_EQ(farcall_pipe_create(nullptr, &mine, &theirs), 0);
  EXPECT_TRUE(rings_of(::getpid()).empty());
  const pid_t child = ::fork();
  if (child == 0) {
    char bytes[1000];
    for (int i = 0; i < 10; ++i) {
      const auto size = farcall_pipe_receive(theirs, bytes, sizeof bytes, nullptr, -1);
      if (size < 0 || farcall_pipe_send(theirs, bytes, 2, -1) != 0) ::_exit(1);
    }
    (void)farcall_pipe_receive(theirs, bytes, sizeof bytes, nullptr, -1);
    ::_exit(0);
  }
  char bytes[100] = {};
  for (std::size_t i = 0; i < 10; ++i) {
    ASSERT_EQ(farcall_pipe_send(mine, bytes, 10 * i, -1), 0);
    ASSERT_EQ(farcall_pipe_receive(mine, bytes, sizeof bytes, nullptr, -1), 2);
  }
  const auto own = rings_of(::getpid());
  // Who sends counts that when it is done, and its message may be here before.
  auto other = rings_of(child);
  const auto has_counted = [&] {
    const auto& sent = other[0].counters.sent;
    return sent.messages >= 10 && sent.bytes >= 20;
  };
  for (int i = 0; i < 10'000 && other.size() == 1 && !has_counted(); ++i) {
    ::usleep(1000);
    other = rings_of(child);
  }
  ASSERT_EQ(own.size(), 1U);
  ASSERT_EQ(other.size(), 1U);
  EXPECT_TRUE(own[0].session);
  EXPECT_EQ(own[0].session, other[0].session);
  EXPECT_FALSE(other[0].inherited);
  for (const auto& [sent, received] :
       {std::pair(own[0].counters.sent, other[0].counters.received),
        std::pair(other[0].counters.sent, own[0].counters.received)}) {
    EXPECT_EQ(sent.messages, 10U);
    EXPECT_EQ(received.messages, 10U);
    EXPECT_EQ(sent.bytes, received.bytes);
  }
  EXPECT_EQ(own[0].counters.sent.bytes, 450U);
  EXPECT_EQ(own[0].counters.received.bytes, 20U);
  farcall_pipe_close(mine);
  farcall_pipe_close(theirs);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(rings_of(::getpid()).empty());
}

TEST(PipeObserve, LongMessagesAndBytesAreCountedOnce) {
  farcall_pipe_options options{};
  options.size = sizeof options;
  options.capacity = 65'536;
  for (const int kind : {FARCALL_PIPE_MESSAGES, FARCALL_PIPE_BYTES}) {
    options.kind = kind;
    farcall_pipe* mine = nullptr;
    farcall_pipe* theirs = nullptr;
    ASSERT_EQ(farcall_pipe_create(&options, &mine, &theirs), 0);
    constexpr std::size_t kSize = 1'000'000;
    std::vector<char> sent(kSize);
    std::vector<char> received(kSize);
    std::thread sender([&] {
      if (kind == FARCALL_PIPE_MESSAGES)
        EXPECT_EQ(farcall_pipe_send(mine, sent.data(), kSize, -1), 0);
      else
        EXPECT_EQ(farcall_pipe_write(mine, sent.data(), kSize, -1), std::int64_t{kSize});
    });
    if (kind == FARCALL_PIPE_MESSAGES) {
      EXPECT_EQ(farcall_pipe_receive(theirs, received.data(), kSize, nullptr, -1),
                std::int64_t{kSize});
    } else {
      std::int64_t all = 0;
      while (all < std::int64_t{kSize}) {
        const auto got = farcall_pipe_read(theirs, received.data(), kSize, -1);
        ASSERT_GT(got, 0);
        all += got;
      }
    }
    sender.join();
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
    for (const watch::End& end : rings_of(::getpid())) {
      sent_bytes += end.counters.sent.bytes;
      received_bytes += end.counters.received.bytes;
      if (kind == FARCALL_PIPE_MESSAGES) {
        EXPECT_LE(end.counters.sent.messages, 1U);
        EXPECT_LE(end.counters.received.messages, 1U);
      }
    }
    EXPECT_EQ(sent_bytes, kSize);
    EXPECT_EQ(received_bytes, kSize);
    farcall_pipe_close(mine);
    farcall_pipe_close(theirs);
  }
}

TEST(PipeObserve, PipesByNameHaveIt) {
  const std::string name = "observe-" + std::to_string(::getpid());
  farcall_pipe* server = nullptr;
  farcall_pipe* client = nullptr;
  std::thread serving(
      [&] { EXPECT_EQ(farcall_pipe_serve(name.c_str(), nullptr, -1, &server), 0); });
  EXPECT_EQ(farcall_pipe_open(name.c_str(), nullptr, 20'000'000'000, &client), 0);
  serving.join();
  char byte = 0;
  ASSERT_EQ(farcall_pipe_send(client, "x", 1, -1), 0);
  ASSERT_EQ(farcall_pipe_receive(server, &byte, 1, nullptr, -1), 1);
  const auto ends = rings_of(::getpid());
  ASSERT_EQ(ends.size(), 2U);
  for (const watch::End& end : ends) EXPECT_EQ(end.name, name);
  EXPECT_NE(ends[0].role, ends[1].role);
  farcall_pipe_close(server);
  farcall_pipe_close(client);
}

TEST(BroadcastObserve, EndsShowWhatHasPassedAndWhatWasMissed) {
  using c::test::adopt;
  using c::test::publish;
  const std::string name = c::test::unique_name();
  const auto publisher = publish(name.c_str(), FARCALL_OVERWRITE);
  const auto subscriber = adopt(farcall_publisher_invite(publisher.get()));
  constexpr std::uint64_t kMessages = 1000;
  for (std::uint64_t i = 0; i < kMessages; ++i)
    ASSERT_EQ(c::test::send(publisher, "0123456789", 0), 0);
  char byte[10];
  std::uint64_t all = 0;
  std::uint64_t missed = 0;
  while (farcall_subscriber_receive(subscriber.get(), byte, sizeof byte, nullptr, &missed, 0) == 10)
    all += missed;
  EXPECT_GT(all, 0U);
  const auto ends = ends_of(::getpid(), observe::Kind::broadcast);
  ASSERT_EQ(ends.size(), 2U);
  for (const watch::End& end : ends) {
    const observe::Half& sent = end.counters.sent;
    const observe::Half& received = end.counters.received;
    if (end.role == observe::Role::writer) {
      EXPECT_EQ(end.name, name);
      EXPECT_EQ(sent.messages, kMessages);
      EXPECT_EQ(sent.bytes, 10 * kMessages);
    } else {
      EXPECT_EQ(received.dropped, all);
      EXPECT_EQ(received.messages, kMessages - all);
      EXPECT_EQ(received.bytes, 10 * (kMessages - all));
    }
  }
}

}  // namespace
}  // namespace farcall::test
