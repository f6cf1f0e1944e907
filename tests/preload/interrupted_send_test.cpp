// SPDX-License-Identifier: Apache-2.0
//
// Sends that a handler or a cancelling thread interrupts. The tests run as those of
// leaving_test.cpp do.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "connected.hpp"
#include "harness/thread_state.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// --- senders that wait

TEST(ASenderThatWaitsForRoom, CanBeCancelled) {
  const Connected connected = with_child([](int) {
    for (;;) ::pause();  // nobody reads
  });
  std::thread sender([fd = connected.fd.get()] {
    const std::string text(100'000, 'x');
    for (;;) (void)::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  });
  // Everything is full.
  pollfd look{.fd = connected.fd.get(), .events = POLLOUT, .revents = 0};
  for (int empty = 0; empty < 20;) {
    empty = ::poll(&look, 1, 0) == 0 ? empty + 1 : 0;
    ::usleep(1000);
  }
  EXPECT_EQ(::pthread_cancel(sender.native_handle()), 0);
  sender.join();
}

// The number may be another file's by then: what has gone is what the call returns.
TEST(ASenderThatWaitsForRoom, IsToldWhatHasGoneWhereItsDescriptorIsClosed) {
  Pair pair;
  const std::string text(1 << 20, 'x');
  ssize_t filled = 0;
  for (ssize_t now = 0; now >= 0; filled += std::max(now, ssize_t{0}))
    now = ::send(pair.client.get(), text.data(), text.size(), MSG_DONTWAIT);
  ssize_t sent = 0;
  std::atomic<pid_t> thread{0};
  std::thread sender([&, fd = pair.client.get()] {
    thread = ::gettid();
    sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  });
  for (int asleep = 0; asleep < 20;) {
    asleep = thread != 0 && test::is_asleep(thread) ? asleep + 1 : 0;
    ::usleep(1000);
  }
  pair.client.reset();
  std::string part(1 << 16, '\0');
  ssize_t came = 0;
  for (ssize_t now = 1; now > 0; came += now)
    ASSERT_GE(now = ::recv(pair.server.get(), part.data(), part.size(), 0), 0) << errno_name();
  sender.join();
  EXPECT_GT(sent, 0);
  EXPECT_EQ(came, filled + sent);
}

long times_slept(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  const std::string name = "voluntary_ctxt_switches:";
  for (std::string line; std::getline(file, line);)
    if (line.rfind(name, 0) == 0) return std::stol(line.substr(name.size()));
  return -1;
}

TEST(ASenderThatWaitsForRoom, SeldomLooksWhereItWaitsForLong) {
  UsedPair pair;
  // The kernel has less room than what lies in memory by then.
  constexpr int kLittle = 4096;
  EXPECT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDBUF, &kLittle, sizeof kLittle), 0);
  EXPECT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVBUF, &kLittle, sizeof kLittle), 0);
  const std::string text(1 << 20, 'x');
  std::atomic<pid_t> thread{0};
  std::thread sender([&, fd = pair.client.get()] {
    thread = ::gettid();
    EXPECT_LT(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  });
  while (thread == 0) ::usleep(1000);
  await_sleep(thread);
  const long before = times_slept(thread);
  ::usleep(1'000'000);
  EXPECT_LT(times_slept(thread) - before, 150);
  pair.server.reset();
  sender.join();
}

// --- handlers

int handlers_end = -1;
volatile sig_atomic_t handled = 0;
sigjmp_buf outside;
volatile sig_atomic_t may_jump = 0;

void interrupt_often(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  EXPECT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
  const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 150},
                        .it_value = {.tv_sec = 0, .tv_usec = 150}};
  EXPECT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
}
void stop_interrupting() {
  const itimerval never{};
  EXPECT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
}

// Counts bytes until the end.
void count_bytes(int peer) {
  char bytes[4096];
  std::size_t count = 0;
  for (ssize_t got = 0; (got = ::recv(peer, bytes, sizeof bytes, 0)) > 0;)
    count += static_cast<std::size_t>(got);
  require(::send(peer, &count, sizeof count, MSG_NOSIGNAL) == sizeof count, "send");
}

TEST(Handlers, MaySendWhereTheyInterruptASend) {
  const Connected connected = with_child(count_bytes);
  handlers_end = connected.fd.get();
  handled = 0;
  interrupt_often([](int) {
    const int error = errno;
    while (::write(handlers_end, "h", 1) != 1) continue;
    handled = handled + 1;
    errno = error;
  });
  std::size_t sent = 0;
  while (handled < 1000) {
    const ssize_t now = ::write(connected.fd.get(), "some bytes", 10);
    ASSERT_GT(now, 0);
    sent += static_cast<std::size_t>(now);
  }
  stop_interrupting();
  sent += static_cast<std::size_t>(handled);
  ::shutdown(connected.fd.get(), SHUT_WR);
  std::size_t counted = 0;
  ASSERT_EQ(::recv(connected.fd.get(), &counted, sizeof counted, MSG_WAITALL),
            static_cast<ssize_t>(sizeof counted));
  EXPECT_EQ(counted, sent);
}

TEST(Handlers, MayJumpOutOfASend) {
  const Connected connected = with_child(count_bytes);
  volatile int jumps = 0;
  interrupt_often([](int) {
    if (may_jump == 0) return;
    may_jump = 0;
    ::siglongjmp(outside, 1);
  });
  while (jumps < 300) {
    if (sigsetjmp(outside, 1) != 0) jumps = jumps + 1;
    may_jump = 1;
    const ssize_t sent = ::write(connected.fd.get(), "some bytes", 10);
    may_jump = 0;
    ASSERT_TRUE(sent == 10) << std::strerror(errno) << " after " << jumps << " jumps";
  }
  stop_interrupting();
  ::shutdown(connected.fd.get(), SHUT_WR);
  std::size_t counted = 0;
  EXPECT_EQ(::recv(connected.fd.get(), &counted, sizeof counted, MSG_WAITALL),
            static_cast<ssize_t>(sizeof counted));
}

}  // namespace
}  // namespace farcall::preload
