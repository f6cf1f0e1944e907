// SPDX-License-Identifier: Apache-2.0
//
// What a TCP connection over loopback does, whoever carries its bytes: these tests run twice, as
// they are and with the library preloaded. In the second run they see to it that the connections
// are accelerated before the matter begins.
#include "contract.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "farcall/memory.hpp"

namespace farcall::preload {
namespace {

// --- receiving

TEST(Contract, AShortReadLeavesTheRest) {
  const Pair pair;
  pair.put("hello world");
  EXPECT_EQ(receive(pair.server.get(), 5), "hello");
  EXPECT_EQ(receive(pair.server.get()), " world");
}

TEST(Contract, PeekingTakesNothing) {
  const Pair pair;
  pair.put("hello");
  EXPECT_EQ(receive(pair.server.get(), 2, MSG_PEEK), "he");
  EXPECT_EQ(receive(pair.server.get(), 100, MSG_PEEK), "hello");
  EXPECT_EQ(receive(pair.server.get()), "hello");
}

TEST(Contract, PeekingMayGoOnWhereItEnded) {
  const Pair pair;
  const int beginning = 0;
  if (::setsockopt(pair.server.get(), SOL_SOCKET, SO_PEEK_OFF, &beginning, sizeof beginning) != 0) {
    EXPECT_EQ(errno, EOPNOTSUPP);  // TCP of older kernels
    return;
  }
  pair.put("abcdef");
  EXPECT_EQ(receive(pair.server.get(), 2, MSG_PEEK), "ab");
  EXPECT_EQ(receive(pair.server.get(), 2, MSG_PEEK), "cd");
  EXPECT_EQ(receive(pair.server.get()), "abcdef");
}

TEST(TcpContract, TruncatingThrowsAway) {
  const Pair pair;
  pair.put("hello world");
  EXPECT_EQ(::recv(pair.server.get(), nullptr, 6, MSG_TRUNC), 6);
  EXPECT_EQ(receive(pair.server.get()), "world");
}

TEST(TcpContract, TruncatingWaitsForNoMoreThanThereIs) {
  const Pair pair;
  pair.put(std::string(5000, 'x'));
  EXPECT_EQ(::recv(pair.server.get(), nullptr, 10'000, MSG_TRUNC), 5000);
  pair.talk(3);
}

TEST(Contract, WaitingForAllWaitsForAll) {
  const Pair pair;
  std::thread slowly([&] {
    for (const char* part : {"one ", "two ", "three"}) {
      std::this_thread::sleep_for(20ms);
      pair.put(part);
    }
  });
  EXPECT_EQ(receive(pair.server.get(), 13, MSG_WAITALL), "one two three");
  slowly.join();
}

TEST(Contract, WaitingForAllEndsWithTheStream) {
  const Pair pair;
  pair.put("part");
  ::shutdown(pair.client.get(), SHUT_WR);
  EXPECT_EQ(receive(pair.server.get(), 100, MSG_WAITALL), "part");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

TEST(Contract, NotWaitingSaysSo) {
  const Pair pair;
  EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
  set_nonblocking(pair.server.get());
  EXPECT_EQ(receive(pair.server.get()), "(EAGAIN)");
  const int off = 0;
  ASSERT_EQ(::ioctl(pair.server.get(), FIONBIO, &off), 0);
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    pair.put("now");
  });
  EXPECT_EQ(receive(pair.server.get()), "now");
  later.join();
}

TEST(Contract, AReadOfNothingIsNothing) {
  const Pair pair;
  pair.put("x");
  EXPECT_EQ(::read(pair.server.get(), nullptr, 0), 0);
  EXPECT_EQ(::write(pair.server.get(), nullptr, 0), 0);
  EXPECT_EQ(receive(pair.server.get()), "x");
}

TEST(Contract, TimeoutsEndAWait) {
  const Pair pair;
  const timeval limit{.tv_sec = 0, .tv_usec = 60'000};
  ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(receive(pair.server.get()), "(EAGAIN)");
  EXPECT_GE(std::chrono::steady_clock::now() - start, 59ms);
}

TEST(Contract, TellsHowMuchIsThere) {
  const Pair pair;
  pair.put("12345");
  int bytes = 0;
  ASSERT_EQ(::ioctl(pair.server.get(), FIONREAD, &bytes), 0);
  EXPECT_EQ(bytes, 5);
}

TEST(Contract, MessagesComeWithoutAnAddress) {
  const Pair pair;
  pair.put("hello world");
  char first[5];
  char second[20];
  iovec parts[2] = {{first, sizeof first}, {second, sizeof second}};
  sockaddr_in from{};
  char control[64];
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  EXPECT_EQ(::recvmsg(pair.server.get(), &message, 0), 11);
  EXPECT_EQ(message.msg_namelen, 0u);
  EXPECT_EQ(message.msg_controllen, 0u);
  EXPECT_EQ(message.msg_flags, 0);
  EXPECT_EQ(std::string(second, 6), " world");
  pair.put("x");
  socklen_t size = sizeof from;
  EXPECT_EQ(::recvfrom(pair.server.get(), first, 1, 0, reinterpret_cast<sockaddr*>(&from), &size),
            1);
  EXPECT_EQ(size, 0u);
}

// --- other ways to send

TEST(Contract, UrgentBytesKeepTheirPlace) {
  const Pair pair;
  pair.put("before");
  ASSERT_EQ(::send(pair.client.get(), "!", 1, MSG_OOB), 1);
  pair.put("after");
  EXPECT_NE(poll_once(pair.server.get(), POLLPRI, 1000) & POLLPRI, 0);
  char urgent = 0;
  EXPECT_EQ(::recv(pair.server.get(), &urgent, 1, MSG_OOB), 1);
  EXPECT_EQ(urgent, '!');
  std::string text;
  while (text.size() < 11) text += receive(pair.server.get());
  EXPECT_EQ(text, "beforeafter");
}

TEST(Contract, FilesAreSentInTheirPlace) {
  const Pair pair;
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.get(), "file", 4), 4);
  for (int i = 0; i < 10; ++i) {
    pair.put("head ");
    off_t from = 0;
    ASSERT_EQ(::sendfile(pair.client.get(), file.get(), &from, 4), 4);
    pair.put(" tail");
    EXPECT_EQ(receive(pair.server.get(), 14, MSG_WAITALL), "head file tail");
  }
}

TEST(Contract, BytesAreSplicedInTheirOrder) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  pair.put("spliced");
  EXPECT_EQ(::splice(pair.server.get(), nullptr, in.get(), nullptr, 100, 0), 7);
  pair.put(" again");
  EXPECT_EQ(::splice(pair.server.get(), nullptr, in.get(), nullptr, 100, 0), 6);
  EXPECT_EQ(::splice(out.get(), nullptr, pair.server.get(), nullptr, 100, 0), 13);
  EXPECT_EQ(receive(pair.client.get(), 13, MSG_WAITALL), "spliced again");
}

TEST(Contract, ManyMessagesInOneCall) {
  const Pair pair;
  char bytes[3][4] = {"one", "two", "six"};
  iovec parts[3];
  mmsghdr messages[3]{};
  for (int i = 0; i < 3; ++i) {
    parts[i] = {bytes[i], 3};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  ASSERT_EQ(::sendmmsg(pair.client.get(), messages, 3, 0), 3);
  EXPECT_EQ(messages[2].msg_len, 3u);
  ASSERT_EQ(::recvmmsg(pair.server.get(), messages, 3, MSG_WAITFORONE, nullptr), 3);
  EXPECT_EQ(std::string(bytes[2], 3), "six");
}

TEST(Contract, TooManyPartsAreRefused) {
  const Pair pair;
  std::vector<iovec> parts(2000, iovec{nullptr, 0});
  EXPECT_EQ(::writev(pair.client.get(), parts.data(), 2000), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Contract, FlagsOf32BitProgramsAreRefused) {
  const Pair pair;
  pair.put("stays");
  constexpr int kMsgCmsgCompat = static_cast<int>(0x8000'0000);
  char text[8];
  iovec part{.iov_base = text, .iov_len = sizeof text};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::recvmsg(pair.server.get(), &message, kMsgCmsgCompat), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::sendmsg(pair.client.get(), &message, kMsgCmsgCompat), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(receive(pair.server.get()), "stays");
}

TEST(Contract, BadAddressesAreRefused) {
  const Pair pair;
  const int fd = pair.server.get();
  pair.put("abc");
  for (const std::intptr_t number : {std::intptr_t{0}, std::intptr_t{1}, std::intptr_t{-1}}) {
    void* const bad = reinterpret_cast<void*>(number);
    const iovec part{.iov_base = bad, .iov_len = 3};
    EXPECT_EQ(::read(fd, bad, 3), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::recv(fd, bad, 3, 0), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::readv(fd, &part, 1), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::readv(fd, static_cast<const iovec*>(bad), 1), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::recvmsg(fd, static_cast<msghdr*>(bad), 0), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::write(fd, bad, 3), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::writev(fd, &part, 1), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::sendmsg(fd, static_cast<const msghdr*>(bad), 0), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(::poll(static_cast<pollfd*>(bad), 1, 0), -1);
    EXPECT_EQ(errno, EFAULT);
  }
  EXPECT_EQ(receive(fd), "abc");
  EXPECT_EQ(receive(pair.client.get(), 4, MSG_DONTWAIT), "(EAGAIN)");
  pair.put("d");
  EXPECT_EQ(receive(fd), "d");
}

TEST(Contract, WithoutAPlaceTheyAreReadAndWrittenInTurn) {
  const Pair pair;
  char bytes[6] = "abcde";
  iovec part{.iov_base = bytes, .iov_len = 5};
  pair.put("1");
  ASSERT_EQ(::pwritev2(pair.client.get(), &part, 1, -1, 0), 5);
  pair.put("2");
  EXPECT_EQ(::preadv2(pair.server.get(), &part, 1, -1, 0), 5);
  EXPECT_EQ(std::string(bytes), "1abcd");
  EXPECT_EQ(receive(pair.server.get()), "e2");
  EXPECT_EQ(::preadv2(pair.server.get(), &part, 1, 0, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
}

// Kernels before 6.4 do not know of that where sockets are concerned.
TEST(Contract, WithoutAPlaceTheyNeedNotBeWaitedFor) {
  const Pair pair;
  set_nonblocking(pair.client.get());
  while (send(pair.client.get(), std::string(over_packets() ? 1000 : 65'536, 'x'))[0] != '(') {
  }
  ASSERT_EQ(::fcntl(pair.client.get(), F_SETFL, 0), 0);
  std::string bytes(1000, 'x');
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  const auto may_not_wait = [] { return errno == EAGAIN || errno == EOPNOTSUPP; };
  while (::pwritev2(pair.client.get(), &part, 1, -1, RWF_NOWAIT) > 0) {
  }
  EXPECT_TRUE(may_not_wait()) << errno_name();
  EXPECT_EQ(::preadv2(pair.client.get(), &part, 1, -1, RWF_NOWAIT), -1);
  EXPECT_TRUE(may_not_wait()) << errno_name();
}

TEST(Contract, BytesHaveNoPlaceToBeReadFrom) {
  const Pair pair;
  char byte;
  EXPECT_EQ(::pread(pair.server.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
}

TEST(TcpContract, ALowWaterMarkIsKept) {
  const Pair pair;
  const int mark = 6;
  ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  pair.put("abc");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 30), 0);
  pair.put("def");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 1000), POLLIN);
  EXPECT_EQ(receive(pair.server.get()), "abcdef");
}

// As high as it can be.
TEST(TcpContract, ANegativeLowWaterMarkIsAHighOne) {
  const UsedPair pair;
  const int mark = -1;
  ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  pair.put("abc");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 30), 0);
  EXPECT_EQ(receive(pair.server.get(), 3), "abc");
}

TEST(TcpContract, ALowWaterMarkIsInheritedFromTheListener) {
  const UniqueFd listener = stream_socket();
  const int mark = 4;
  ASSERT_EQ(::setsockopt(listener.get(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
  Address address;
  bind_and_listen(listener.get(), address);
  Pair pair(false);
  pair.client = connect_to(address);
  pair.server = accept_from(listener);
  for (int i = 0; i < 30; ++i) {
    pair.put("ping");
    EXPECT_EQ(receive(pair.server.get()), "ping");
    EXPECT_EQ(send(pair.server.get(), "pong"), "4");
    EXPECT_EQ(receive(pair.client.get()), "pong");
  }
  pair.put("pi");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 20), 0);
  pair.put("ng");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 1000), POLLIN);
}

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The kernel ends who makes a larger file than it may, and memory that is shared is a file.
TEST(Contract, AProcessThatMayMakeNoFilesGoesOn) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &files), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const int before = stream_mappings();
  const Pair pair(false);
  pair.talk(100);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &files), 0);
  EXPECT_EQ(stream_mappings(), before);
}

// Of the signal that says so, one that was there before stays.
TEST(Contract, ASignalOfTooLargeFilesThatWaitsGoesOnWaiting) {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGXFSZ);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, nullptr), 0);
  ASSERT_EQ(::raise(SIGXFSZ), 0);
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &files), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const Pair pair(false);
  pair.talk(100);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &files), 0);
  const timespec at_once{};
  EXPECT_EQ(::sigtimedwait(&blocked, nullptr, &at_once), SIGXFSZ) << errno_name();
  EXPECT_EQ(::sigtimedwait(&blocked, nullptr, &at_once), -1);
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
}

