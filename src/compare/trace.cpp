// SPDX-License-Identifier: Apache-2.0
//
// Counts system calls exactly, by stopping a process at each of them. That makes it slower, so it
// happens in a pass of its own in which nothing is timed; and only one side is traced at a time,
// or each would find the other slow and wait in ways in which it does not wait otherwise.
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "compare/supervisor.hpp"
#include "farcall/error.hpp"
#include "farcall/wait.hpp"

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
  Tracer(pid_t process, std::int64_t deadline) : process_(process), deadline_(deadline) {
    const std::filesystem::path tasks = fmt::format("/proc/{}/task", process);
    for (const auto& entry : std::filesystem::directory_iterator(tasks)) {
      const pid_t thread = std::stoi(entry.path().filename());
      constexpr long kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
      if (::ptrace(PTRACE_SEIZE, thread, 0, kOptions) != 0) {
        if (errno == ESRCH) continue;  // ended meanwhile
        throw_errno("ptrace");
      }
      ::ptrace(PTRACE_INTERRUPT, thread, 0, 0);
      unsettled_.insert(thread);
    }
  }

  // Waits until each thread has stopped once and goes on with its system calls reported.
  void settle() {
    while (!unsettled_.empty()) step();
  }
  // Counts until the second mark.
  std::uint64_t count() {
    while (!over_) step();
    return counted_;
  }
  // Waits for the end of the slot's processes, without stopping them any more than it has to.
  void see_off(const OtherChildren& others) {
    while (!ended_ && others.has_more()) step();
  }

 private:
  // Handles one stop of one thread, or the end of the process.
  void step() {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (interrupting_signal() != 0) throw Interrupted{interrupting_signal()};
    if (monotonic_ns() > deadline_) throw std::runtime_error("counting took too long");
    if (thread < 0) {
      if (errno == EINTR) return;
      if (errno != ECHILD) throw_errno("waitpid");
      ended_ = true;
    }
    // Single threads may end, and so may the client where it is not the traced side: the server
    // then dies with it.
    if (thread < 0 || !WIFSTOPPED(status)) {
      if (!over_ && (thread < 0 || thread == process_))
        throw std::runtime_error("a process ended while it was traced");
      return;
    }
    unsettled_.erase(thread);
    const int signal = WSTOPSIG(status);
    const bool event = status >> 16 != 0;
    const bool at_system_call = signal == (SIGTRAP | 0x80);
    if (at_system_call && !over_) look(thread);
    const long forwarded = event || at_system_call ? 0 : signal;
    ::ptrace(over_ ? PTRACE_CONT : PTRACE_SYSCALL, thread, 0, forwarded);
  }

  void look(pid_t thread) {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0)
      throw_errno("PTRACE_GET_SYSCALL_INFO");
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return;
    if (info.entry.nr == SYS_prctl) {
      const auto mark = static_cast<TraceMark>(info.entry.args[0]);
      if (mark == TraceMark::begin || mark == TraceMark::end) {
        counting_ = mark == TraceMark::begin;
        over_ = mark == TraceMark::end;
        return;
      }
    }
    if (counting_) ++counted_;
  }

  pid_t process_;
  std::int64_t deadline_;
  std::unordered_set<pid_t> unsettled_;
  bool counting_ = false;
  bool over_ = false;
  bool ended_ = false;
  std::uint64_t counted_ = 0;
};

}  // namespace

double count_system_calls(pid_t process, Board& board, std::int64_t deadline,
                          const OtherChildren& others) {
  const Ticks ticks;
  Tracer tracer(process, deadline);
  tracer.settle();
  board.traced.store(true, std::memory_order_release);
  const std::uint64_t counted = tracer.count();
  tracer.see_off(others);
  return static_cast<double>(counted) / static_cast<double>(board.traced_calls);
}

}  // namespace farcall::compare
