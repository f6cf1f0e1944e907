// SPDX-License-Identifier: Apache-2.0
//
// Signal handlers are what they would be without the library, which puts wrappers in front of them:
// what is installed is what the program finds there, and the handler runs as it has asked for.
// Doors and messages bring the same functions; this is a test of both.
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "harness/child.hpp"
#include "harness/one_signal.hpp"

namespace farcall::door::test {
using namespace farcall::test;
namespace {

using Plain = void (*)(int);

// The C library's own functions.
template <class Function>
Function* real(const char* name) {
  static void* const library = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}
const auto real_sigaction = real<int(int, const struct sigaction*, struct sigaction*)>("sigaction");

class SignalHandlers : public testing::Test {
 protected:
  void SetUp() override {
    FARCALL_SKIP_WITHOUT_WRAPPERS();
    leave_nothing();
  }
  void TearDown() override { leave_nothing(); }

 private:
  static void leave_nothing() {
    struct sigaction usual {};
    for (const int number : {SIGUSR1, SIGUSR2}) real_sigaction(number, &usual, nullptr);
  }
};

std::atomic<int> calls{0};
void count(int) { ++calls; }
void count_informed(int, siginfo_t*, void*) { ++calls; }

std::string text_of(const struct sigaction& action) {
  std::string text = "flags " + std::to_string(action.sa_flags) + ", mask";
  for (int i = 1; i <= 64; ++i)
    if (::sigismember(&action.sa_mask, i) == 1) text += " " + std::to_string(i);
  char handler[32];
  std::snprintf(handler, sizeof handler, ", %p", reinterpret_cast<void*>(action.sa_handler));
  return text + handler;
}

TEST_F(SignalHandlers, AreReportedAsTheyWereInstalled) {
  const auto play = [](auto* function) {
    std::vector<std::string> all;
    for (const int number : {SIGUSR1, SIGUSR2, SIGRTMIN, SIGRTMAX, SIGSEGV, SIGKILL, SIGSTOP, 0, -1,
                             65, 1000, 32, 33}) {
      struct sigaction first {};
      const bool there = function(number, nullptr, &first) == 0;
      all.push_back(there ? "there" : std::strerror(errno));
      if (there) real_sigaction(number, &first, nullptr);  // the first to do that adds a flag
      for (const int flags :
           {0, SA_SIGINFO, SA_RESTART, static_cast<int>(SA_RESETHAND), SA_NODEFER, SA_ONSTACK,
            SA_NOCLDSTOP | SA_NOCLDWAIT, SA_SIGINFO | SA_RESTART | SA_NODEFER}) {
        for (int handler = 0; handler < 4; ++handler) {
          struct sigaction action {};
          action.sa_flags = flags;
          ::sigaddset(&action.sa_mask, SIGHUP);
          ::sigaddset(&action.sa_mask, handler + 10);
          if (handler == 0) action.sa_handler = SIG_DFL;
          if (handler == 1) action.sa_handler = SIG_IGN;
          if (handler >= 2 && (flags & SA_SIGINFO) != 0) action.sa_sigaction = count_informed;
          if (handler >= 2 && (flags & SA_SIGINFO) == 0) action.sa_handler = count;
          struct sigaction both = action;  // where the old one is to be written over the new one
          errno = 0;
          const int result = function(number, &both, &both);
          all.push_back(std::to_string(result) + " " + std::strerror(errno) +
                        (result == 0 ? text_of(both) : ""));
          struct sigaction now {};
          if (function(number, nullptr, &now) == 0) all.push_back(text_of(now));
        }
      }
      if (there) function(number, &first, nullptr);
    }
    return all;
  };
  EXPECT_EQ(play(::sigaction), play(real_sigaction));
}

TEST_F(SignalHandlers, AreReportedByTheOldFunctionsToo) {
  const auto play = [](auto* act, auto* function) {
    std::vector<std::string> all;
    struct sigaction informed {};
    informed.sa_sigaction = count_informed;
    informed.sa_flags = SA_SIGINFO;
    act(SIGUSR2, &informed, nullptr);
    for (const int number : {SIGUSR2, SIGKILL, 65})
      for (const Plain disposition :
           {Plain{count}, Plain{count}, SIG_IGN, Plain{count}, SIG_DFL, SIG_ERR}) {
        errno = 0;
        const Plain old = function(number, disposition);
        all.push_back(std::to_string(reinterpret_cast<std::intptr_t>(old)) + " " +
                      std::strerror(errno));
        struct sigaction now {};
        if (act(number, nullptr, &now) == 0) all.push_back(text_of(now));
      }
    return all;
  };
  const auto check = [&](const char* name, auto* ours) {
    SCOPED_TRACE(name);
    EXPECT_EQ(play(::sigaction, ours), play(real_sigaction, real<Plain(int, Plain)>(name)));
  };
  check("signal", ::signal);
  check("ssignal", ::ssignal);
  check("sysv_signal", ::sysv_signal);
  check("__sysv_signal", ::__sysv_signal);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  check("sigset", ::sigset);
  // One that is held, and is not any more.
  EXPECT_EQ(::sigset(SIGUSR1, count), SIG_DFL);
  EXPECT_EQ(::sigset(SIGUSR1, SIG_HOLD), Plain{count});
  EXPECT_EQ(::sigset(SIGUSR1, count), SIG_HOLD);
  ::sigignore(SIGUSR1);
  EXPECT_EQ(::signal(SIGUSR1, count), SIG_IGN);
  // Others of the C library that change what is there.
  struct sigaction now {};
  ::siginterrupt(SIGUSR1, 1);
  EXPECT_EQ(::sigaction(SIGUSR1, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, Plain{count});
  EXPECT_EQ(now.sa_flags & SA_RESTART, 0);
  ::siginterrupt(SIGUSR1, 0);
#pragma GCC diagnostic pop
  const int before = calls;
  ::raise(SIGUSR1);
  EXPECT_EQ(calls, before + 1);
}

TEST_F(SignalHandlers, GetWhatTheKernelGives) {
  static std::atomic<int> value{0};
  static std::atomic<bool> context_there{false};
  struct sigaction action {};
  action.sa_sigaction = [](int number, siginfo_t* info, void* context) {
    context_there = context != nullptr;
    value = info->si_value.sival_int + 1000 * number + (info->si_code == SI_QUEUE ? 1 : 0);
  };
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  sigval given{};
  given.sival_int = 42;
  ASSERT_EQ(::sigqueue(::getpid(), SIGUSR1, given), 0);
  EXPECT_TRUE(eventually([&] { return value == 42 + 1000 * SIGUSR1 + 1; }));
  EXPECT_TRUE(context_there);
}

TEST_F(SignalHandlers, RunWithTheirMaskAndOnTheirStack) {
  static std::atomic<bool> masked{false};
  static std::atomic<bool> own_masked{false};
  static std::atomic<std::uintptr_t> stack{0};
  static std::array<char, 1 << 16> space;
  stack_t alternative{.ss_sp = space.data(), .ss_flags = 0, .ss_size = space.size()};
  stack_t old{};
  ASSERT_EQ(::sigaltstack(&alternative, &old), 0);
  struct sigaction action {};
  action.sa_handler = [](int number) {
    sigset_t now;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
    masked = ::sigismember(&now, SIGHUP) == 1;
    own_masked = ::sigismember(&now, number) == 1;
    int here = 0;
    stack = reinterpret_cast<std::uintptr_t>(&here);
  };
  ::sigaddset(&action.sa_mask, SIGHUP);
  action.sa_flags = SA_ONSTACK;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  ::raise(SIGUSR1);
  EXPECT_TRUE(masked);
  EXPECT_TRUE(own_masked);
  EXPECT_LT(stack - reinterpret_cast<std::uintptr_t>(space.data()), space.size());
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_NODEFER;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  ::raise(SIGUSR1);
  EXPECT_FALSE(masked);
  EXPECT_FALSE(own_masked);
  EXPECT_GE(stack - reinterpret_cast<std::uintptr_t>(space.data()), space.size());
  ::sigaltstack(&old, nullptr);
}

TEST_F(SignalHandlers, ThatAreGoodForOnceAreGoneThen) {
  struct sigaction action {};
  action.sa_handler = count;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  const int before = calls;
  ::raise(SIGUSR1);
  EXPECT_EQ(calls, before + 1);
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

template <int kWhich>
void one_of_many(int) {
  calls = kWhich;
}
template <int... kWhich>
constexpr auto many(std::integer_sequence<int, kWhich...>) {
  return std::array<Plain, sizeof...(kWhich)>{one_of_many<kWhich>...};
}

TEST_F(SignalHandlers, CanBeMoreThanThereAreWrappers) {
  static constexpr auto kMany = many(std::make_integer_sequence<int, 200>());
  in_child([] {
    for (int round = 0; round < 2; ++round)
      for (int i = 0; i < 200; ++i) {
        const auto which = static_cast<std::size_t>(i);
        const Plain old = ::signal(SIGUSR1, kMany[which]);
        EXPECT_TRUE(i == 0 || old == kMany[which - 1]) << i;
        ::raise(SIGUSR1);
        ASSERT_EQ(calls, i);
      }
  });
}

// Each handler has a mask of its own; nobody may ever see the one with the other's.
TEST_F(SignalHandlers, CanBeInstalledByThreadsAtTheSameTime) {
  static std::atomic<int> ran{0};
  static const std::array<Plain, 4> kHandlers{[](int) { ran = 1; }, [](int) { ran = 2; },
                                              [](int) { ran = 3; }, [](int) { ran = 4; }};
  const auto action_of = [](std::size_t which) {
    struct sigaction action {};
    action.sa_handler = kHandlers[which];
    ::sigaddset(&action.sa_mask, SIGRTMIN + static_cast<int>(which));
    return action;
  };
  const auto is_one_of_them = [&](const struct sigaction& action) {
    for (std::size_t i = 0; i < kHandlers.size(); ++i)
      if (action.sa_handler == kHandlers[i])
        return ::sigismember(&action.sa_mask, SIGRTMIN + static_cast<int>(i)) == 1;
    return false;
  };
  const struct sigaction first = action_of(0);
  ASSERT_EQ(::sigaction(SIGUSR2, &first, nullptr), 0);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20'000; ++round) {
        const struct sigaction action = action_of(i);
        struct sigaction old {};
        if (::sigaction(SIGUSR2, &action, &old) != 0 || !is_one_of_them(old)) ++wrong;
        if (round % 16 == 0) ::raise(SIGUSR2);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  struct sigaction last {};
  ASSERT_EQ(::sigaction(SIGUSR2, nullptr, &last), 0);
  ::raise(SIGUSR2);
  EXPECT_EQ(last.sa_handler, kHandlers[static_cast<std::size_t>(ran - 1)]);
}

TEST_F(SignalHandlers, MayInstallOthersAndLeaveByAJump) {
  static sigjmp_buf back;
  ::signal(SIGUSR1, [](int) {
    ::signal(SIGUSR1, [](int) { siglongjmp(back, 7); });
    ::raise(SIGUSR2);
  });
  ::signal(SIGUSR2, count);
  const int before = calls;
  ::raise(SIGUSR1);
  EXPECT_EQ(calls, before + 1);
  volatile int jumps = 0;
  const int value = sigsetjmp(back, 1);
  if (value == 7) jumps = jumps + 1;
  if (jumps < 3) ::raise(SIGUSR1);
  EXPECT_EQ(jumps, 3);
}

TEST_F(SignalHandlers, AreTheChildsAfterAForkAndGoneAfterExec) {
  ::signal(SIGUSR1, count);
  ::signal(SIGUSR2, SIG_IGN);
  in_child([] {
    const int before = calls;
    ::raise(SIGUSR1);
    EXPECT_EQ(calls, before + 1);
    EXPECT_EQ(::signal(SIGUSR1, SIG_DFL), Plain{count});
  });
  EXPECT_EQ(::signal(SIGUSR1, count), Plain{count});
  Child program(
      [] { ::execl("/bin/sh", "sh", "-c", "kill -USR2 $$; kill -USR1 $$; exit 3", nullptr); });
  const int status = program.join();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1) << status;
}

}  // namespace
}  // namespace farcall::door::test
