// SPDX-License-Identifier: Apache-2.0
//
// What a TCP connection over loopback does, whoever carries its bytes: these tests run twice, as
// they are and with the library preloaded. In the second run they see to it that the connections
// are accelerated before the matter begins.
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
#include "stream_pair.hpp"

extern char** environ;

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

void set_nonblocking(int fd) {
  ASSERT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

short poll_once(int fd, short events, int timeout = 0) {
  pollfd wait{.fd = fd, .events = events, .revents = 0};
  EXPECT_GE(::poll(&wait, 1, timeout), 0);
  return wait.revents;
}

template <class Work>
int in_child(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    work();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

int exit_status(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

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

// --- signals

std::atomic<int> signals{0};
void on_signal(int) { ++signals; }

void handle(int flags) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = flags;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  signals = 0;
}

TEST(Contract, ASignalInterrupts) {
  const Pair pair;
  handle(0);
  const pthread_t self = ::pthread_self();
  std::thread later([&, waits = kernel(SYS_gettid)] {
    std::this_thread::sleep_for(50ms);
    await_sleep(waits);  // one that comes before interrupts nothing
    ::pthread_kill(self, SIGUSR1);
  });
  EXPECT_EQ(receive(pair.server.get()), "(EINTR)");
  later.join();
  EXPECT_EQ(signals, 1);
}

TEST(Contract, ASignalThatRestartsDoesNotInterrupt) {
  const Pair pair;
  handle(SA_RESTART);
  const pthread_t self = ::pthread_self();
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    ::pthread_kill(self, SIGUSR1);
    std::this_thread::sleep_for(50ms);
    pair.put("after");
  });
  EXPECT_EQ(receive(pair.server.get()), "after");
  later.join();
  EXPECT_EQ(signals, 1);
}

// Sends this thread a signal when it sleeps.
std::thread signal_sleeper() {
  return std::thread([self = ::pthread_self(), waits = kernel(SYS_gettid)] {
    std::this_thread::sleep_for(50ms);
    await_sleep(waits);
    ::pthread_kill(self, SIGUSR1);
  });
}

TEST(Contract, ASignalEndsAWaitForAllWithThePart) {
  const Pair pair;
  for (const int flags : {0, SA_RESTART}) {
    handle(flags);
    // With the part there already, and with one that comes while the call sleeps.
    pair.put("1234");
    std::thread later = signal_sleeper();
    EXPECT_EQ(receive(pair.server.get(), 6, MSG_WAITALL), "1234");
    later.join();
    std::thread both([&, self = ::pthread_self()] {
      std::this_thread::sleep_for(50ms);
      pair.put("56");
      std::this_thread::sleep_for(50ms);
      ::pthread_kill(self, SIGUSR1);
    });
    EXPECT_EQ(receive(pair.server.get(), 6, MSG_WAITALL), "56");
    both.join();
    EXPECT_EQ(signals, 2);
    pair.talk(3);
  }
}

TEST(Contract, ASignalEndsASendOfWhichAPartIsTaken) {
  const std::string all(32'000'000, 'a');
  for (const int flags : {0, SA_RESTART}) {
    const Pair pair;
    handle(flags);
    for (const bool scattered : {false, true}) {
      std::thread later = signal_sleeper();
      iovec parts[2] = {{.iov_base = const_cast<char*>(all.data()), .iov_len = 1000},
                        {.iov_base = const_cast<char*>(all.data()), .iov_len = all.size()}};
      const ssize_t sent = scattered ? ::writev(pair.client.get(), parts, 2)
                                     : ::write(pair.client.get(), all.data(), all.size());
      later.join();
      EXPECT_GT(sent, 0);
      EXPECT_LT(sent, static_cast<ssize_t>(all.size()));
      for (ssize_t left = sent; left > 0;) {
        const std::string part =
            receive(pair.server.get(), static_cast<std::size_t>(std::min<ssize_t>(left, 65536)));
        ASSERT_EQ(part[0], 'a') << part;
        left -= static_cast<ssize_t>(part.size());
      }
      EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
    }
    EXPECT_EQ(signals, 2);
  }
}

