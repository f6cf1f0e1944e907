// SPDX-License-Identifier: Apache-2.0
//
// Handlers of signals that come in the middle of calls: those that are for one signal, and those
// of signals that the kernel queues.
// The tests run as those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "connected.hpp"
#include "contract.hpp"

namespace farcall::preload {
namespace {

using Action = struct sigaction;

// What handlers of one signal use.
struct Once {
  sigjmp_buf out;
  bool jumps;
  int fd;
  volatile int taken;
  volatile int failed;   // calls of the handler, with another error than they would
  volatile int present;  // handlers that saw one installed
};
Once once;

void for_one_signal(int number) {
  Action found{};
  if (::sigaction(number, nullptr, &found) != 0 || found.sa_handler != SIG_DFL)
    once.present = once.present + 1;
  once.taken = once.taken + 1;
  if (once.jumps) ::siglongjmp(once.out, 1);
  char byte;
  if (::recv(once.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno != EAGAIN)
    once.failed = once.failed + 1;
}
void for_one_signal_with_all(int number, siginfo_t* info, void*) {
  if (info->si_signo != number) once.failed = once.failed + 1;
  for_one_signal(number);
}

enum class Way : unsigned char { plain, informed, as_in_system_v };

void expect_one_signal(Way way) {
  if (way == Way::as_in_system_v) {
    ASSERT_NE(::sysv_signal(SIGALRM, for_one_signal), SIG_ERR);
  } else {
    Action action{};
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    if (way == Way::informed) {
      action.sa_flags |= SA_SIGINFO;
      action.sa_sigaction = for_one_signal_with_all;
    } else {
      action.sa_handler = for_one_signal;
    }
    ASSERT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
  }
  static int spread = 0;
  const itimerval soon{.it_interval = {}, .it_value = {0, 100 + (spread += 37) % 100}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &soon, nullptr), 0);
}

void echo(int peer) {
  for (char byte; ::recv(peer, &byte, 1, 0) == 1;)
    if (::send(peer, &byte, 1, MSG_NOSIGNAL) != 1) break;
}

// One after the other, while this thread sends and receives.
void take_signals(Way way, bool jumps, int most) {
  const Connected made = with_child(echo);
  once.jumps = jumps;
  once.fd = made.fd.get();
  once.taken = 0;
  once.failed = 0;
  once.present = 0;
  static volatile int seen;
  static volatile int interrupted;  // calls in a row
  seen = -1;
  interrupted = 0;
  ::sigsetjmp(once.out, 1);
  while (once.taken < most && interrupted < 100'000) {
    if (seen != once.taken) {
      seen = once.taken;
      ASSERT_NO_FATAL_FAILURE(expect_one_signal(way));
    }
    char byte = 'x';
    const bool sent = ::send(once.fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
    const bool refused = !sent && errno == EINTR;
    const bool came = ::recv(once.fd, &byte, 1, MSG_DONTWAIT) >= 0;
    if (refused && !came && errno == EINTR)
      interrupted = interrupted + 1;
    else
      interrupted = 0;
  }
  EXPECT_EQ(once.taken, most);
  EXPECT_EQ(once.failed, 0);
  EXPECT_EQ(once.present, 0);
  Action found{};
  ASSERT_EQ(::sigaction(SIGALRM, nullptr, &found), 0);
  EXPECT_EQ(found.sa_handler, SIG_DFL);
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
}

TEST(Contract, AHandlerForOneSignalMayJumpOutOfACall) {
  for (const Way way : {Way::plain, Way::informed, Way::as_in_system_v}) {
    SCOPED_TRACE(static_cast<int>(way));
    take_signals(way, true, 700);
  }
}

TEST(Contract, AHandlerForOneSignalMayUseTheSocketOfTheCall) {
  for (const Way way : {Way::plain, Way::informed, Way::as_in_system_v}) {
    SCOPED_TRACE(static_cast<int>(way));
    take_signals(way, false, 700);
  }
}

TEST(Contract, AHandlerForOneSignalIsTheOneThatWasInstalled) {
  ASSERT_NE(::sysv_signal(SIGUSR1, for_one_signal), SIG_ERR);
  Action found{};
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &found), 0);
  EXPECT_EQ(found.sa_handler, for_one_signal);
  EXPECT_NE(static_cast<unsigned>(found.sa_flags) & SA_RESETHAND, 0U);
  EXPECT_EQ(::sysv_signal(SIGUSR1, SIG_DFL), for_one_signal);
}

// --- those that are queued

std::atomic<int> last_value{0};
std::atomic<int> handled{0};
std::atomic<int> out_of_order{0};
std::atomic<int> of_another_code{0};
void in_order(int, siginfo_t* info, void*) {
  const int value = info->si_value.sival_int;
  if (value != last_value + 1) ++out_of_order;
  if (info->si_code != SI_QUEUE || info->si_errno != 0) ++of_another_code;
  last_value = value;
  ++handled;
}

TEST(Contract, QueuedSignalsComeInOrder) {
  constexpr int kMost = 8000;
  const Connected made = with_child(echo);
  const int fd = made.fd.get();
  const int number = SIGRTMIN + 3;
  Action action{};
  action.sa_sigaction = in_order;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  Action before{};
  ASSERT_EQ(::sigaction(number, &action, &before), 0);
  last_value = handled = out_of_order = of_another_code = 0;
  std::thread sends([number, self = ::pthread_self()] {
    for (int sent = 0; sent < kMost;) {
      if (::pthread_sigqueue(self, number, {.sival_int = sent + 1}) == 0) ++sent;
      if (sent % 4 == 0) std::this_thread::sleep_for(20us);
    }
  });
  while (handled < kMost) {
    char byte = 'x';
    while (::send(fd, &byte, 1, MSG_NOSIGNAL) != 1) ASSERT_EQ(errno, EINTR);
    while (::recv(fd, &byte, 1, 0) != 1) ASSERT_EQ(errno, EINTR);
  }
  sends.join();
  EXPECT_EQ(handled, kMost);
  EXPECT_EQ(out_of_order, 0);
  EXPECT_EQ(of_another_code, 0);
  ::sigaction(number, &before, nullptr);
}

}  // namespace
}  // namespace farcall::preload
