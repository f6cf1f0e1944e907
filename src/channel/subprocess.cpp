// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/subprocess.hpp"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <utility>

#include "farcall/error.hpp"
#include "socket/wait_for.hpp"

namespace farcall::channel {
namespace {

constexpr int kUncaught = 125;
constexpr std::chrono::seconds kPatience{1};

// The C library's own declarations of these two do not link from C++ in glibc 2.36.
int open_pidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
long send_signal(int pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

void flush_standard_streams() {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

// What the child does from fork to end.
[[noreturn]] void run_and_exit(const std::function<int()>& body, pid_t parent) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A parent that died before the line above sends no signal: the child has another one by now.
  if (::getppid() != parent) ::_exit(kUncaught);
  int code = kUncaught;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::cerr << "farcall: a child process ended by an exception: " << error.what() << '\n';
  } catch (...) {
    std::cerr << "farcall: a child process ended by an exception of unknown type\n";
  }
  try {
    flush_standard_streams();
  } catch (...) {  // a stream that was told to throw has nobody to tell
    code = kUncaught;
  }
  ::_exit(code);
}

// Takes the state of an ended child; std::nullopt if it still runs and `flags` has WNOHANG. Without
// a pidfd the pid has to do: it is not used again before we have waited for the child.
std::optional<ExitStatus> reap(pid_t pid, const UniqueFd& pidfd, int flags) {
  siginfo_t info{};
  while (::waitid(pidfd ? P_PIDFD : P_PID, static_cast<id_t>(pidfd ? pidfd.get() : pid), &info,
                  WEXITED | flags) != 0)
    if (errno != EINTR) throw_errno("wait for a child process");
  if (info.si_pid == 0) return std::nullopt;
  if (info.si_code == CLD_EXITED) return ExitStatus{.code = info.si_status, .signal = 0};
  return ExitStatus{.code = 0, .signal = info.si_status};
}

// By the deadline, without a descriptor to wait for.
std::optional<ExitStatus> reap_by(pid_t pid, Deadline deadline) {
  for (;;) {
    const auto status = reap(pid, UniqueFd(), WNOHANG);
    if (status || monotonic_ns() >= deadline.at()) return status;
    const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace

std::string ExitStatus::describe() const {
  if (signal == 0) return "exited with " + std::to_string(code);
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? "killed by SIG" + std::string(name)
                         : "killed by signal " + std::to_string(signal);
}

Subprocess::Subprocess(const std::function<int()>& body) {
  // What is buffered now would come out twice otherwise.
  flush_standard_streams();
  parent_ = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("fork");
  if (pid_ == 0) run_and_exit(body, parent_);
  pidfd_ = UniqueFd(open_pidfd(pid_));
  if (pidfd_ || errno == ENOSYS) return;
  const int error = errno;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  throw SystemError(error, "pidfd_open");
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      parent_(other.parent_),
      pidfd_(std::move(other.pidfd_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

Subprocess& Subprocess::operator=(Subprocess&& other) noexcept {
  if (this != &other) {
    const Subprocess old(std::move(*this));  // ends as in the destructor
    pid_ = std::exchange(other.pid_, -1);
    parent_ = other.parent_;
    pidfd_ = std::move(other.pidfd_);
    status_ = std::exchange(other.status_, std::nullopt);
  }
  return *this;
}

Subprocess::~Subprocess() {
  // In a child that was forked since, it is the parent's to end.
  if (pid_ < 0 || status_ || parent_ != ::getpid()) return;
  try {
    if (wait(Deadline::after(kPatience))) return;
    kill(SIGKILL);
    wait();
  } catch (const std::exception&) {
    // Somebody else has waited for the child, so there is no zombie either.
  }
}

ExitStatus Subprocess::wait() {
  if (!status_) {
    if (pid_ < 0) throw MisuseError("wait for a subprocess that was moved away");
    status_ = reap(pid_, pidfd_, 0);
  }
  return *status_;
}

std::optional<ExitStatus> Subprocess::wait(Deadline deadline) {
  if (!status_) {
    if (pid_ < 0) throw MisuseError("wait for a subprocess that was moved away");
    if (!pidfd_)
      status_ = reap_by(pid_, deadline);
    else if (wait_for(pidfd_.get(), POLLIN, deadline))
      status_ = reap(pid_, pidfd_, WNOHANG);
  }
  return status_;
}

void Subprocess::kill(int signal) {
  if (pid_ < 0 || status_) return;
  if ((pidfd_ ? send_signal(pidfd_.get(), signal) : ::kill(pid_, signal)) != 0 && errno != ESRCH)
    throw_errno("send a signal to a child process");
}

bool Subprocess::running() { return pid_ >= 0 && !wait(Deadline::now()); }

ReadFromChild spawn_writer(AnyChannel channel, std::function<int(Writer&)> body) {
  Subprocess child([&] { return body(*channel.take_writer()); });
  return {.child = std::move(child), .reader = channel.take_reader()};
}

WriteToChild spawn_reader(AnyChannel channel, std::function<int(Reader&)> body) {
  Subprocess child([&] { return body(*channel.take_reader()); });
  return {.child = std::move(child), .writer = channel.take_writer()};
}

TalkWithChild spawn(AnyDuplex duplex, std::function<int(DuplexEnd)> body) {
  Subprocess child([&] { return body(duplex.take_second()); });
  return {.child = std::move(child), .end = duplex.take_first()};
}

}  // namespace farcall::channel