TEST(Contract, ASignalEndsSeveralMessagesWithThoseThatAreSent) {
  for (const int flags : {0, SA_RESTART}) {
    const Pair pair;
    handle(flags);
    std::string text(1000, 'm');
    iovec part{.iov_base = text.data(), .iov_len = text.size()};
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    std::vector<mmsghdr> messages(1000, message);
    // Until there is no room, so that the next call ends among its own.
    std::thread later = signal_sleeper();
    int sent = 1000;
    while (sent == 1000) sent = ::sendmmsg(pair.client.get(), messages.data(), 1000, 0);
    later.join();
    EXPECT_GT(sent, 0) << std::strerror(errno);
    EXPECT_LT(sent, 1000);
    EXPECT_EQ(signals, 1);
  }
}

TEST(Contract, ASignalInterruptsEpoll) {
  const Pair pair;
  handle(SA_RESTART);
  const UniqueFd set(::epoll_create1(0));
  epoll_event event{.events = EPOLLIN, .data = {.fd = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  const pthread_t self = ::pthread_self();
  std::thread later([&, waits = kernel(SYS_gettid)] {
    std::this_thread::sleep_for(50ms);
    await_sleep(waits);
    ::pthread_kill(self, SIGUSR1);
  });
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 60'000), -1);
  EXPECT_EQ(errno, EINTR);
  later.join();
}

// --- ending

TEST(Contract, TheEndComesAfterTheBytes) {
  Pair pair;
  pair.put("last");
  pair.client.reset();
  EXPECT_EQ(receive(pair.server.get()), "last");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

TEST(Contract, EitherDirectionEndsAlone) {
  const Pair pair;
  pair.put("last");
  ASSERT_EQ(::shutdown(pair.client.get(), SHUT_WR), 0);
  EXPECT_EQ(receive(pair.server.get()), "last");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(send(pair.server.get(), "more"), "4");
    EXPECT_EQ(receive(pair.client.get()), "more");
  }
  EXPECT_EQ(send(pair.client.get(), "no"), "(EPIPE)");
}

TEST(Contract, ASleeperHearsTheEnd) {
  Pair pair;
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    pair.client.reset();
  });
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  later.join();
}

TEST(Contract, ShutdownWakesWhoWaitsOnTheSameSocket) {
  const Pair pair;
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    ::shutdown(pair.server.get(), SHUT_RDWR);
  });
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  later.join();
}

TEST(Contract, ClosingWithBytesUnreadResets) {
  Pair pair;
  pair.put("nobody reads this");
  pair.server.reset();
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(receive(pair.client.get()), "(ECONNRESET)");
  EXPECT_EQ(send(pair.client.get(), "x"), "(EPIPE)");
}

