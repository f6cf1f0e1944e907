// SPDX-License-Identifier: Apache-2.0
//
// What makes a stream the kernel's whose bytes have gone through memory until then.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "connected.hpp"
#include "farcall/memory.hpp"
#include "preload/options.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

struct Way {
  const char* name;
  void (*go)(int fd);
};

// Whether or not this kind of socket has the option.
void set(int fd, int level, int option, int value) {
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

void filter(int fd) {
  sock_filter all{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0xffff};
  const sock_fprog program{.len = 1, .filter = &all};
  (void)::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

constexpr int kTimesOfReceipt = 1 << 3 | 1 << 4;  // by software

void become_standard(int stream, int fd) {
  const UniqueFd kept(::dup(stream));
  EXPECT_EQ(::dup2(fd, stream), stream);
  EXPECT_EQ(::dup2(kept.get(), stream), stream);
}

const Way kWays[] = {
    {"peeking_on", [](int fd) { set(fd, SOL_SOCKET, SO_PEEK_OFF, 0); }},
    {"low_water_mark", [](int fd) { set(fd, SOL_SOCKET, SO_RCVLOWAT, 2); }},
    {"overflows", [](int fd) { set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1); }},
    {"time", [](int fd) { set(fd, SOL_SOCKET, SO_TIMESTAMP, 1); }},
    {"time_of_any_size", [](int fd) { set(fd, SOL_SOCKET, SO_TIMESTAMP_NEW, 1); }},
    {"nanoseconds", [](int fd) { set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1); }},
    {"nanoseconds_of_any_size", [](int fd) { set(fd, SOL_SOCKET, SO_TIMESTAMPNS_NEW, 1); }},
    {"times", [](int fd) { set(fd, SOL_SOCKET, SO_TIMESTAMPING, kTimesOfReceipt); }},
    {"times_of_any_size",
     [](int fd) { set(fd, SOL_SOCKET, SO_TIMESTAMPING_NEW, kTimesOfReceipt); }},
    {"credentials", [](int fd) { set(fd, SOL_SOCKET, SO_PASSCRED, 1); }},
    {"labels", [](int fd) { set(fd, SOL_SOCKET, SO_PASSSEC, 1); }},
    {"processes", [](int fd) { set(fd, SOL_SOCKET, SO_PASSPIDFD, 1); }},
    {"no_copies", [](int fd) { set(fd, SOL_SOCKET, SO_ZEROCOPY, 1); }},
    {"what_is_left", [](int fd) { set(fd, IPPROTO_TCP, TCP_INQ, 1); }},
    {"pace", [](int fd) { set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 30); }},
    {"filter", filter},
    {"program", [](int fd) { set(fd, SOL_SOCKET, SO_ATTACH_BPF, -1); }},
    {"repair",
     [](int fd) {
       set(fd, IPPROTO_TCP, TCP_REPAIR, 1);
       set(fd, IPPROTO_TCP, TCP_REPAIR, 0);
     }},
    {"asynchronous",
     [](int fd) { EXPECT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC), 0); }},
    {"asynchronous_by_ioctl",
     [](int fd) {
       int on = 1;
       EXPECT_EQ(::ioctl(fd, FIOASYNC, &on), 0);
     }},
    {"standard_output", [](int fd) { become_standard(STDOUT_FILENO, fd); }},
    {"standard_error", [](int fd) { become_standard(STDERR_FILENO, fd); }},
};

class ToKernel : public ::testing::TestWithParam<Way> {};

TEST_P(ToKernel, GoesWhatIsSentFromThenOn) {
  const UsedPair pair;
  GetParam().go(pair.server.get());
  pair.put("by the kernel");
  EXPECT_TRUE(readable_for_kernel(pair.server.get()));
  EXPECT_EQ(receive(pair.server.get()), "by the kernel");
}

INSTANTIATE_TEST_SUITE_P(Ways, ToKernel, ::testing::ValuesIn(kWays),
                         [](const auto& tested) { return tested.param.name; });

// The other end is told by a byte that is not the program's, as it has to send "unread" once more.
void leave_with_something_unread(const UsedPair& pair) {
  pair.put("unread");
  set(pair.server.get(), SOL_SOCKET, SO_RCVLOWAT, 2);
}

