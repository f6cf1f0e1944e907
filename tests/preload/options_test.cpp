// SPDX-License-Identifier: Apache-2.0
//
// Options of sockets, and flags of single calls.
// These tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "calls.hpp"
#include "farcall/memory.hpp"
#include "harness/ancillary_message.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

// --- options

TEST(TcpCalls, AnOptionIsCutToTheRoomThatThereIs) {
  const Pair pair;
  set_option(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, 0);
  for (socklen_t room = 0; room <= 4; ++room) {
    unsigned char value[8];
    std::memset(value, 0xee, sizeof value);
    socklen_t size = room;
    EXPECT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, value, &size), 0);
    EXPECT_EQ(size, room);
    for (socklen_t i = 0; i < sizeof value; ++i) EXPECT_EQ(value[i], i < room ? 0 : 0xee);
  }
  auto negative = static_cast<socklen_t>(-1);
  int value = 0;
  EXPECT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &value, &negative), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(TcpCalls, NoDelayStaysAsItWasSet) {
  for (const int wanted : {0, 1}) {
    Pair pair(false);
    set_option(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, wanted);
    pair.warm_up();
    const auto nodelay = [&] {
      int value = -1;
      socklen_t size = sizeof value;
      EXPECT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
      return value;
    };
    EXPECT_EQ(nodelay(), wanted);
    set_option(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, 1 - wanted);
    EXPECT_EQ(nodelay(), 1 - wanted);
  }
}

// Who asks to connect with the first bytes has connected already.
TEST(TcpCalls, NoDelayIsAsItWasSetWhenTheConnectionIsTheKernels) {
  for (const int wanted : {0, 1}) {
    const Pair pair;
    const int fd = pair.client.get();
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, wanted);
    set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 2);
    int value = -1;
    socklen_t size = sizeof value;
    ASSERT_EQ(kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
    EXPECT_EQ(value, wanted);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1 - wanted);
    ASSERT_EQ(kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
    EXPECT_EQ(value, 1 - wanted);
  }
}

TEST(TcpCalls, NothingIsSentAsIfToConnect) {
  const UsedPair pair;
  constexpr int kFlags = MSG_FASTOPEN | MSG_NOSIGNAL;
  const long refused = kernel(SYS_sendto, pair.client.get(), "x", 1, kFlags, nullptr, 0);
  ASSERT_LT(refused, 0);
  EXPECT_EQ(send(pair.client.get(), "x", kFlags),
            std::string("(") + strerrorname_np(static_cast<int>(-refused)) + ")");
  EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
  pair.talk(3);
}

TEST(TcpCalls, WhatIsCorkedIsTheKernelsToHoldBack) {
  const Pair pair;
  const std::uint64_t before = sent_by_kernel(pair.client.get());
  set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
  EXPECT_EQ(send(pair.client.get(), "head"), "4");
  EXPECT_EQ(send(pair.client.get(), "body"), "4");
  set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 0);
  EXPECT_EQ(receive_exactly(pair.server.get(), 8), "headbody");
  EXPECT_GE(sent_by_kernel(pair.client.get()), before + 8);
  pair.talk(20);
}

int held_back(int fd) {
  int bytes = -1;
  EXPECT_EQ(kernel(SYS_ioctl, fd, SIOCOUTQNSD, &bytes), 0);
  return bytes;
}

TEST(TcpCalls, WhatIsCorkedIsPushedByNoDelay) {
  const Pair pair;
  set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(send(pair.client.get(), "head"), "4");
    set_option(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    EXPECT_EQ(held_back(pair.client.get()), 0);
    EXPECT_EQ(receive(pair.server.get()), "head");
  }
}

TEST(TcpCalls, ACorkThatWasThereFirstHoldsBackToo) {
  const Pair pair(false);
  set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(send(pair.client.get(), "ping"), "4");
    // Taking the cork out pushes.
    set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 0);
    set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
    EXPECT_EQ(receive(pair.server.get()), "ping");
    EXPECT_EQ(send(pair.server.get(), "pong"), "4");
    EXPECT_EQ(receive(pair.client.get()), "pong");
  }
  const std::uint64_t before = sent_by_kernel(pair.client.get());
  EXPECT_EQ(send(pair.client.get(), "held"), "4");
  set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 0);
  EXPECT_EQ(receive(pair.server.get()), "held");
  EXPECT_GE(sent_by_kernel(pair.client.get()), before + 4);
}