TEST(TcpContract, LingeringForNoTimeResets) {
  Pair pair;
  const linger now{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  pair.client.reset();
  EXPECT_EQ(receive(pair.server.get()), "(ECONNRESET)");
}

TEST(Contract, SendingToNobodyBreaksThePipe) {
  Pair pair;
  pair.server.reset();
  std::string result;
  for (int i = 0; i < 10'000 && (result.empty() || result[0] != '('); ++i) {
    result = send(pair.client.get(), "x");
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(result, "(EPIPE)");
  struct sigaction action {};
  action.sa_handler = on_signal;
  struct sigaction before {};
  ::sigaction(SIGPIPE, &action, &before);
  signals = 0;
  EXPECT_EQ(send(pair.client.get(), "x", 0), "(EPIPE)");
  EXPECT_EQ(signals, 1);
  EXPECT_EQ(send(pair.client.get(), "x", MSG_NOSIGNAL), "(EPIPE)");
  EXPECT_EQ(signals, 1);
  ::sigaction(SIGPIPE, &before, nullptr);
}

// --- room

TEST(Contract, WritesUntilThereIsNoRoomAndSaysWhenThereIsAgain) {
  const Pair pair;
  set_nonblocking(pair.client.get());
  set_nonblocking(pair.server.get());
  const std::string block(10'000, 'x');
  std::size_t written = 0;
  const auto fill = [&] {
    for (;;) {
      const ssize_t sent = ::send(pair.client.get(), block.data(), block.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno;
      written += static_cast<std::size_t>(sent);
    }
  };
  EXPECT_EQ(fill(), EAGAIN);
  EXPECT_GT(written, 100'000u);
  // A late acknowledgement may make room once more.
  for (int i = 0; i < 10 && poll_once(pair.client.get(), POLLOUT) != 0; ++i) {
    EXPECT_EQ(fill(), EAGAIN);
  }
  EXPECT_EQ(poll_once(pair.client.get(), POLLOUT), 0);
  std::size_t read = 0;
  std::string buffer(50'000, '\0');
  while (read < written) {
    ASSERT_NE(poll_once(pair.server.get(), POLLIN, 20'000), 0);
    const ssize_t got = ::recv(pair.server.get(), buffer.data(), buffer.size(), 0);
    ASSERT_GT(got, 0);
    read += static_cast<std::size_t>(got);
  }
  EXPECT_EQ(poll_once(pair.client.get(), POLLOUT, 20'000), POLLOUT);
  EXPECT_EQ(receive(pair.server.get()), "(EAGAIN)");
}

TEST(Contract, ABlockedWriterGoesOnWhenTheReaderReads) {
  const Pair pair;
  std::string all(8'000'000, '\0');
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(i * 131 >> 7);
  std::thread writing([&] { EXPECT_EQ(send(pair.client.get(), all), std::to_string(all.size())); });
  std::this_thread::sleep_for(30ms);
  std::string seen;
  while (seen.size() < all.size()) {
    const std::string part = receive(pair.server.get(), 100'000);
    ASSERT_GT(part.size(), 20u) << part;
    seen += part;
  }
  writing.join();
  EXPECT_TRUE(seen == all);
}

TEST(Contract, ManyPartsAreWrittenToASleeper) {
  const Pair pair;
  std::string bytes(400, 'p');
  const std::vector<iovec> parts(1000, {.iov_base = bytes.data(), .iov_len = bytes.size()});
  std::thread reading([&] {
    for (std::size_t left = parts.size() * bytes.size(); left != 0;) {
      const std::string part = receive(pair.server.get(), std::min<std::size_t>(left, 65536));
      ASSERT_EQ(part[0], 'p') << part;
      left -= part.size();
    }
  });
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(::writev(pair.client.get(), parts.data(), 1000), 400'000);
  reading.join();
}

// --- readiness

TEST(Contract, PollSeesWhatIsThere) {
  const Pair pair;
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN | POLLOUT), POLLOUT);
  pair.put("x");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN | POLLOUT), POLLIN | POLLOUT);
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN), POLLIN);
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN), 0);
}

TEST(Contract, PollWakesForLaterBytesAndForTheEnd) {
  Pair pair;
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    pair.put("x");
    std::this_thread::sleep_for(30ms);
    pair.client.reset();
  });
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 20'000), POLLIN);
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN | POLLRDHUP, 20'000) & ~POLLHUP,
            POLLIN | POLLRDHUP);  // nothing can be sent any more on a unix socket
  later.join();
}

TEST(Contract, PollTimesOut) {
  const Pair pair;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(poll_once(pair.server.get(), POLLIN, 50), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 49ms);
}

TEST(Contract, SelectSeesWhatIsThere) {
  const Pair pair;
  const int fd = pair.server.get();
  fd_set read;
  FD_ZERO(&read);
  FD_SET(fd, &read);
  timeval none{};
  EXPECT_EQ(::select(fd + 1, &read, nullptr, nullptr, &none), 0);
  EXPECT_FALSE(FD_ISSET(fd, &read));
  pair.put("x");
  FD_SET(fd, &read);
  EXPECT_EQ(::select(fd + 1, &read, nullptr, nullptr, nullptr), 1);
  EXPECT_TRUE(FD_ISSET(fd, &read));
}

struct Set {
  explicit Set(int fd, std::uint32_t events) {
    epoll_event event{.events = events, .data = {.u64 = 77}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  void change(int fd, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.u64 = 77}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  }
  // The events of the one socket in it; 0 for none.
  [[nodiscard]] std::uint32_t wait(int timeout = 0) const {
    epoll_event events[4];
    const int count = ::epoll_wait(set.get(), events, 4, timeout);
    EXPECT_LE(count, 1);
    if (count == 1) {
      EXPECT_EQ(events[0].data.u64, 77u);
    }
    return count == 1 ? events[0].events : 0;
  }
  UniqueFd set{::epoll_create1(EPOLL_CLOEXEC)};
};

TEST(Contract, LevelsAreReportedUntilRead) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(set.wait(), 0u);
    pair.put("xy");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get(), 1), "x");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get(), 1), "y");
    EXPECT_EQ(set.wait(), 0u);
  }
}

