// SPDX-License-Identifier: Apache-2.0
//
// Counts system calls exactly, by stopping the processes at each of them. That makes them slower,
// so it happens in a pass of its own in which nothing is timed.
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/wait.hpp"
#include "tool/compare/supervisor.hpp"

namespace farcall::compare {
namespace {

// While it lives, SIGALRM comes every 100 ms, so that waiting can look at the clock.
class Ticks {
 public:
  Ticks() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, &before_);
    set(100'000);
  }
  Ticks(const Ticks&) = delete;
  Ticks& operator=(const Ticks&) = delete;
  ~Ticks() {
    set(0);
    ::sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set(suseconds_t interval) noexcept {
    const timeval period{.tv_sec = 0, .tv_usec = interval};
    const itimerval timer{.it_interval = period, .it_value = period};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
  }
  struct sigaction before_ {};
};

class Tracer {
 public:
  Tracer(pid_t client, pid_t server, std::int64_t deadline) : client_(client), deadline_(deadline) {
    attach(client, Role::client);
    attach(server, Role::server);
  }

  // Waits until each thread has stopped once and goes on with its system calls reported.
  void settle() {
    while (std::any_of(threads_.begin(), threads_.end(),
                       [](const auto& thread) { return !thread.second.reports; }))
      step();
  }

  std::uint64_t count() {
    while (!over_) step();
    return counted_;
  }

 private:
  struct Thread {
    Role role;
    bool reports = false;  // it has been told to stop at system calls
  };

  void attach(pid_t process, Role role) {
    const std::filesystem::path tasks = fmt::format("/proc/{}/task", process);
    for (const auto& entry : std::filesystem::directory_iterator(tasks)) {
      const pid_t thread = std::stoi(entry.path().filename());
      constexpr long kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
      if (::ptrace(PTRACE_SEIZE, thread, 0, kOptions) != 0) {
        if (errno == ESRCH) continue;  // ended meanwhile
        throw_errno("ptrace");
      }
      ::ptrace(PTRACE_INTERRUPT, thread, 0, 0);
      threads_.emplace(thread, Thread{.role = role});
    }
  }

  // Handles one stop of one thread.
  void step() {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (interrupting_signal() != 0) throw Interrupted{interrupting_signal()};
    if (monotonic_ns() > deadline_) throw std::runtime_error("counting took too long");
    if (thread < 0) {
      if (errno == EINTR) return;
      throw_errno("waitpid");
    }
    if (!WIFSTOPPED(status)) {
      threads_.erase(thread);
      if (thread == client_) throw std::runtime_error("the client ended while it was traced");
      return;
    }
    // A new thread's first stop may come before its parent's report of it; it has no role yet.
    Thread& known = threads_.try_emplace(thread, Thread{.role = Role::server}).first->second;
    known.reports = true;
    const int signal = WSTOPSIG(status);
    const int event = status >> 16;
    long forwarded = 0;
    if (signal == (SIGTRAP | 0x80)) {
      at_system_call(thread, known.role);
    } else if (event == PTRACE_EVENT_CLONE) {
      unsigned long child = 0;
      ::ptrace(PTRACE_GETEVENTMSG, thread, 0, &child);
      threads_[static_cast<pid_t>(child)].role = known.role;
    } else if (event == 0) {
      forwarded = signal;
    }
    ::ptrace(PTRACE_SYSCALL, thread, 0, forwarded);
  }

  void at_system_call(pid_t thread, Role role) {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0)
      throw_errno("PTRACE_GET_SYSCALL_INFO");
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return;
    if (thread == client_ && at_mark(info.entry.args[0])) return;
    if (counting_[static_cast<std::size_t>(role)]) ++counted_;
  }

  bool at_mark(std::uint64_t argument) {
    switch (static_cast<TraceMark>(argument)) {
      case TraceMark::begin: counting_[0] = counting_[1] = true; return true;
      case TraceMark::client_end: counting_[0] = false; return true;
      case TraceMark::end:
        counting_[1] = false;
        over_ = true;
        return true;
    }
    return false;
  }

  pid_t client_;
  std::int64_t deadline_;
  std::unordered_map<pid_t, Thread> threads_;
  bool counting_[2] = {false, false};
  bool over_ = false;
  std::uint64_t counted_ = 0;
};

}  // namespace

TraceCount count_system_calls(pid_t client, pid_t server, Board& board, std::int64_t deadline) {
  const Ticks ticks;
  Tracer tracer(client, server, deadline);
  tracer.settle();
  board.traced.store(true, std::memory_order_release);
  const std::uint64_t counted = tracer.count();
  // The client wrote the number of calls before its last mark.
  return {.system_calls = counted, .calls = board.traced_calls};
}

}  // namespace farcall::compare