// A reader that is now asleep in the kernel and now awake: what it gets while asleep with MSG_MORE
// must not lie in the kernel when what follows it goes another way.
TEST(TcpCalls, NothingWaitsInTheKernelBehindWhatWasSentWithMore) {
  const Pair pair;
  int wake[2];
  ASSERT_EQ(::pipe2(wake, O_CLOEXEC), 0);
  const UniqueFd wake_read(wake[0]);
  const UniqueFd wake_write(wake[1]);
  std::atomic<int> woken{0};
  std::atomic<std::size_t> got{0};
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      pollfd both[2] = {{pair.server.get(), POLLIN, 0}, {wake[0], POLLIN, 0}};
      ::poll(both, 2, -1);
      char bytes[256];
      if (both[1].revents != 0) {
        if (::read(wake[0], bytes, 1) == 1) ++woken;
        // Not before the other end has sent what follows.
        while (!done && got < 0x10000 && woken % 2 == 1) std::this_thread::yield();
      }
      const ssize_t more = ::recv(pair.server.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (more > 0) got += static_cast<std::size_t>(more);
    }
  });
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(2ms);  // until it sleeps, most probably
    EXPECT_EQ(send(pair.client.get(), "head", MSG_MORE | MSG_NOSIGNAL), "4");
    ASSERT_EQ(::write(wake[1], "x", 1), 1);
    while (woken % 2 == 0) std::this_thread::yield();
    EXPECT_EQ(send(pair.client.get(), "body"), "4");
    int unsent = -1;
    EXPECT_EQ(::ioctl(pair.client.get(), SIOCOUTQNSD, &unsent), 0);
    EXPECT_EQ(unsent, 0) << "in round " << round;
    ++woken;
    while (got < 8 * (static_cast<std::size_t>(round) + 1)) std::this_thread::yield();
  }
  done = true;
  ASSERT_EQ(::write(wake[1], "x", 1), 1);
  reader.join();
}

TEST(Calls, AFileSentWithMoreToComeDoesNotHoldUpWhatFollows) {
  const Pair pair;
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(send(pair.client.get(), "a"), "1");
  EXPECT_EQ(receive(pair.server.get()), "a");
  EXPECT_EQ(::sendfile(pair.client.get(), file.get(), nullptr, 100), 100);
  EXPECT_EQ(receive_exactly(pair.server.get(), 100).size(), 100u);
  EXPECT_EQ(send(pair.client.get(), "b"), "1");
  EXPECT_EQ(receive(pair.server.get()), "b");
}

// Bytes come out of the stream through this option.
TEST(Calls, AnOptionThatReceivesFindsWhatWasSent) {
  struct ZerocopyReceive {
    std::uint64_t address;
    std::uint32_t length, recv_skip_hint, inq;
    std::int32_t error;
    std::uint64_t copy_address;
    std::int32_t copy_length;
    std::uint32_t flags;
  };
  const Pair pair;
  EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  std::thread peer([&] { EXPECT_EQ(receive(pair.client.get()), "got it"); });
  char bytes[64] = {};
  ZerocopyReceive request{};
  int result = 0;
  do {
    request = {};
    request.copy_address = reinterpret_cast<std::uint64_t>(bytes);
    request.copy_length = sizeof bytes;
    socklen_t size = sizeof request;
    result = ::getsockopt(pair.server.get(), IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &size);
  } while (result == 0 && request.copy_length == 0);
  const std::string failed = result == 0 ? "" : errno_name();
  EXPECT_EQ(send(pair.server.get(), "got it"), "6");
  peer.join();
  if (result != 0) GTEST_SKIP() << "the kernel does not receive by an option: " << failed;
  EXPECT_STREQ(bytes, "hello");
}