TEST(Contract, EdgesAreReportedOnce) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN | EPOLLET);
  for (int round = 0; round < 5; ++round) {
    (void)set.wait();
    pair.put("xy");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(set.wait(), 0u);
    EXPECT_EQ(receive(pair.server.get(), 1), "x");
    pair.put("z");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "yz");
    EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
  }
}

// As nginx reads: no further than FIONREAD has said, for what comes after that makes a new edge.
TEST(Contract, EdgesTellOfWhatWasNotCounted) {
  const Pair pair;
  const int large = 1 << 20;
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDBUF, &large, sizeof large), 0);
  set_nonblocking(pair.server.get());
  const Set set(pair.server.get(), EPOLLIN | EPOLLET);
  (void)set.wait();
  for (int round = 0; round < 5; ++round) {
    // A reader that has slept gets these by the kernel, where many of them are still on their way.
    EXPECT_EQ(set.wait(1), 0u);
    pair.put(std::string(200'000, 'k'));
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get(), 1), "k");
    pair.put(std::string(200'000, 'r'));
    (void)set.wait();
    std::string all = "k";
    for (;;) {
      int counted = 0;
      ASSERT_EQ(::ioctl(pair.server.get(), FIONREAD, &counted), 0);
      for (auto left = static_cast<std::size_t>(counted); left != 0;) {
        const std::string part = receive(pair.server.get(), std::min<std::size_t>(left, 10'000));
        if (part == "(EAGAIN)") break;
        all += part;
        left -= part.size();
      }
      if (all.size() == 400'000) break;
      ASSERT_EQ(set.wait(20'000), EPOLLIN) << all.size();
    }
    EXPECT_EQ(all, std::string(200'000, 'k') + std::string(200'000, 'r'));
    EXPECT_EQ(receive(pair.server.get(), 1), "(EAGAIN)");
  }
}

TEST(Contract, OneShotIsReportedOnceUntilArmedAgain) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN | EPOLLONESHOT);
  for (int round = 0; round < 5; ++round) {
    pair.put("xy");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    pair.put("z");
    EXPECT_EQ(set.wait(), 0u);
    set.change(pair.server.get(), EPOLLIN | EPOLLONESHOT);
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "xyz");
    set.change(pair.server.get(), EPOLLIN | EPOLLONESHOT);
    EXPECT_EQ(set.wait(), 0u);
  }
}

TEST(Contract, ASocketWithBytesCanJoinASet) {
  const Pair pair;
  pair.put("x");
  const Set set(pair.server.get(), EPOLLOUT);
  EXPECT_EQ(set.wait(1000), EPOLLOUT);
  set.change(pair.server.get(), EPOLLIN);
  EXPECT_EQ(set.wait(1000), EPOLLIN);
  EXPECT_EQ(receive(pair.server.get()), "x");
  EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
  pair.put("y");
  EXPECT_EQ(set.wait(20), 0u);
  const Set other(pair.server.get(), EPOLLIN);
  EXPECT_EQ(other.wait(1000), EPOLLIN);
}

TEST(Contract, ASocketWithBytesWakesWhoAlreadyWaits) {
  const Pair pair;
  const Pair other;
  const Set set(other.server.get(), EPOLLIN);
  pair.put("x");
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 77}};
    EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  });
  EXPECT_NE(set.wait(20'000) & (EPOLLIN | EPOLLOUT), 0u);
  later.join();
  EXPECT_EQ(set.wait(1000), EPOLLIN);
}

TEST(Contract, ReportsBothDirectionsInOneEvent) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN | EPOLLOUT);
  for (int round = 0; round < 20; ++round) {
    pair.put("x");
    std::uint32_t events = 0;
    for (int i = 0; i < 20 && events != (EPOLLIN | EPOLLOUT); ++i) events |= set.wait(1000);
    EXPECT_EQ(events, EPOLLIN | EPOLLOUT);
    EXPECT_EQ(receive(pair.server.get()), "x");
  }
}

