// SPDX-License-Identifier: Apache-2.0
//
// What UDP sockets over loopback do where programs are unusual: waits that the library does not
// see, senders of different kinds at one receiver, addresses and sizes that are seldom.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

#include "children.hpp"
#include "datagrams.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

TEST(DatagramCorners, ThatAreSentInPartsComeAsOne) {
  const Awake two;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(::send(two.near.fd.get(), "abc", 3, MSG_MORE), 3);
    two.near.send("defgh");
    EXPECT_EQ(two.far.receive(), "abcdefgh");
    two.near.send("whole");
    EXPECT_EQ(two.far.receive(), "whole");
  }
}

TEST(DatagramCorners, HaveTheTimeAtWhichTheyCame) {
  const Awake two;
  const int fd = two.far.fd.get();
  timeval came{};
  (void)::ioctl(fd, SIOCGSTAMP, &came);
  for (int i = 0; i < 10; ++i) {
    timeval before{};
    ::gettimeofday(&before, nullptr);
    two.near.send("x");
    EXPECT_EQ(poll_once(fd, 1000), POLLIN);
    EXPECT_EQ(two.far.receive(), "x");
    ASSERT_EQ(::ioctl(fd, SIOCGSTAMP, &came), 0);
    EXPECT_FALSE(timercmp(&came, &before, <));
  }
}

TEST(DatagramCorners, OfASocketThatIsClosedAsAStreamAreForgotten) {
  FILE* const stream = ::fdopen(::socket(AF_INET, SOCK_DGRAM, 0), "w");
  ASSERT_NE(stream, nullptr);
  const int number = ::fileno(stream);
  ::fclose(stream);
  const UniqueFd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(file.get(), number);
  char byte = 0;
  EXPECT_EQ(::read(file.get(), &byte, 1), 1);
}

