// SPDX-License-Identifier: Apache-2.0
//
// A server whose sleep can be looked at.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "call/server.hpp"
#include "harness/eventually.hpp"

namespace farcall::test {

// The number of the system call in which a thread of this process sleeps, or -1.
inline long asleep_in(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
  long number = -1;
  file >> number;
  return file ? number : -1;
}

// A port with one thread whose name is known.
class Watched {
 public:
  explicit Watched(bool by_priority = false, bool restartable = true)
      : port({.by_priority = by_priority}),
        restartable_(restartable),
        thread_([this] { serve(); }) {
    // What came before the thread sleeps would be found in another way, and count as a loss.
    EXPECT_TRUE(eventually([this] { return id_ != 0 && sleeps_on_epoll(); }));
  }
  ~Watched() {
    port.close();
    thread_.join();
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  [[nodiscard]] long asleep_in_call() const { return asleep_in(id_); }
  [[nodiscard]] bool waits_for_all() const { return asleep_in(id_) == SYS_futex_waitv; }
  [[nodiscard]] bool sleeps_on_epoll() const {
    const long call = asleep_in(id_);
    return call == SYS_epoll_pwait2 || call == SYS_epoll_pwait || call == SYS_ppoll;
  }

  void signal(int number) { ::pthread_kill(thread_.native_handle(), number); }

  Port port;
  std::atomic<int> notices{0};
  std::atomic<int> interruptions{0};

 private:
  void serve() {
    id_ = ::gettid();
    ServerThread thread(port);
    thread.set_restartable(restartable_);
    Incoming incoming;
    for (;;) {
      const Outcome outcome = thread.receive(incoming, Deadline::never());
      if (outcome == Outcome::finished) return;
      if (outcome == Outcome::interrupted) ++interruptions;
      if (outcome != Outcome::ok) continue;
      if (incoming.notice()) ++notices;
      if (incoming.wants_reply()) thread.reply(incoming, incoming.data());
    }
  }

  const bool restartable_;
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

}  // namespace farcall::test