TEST(Calls, AStreamThatBecomesAnotherProtocolIsNeverAccelerated) {
  const Pair pair(false);
  pair.talk(2);
  // Whether or not this kernel has it: the program may go on to something that it has.
  (void)::setsockopt(pair.client.get(), IPPROTO_TCP, TCP_ULP, "tls", 3);
  const int before = stream_mappings();
  pair.talk(40);
  EXPECT_EQ(stream_mappings(), before);
}

// --- flags

TEST(TcpCalls, PeekingAtAllWaitsForAll) {
  const Pair pair;
  EXPECT_EQ(send(pair.client.get(), "ab"), "2");
  EXPECT_EQ(receive(pair.server.get(), 2, MSG_PEEK), "ab");
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    EXPECT_EQ(send(pair.client.get(), "cd"), "2");
  });
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL), "abcd");
  later.join();
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL), "abcd");
  EXPECT_EQ(receive(pair.server.get(), 4), "abcd");
  pair.talk(20);
}

TEST(Calls, PeekingAtAllEndsWithTheStream) {
  Pair pair;
  EXPECT_EQ(send(pair.client.get(), "ab"), "2");
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT), "ab");
  pair.client.reset();
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL), "ab");
  EXPECT_EQ(receive(pair.server.get()), "ab");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

