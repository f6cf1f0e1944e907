// SPDX-License-Identifier: Apache-2.0
//
// Signals whose handlers tell of themselves, for tests of the C interface.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "c/pipe.hpp"

namespace farcall::c::test {

inline void on_signal(void (*handler)(int), int signal) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(signal, &action, nullptr), 0);
}

// Sends one signal to a thread that sleeps in `wait`; returns what that returned.
template <class Wait>
auto interrupt(Wait wait) {
  on_signal([](int) { farcall_note_signal(); }, SIGUSR1);
  std::atomic<pid_t> thread{0};
  decltype(wait()) result = 0;
  std::thread waits([&] {
    thread = ::gettid();
    result = wait();
  });
  EXPECT_TRUE(eventually([&] { return thread != 0 && is_asleep(thread); }));
  ::pthread_kill(waits.native_handle(), SIGUSR1);
  waits.join();
  return result;
}

// A page that is touched in the middle of a call: so the handler runs while the call is awake, and
// before it waits.
class Tripwire {
 public:
  Tripwire() {
    page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    on_signal(
        [](int) {
          farcall_note_signal();
          ::mprotect(page, 4096, PROT_READ | PROT_WRITE);
        },
        SIGSEGV);
  }
  ~Tripwire() {
    ::signal(SIGSEGV, SIG_DFL);
    ::munmap(page, 4096);
  }
  static inline void* page = nullptr;
};

}  // namespace farcall::c::test
