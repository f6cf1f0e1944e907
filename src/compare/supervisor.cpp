// SPDX-License-Identifier: Apache-2.0
#include "compare/supervisor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>

#include "compare/preloaded.hpp"
#include "farcall/channel/clean.hpp"
#include "farcall/error.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kGrace = kSecond / 2;     // for the other side, when one has failed
constexpr std::int64_t kAtTheEnd = 5 * kSecond;  // for processes that end by themselves
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t interrupted_by = 0;
void note_signal(int signal) { interrupted_by = signal; }

// As they were before; what was ignored, by nohup(1) for example, stays so.
std::array<struct sigaction, kSignals.size()> handled_before;

void handle_signals() noexcept {
  struct sigaction action {};
  action.sa_handler = note_signal;  // without SA_RESTART: waiting ends
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &handled_before[i]);
    if (handled_before[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

void restore_signals() noexcept {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    ::sigaction(kSignals[i], &handled_before[i], nullptr);
}

UniqueFd process_descriptor(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool has_ended(const UniqueFd& process, int timeout_ms) noexcept {
  pollfd entry{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, timeout_ms) > 0;
}

}  // namespace

int interrupting_signal() noexcept { return interrupted_by; }

Supervisor::Supervisor(std::size_t most_samples, std::int64_t patience_ns)
    : board_file_(SharedMemory::create(sizeof(Board), "farcall-board")),
      sample_file_(SharedMemory::create(most_samples * sizeof(float), "farcall-samples")),
      board_memory_(board_file_.map()),
      sample_memory_(sample_file_.map()),
      board_(reinterpret_cast<Board*>(board_memory_.data())),
      samples_(reinterpret_cast<float*>(sample_memory_.data()), most_samples),
      patience_ns_(patience_ns) {
  std::memset(sample_memory_.data(), 0, sample_memory_.size());  // no page faults later
  // A server whose client has died becomes our child.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  interrupted_by = 0;
  handle_signals();
}

Supervisor::~Supervisor() { restore_signals(); }

pid_t Supervisor::start(const SlotPlan& plan) {
  std::memset(static_cast<void*>(board_), 0, sizeof *board_);
  others_.note();
  const pid_t tool = ::getpid();
  const pid_t client = ::fork();
  if (client < 0) throw_errno("fork");
  if (client == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != tool) ::_exit(1);  // it died before that
    restore_signals();
    if (plan.row->info().preloaded)
      ::_exit(execute_slot(plan, board_file_.fd(), sample_file_.fd(), *board_));
    ::_exit(client_main(plan, *board_, samples_));
  }
  return client;
}

std::string Supervisor::run(const SlotPlan& plan) {
  const std::int64_t patience =
      patience_ns_ + 4 * plan.effort.slot_ns(plan.row->info(), plan.conditions);
  const std::int64_t begin = monotonic_ns();
  std::int64_t deadline = begin + patience;
  const pid_t client = start(plan);
  const UniqueFd client_process = process_descriptor(client);
  UniqueFd server_process;
  bool hangs = false;
  bool server_lost = false;
  while (!has_ended(client_process, 50)) {
    if (interrupted_by != 0) {
      reap(client_process, server_process);
      throw Interrupted{interrupted_by};
    }
    const pid_t server = board_->server_pid.load(std::memory_order_acquire);
    if (!server_process && server != 0) server_process = process_descriptor(server);
    // The survivor has a moment to notice by itself; a mechanism may be unable to tell it.
    const bool lost = server_process && has_ended(server_process, 0) && !board_->server_done;
    if (lost && !server_lost)
      deadline = std::min(deadline, monotonic_ns() + (plan.dead_peer ? kLongestWait : kGrace));
    server_lost = server_lost || lost;
    hangs = monotonic_ns() >= deadline;
    if (hangs) break;
  }
  if (hangs) ::kill(client, SIGKILL);
  int client_status = 0;
  ::waitpid(client, &client_status, 0);
  reap({}, server_process);
  if (std::string problem = what_failed(); !problem.empty()) return problem;
  if (plan.dead_peer && (hangs || board_->loss.fate != Board::Loss::waits))
    return board_->loss.died != 0 ? "" : "the server was not killed";
  if (server_lost) return "the server process died";
  if (hangs) return fmt::format("no answer within {} s", patience / kSecond);
  if (WIFSIGNALED(client_status))
    return fmt::format("the client process was killed by signal {} ({})", WTERMSIG(client_status),
                       ::strsignal(WTERMSIG(client_status)));
  if (WEXITSTATUS(client_status) != 0)
    return fmt::format("the client process exited with {}", WEXITSTATUS(client_status));
  return {};
}

std::optional<double> Supervisor::trace(const SlotPlan& plan, std::string& why) {
  const std::int64_t deadline = monotonic_ns() + patience_ns_ / 2;
  const pid_t client = start(plan);
  const UniqueFd client_process = process_descriptor(client);
  UniqueFd server_process;
  std::optional<double> count;
  try {
    while (!board_->ready_to_trace.load(std::memory_order_acquire)) {
      if (has_ended(client_process, 1)) throw std::runtime_error("a process ended early");
      if (interrupted_by != 0) throw Interrupted{interrupted_by};
      if (monotonic_ns() > deadline) throw std::runtime_error("no answer");
    }
    const pid_t server = board_->server_pid.load(std::memory_order_acquire);
    server_process = process_descriptor(server);
    count = count_system_calls(plan.trace == Role::client ? client : server, *board_, deadline,
                               others_);
  } catch (const std::exception& error) {
    why = error.what();
  } catch (const Interrupted&) {
    reap(client_process, server_process);
    throw;
  }
  reap(client_process, server_process);
  if (const std::string problem = what_failed(); !problem.empty()) {
    why = problem;
    return std::nullopt;
  }
  return count;
}

std::string Supervisor::what_failed() const {
  std::string text;
  for (const Role role : {Role::client, Role::server}) {
    const auto index = static_cast<std::size_t>(role);
    if (!board_->failed[index].load(std::memory_order_acquire)) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ",
                        role == Role::client ? "client" : "server", board_->error[index]);
  }
  return text;
}

void Supervisor::reap(const UniqueFd& client, const UniqueFd& server) noexcept {
  // By descriptor: their numbers may belong to others by now.
  bool killed = false;
  for (const UniqueFd* process : {&client, &server})
    if (*process && ::syscall(SYS_pidfd_send_signal, process->get(), SIGKILL, nullptr, 0) == 0)
      killed = true;
  // Servers without a client have become our children and die with it; a traced process is waited
  // for with __WALL. Other children may go on for as long as they like, and where the slot has left
  // one that does, the next slot counts it among those.
  const std::int64_t begin = monotonic_ns();
  const auto patience = [&] {
    return interrupted_by != 0 ? kAtTheEnd : std::max(kAtTheEnd, patience_ns_);
  };
  while (monotonic_ns() - begin < patience()) {
    const pid_t ended = ::waitpid(-1, nullptr, __WALL | WNOHANG);
    if (ended > 0) continue;
    if (ended < 0 || !others_.has_more()) break;
    ::usleep(1000);
  }
  if (!killed) return;
  try {
    channel::clean_leftovers(false);
  } catch (const std::exception&) {
    // `farcall clean` will say why.
  }
}

}  // namespace farcall::compare
