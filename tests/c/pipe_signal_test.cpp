// SPDX-License-Identifier: Apache-2.0
//
// A signal whose handler tells of it ends what its thread waits for.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "c/pipe.hpp"

namespace farcall::c::test {
namespace {

void on_signal(void (*handler)(int), int signal) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(signal, &action, nullptr), 0);
}

// Sends one signal to a thread that sleeps in `wait`; returns what that returned.
int interrupt(const std::function<int()>& wait) {
  on_signal([](int) { farcall_note_signal(); }, SIGUSR1);
  std::atomic<pid_t> thread{0};
  int result = 0;
  std::thread waits([&] {
    thread = ::gettid();
    result = wait();
  });
  EXPECT_TRUE(eventually([&] { return thread != 0 && sleeps(thread); }));
  ::pthread_kill(waits.native_handle(), SIGUSR1);
  waits.join();
  return result;
}

int wait_to_receive(const End& end) {
  char byte = 0;
  return static_cast<int>(farcall_pipe_receive(end.get(), &byte, 1, nullptr, FARCALL_FOREVER));
}

TEST(CPipeSignal, EndsAReceive) {
  const Ends pipe(0, FARCALL_WAIT_BLOCK);
  EXPECT_EQ(interrupt([&] { return wait_to_receive(pipe.one); }), -EINTR);
  EXPECT_EQ(send(pipe.other, "after"), 0);
  EXPECT_EQ(receive(pipe.one), "after");
}

TEST(CPipeSignal, EndsASend) {
  const Ends pipe(4096, FARCALL_WAIT_BLOCK);
  while (send(pipe.one, "full", 0) == 0) {
  }
  EXPECT_EQ(interrupt([&] { return send(pipe.one, "full", FARCALL_FOREVER); }), -EINTR);
}

TEST(CPipeSignal, EndsWhatWaitsForAName) {
  const std::string name = "c-pipe-signal-" + std::to_string(::getpid());
  farcall_pipe* end = nullptr;
  EXPECT_EQ(interrupt([&] { return farcall_pipe_serve(name.c_str(), nullptr, -1, &end); }), -EINTR);
  EXPECT_EQ(interrupt([&] { return farcall_pipe_open(name.c_str(), nullptr, -1, &end); }), -EINTR);
  EXPECT_EQ(end, nullptr);
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

TEST(CPipeSignal, ThatCameJustBeforeAReceiveWaitsEndsIt) {
  const Ends pipe(4096);
  const auto message = long_message(1'000);  // 4,000 bytes, of which the ring has room for some
  EXPECT_EQ(send(pipe.other, message, 0), -EAGAIN);
  const Tripwire wire;
  EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), Tripwire::page, 4096, nullptr, FARCALL_FOREVER),
            -EINTR);
  EXPECT_EQ(send(pipe.other, message, 0), 0);
  std::vector<std::uint32_t> received(1'000);
  EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), received.data(), 4'000, nullptr, kLong), 4'000);
  EXPECT_EQ(received, message);
}

TEST(CPipeSignal, ThatCameJustBeforeASendWaitsEndsIt) {
  const Ends pipe(4096);
  const Tripwire wire;
  EXPECT_EQ(farcall_pipe_send(pipe.one.get(), Tripwire::page, 4096, FARCALL_FOREVER), -EINTR);
}

}  // namespace
}  // namespace farcall::c::test
