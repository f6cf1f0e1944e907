// SPDX-License-Identifier: Apache-2.0
//
// One signal, sent once, at some moment of a call.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "harness/killer.hpp"
#include "harness/usage.hpp"

extern "C" const char __executable_start;  // NOLINT: the linker's
extern "C" const char etext;

namespace farcall::test {

inline int signal_rounds(int usual = 3000) { return setting("FARCALL_SIGNAL_ROUNDS", usual); }

inline void spin_for(std::int64_t ns) {
  const std::int64_t end = now_ns() + ns;
  while (now_ns() < end) {
  }
}
// Within 150 us a caller looks, hands its processor over and goes to sleep.
inline std::int64_t some_moment(std::minstd_rand& random) {
  return static_cast<std::int64_t>(random() % 150'000);
}

// For who is told that the call of a thread has begun. Any process may send it.
struct Target {
  pid_t process = ::getpid();
  pid_t thread = static_cast<pid_t>(::syscall(SYS_gettid));
  void signal() const { ::syscall(SYS_tgkill, process, thread, SIGUSR1); }
};

inline void let_sigusr1_interrupt(bool restart) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = restart ? SA_RESTART : 0;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
}

// A thread that calls what nobody answers; a signal ends it. Whether the call had begun when the
// handler ran is seen from where it interrupted the thread: not in this program, nor in the first
// instructions of the function that it calls. If not, another is sent.
class Lonely {
 public:
#if defined(__x86_64__) || defined(__aarch64__)
  static constexpr bool kPossible = true;
#else
  static constexpr bool kPossible = false;
#endif

  using Install = int(int, const struct sigaction*, struct sigaction*);
  explicit Lonely(bool restart, Install* install = ::sigaction) {
    struct sigaction action {};
    action.sa_sigaction = [](int, siginfo_t*, void* context) { on_readable(context); };
    action.sa_flags = SA_SIGINFO | (restart ? SA_RESTART : 0);
    EXPECT_EQ(install(SIGUSR1, &action, nullptr), 0);
  }

  // In each round does `call`, which is given the library's function of that name and returns
  // errno. Returns how many of them one signal did not end; what the others ended with was `error`.
  template <class Function, class Call>
  int count_lost(int rounds, const char* name, int error, Call call) {
    // Not through the program's own table, which finds functions when they are first called.
    auto* const function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
    entry = reinterpret_cast<std::uintptr_t>(function);
    std::minstd_rand random(static_cast<unsigned>(rounds));
    int lost = 0;
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
    std::atomic<bool> given_up{false};
    std::thread caller([&] {
      for (int i = 1; i <= rounds; ++i) {
        begun.store(i);
        const int got = call(function);
        if (!given_up.exchange(false)) {
          EXPECT_EQ(got, error) << "in round " << i;
        }
        ended.store(i);
      }
    });
    for (int i = 1; i <= rounds; ++i) {
      while (begun.load() < i) std::this_thread::yield();
      spin_for(some_moment(random));
      do {
        state.store(kSent);
        ::pthread_kill(caller.native_handle(), SIGUSR1);
        if (!eventually_quickly([&] { return state.load() != kSent; })) break;
      } while (state.load() == kTooEarly && ended.load() < i);
      if (!eventually_quickly([&] { return ended.load() >= i; })) {
        ++lost;
        given_up = true;
        while (ended.load() < i) {  // the test must end, whatever comes
          ::pthread_kill(caller.native_handle(), SIGUSR1);
          std::this_thread::sleep_for(1ms);
        }
      }
    }
    caller.join();
    return lost;
  }

 private:
  enum : int { kSent, kTooEarly, kInTime };

  template <class Condition>
  static bool eventually_quickly(Condition condition) {
    const std::int64_t end = now_ns() + std::chrono::nanoseconds(kPatience).count();
    while (!condition()) {
      if (now_ns() > end) return condition();
      std::this_thread::yield();
    }
    return true;
  }
  static void on_readable([[maybe_unused]] void* context) {
    std::uintptr_t where = 0;
#if defined(__x86_64__)
    where =
        static_cast<std::uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    where = static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#endif
    constexpr std::uintptr_t kFirstInstructions = 80;
    const bool outside = where >= reinterpret_cast<std::uintptr_t>(&__executable_start) &&
                         where < reinterpret_cast<std::uintptr_t>(&etext);
    const bool early = where - entry < kFirstInstructions;
    state.store(outside || early ? kTooEarly : kInTime);
  }

  static inline std::atomic<int> state{kInTime};
  static inline std::uintptr_t entry = 0;
};

}  // namespace farcall::test