TEST(ToKernelNews, IsNoneForPoll) {
  const UsedPair pair;
  leave_with_something_unread(pair);
  pollfd wait{.fd = pair.client.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
  EXPECT_EQ(::poll(&wait, 1, 1), 0);
  EXPECT_EQ(receive(pair.server.get()), "unread");
}

TEST(ToKernelNews, IsNoneForSelect) {
  const UsedPair pair;
  leave_with_something_unread(pair);
  fd_set wanted;
  FD_ZERO(&wanted);
  FD_SET(pair.client.get(), &wanted);
  timeval soon{.tv_sec = 0, .tv_usec = 1000};
  EXPECT_EQ(::select(pair.client.get() + 1, &wanted, nullptr, nullptr, &soon), 0);
  EXPECT_EQ(receive(pair.server.get()), "unread");
}

TEST(ToKernelNews, IsNoneForEpoll) {
  const UsedPair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.fd = pair.client.get()}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.client.get(), &event), 0);
  leave_with_something_unread(pair);
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 0), 0);
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 1), 0);
  EXPECT_EQ(receive(pair.server.get()), "unread");
}

TEST(ToKernelNews, WakesNobodyWhoSleeps) {
  for (const bool by_select : {false, true}) {
    const UsedPair pair;
    const int client = pair.client.get();
    std::thread waits([&] {
      fd_set wanted;
      FD_ZERO(&wanted);
      FD_SET(client, &wanted);
      pollfd wait{.fd = client, .events = POLLIN, .revents = 0};
      EXPECT_EQ(by_select ? ::select(client + 1, &wanted, nullptr, nullptr, nullptr)
                          : ::poll(&wait, 1, -1),
                1);
      EXPECT_TRUE(!by_select || FD_ISSET(client, &wanted));
      char byte = 0;
      EXPECT_EQ(::recv(client, &byte, 1, MSG_DONTWAIT), 1);
    });
    ::usleep(20'000);  // it sleeps, most of the time
    leave_with_something_unread(pair);
    ::usleep(20'000);
    EXPECT_EQ(::send(pair.server.get(), "x", 1, MSG_NOSIGNAL), 1);
    waits.join();
    EXPECT_EQ(receive(pair.server.get()), "unread");
  }
}

// The number that a thread waits for is another file's by the time that the peer leaves.
TEST(ToKernelNews, AreTakenOutOfNothingElse) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd told(ends[0]);
  const UniqueFd tell(ends[1]);
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd got(ends[0]);
  const UniqueFd get(ends[1]);
  constexpr int kUntilMemoryIsUsed = 800;
  const Connected connected = with_child([&](int peer) {
    char bytes[16];
    for (int i = 0; i < kUntilMemoryIsUsed; ++i) {
      require(::recv(peer, bytes, 1, 0) == 1, "recv");
      require(::write(get.get(), "", 1) == 1, "write");
    }
    require(::read(told.get(), bytes, 1) == 1, "read");
    set(peer, SOL_SOCKET, SO_RCVLOWAT, 2);
    require(::recv(peer, bytes, sizeof bytes, 0) == 6, "receive what was unread");
  });
  const int number = connected.fd.get();
  const UniqueFd kept(::dup(number));
  std::thread waits([&] {
    pollfd wait{.fd = number, .events = POLLIN, .revents = 0};
    (void)::poll(&wait, 1, 300);
  });
  ::usleep(50'000);  // it sleeps, most of the time
  int other[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, other), 0);
  const UniqueFd one(other[0]);
  const UniqueFd end(other[1]);
  ::close(number);
  ASSERT_EQ(::dup2(one.get(), number), number);
  ASSERT_EQ(::send(end.get(), "datagram", 8, 0), 8);
  char byte = 0;
  for (int i = 0; i < kUntilMemoryIsUsed; ++i) {
    ASSERT_EQ(::send(kept.get(), "x", 1, MSG_NOSIGNAL), 1);
    ASSERT_EQ(::read(got.get(), &byte, 1), 1);
  }
  ASSERT_EQ(::send(kept.get(), "unread", 6, MSG_NOSIGNAL), 6);
  ASSERT_EQ(::write(tell.get(), "", 1), 1);
  waits.join();
  EXPECT_EQ(receive(number), "datagram");
  EXPECT_EQ(connected.child->wait(), 0);
}

// All is there before: other threads read and write the number all the time.
TEST(ToKernelBefore, TheConnectionIsWhereAFileWas) {
  const UsedPair pair;
  const UniqueFd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  pair.put("unread");
  std::thread puts([&] { EXPECT_EQ(::dup2(pair.server.get(), file.get()), file.get()); });
  struct stat status {};
  for (int looks = 0; looks < 1'000'000 && !S_ISSOCK(status.st_mode); ++looks) {
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    std::this_thread::yield();
  }
  EXPECT_TRUE(readable_for_kernel(file.get()));
  puts.join();
  EXPECT_EQ(receive(file.get()), "unread");
}

// --- what the library has not seen

// Options that were there before the connection was, or were set past the library.
struct Unseen {
  const char* name;
  int level, option, value;
};

constexpr Unseen kUnseen[] = {
    {"peeking_on", SOL_SOCKET, SO_PEEK_OFF, 0},
    {"low_water_mark", SOL_SOCKET, SO_RCVLOWAT, 2},
    {"time", SOL_SOCKET, SO_TIMESTAMP, 1},
    {"nanoseconds", SOL_SOCKET, SO_TIMESTAMPNS, 1},
    {"times", SOL_SOCKET, SO_TIMESTAMPING, kTimesOfReceipt},
    {"labels", SOL_SOCKET, SO_PASSSEC, 1},
    {"processes", SOL_SOCKET, SO_PASSPIDFD, 1},
    {"credentials", SOL_SOCKET, SO_PASSCRED, 1},
    {"no_copies", SOL_SOCKET, SO_ZEROCOPY, 1},
    {"what_is_left", IPPROTO_TCP, TCP_INQ, 1},
    {"pace", SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 30},
};

// The accepting end may have made memory; the other does not take it.
void expect_to_stay_with_the_kernel(const Pair& pair, int before) {
  pair.talk(40);
  EXPECT_LT(stream_mappings(), before + 2);
  pair.put("by the kernel");
  EXPECT_TRUE(readable_for_kernel(pair.server.get()));
  EXPECT_EQ(receive(pair.server.get()), "by the kernel");
}

// Whether this kind of socket has the option, and makes something of it.
bool has(int fd, const Unseen& one) {
  if (one.level == IPPROTO_TCP || one.option == SO_ZEROCOPY || one.option == SO_MAX_PACING_RATE)
    return !over_unix();
  if (one.option == SO_PASSCRED || one.option == SO_PASSSEC || one.option == SO_PASSPIDFD)
    return over_unix();
  if (one.option == SO_TIMESTAMP || one.option == SO_TIMESTAMPNS || one.option == SO_TIMESTAMPING)
    return !over_unix() || over_packets();
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, one.level, one.option, &value, &size) == 0;
}

