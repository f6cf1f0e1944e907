// SPDX-License-Identifier: Apache-2.0
//
// Sockets whose buffers the program has made small, so that the kernel takes less than stands in
// memory: whoever leaves or closes loses nothing all the same, and finds its options as they were.
// The tests run as those of leaving_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "connected.hpp"
#include "farcall/memory.hpp"
#include "preload/options.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

constexpr int kRooms[] = {4096, 32'768, 65'536};

void make_small(int fd, int option, int room) {
  require(::setsockopt(fd, SOL_SOCKET, option, &room, sizeof room) == 0, "SO_SNDBUF or SO_RCVBUF");
}

int number_of(int fd, int option) {
  int number = -1;
  socklen_t size = sizeof number;
  (void)::getsockopt(fd, SOL_SOCKET, option, &number, &size);
  return number;
}

struct Rooms {
  int send, receive, locks;
  explicit Rooms(int fd)
      : send(number_of(fd, SO_SNDBUF)),
        receive(number_of(fd, SO_RCVBUF)),
        locks(number_of(fd, SO_BUF_LOCK)) {}
  bool operator==(const Rooms&) const = default;
};

// Whether others find the connection as the program has made it.
void expect_rooms(int fd, const Rooms& before) {
  const Rooms now(fd);
  EXPECT_EQ(now.send, before.send);
  EXPECT_EQ(now.receive, before.receive);
  EXPECT_EQ(now.locks, before.locks);
}

// What the kernel and the memory take without waiting.
std::size_t send_what_fits(int fd) {
  constexpr std::size_t kMost = 64 << 20;
  std::size_t sent = 0;
  for (int refused = 0; refused < 20 && sent < kMost;) {
    const std::string text = bytes_at(sent, 16'384);
    const ssize_t part = ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    require(part > 0 || errno == EAGAIN, "send what fits");
    if (part > 0)
      sent += static_cast<std::size_t>(part);
    else
      ++refused, ::usleep(2000);
  }
  return sent;
}

// The unread, for who runs without the library.
void leave_everything_to_the_kernel() { EXPECT_EQ(::system("true"), 0); }

void expect_end(int fd) {
  char byte;
  EXPECT_EQ(::recv(fd, &byte, 1, 0), 0) << std::strerror(errno);
}

class SmallRooms : public ::testing::TestWithParam<int> {};

TEST_P(SmallRooms, WhoLeavesABlockedWriterGetsAllOfIt) {
  constexpr std::size_t kAll = 1 << 20;
  const Connected connected = with_child([](int peer) {
    make_small(peer, SO_SNDBUF, GetParam());
    const Rooms before(peer);
    send_stream(peer, 0, kAll, kAll);
    require(Rooms(peer) == before, "the options are others");
  });
  make_small(connected.fd.get(), SO_RCVBUF, std::max(GetParam(), 32'768));
  const Rooms before(connected.fd.get());
  const std::size_t done = expect_stream(connected.fd.get(), 0, 10);
  ::usleep(50'000);
  leave_everything_to_the_kernel();
  expect_rooms(connected.fd.get(), before);
  EXPECT_EQ(expect_stream(connected.fd.get(), done, kAll), kAll);
  expect_end(connected.fd.get());
  EXPECT_EQ(connected.child->wait(), 0);
}

// How the writer ends, with all full.
const struct {
  const char* name;
  void (*go)(int fd);
} kEnds[] = {
    {"close", [](int fd) { ::close(fd); }},
    {"shutdown", [](int fd) { ::shutdown(fd, SHUT_WR); }},
    {"exit", [](int) { std::exit(0); }},
    {"stop", [](int) { ::raise(SIGSTOP); }},
};

TEST_P(SmallRooms, WhoReadsAfterTheWritersEndGetsAllOfIt) {
  const Mapping memory = Mapping::anonymous_shared(4096);
  auto& sent = *new (memory.data()) std::atomic<std::size_t>(0);
  for (const auto& end : kEnds) {
    SCOPED_TRACE(end.name);
    sent = 0;
    const Connected connected = with_child([&](int peer) {
      make_small(peer, SO_SNDBUF, GetParam());
      sent = send_what_fits(peer);
      end.go(peer);
      const timespec longer{.tv_sec = 50, .tv_nsec = 0};
      kernel(SYS_nanosleep, &longer, nullptr);
    });
    while (sent == 0) ::usleep(1000);
    ::usleep(50'000);
    leave_everything_to_the_kernel();
    EXPECT_EQ(expect_stream(connected.fd.get(), 0, sent), sent);
    if (end.go != kEnds[3].go) expect_end(connected.fd.get());
  }
}

INSTANTIATE_TEST_SUITE_P(Rooms, SmallRooms, ::testing::ValuesIn(kRooms));

// It needs no room, and is not behind what waits for some.
TEST(FullRooms, ASendOfNoBytesDoesNotWait) {
  const Connected connected = with_child([](int) {
    const timespec longer{.tv_sec = 50, .tv_nsec = 0};
    kernel(SYS_nanosleep, &longer, nullptr);
  });
  const int fd = connected.fd.get();
  make_small(fd, SO_SNDBUF, 32'768);
  EXPECT_GT(send_what_fits(fd), 0U);
  EXPECT_EQ(send(fd, "", MSG_DONTWAIT | MSG_NOSIGNAL), "0");
  EXPECT_EQ(::write(fd, "", 0), 0) << std::strerror(errno);
}

// What the kernel finds out by itself it goes on finding out.
TEST(Rooms, ThatNobodyHasSetStayTheKernelsToChoose) {
  const Connected connected = with_child([](int peer) {
    const Rooms before(peer);
    (void)send_what_fits(peer);
    ::shutdown(peer, SHUT_WR);
    require(Rooms(peer).locks == before.locks, "the room is fixed");
  });
  const Rooms before(connected.fd.get());
  EXPECT_EQ(connected.child->wait(), 0);
  leave_everything_to_the_kernel();
  expect_rooms(connected.fd.get(), before);
}

}  // namespace
}  // namespace farcall::preload