TEST(TcpCalls, WhatIsThrownAwayGoesNowhere) {
  const Pair pair;
  const auto thrown_away = [&](std::size_t size, int flags) {
    return ::recv(pair.server.get(), nullptr, size, MSG_TRUNC | flags);
  };
  EXPECT_EQ(send(pair.client.get(), "hello world"), "11");
  EXPECT_EQ(thrown_away(100, MSG_PEEK), 11);
  EXPECT_EQ(thrown_away(6, 0), 6);
  EXPECT_EQ(receive(pair.server.get()), "world");
  EXPECT_EQ(thrown_away(1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(send(pair.client.get(), std::string(10'000, 'x')), "10000");
  EXPECT_EQ(thrown_away(20'000, MSG_PEEK), 10'000);
  EXPECT_EQ(thrown_away(9'000, MSG_WAITALL), 9'000);
  EXPECT_EQ(receive(pair.server.get()).size(), 1'000u);
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(send(pair.client.get(), "two"), "3");
  });
  EXPECT_EQ(send(pair.client.get(), "one"), "3");
  EXPECT_EQ(thrown_away(6, MSG_WAITALL), 6);
  later.join();
  pair.talk(5);
}

// The sender pauses for less than the limit, and goes on for many times as long.
TEST(TcpCalls, WhatIsThrownAwayIsWaitedForNoLongerThanTheTimeLimit) {
  constexpr std::size_t kPiece = 4096;
  constexpr int kPieces = 40;
  const Pair pair;
  const timeval limit{.tv_sec = 0, .tv_usec = 50'000};
  ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  std::atomic<bool> over{false};
  std::thread later([&] {
    for (int i = 0; i < kPieces && !over; ++i) {
      std::this_thread::sleep_for(35ms);
      EXPECT_EQ(send(pair.client.get(), std::string(kPiece, 'x')), std::to_string(kPiece));
    }
  });
  EXPECT_LT(::recv(pair.server.get(), nullptr, kPiece * kPieces, MSG_TRUNC | MSG_WAITALL),
            static_cast<ssize_t>(kPiece * kPieces));
  over = true;
  later.join();
}

TEST(Calls, AnUrgentByteMayComeAtAnyTime) {
  for (int first = 0; first < 12; ++first) {
    const Pair pair(false);
    pair.talk(first);
    const int sender = first % 2 == 0 ? pair.server.get() : pair.client.get();
    EXPECT_EQ(send(sender, "!", MSG_OOB), "1");
    for (int i = 0; i < 40; ++i) {
      const std::string text = "text" + std::to_string(i);
      EXPECT_EQ(send(pair.client.get(), text), std::to_string(text.size()));
      ASSERT_EQ(receive_exactly(pair.server.get(), text.size()), text) << first;
      EXPECT_EQ(send(pair.server.get(), text), std::to_string(text.size()));
      ASSERT_EQ(receive_exactly(pair.client.get(), text.size()), text) << first;
    }
  }
}

// A sender that has told the kernel so without the library's knowledge would keep waiting what
// comes behind.
TEST(TcpCalls, WhatIsSplicedWithMoreToComeIsThereAtOnce) {
  const UsedPair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  ASSERT_EQ(::write(in.get(), "hello", 5), 5);
  ASSERT_EQ(::splice(out.get(), nullptr, pair.client.get(), nullptr, 5, SPLICE_F_MORE), 5);
  pair.put("x");
  int there = 0;
  ASSERT_EQ(kernel(SYS_ioctl, pair.server.get(), FIONREAD, &there), 0);
  EXPECT_GE(there, 5);
  EXPECT_EQ(receive_exactly(pair.server.get(), 6), "hellox");
}

// Its peer may never read the urgent byte, which it has counted.
TEST(TcpCalls, WhoSendsAnUrgentByteStaysWithTheKernel) {
  const int before = stream_mappings();
  const Pair pair(false);
  set_option(pair.server.get(), SOL_SOCKET, SO_OOBINLINE, 1);
  EXPECT_EQ(send(pair.client.get(), "!", MSG_OOB), "1");
  EXPECT_EQ(receive(pair.server.get()), "!");
  pair.talk(40);
  EXPECT_LT(stream_mappings(), before + 2);
}

// From the client, which has sent an urgent byte that the server leaves out.
void expect_all_by_kernel(const UsedPair& pair) {
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    pair.put("text");
    EXPECT_TRUE(readable_for_kernel(pair.server.get())) << i;
    epoll_event event{};
    EXPECT_EQ(::epoll_wait(pair.set.get(), &event, 1, 10'000), 1) << i;
    EXPECT_EQ(receive(pair.server.get(), 4, MSG_DONTWAIT), "text") << i;
  }
}

// Neither does it when the byte goes another way, which is the kernel's anyway.
TEST(TcpCalls, WhoSendsAnUrgentByteBehindACorkStaysWithTheKernel) {
  const UsedPair pair;
  set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
  EXPECT_EQ(send(pair.client.get(), "!", MSG_OOB), "1");
  set_option(pair.client.get(), IPPROTO_TCP, TCP_CORK, 0);
  expect_all_by_kernel(pair);
}

TEST(TcpCalls, WhoSendsAnUrgentByteWithMoreStaysWithTheKernel) {
  const UsedPair pair;
  test::AncillaryMessage message;
  message.add(SOL_SOCKET, SO_TIMESTAMPING, 0);  // none
  ASSERT_EQ(message.send(pair.client.get(), MSG_OOB), 1) << std::strerror(errno);
  expect_all_by_kernel(pair);
}

// At the byte the kernel says that it has nothing, whatever stands behind it.
TEST(TcpCalls, WhatStandsBehindAnUrgentByteIsReadWithoutWaiting) {
  const UsedPair pair;
  EXPECT_EQ(send(pair.client.get(), "!", MSG_OOB), "1");
  expect_all_by_kernel(pair);
}

// What the two ends count does not meet then, so nobody can wait until it does.
TEST(TcpCalls, NobodyWaitsForAnUrgentByteThatIsLeftOut) {
  constexpr int kPairs = 50;
  int without_waiting = 0;
  for (int i = 0; i < kPairs && without_waiting == 0; ++i) {
    const Pair pair;
    EXPECT_EQ(send(pair.client.get(), "text"), "4");
    EXPECT_EQ(send(pair.client.get(), "!", MSG_OOB), "1");
    EXPECT_EQ(receive(pair.server.get()), "text");
    int slow = 0;
    for (int k = 0; k < 3; ++k) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(receive(pair.server.get(), 10, MSG_DONTWAIT), "(EAGAIN)");
      if (std::chrono::steady_clock::now() - start > 5ms) ++slow;
    }
    if (slow == 0) ++without_waiting;
  }
  EXPECT_GT(without_waiting, 0);
}

}  // namespace
}  // namespace farcall::preload