// The limits are wide: a library that spun, or looked at all of them, would need many times that.
// On a busy machine a round costs more than it needs, never less: so the least of some counts.
TEST(Contract, AThousandIdleConnectionsCostNothing) {
  constexpr std::size_t kAll = 1000;
  constexpr std::size_t kActive = 10;
  constexpr int kRounds = 3000;
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < 2 * kAll + 100) GTEST_SKIP() << "too few descriptors are allowed";
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 65536);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  std::vector<std::unique_ptr<Pair>> pairs;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  const auto add = [&] {
    pairs.push_back(std::make_unique<Pair>());
    epoll_event event{.events = EPOLLIN, .data = {.u64 = pairs.size() - 1}};
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pairs.back()->server.get(), &event), 0);
  };
  const auto busy = [&] {
    const double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < kRounds; ++i) {
      const std::size_t now = static_cast<std::size_t>(i) * 7 % kActive;
      pairs[now]->put("x");
      epoll_event event{};
      EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 1000), 1);
      EXPECT_EQ(event.data.u64, now);
      EXPECT_EQ(receive(pairs[now]->server.get()), "x");
    }
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
  };
  const auto idle = [&] {
    const double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    epoll_event event{};
    EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 1000), 0);
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
  };
  const auto least = [](const auto& measure, double enough) {
    double best = measure();
    for (int i = 0; i < 10 && best >= enough; ++i) best = std::min(best, measure());
    return best;
  };
  while (pairs.size() < kActive) add();
  (void)busy();
  const double few = least(busy, 0);
  while (pairs.size() < kAll) add();
  (void)busy();
  const double many = least(busy, 4 * few + 0.02);
  EXPECT_LT(many, 4 * few + 0.02);
  EXPECT_LT(least(idle, 0.05), 0.05);
  RecordProperty("few_ns", static_cast<int>(few * 1e9 / kRounds));
  RecordProperty("many_ns", static_cast<int>(many * 1e9 / kRounds));
}

TEST(Contract, DescriptorsAreNumberedAsEver) {
  const Pair pair;
  const UniqueFd next(::open("/dev/null", O_RDONLY));
  const UniqueFd after(::open("/dev/null", O_RDONLY));
  EXPECT_LT(pair.server.get(), 12);
  EXPECT_LT(after.get(), 12);
}

}  // namespace
}  // namespace farcall::preload