TEST(ToKernelUnseen, OptionsKeepAConnectionThere) {
  for (const Unseen& one : kUnseen) {
    SCOPED_TRACE(one.name);
    const int before = stream_mappings();
    const Pair pair(false);
    const int fd = pair.server.get();
    if (!has(fd, one)) continue;
    ASSERT_EQ(kernel(SYS_setsockopt, fd, one.level, one.option, &one.value, sizeof one.value), 0);
    expect_to_stay_with_the_kernel(pair, before);
  }
}

TEST(ToKernelUnseen, SignalsForWhatComesKeepAConnectionThere) {
  const int before = stream_mappings();
  const Pair pair(false);
  const int fd = pair.server.get();
  ASSERT_EQ(kernel(SYS_fcntl, fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC), 0);
  expect_to_stay_with_the_kernel(pair, before);
}

TEST(ToKernelUnseen, AFilterKeepsPacketsThere) {
  if (!over_packets()) return;  // bytes pass it, or cannot have one
  const int before = stream_mappings();
  const Pair pair(false);
  sock_filter all{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0xffff};
  const sock_fprog program{.len = 1, .filter = &all};
  ASSERT_EQ(kernel(SYS_setsockopt, pair.server.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program,
                   sizeof program),
            0);
  expect_to_stay_with_the_kernel(pair, before);
}

// Where an end has sent or received past the library nobody knows which bytes are in the kernel.
TEST(ToKernelUnseen, BytesKeepAConnectionThere) {
  for (const bool is_sent : {true, false})
    for (const bool by_client : {true, false}) {
      SCOPED_TRACE(std::string(is_sent ? "sent" : "received") +
                   (by_client ? " by the client" : ""));
      const int before = stream_mappings();
      const Pair pair(false);
      const int here = by_client ? pair.client.get() : pair.server.get();
      const int there = by_client ? pair.server.get() : pair.client.get();
      char byte = 'x';
      if (is_sent) {
        ASSERT_EQ(kernel(SYS_sendto, here, &byte, 1, 0, nullptr, 0), 1);
        EXPECT_EQ(receive(there), "x");
      } else {
        EXPECT_EQ(send(there, "x"), "1");
        ASSERT_EQ(kernel(SYS_recvfrom, here, &byte, 1, 0, nullptr, nullptr), 1);
      }
      expect_to_stay_with_the_kernel(pair, before);
    }
}

}  // namespace
}  // namespace farcall::preload
