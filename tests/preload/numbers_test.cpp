// SPDX-License-Identifier: Apache-2.0
//
// Which number is whose: descriptors of the library among those of the program, and numbers that
// become others. These tests run as those of contract_test.cpp do.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "calls.hpp"
#include "children.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

std::vector<int> open_numbers() {
  std::vector<int> numbers;
  DIR* const all = ::opendir("/proc/self/fd");
  while (const dirent* const one = ::readdir(all))
    if (*one->d_name != '.') numbers.push_back(std::atoi(one->d_name));
  const int own = ::dirfd(all);
  std::erase(numbers, own);
  ::closedir(all);
  std::ranges::sort(numbers);
  return numbers;
}

// A connection that looks for its peer, for which the library has descriptors of its own.
struct Looking : Pair {
  Looking() : Pair(false), before(open_numbers()) {
    mappings = stream_mappings();
    talk(3);
    std::ranges::set_difference(open_numbers(), before, std::back_inserter(own));
    EXPECT_EQ(own.empty(), !preloaded());
  }
  void expect_to_be_accelerated() const {
    talk(40);
    EXPECT_EQ(stream_mappings() - mappings, preloaded() ? 2 : 0);
  }
  std::vector<int> before;
  std::vector<int> own;  // of the library
  int mappings;
};

TEST(Numbers, OfTheLibraryAreNotTheProgramsToClose) {
  const Looking pair;
  for (int fd = 500; fd < 1100; ++fd) {
    if (std::ranges::binary_search(pair.before, fd)) continue;
    EXPECT_EQ(::close(fd), -1) << fd;
    EXPECT_EQ(errno, EBADF);
  }
  pair.expect_to_be_accelerated();
}

// What stands there from then on stays when the library needs its own no more.
TEST(Numbers, OfTheLibraryAreTheProgramsOnceItPutsAFileThere) {
  const Looking pair;
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  struct stat wanted {};
  ASSERT_EQ(::fstat(file.get(), &wanted), 0);
  for (const int fd : pair.own) ASSERT_EQ(::dup2(file.get(), fd), fd);
  pair.talk(40);
  for (const int fd : pair.own) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd, &status), 0) << errno_name();
    EXPECT_EQ(status.st_ino, wanted.st_ino);
    EXPECT_EQ(::close(fd), 0) << errno_name();
  }
}

TEST(Numbers, ThatAreMarkedForClosingStayOpen) {
  const Pair pair;
  const int fd = pair.server.get();
  ASSERT_EQ(::fcntl(fd, F_SETFD, 0), 0);
  ASSERT_EQ(
      ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), CLOSE_RANGE_CLOEXEC), 0);
  EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  pair.talk(5);
}

// Whatever stands there next is the program's, also where the library has not seen it come.
TEST(Numbers, OfARangeAreClosedUpToTheLast) {
  UsedPair pair;
  pair.put("unread");
  const int fd = pair.client.release();
  ASSERT_EQ(::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0), 0);
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  const int file = ::memfd_create("file", MFD_CLOEXEC);
  if (file != fd) {
    ASSERT_EQ(kernel(SYS_dup3, file, fd, O_CLOEXEC), fd);
    ::close(file);
  }
  const UniqueFd same(fd);
  EXPECT_EQ(::write(fd, "x", 1), 1) << errno_name();
  EXPECT_EQ(::lseek(fd, 0, SEEK_END), 1);
  EXPECT_EQ(receive(pair.server.get()), "unread");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

TEST(Numbers, FromOneOnAreClosedWithIt) {
  const UsedPair pair;
  pair.put("unread");
  const pid_t child = in_child([&] {
    const int first = pair.server.get();
    ::closefrom(first);
    EXPECT_EQ(::fcntl(first, F_GETFD), -1);
    EXPECT_EQ(errno, EBADF);
  });
  EXPECT_EQ(exit_status(child), 0);
  // Those of the child were copies.
  EXPECT_EQ(receive(pair.server.get()), "unread");
}

TEST(Numbers, ThatAreNoneCannotBeDuplicatedOntoThemselves) {
  const Pair pair;
  const int fd = pair.client.get();
  EXPECT_EQ(::dup2(fd, fd), fd);
  UniqueFd copy(::dup(fd));
  const int number = copy.get();
  copy.reset();
  EXPECT_EQ(::dup2(number, number), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::dup3(fd, fd, 0), -1);
  EXPECT_EQ(errno, EINVAL);
}