TEST(DatagramCorners, AreNotReceivedWithATimeoutThatCannotBe) {
  const Awake two;
  two.near.send("x");
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  mmsghdr message{};
  message.msg_hdr.msg_iov = &part;
  message.msg_hdr.msg_iovlen = 1;
  for (timespec bad : {timespec{.tv_sec = -1, .tv_nsec = 0}, timespec{.tv_sec = 0, .tv_nsec = -1},
                       timespec{.tv_sec = 0, .tv_nsec = 1'000'000'000}}) {
    EXPECT_EQ(::recvmmsg(two.far.fd.get(), &message, 1, 0, &bad), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  timespec good{.tv_sec = 5, .tv_nsec = 0};
  EXPECT_EQ(::recvmmsg(two.far.fd.get(), &message, 1, 0, &good), 1);
  EXPECT_LE(good.tv_sec, 5);
}

TEST(DatagramCorners, OfASenderWithoutMemoryComeBesideABusyOne) {
  const Awake two;
  const Stranger stranger;
  for (int i = 0; i < 10; ++i) two.near.send("a");
  stranger.send_to(two.far, "P");
  bool came = false;
  for (int i = 0; i < 2000 && !came; ++i) {
    two.near.send("a");
    came = two.far.receive() == "P";
    // It goes on by memory as soon as the other has had its turn.
    (void)poll_once(two.far.fd.get(), 1000);
  }
  EXPECT_TRUE(came);
}

// One of them is lost in the kernel, whose queue is never empty; the next one is in memory, and is
// not kept back for ever. Without memory it is lost, too.
TEST(DatagramCorners, ComeBesideBusySendersWithoutMemory) {
  const Awake two;
  const Stranger stranger;
  const int least = 1;
  ASSERT_EQ(::setsockopt(two.far.fd.get(), SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
  for (int i = 0; i < 100; ++i) stranger.send_to(two.far, "P");
  two.send_by_kernel("lost");
  two.near.send("first");
  bool came = false;
  for (int i = 0; i < 2000 && !came; ++i) {
    came = two.far.receive() == "first";
    for (int k = 0; k < 2; ++k) stranger.send_to(two.far, "P");
  }
  EXPECT_EQ(came, preloaded());
}

TEST(DatagramCorners, AreInMemoryForASocketThatJavaMade) {
  const Socket one;
  const Socket other;
  for (const Socket* socket : {&one, &other}) {
    const int off = 0;
    ASSERT_EQ(::setsockopt(socket->fd.get(), IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off), 0);
  }
  one.connect_to(other);
  other.connect_to(one);
  const int before = shared_mappings();
  for (int i = 0; i < 40; ++i) {
    one.send("ping");
    EXPECT_EQ(other.receive(), "ping");
    other.send("pong");
    EXPECT_EQ(one.receive(), "pong");
  }
  if (preloaded()) {
    EXPECT_EQ(shared_mappings(), before + 4);
  }
}

TEST(DatagramCorners, ThatCameBeforeAConnectAreReadAfterIt) {
  const Awake two;
  two.near.send("x");
  two.near.send("y");
  two.far.connect_to(two.near);
  two.near.send("z");
  EXPECT_EQ(two.far.receive(), "x");
  EXPECT_EQ(two.far.receive(), "y");
  EXPECT_EQ(two.far.receive(), "z");
}

TEST(DatagramCorners, AreToldByTheKernelToWhoFoundNone) {
  const Two two;
  const int fd = two.far.fd.get();
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 8; ++k) ASSERT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
    two.near.send("x");
    ASSERT_TRUE(readable_for_kernel(fd)) << i;
    ASSERT_EQ(two.far.receive(MSG_DONTWAIT), "x");
  }
}

TEST(DatagramCorners, AreToldByTheKernelToWhoNeverWaitedHere) {
  const Two two;
  pollfd wait{.fd = two.far.fd.get(), .events = POLLIN, .revents = 0};
  for (int i = 0; i < 100; ++i) {
    std::thread sending([&] { two.near.send("x"); });
    timespec limit{.tv_sec = 20, .tv_nsec = 0};
    EXPECT_EQ(kernel(SYS_ppoll, &wait, 1, &limit, nullptr, 8), 1) << i;
    EXPECT_EQ(two.far.receive(), "x");
    sending.join();
  }
}

TEST(DatagramCorners, OfManyWhoCameAndWentLeaveNothing) {
  const Socket server;
  const auto count_fds = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  std::ptrdiff_t fds = 0;
  int most = 0;
  for (int i = 0; i < 50; ++i) {
    const Socket client;
    sockaddr_storage name = client.name;
    client.connect_to(server);
    for (int k = 0; k < 30; ++k) {
      client.send("ping");
      ASSERT_EQ(server.receive(), "ping");
      ASSERT_EQ(
          ::sendto(server.fd.get(), "pong", 4, 0, reinterpret_cast<sockaddr*>(&name), client.size),
          4);
      ASSERT_EQ(client.receive(), "pong");
    }
    if (preloaded()) {
      EXPECT_GE(shared_mappings(), 4) << "not accelerated";
    }
    most = std::max(most, shared_mappings());
    if (i == 5) fds = count_fds();
  }
  EXPECT_LE(most, 8);
  EXPECT_LE(count_fds(), fds);
}

TEST(DatagramCorners, ToManyRemoteAddressesCostNoQuestions) {
  const int status = outcome_in_child([] {
    const Socket server("0.0.0.0");
    const auto send_all = [&] {
      for (int i = 0; i < 100; ++i) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(9);
        to.sin_addr.s_addr = htonl(0x0a090800 + static_cast<std::uint32_t>(i) + 1);
        (void)::sendto(server.fd.get(), "x", 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to),
                       sizeof to);
      }
    };
    for (int i = 0; i < 3; ++i) send_all();
    // From now on whoever makes a socket dies.
    sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{.len = std::size(steps), .filter = steps};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      return false;
    for (int i = 0; i < 3; ++i) send_all();
    return true;
  });
  EXPECT_EQ(status, 0);
}

TEST(DatagramCorners, AreNotSentToAddressesOfTheOtherVersion) {
  const Awake two;
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = reinterpret_cast<const sockaddr_in*>(&two.far.name)->sin_port;
  ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
  EXPECT_EQ(
      ::sendto(two.near.fd.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&mapped), sizeof mapped),
      -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
}

// Bound to all addresses, and sent to one that is not the first of this machine.
TEST(DatagramCorners, KeepTheirAddressesWhereSocketsAreBoundToAll) {
  const Socket server("0.0.0.0");
  const Socket client("0.0.0.0");
  sockaddr_in to = *reinterpret_cast<const sockaddr_in*>(&server.name);
  ::inet_pton(AF_INET, "127.0.0.5", &to.sin_addr);
  const auto exchange = [](const Socket& from, const sockaddr_in& where, const Socket& at) {
    EXPECT_EQ(
        ::sendto(from.fd.get(), "x", 1, 0, reinterpret_cast<const sockaddr*>(&where), sizeof where),
        1);
    sockaddr_in told{};
    socklen_t size = sizeof told;
    char byte = 0;
    EXPECT_EQ(::recvfrom(at.fd.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&told), &size), 1);
    return told;
  };
  const sockaddr_in first = exchange(client, to, server);
  const sockaddr_in first_back = exchange(server, first, client);
  const int before = shared_mappings();
  for (int i = 0; i < 60; ++i) {
    const sockaddr_in from = exchange(client, to, server);
    EXPECT_EQ(std::memcmp(&from, &first, sizeof from), 0) << i;
    const sockaddr_in back = exchange(server, from, client);
    EXPECT_EQ(std::memcmp(&back, &first_back, sizeof back), 0) << i;
  }
  if (preloaded()) {
    EXPECT_GT(shared_mappings(), before) << "not accelerated";
  }
}

TEST(DatagramCorners, HaveTheirSizes) {
  const Awake two;
  two.near.send("");
  two.near.send("0123456789");
  two.near.send("last");
  EXPECT_EQ(two.far.receive(), "");
  char bytes[4];
  EXPECT_EQ(::recv(two.far.fd.get(), bytes, sizeof bytes, MSG_PEEK | MSG_TRUNC), 10);
  EXPECT_EQ(::recv(two.far.fd.get(), bytes, sizeof bytes, MSG_PEEK), 4);
  iovec part{.iov_base = bytes, .iov_len = sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::recvmsg(two.far.fd.get(), &message, 0), 4);
  EXPECT_EQ(message.msg_flags, MSG_TRUNC);
  // Nothing is out of band with datagrams.
  EXPECT_EQ(two.far.receive(MSG_OOB | MSG_DONTWAIT), "last");
}

}  // namespace
}  // namespace farcall::preload
