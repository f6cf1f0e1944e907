// SPDX-License-Identifier: Apache-2.0
#include "doctor/costs.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "observe/clock.hpp"

namespace farcall::doctor {
namespace {

// The best of several rounds: what disturbs one only makes it longer.
template <class Function>
double best_of_rounds(Function function) {
  constexpr int kRounds = 20;
  constexpr int kCalls = 500;
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t start = observe::monotonic_ns();
    for (int i = 0; i < kCalls; ++i) function();
    best = std::min(best, static_cast<double>(observe::monotonic_ns() - start) / kCalls);
  }
  return best;
}

// A thread on another processor sleeps, is woken, and says when it ran.
class Sleeper {
 public:
  explicit Sleeper(int processor) : thread_([this, processor] { run(processor); }) {}
  ~Sleeper() {
    over_.store(true);
    wake();
    thread_.join();
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Nanoseconds from the wake-up until it ran; nothing if it did not within a tenth of a second.
  std::optional<double> wake_after_pause() {
    const timespec pause{.tv_sec = 0, .tv_nsec = 300'000};
    ::nanosleep(&pause, nullptr);
    const std::uint32_t before = woken_.load();
    const std::int64_t start = observe::monotonic_ns();
    wake();
    while (woken_.load() == before)
      if (observe::monotonic_ns() - start > 100'000'000) return std::nullopt;
    return static_cast<double>(ran_at_.load() - start);
  }

 private:
  void wake() noexcept {
    word_.fetch_add(1);
    ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  void run(int processor) noexcept {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(processor), &set);
    ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
    std::uint32_t seen = 0;
    while (!over_.load()) {
      while (word_.load() == seen)
        ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
      ran_at_.store(observe::monotonic_ns());
      seen = word_.load();
      woken_.fetch_add(1);
    }
  }

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> woken_{0};
  std::atomic<std::int64_t> ran_at_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;  // last: it uses the others
};

// Restores where the calling thread may run.
class OnProcessor {
 public:
  explicit OnProcessor(int processor) {
    known_ = ::sched_getaffinity(0, sizeof before_, &before_) == 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(processor), &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
  ~OnProcessor() {
    if (known_) ::sched_setaffinity(0, sizeof before_, &before_);
  }
  OnProcessor(const OnProcessor&) = delete;
  OnProcessor& operator=(const OnProcessor&) = delete;

 private:
  cpu_set_t before_;
  bool known_;
};

double measure_wake_up() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE && processors.size() < 2; ++i)
    if (CPU_ISSET(static_cast<unsigned>(i), &allowed)) processors.push_back(i);
  if (processors.size() < 2) return 0;
  constexpr int kTimes = 24;
  const OnProcessor here(processors[0]);
  Sleeper sleeper(processors[1]);
  std::vector<double> all;
  for (int i = 0; i < kTimes; ++i)
    if (const auto took = sleeper.wake_after_pause()) all.push_back(*took);
  if (all.empty()) return 0;
  // Whoever else is busy there makes some of them long; a quarter is as quick as it can be.
  const auto quarter = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 4);
  std::ranges::nth_element(all, quarter);
  return *quarter;
}

}  // namespace

Costs measure_costs() {
  return {.system_call_ns = best_of_rounds([] { ::syscall(SYS_getppid); }),
          .clock_ns = best_of_rounds([] { observe::monotonic_ns(); }),
          .wake_up_ns = measure_wake_up()};
}

void judge(const Costs& costs, Findings& findings) {
  // With a vDSO a look costs 20 to 60 ns, without one as much as a system call and more.
  if (costs.clock_ns >= 200)
    findings.push_back(
        {"clock-expensive", Severity::warning, kThisMachine,
         fmt::format("A look at the clock takes {:.0f} ns, so it is made by a system "
                     "call; whoever waits looks again and again.",
                     costs.clock_ns),
         "Use a clock source that programs can read themselves (tsc, kvm-clock): see "
         "/sys/devices/system/clocksource/clocksource0."});
  if (costs.system_call_ns >= 500)
    findings.push_back(
        {"system-calls-expensive", Severity::note, kThisMachine,
         fmt::format("The cheapest system call takes {:.0f} ns, several times as long "
                     "as usual: mitigations, a tracer, a seccomp filter or a sandbox "
                     "such as gVisor stand in the way.",
                     costs.system_call_ns),
         "Look for them in /sys/devices/system/cpu/vulnerabilities and in the "
         "process's status (TracerPid, Seccomp); shared memory avoids such calls."});
  if (costs.wake_up_ns >= 20'000 && costs.wake_up_ns < 1'000'000)  // more: it was not idle
    findings.push_back(
        {"wake-ups-expensive", Severity::note, kThisMachine,
         fmt::format("To wake a thread on an idle processor takes {:.0f} us, as on "
                     "virtual machines and in deep idle states: each message whose "
                     "receiver sleeps waits for that.",
                     costs.wake_up_ns / 1000),
         "Keep conversations going, for ends that talk steadily spin and are not "
         "woken; or put both ends on one processor (`taskset -c 0`), where a wake-up "
         "takes a tenth of that."});
}

}  // namespace farcall::doctor