TEST(Contract, ASetInASetTellsOfItsSockets) {
  const Pair pair;
  const Set inner(pair.server.get(), EPOLLIN);
  pair.put("warm");
  EXPECT_EQ(inner.wait(1000), EPOLLIN);
  EXPECT_EQ(receive(pair.server.get()), "warm");
  const Set outer(inner.set.get(), EPOLLIN);
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    pair.put("x");
  });
  EXPECT_EQ(outer.wait(20'000), EPOLLIN);
  EXPECT_EQ(inner.wait(1000), EPOLLIN);
  EXPECT_EQ(poll_once(inner.set.get(), POLLIN, 1000), POLLIN);
  later.join();
}

TEST(Contract, ASetMadeBeforeAForkServesTheChild) {
  const Pair pair;
  const Set set(pair.server.get(), EPOLLIN);
  for (int i = 0; i < 20; ++i) {
    pair.put("x");
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "x");
  }
  const pid_t child = in_child([&] {
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(set.wait(20'000), EPOLLIN);
      // One of them: who is late finds several.
      EXPECT_EQ(receive(pair.server.get(), 1), "y");
    }
  });
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(20ms);
    pair.put("y");
  }
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Contract, AnExclusiveRegistrationIsToldOf) {
  const Pair pair;
  const Pair other;
  const Set set(other.server.get(), EPOLLIN);
  for (int i = 0; i < 5; ++i) {
    pair.put("x");
    std::thread later([&] {
      std::this_thread::sleep_for(20ms);
      epoll_event event{.events = EPOLLIN | EPOLLEXCLUSIVE, .data = {.u64 = 77}};
      EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
    });
    EXPECT_NE(set.wait(20'000) & (EPOLLIN | EPOLLOUT), 0u);
    later.join();
    EXPECT_EQ(set.wait(1000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "x");
    std::thread sender([&] {
      std::this_thread::sleep_for(20ms);
      pair.put("y");
    });
    EXPECT_EQ(set.wait(20'000), EPOLLIN);
    EXPECT_EQ(receive(pair.server.get()), "y");
    sender.join();
    EXPECT_EQ(::epoll_ctl(set.set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
  }
}

TEST(Contract, SeveralThreadsWaitInOneSet) {
  const Pair pair;
  set_nonblocking(pair.server.get());
  const Set set(pair.server.get(), EPOLLIN);
  constexpr int kMessages = 2000;
  std::atomic<int> received{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (received < kMessages) {
        if (set.wait(200) == 0) continue;
        char bytes[16];
        const ssize_t got = ::recv(pair.server.get(), bytes, sizeof bytes, 0);
        if (got > 0) received += static_cast<int>(got);
      }
    });
  for (int i = 0; i < kMessages; ++i) {
    pair.put("x");
    if (i % 50 == 0) std::this_thread::sleep_for(1ms);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kMessages);
}

// --- several threads and processes

TEST(Contract, TwoThreadsShareASocket) {
  const Pair pair;
  std::atomic<int> received{0};
  constexpr int kTotal = 100'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      char bytes[64];
      for (ssize_t got; (got = ::recv(pair.server.get(), bytes, sizeof bytes, 0)) > 0;)
        received += static_cast<int>(got);
    });
  std::vector<std::thread> senders;
  for (int i = 0; i < 2; ++i)
    senders.emplace_back([&] {
      for (int sent = 0; sent < kTotal / 2; sent += 10)
        EXPECT_EQ(send(pair.client.get(), "0123456789"), "10");
    });
  for (std::thread& thread : senders) thread.join();
  ::shutdown(pair.client.get(), SHUT_WR);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kTotal);
}

TEST(Contract, ADuplicateIsTheSameSocket) {
  Pair pair;
  UniqueFd copy(::dup(pair.server.get()));
  pair.put("hello world");
  EXPECT_EQ(receive(copy.get(), 6), "hello ");
  EXPECT_EQ(receive(pair.server.get()), "world");
  pair.server.reset();
  pair.put("still open");
  EXPECT_EQ(receive(copy.get()), "still open");
  EXPECT_EQ(send(copy.get(), "yes"), "3");
  EXPECT_EQ(receive(pair.client.get()), "yes");
  copy.reset();
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

TEST(Contract, ANumberThatIsReusedIsAnotherSocket) {
  const Pair pair;
  const Pair other;
  ASSERT_EQ(::dup2(other.server.get(), pair.server.get()), pair.server.get());
  other.put("other");
  EXPECT_EQ(receive(pair.server.get()), "other");
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

TEST(Contract, AChildGoesOnWithTheConnection) {
  Pair pair;
  pair.put("for the child, for the parent");
  const pid_t child = in_child([&] {
    EXPECT_EQ(receive(pair.server.get(), 15), "for the child, ");
    EXPECT_EQ(send(pair.server.get(), "from the child"), "14");
  });
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(receive(pair.server.get()), "for the parent");
  EXPECT_EQ(receive(pair.client.get()), "from the child");
  EXPECT_EQ(send(pair.server.get(), "still open"), "10");
  EXPECT_EQ(receive(pair.client.get()), "still open");
  pair.server.reset();
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

TEST(Contract, AServerThatForksForEachConnection) {
  const int before = stream_mappings();
  Pair pair(false);
  const pid_t child = in_child([&] {
    pair.client.reset();
    for (std::string text; (text = receive(pair.server.get())) != "(end)";)
      EXPECT_EQ(send(pair.server.get(), text), std::to_string(text.size()));
  });
  pair.server.reset();
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(send(pair.client.get(), "echo"), "4");
    EXPECT_EQ(receive(pair.client.get()), "echo");
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), before + 1);
  }
  pair.client.reset();
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Contract, TheKilledAreMissedAtOnce) {
  for (int round = 0; round < 20; ++round) {
    Pair pair(false);
    const pid_t child = in_child([&] {
      pair.client.reset();
      for (;;) {
        const std::string text = receive(pair.server.get());
        send(pair.server.get(), text);
      }
    });
    pair.server.reset();
    for (int i = 0; i < 100 + round; ++i) {
      ASSERT_EQ(send(pair.client.get(), "echo"), "4");
      ASSERT_EQ(receive(pair.client.get()), "echo");
    }
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
      ::kill(child, SIGKILL);
    });
    std::string last;
    for (int i = 0; i < 10'000'000; ++i) {
      last = send(pair.client.get(), "echo");
      if (last[0] == '(') break;
      last = receive(pair.client.get());
      if (last[0] == '(') break;
    }
    EXPECT_TRUE(last == "(end)" || last == "(ECONNRESET)" || last == "(EPIPE)") << last;
    killer.join();
    EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  }
}

TEST(Contract, AnotherProgramGoesOnWithTheConnection) {
  Pair pair;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair.server.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, pair.server.get(), 1);
  const char* arguments[] = {"cat", nullptr};
  pid_t child = 0;
  ASSERT_EQ(
      ::posix_spawnp(&child, "cat", &actions, nullptr, const_cast<char**>(arguments), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  pair.server.reset();
  for (int i = 0; i < 20; ++i) {
    pair.put("meow");
    EXPECT_EQ(receive(pair.client.get()), "meow");
  }
  ::shutdown(pair.client.get(), SHUT_WR);
  EXPECT_EQ(receive(pair.client.get()), "(end)");
  EXPECT_EQ(exit_status(child), 0);
}

void expect_answers_of_cat(Pair& pair, pid_t child) {
  pair.server.reset();
  for (int i = 0; i < 20; ++i) {
    pair.put("meow");
    EXPECT_EQ(receive(pair.client.get()), "meow");
  }
  pair.client.reset();
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Contract, AForkedChildExecutesAProgramOnTheConnection) {
  Pair pair;
  const pid_t child = in_child([&] {
    ::dup2(pair.server.get(), 0);
    ::dup2(pair.server.get(), 1);
    ::execlp("cat", "cat", nullptr);
  });
  expect_answers_of_cat(pair, child);
}

TEST(Contract, AChildOfVforkExecutesAProgramOnTheConnection) {
  Pair pair;
  const int fd = pair.server.get();
  const pid_t child = ::vfork();
  if (child == 0) {
    ::dup2(fd, 0);
    ::dup2(fd, 1);
    ::execlp("cat", "cat", nullptr);
    ::_exit(1);
  }
  expect_answers_of_cat(pair, child);
}

TEST(Contract, AChildOfABareCloneGoesOnWithTheConnection) {
  const Pair pair;
  for (int i = 0; i < 20; ++i) {
    const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0) {
      char text[4];
      const bool fine = ::send(pair.server.get(), "ask?", 4, 0) == 4 &&
                        ::recv(pair.server.get(), text, 4, MSG_WAITALL) == 4;
      ::_exit(fine ? 0 : 1);
    }
    EXPECT_EQ(receive(pair.client.get()), "ask?");
    pair.put("told");
    EXPECT_EQ(exit_status(child), 0);
    pair.put("more");
    EXPECT_EQ(receive(pair.server.get()), "more");
  }
}

TEST(Contract, ADescriptorCanBePassed) {
  Pair pair;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int passed = pair.server.get();
  std::memcpy(CMSG_DATA(head), &passed, sizeof passed);
  ASSERT_EQ(::sendmsg(from.get(), &message, 0), 1);
  pair.server.reset();
  ASSERT_EQ(::recvmsg(to.get(), &message, 0), 1);
  int got = -1;
  std::memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
  const UniqueFd arrived(got);
  for (int i = 0; i < 50; ++i) {
    pair.put("there");
    EXPECT_EQ(receive(arrived.get()), "there");
    EXPECT_EQ(send(arrived.get(), "back"), "4");
    EXPECT_EQ(receive(pair.client.get()), "back");
  }
}

TEST(Contract, AStreamOfTheCLibraryReadsAndWrites) {
  Pair pair;
  FILE* stream = ::fdopen(pair.server.release(), "r+");
  ASSERT_NE(stream, nullptr);
  pair.put("a line\n");
  char line[32];
  ASSERT_NE(std::fgets(line, sizeof line, stream), nullptr);
  EXPECT_STREQ(line, "a line\n");
  std::fseek(stream, 0, SEEK_CUR);
  std::fputs("an answer\n", stream);
  std::fclose(stream);
  EXPECT_EQ(receive(pair.client.get()), "an answer\n");
  EXPECT_EQ(receive(pair.client.get()), "(end)");
}

// Which it reads and closes by itself.
TEST(Contract, AStandardStreamOfTheCLibraryMayBeAConnection) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const UniqueFd client = connect_to(address);
  const pid_t child = in_child([&] {
    ::close(STDIN_FILENO);
    ASSERT_EQ(::accept(listener.get(), nullptr, nullptr), STDIN_FILENO);
    for (int i = 0; i < 200; ++i) {
      ASSERT_EQ(receive(STDIN_FILENO), "ping");
      ASSERT_EQ(send(STDIN_FILENO, "pong"), "4");
    }
    char line[32];
    ASSERT_NE(std::fgets(line, sizeof line, stdin), nullptr);
    EXPECT_STREQ(line, "a line\n");
    EXPECT_EQ(std::fclose(stdin), 0);
    const int file = ::memfd_create("another", MFD_CLOEXEC);
    ASSERT_EQ(file, STDIN_FILENO);
    EXPECT_EQ(::write(file, "text", 4), 4);
    EXPECT_EQ(::lseek(file, 0, SEEK_END), 4);
  });
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(send(client.get(), "ping"), "4");
    ASSERT_EQ(receive(client.get()), "pong");
  }
  EXPECT_EQ(send(client.get(), "a line\n"), "7");
  EXPECT_EQ(receive(client.get()), "(end)");
  EXPECT_EQ(exit_status(child), 0);
}

TEST(Contract, WhatTheCLibraryPrintsStandsInItsPlace) {
  const Pair pair;
  pair.put("one ");
  EXPECT_EQ(::dprintf(pair.client.get(), "%s %d ", "two", 3), 6);
  pair.put("four");
  EXPECT_EQ(receive(pair.server.get(), 14, MSG_WAITALL), "one two 3 four");
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
