// SPDX-License-Identifier: Apache-2.0
//
// farcall_pulse() is for signal handlers, which may have interrupted the allocator: of the first
// pulse over a connection apart it allocates and frees nothing. What the C library has for that is
// in front here, and counts.
#include <sys/resource.h>

#include "message/channel.hpp"

namespace {

thread_local bool counts = false;
thread_local int allocations = 0;

}  // namespace

// Sanitizers have an allocator of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the C library's names
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void __libc_free(void* memory);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

void* malloc(std::size_t size) {
  if (counts) ++allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  if (counts) ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  if (counts) ++allocations;
  return __libc_realloc(memory, size);
}
void free(void* memory) {
  if (counts && memory != nullptr) ++allocations;
  __libc_free(memory);
}
}
#endif

namespace farcall::message::test {
namespace {

// 0, or an errno.
int pulse(int connection, int code) {
  allocations = 0;
  counts = true;
  const int result = farcall_pulse(connection, 0, code, code);
  counts = false;
  EXPECT_EQ(allocations, 0) << "pulse " << code;
  return result == 0 ? 0 : errno;
}

struct MessageSignalSafe : testing::Test {
  void SetUp() override {
    FARCALL_SKIP_UNDER_ASAN("has an allocator of its own");
    FARCALL_SKIP_UNDER_TSAN("has an allocator of its own");
    if (over_module()) GTEST_SKIP() << "the module is here";
  }
};

// What of its pulses a server that has stopped lets wait, and then those that go another way.
void expect_pulses_without_memory(int connection, pid_t server) {
  ASSERT_TRUE(stop_process(server));
  ASSERT_EQ(farcall_pulse(connection, 0, 0, 0), 0) << std::strerror(errno);
  int code = 1;
  int error = 0;
  while ((error = pulse(connection, code)) == 0) {
    ASSERT_LT(++code, 10'000);
  }
  EXPECT_EQ(error, EAGAIN);
  EXPECT_EQ(::kill(server, SIGCONT), 0);
  EXPECT_TRUE(eventually([&] { return pulse(connection, code) == 0; }));
  for (const int end = code + 300; code < end && !testing::Test::HasFailure(); ++code)
    EXPECT_TRUE(eventually([&] { return pulse(connection, code) == 0; }));
}

TEST_F(MessageSignalSafe, PulsesWaitAndAreSentWithoutMemory) {
  const std::string name = unique_name("pulses");
  const NamedServer server(name, echo_for_ever);
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0);
  expect_pulses_without_memory(connection, server.pid());
  EXPECT_EQ(farcall_disconnect(connection), 0);
}

TEST_F(MessageSignalSafe, PulsesToAStrangerWaitAndAreSentWithoutMemory) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const std::string name = unique_name("stranger");
  const Shared<Event> ready;
  Child server([&] {
    ASSERT_TRUE(become(kNobody));
    const int channel = farcall_name_attach(name.c_str(), 0, 0666);
    ASSERT_GT(channel, 0) << std::strerror(errno);
    ready->happens();
    echo_for_ever(channel);
  });
  ASSERT_TRUE(ready->wait());
  const int connection = farcall_name_open((std::to_string(kNobody) + "/" + name).c_str());
  ASSERT_GT(connection, 0) << std::strerror(errno);
  expect_pulses_without_memory(connection, server.pid());
  EXPECT_EQ(farcall_disconnect(connection), 0);
}

TEST_F(MessageSignalSafe, AThreadNeedsNoMemoryForItsFirst) {
  const EchoServer server;
  ASSERT_EQ(farcall_pulse(server.connection, 0, 1, 0), 0);
  for (int i = 0; i < 2; ++i)
    std::thread([&] {
      EXPECT_EQ(pulse(server.connection, 2), 0);
      EXPECT_EQ(pulse(server.connection, 3), 0);
    }).join();
}

// The thread has used it last, and nobody else keeps it.
TEST_F(MessageSignalSafe, WhatAThreadHasUsedBeforeIsNotFreed) {
  const EchoServer server;
  const Channel other;
  for (const int connection : {server.connection, other.connection})
    ASSERT_EQ(farcall_pulse(connection, 0, 1, 0), 0);
  for (int i = 0; i < 3; ++i) {
    const int gone = farcall_connect(server.id);
    ASSERT_EQ(farcall_pulse(gone, 0, 1, 0), 0);
    std::thread([&] { EXPECT_EQ(farcall_disconnect(gone), 0); }).join();
    EXPECT_EQ(pulse(gone, 2), EBADF);
    for (int j = 0; j < 2; ++j)
      for (const int connection : {server.connection, other.connection})
        EXPECT_EQ(pulse(connection, 3), 0);
  }
}

// Whatever priority a client lends is back, and was kept until now.
TEST_F(MessageSignalSafe, WhatAThreadHasBeenLentIsNotFreed) {
  Channel channel(FARCALL_INHERIT);
  ASSERT_EQ(farcall_pulse(channel.connection, 1, 1, 0), 0);
  EXPECT_EQ(receive(channel.id).info.code, 1);
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "x").status, 0); });
  bool lent = false;
  std::thread([&] {
    const auto own_nice = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(own_id())); };
    const int nice = own_nice() + 1;
    EXPECT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(own_id()), nice), 0);
    const Message message = receive(channel.id);
    lent = own_nice() < nice;
    std::thread([&] { EXPECT_EQ(answer(message.id, 0), 0); }).join();
    EXPECT_EQ(own_nice(), nice);
    EXPECT_EQ(pulse(channel.connection, 2), 0);
  }).join();
  client.join();
  if (!lent) GTEST_SKIP() << "no permission to raise it";
}

TEST_F(MessageSignalSafe, WhyThereIsNoneIsToldWithoutMemory) {
  const std::string name = unique_name("gone");
  NamedServer server(name, echo_for_ever);
  const int connection = farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0);
  ASSERT_EQ(farcall_pulse(connection, 0, 1, 0), 0);
  EXPECT_EQ(pulse(connection, 2), 0);
  EXPECT_EQ(pulse(connection, -1), EINVAL);
  EXPECT_EQ(pulse(-1, 1), EBADF);
  EXPECT_EQ(pulse(0, 1), EBADF);
  server.kill();
  EXPECT_EQ(pulse(connection, 3), ESRCH);
  EXPECT_EQ(farcall_disconnect(connection), 0);
  EXPECT_EQ(pulse(connection, 4), EBADF);
}

}  // namespace
}  // namespace farcall::message::test
