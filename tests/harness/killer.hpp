// SPDX-License-Identifier: Apache-2.0
//
// Processes that are killed at some moment, and how long others took to notice.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "harness/eventually.hpp"

namespace farcall::test {

// How long it took until deaths were noticed. 100 ms are promised, and how often that is kept is
// measured by `make soak`: one who is late in a test may have had no processor. What a test can
// tell is whether somebody waits for the death, or for a time to be over.
class Latencies {
 public:
  void add(std::int64_t ns) { all_.push_back(ns); }
  // Prints the distribution; expects that deaths are noticed as such.
  void expect_prompt(const char* what) {
    ASSERT_FALSE(all_.empty());
    std::sort(all_.begin(), all_.end());
    auto at = [&](double share) {
      return static_cast<double>(
                 all_[static_cast<std::size_t>(share * static_cast<double>(all_.size() - 1))]) /
             1e6;
    };
    std::printf("%s, ms: p50 %.2f, p90 %.2f, p99 %.2f, max %.2f of %zu\n", what, at(0.5), at(0.9),
                at(0.99), at(1), all_.size());
    EXPECT_LT(at(0.5), 100.0 * kSlow) << what;
    // One may have met a machine that stops for a second or more.
    EXPECT_LT(at(0.99), 1000.0 * kSlow) << what;
    EXPECT_LT(at(1), 10'000.0) << what;
  }

 private:
  std::vector<std::int64_t> all_;
};

inline int setting(const char* name, int usual) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : usual;
}

inline void pause_up_to(unsigned us, std::minstd_rand& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % us));
}

// How long a thread has waited for a processor since it began.
inline std::int64_t run_delay_ns(const std::filesystem::path& task) {
  std::ifstream file(task / "schedstat");
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  return file >> ran >> waited ? waited : 0;
}
// The same of all threads of this process that are there.
inline std::int64_t run_delay_ns() {
  std::int64_t all = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    all += run_delay_ns(task.path());
  return all;
}
// Now, without the time that the calling thread has waited for a processor.
inline std::int64_t now_without_run_delay_ns() {
  const std::int64_t now = now_ns();
  return now - run_delay_ns("/proc/thread-self");
}

// Kills a process after up to `us` microseconds.
class Killer {
 public:
  Killer(pid_t victim, unsigned us, unsigned seed)
      : thread_([this, victim, us, seed] {
          std::minstd_rand random(seed + 1);
          pollfd death{.fd = static_cast<int>(::syscall(SYS_pidfd_open, victim, 0)),
                       .events = POLLIN,
                       .revents = 0};
          pause_up_to(us, random);
          ::kill(victim, SIGKILL);
          if (death.fd >= 0) (void)::poll(&death, 1, static_cast<int>(kPatience.count()));
          known_at_ = now_ns();
          delayed_ = run_delay_ns();
          ::close(death.fd);
        }) {}
  ~Killer() {
    if (thread_.joinable()) thread_.join();
  }
  Killer(const Killer&) = delete;
  Killer& operator=(const Killer&) = delete;

  // When one who waits for the process in the kernel knew of its death: where the machine is late,
  // it is late for all who wait.
  std::int64_t join() {
    if (thread_.joinable()) thread_.join();
    return known_at_;
  }
  // How much later than that this process noticed, in which the time does not count when its
  // threads could have run and others had the processors.
  std::int64_t late(std::int64_t noticed) {
    const std::int64_t took = noticed - join();
    return took - std::max(run_delay_ns() - delayed_, std::int64_t{0});
  }

 private:
  std::int64_t known_at_ = 0;
  std::int64_t delayed_ = 0;
  std::thread thread_;
};

}  // namespace farcall::test