// Neither of a file that is not open, nor behind a limit that has been lowered.
TEST(Numbers, OntoWhichNothingCanBeDuplicatedKeepWhatTheyHave) {
  const UsedPair pair;
  const int fd = pair.server.get();
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  UniqueFd none(::dup(file.get()));
  const int closed = none.get();
  none.reset();
  pair.put("unread");
  EXPECT_EQ(::dup2(closed, fd), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::dup3(closed, fd, O_CLOEXEC), -1);
  EXPECT_EQ(errno, EBADF);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{.rlim_cur = static_cast<rlim_t>(fd), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(::dup2(file.get(), fd), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::dup3(file.get(), fd, O_CLOEXEC), -1);
  EXPECT_EQ(errno, EBADF);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_EQ(receive(fd, 64, MSG_DONTWAIT), "unread");
  pair.talk(5);
}

// Closed past the library, as the C library's own streams are.
TEST(Numbers, OfASetThatIsClosedUnseenAreThoseOfAnother) {
  const Pair pair;
  const int number = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 7}};
  ASSERT_EQ(::epoll_ctl(number, EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  for (int i = 0; i < 40; ++i) {
    pair.put("x");
    EXPECT_EQ(::epoll_wait(number, &event, 1, 10'000), 1);
    EXPECT_EQ(receive(pair.server.get()), "x");
  }
  pair.put("x");
  ASSERT_EQ(kernel(SYS_close, number), 0);
  const UniqueFd other(::epoll_create1(EPOLL_CLOEXEC));
  ASSERT_EQ(other.get(), number);
  EXPECT_EQ(::epoll_wait(other.get(), &event, 1, 0), 0) << "it was in another set";
  EXPECT_EQ(receive(pair.server.get()), "x");
}

TEST(TcpNumbers, AreAnotherConnectionsAfterADisconnect) {
  const UsedPair pair;
  const int fd = pair.client.get();
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  ASSERT_EQ(::connect(fd, &nobody, sizeof nobody), 0) << errno_name();
  EXPECT_EQ(receive(pair.server.get()), "(ECONNRESET)");
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  ASSERT_EQ(::connect(fd, address.get(), address.size), 0) << errno_name();
  const UniqueFd server = accept_from(listener);
  const int before = stream_mappings();
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(send(fd, "ping"), "4");
    EXPECT_EQ(receive(server.get()), "ping");
    EXPECT_EQ(send(server.get(), "pong"), "4");
    EXPECT_EQ(receive(fd), "pong");
  }
  EXPECT_EQ(stream_mappings() - before, preloaded() ? 2 : 0);
}

// Those that the library has while two datagram sockets talk.
std::vector<int> made_by_datagrams() {
  const UniqueFd near = udp_socket();
  const UniqueFd far = udp_socket();
  sockaddr_in name{};
  socklen_t size = sizeof name;
  EXPECT_EQ(::getsockname(far.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
  EXPECT_EQ(::connect(near.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
  const std::vector<int> before = open_numbers();
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(send(near.get(), "x"), "1");
    EXPECT_EQ(receive(far.get()), "x");
  }
  std::vector<int> own;
  std::ranges::set_difference(open_numbers(), before, std::back_inserter(own));
  EXPECT_EQ(own.empty(), !preloaded());
  return own;
}

// Where the limit was another one when the library asked for it.
TEST(DatagramNumbers, OfTheLibraryAreHighAlsoWhereTheLimitIsLowered) {
  (void)made_by_datagrams();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{.rlim_cur = 256, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  for (const int fd : made_by_datagrams()) EXPECT_GE(fd, 200);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// One that was closed unseen was in a set; who has its number next is in none.
TEST(Numbers, OfAPairAreInNoSet) {
  UsedPair pair;
  const int number = pair.server.release();
  ASSERT_EQ(kernel(SYS_close, number), 0);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_EQ(ends[0], number) << "the lowest that is free";
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(send(other.get(), "x"), "1");
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(pair.set.get(), &event, 1, 0), 0) << i;
    EXPECT_EQ(receive(one.get()), "x");
    EXPECT_EQ(send(one.get(), "y"), "1");
    EXPECT_EQ(receive(other.get()), "y");
  }
}

// The C library reads and writes standard streams unseen.
TEST(Numbers, OfStandardStreamsAreTheKernels) {
  const pid_t child = in_child([] {
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    ::close(STDIN_FILENO);
    const int before = stream_mappings();
    Pair pair(false);
    pair.client = connect_to(address);
    ASSERT_EQ(pair.client.get(), STDIN_FILENO);
    pair.server = accept_from(listener);
    pair.talk(40);
    EXPECT_LT(stream_mappings(), before + 2);
  });
  EXPECT_EQ(exit_status(child), 0);
}

// A datagram socket that was made unseen is not taken for a stream.
TEST(Numbers, OfOtherProtocolsNeedNoneOfTheLibrary) {
  const UniqueFd peer = udp_socket();
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(peer.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const UniqueFd fd(static_cast<int>(kernel(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  const std::vector<int> before = open_numbers();
  for (int i = 0; i < 6; ++i) ASSERT_EQ(send(fd.get(), "ping"), "4");
  EXPECT_EQ(open_numbers(), before);
  for (int i = 0; i < 6; ++i) {
    char text[8] = {};
    ASSERT_EQ(kernel(SYS_recvfrom, peer.get(), text, sizeof text, 0, nullptr, nullptr), 4);
  }
}

// Datagrams of another protocol have ports of their own.
TEST(DatagramNumbers, OfOtherProtocolsNeedNoneOfTheLibrary) {
  const UniqueFd receiver(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDPLITE));
  const UniqueFd sender(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDPLITE));
  if (receiver.get() < 0) return;  // later kernels have it no more
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(receiver.get(), generic, size), 0);
  ASSERT_EQ(::getsockname(receiver.get(), generic, &size), 0);
  ASSERT_EQ(::connect(sender.get(), generic, size), 0);
  const std::vector<int> before = open_numbers();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(send(sender.get(), "ping"), "4");
    ASSERT_EQ(receive(receiver.get()), "ping");
  }
  EXPECT_EQ(open_numbers(), before);
}

}  // namespace
}  // namespace farcall::preload
