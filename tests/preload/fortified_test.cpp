// SPDX-License-Identifier: Apache-2.0
//
// The calls that a compiler puts in the place of others where it knows how much room there is.
// These tests run as those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "children.hpp"
#include "stream_pair.hpp"

extern "C" {
ssize_t __read_chk(int fd, void* buffer, std::size_t size, std::size_t room);
ssize_t __recv_chk(int fd, void* buffer, std::size_t size, std::size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void* buffer, std::size_t size, std::size_t room, int flags,
                       sockaddr* from, socklen_t* from_size);
int __poll_chk(pollfd* fds, nfds_t count, int timeout, std::size_t room);
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                std::size_t room);
}

namespace farcall::preload {
namespace {

TEST(Fortified, CallsUseAllTheRoomThereIs) {
  const Pair pair;
  const int fd = pair.server.get();
  char bytes[4];
  for (int i = 0; i < 3; ++i) {
    pair.put("1234");
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(__poll_chk(&wait, 1, 0, sizeof wait), 1);
    const timespec none{};
    EXPECT_EQ(__ppoll_chk(&wait, 1, &none, nullptr, sizeof wait), 1);
    EXPECT_EQ(__read_chk(fd, bytes, 4, 4), 4);
    pair.put("1234");
    EXPECT_EQ(__recv_chk(fd, bytes, 4, 4, 0), 4);
    pair.put("1234");
    EXPECT_EQ(__recvfrom_chk(fd, bytes, 4, 4, 0, nullptr, nullptr), 4);
  }
}

TEST(Fortified, CallsForMoreThanThereIsRoomForEndTheProgram) {
  const Pair pair;
  const int fd = pair.server.get();
  pair.put("1234");
  char bytes[8];
  pollfd waits[2] = {{.fd = fd, .events = POLLIN, .revents = 0},
                     {.fd = -1, .events = 0, .revents = 0}};
  const timespec none{};
  const std::function<void()> ways[] = {
      [&] { (void)__read_chk(fd, bytes, 5, 4); },
      [&] { (void)__recv_chk(fd, bytes, 5, 4, 0); },
      [&] { (void)__recvfrom_chk(fd, bytes, 5, 4, 0, nullptr, nullptr); },
      [&] { (void)__poll_chk(waits, 2, 0, sizeof(pollfd)); },
      [&] { (void)__ppoll_chk(waits, 2, &none, nullptr, sizeof(pollfd)); },
  };
  for (const auto& way : ways) {
    const pid_t child = in_child([&] {
      ::prctl(PR_SET_DUMPABLE, 0);
      ::close(STDERR_FILENO);  // the C library says so there
      way();
    });
    EXPECT_EQ(exit_status(child), 1000 + SIGABRT) << &way - ways;
  }
  EXPECT_EQ(receive(fd), "1234");
}

}  // namespace
}  // namespace farcall::preload
