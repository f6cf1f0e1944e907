// SPDX-License-Identifier: Apache-2.0
#include "doctor/process.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/auxv.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace farcall::doctor {
namespace {

constexpr std::string_view kLibrary = "libfarcall-preload.so";

// What follows the name in /proc/PID/stat, which may hold blanks and brackets itself. The first is
// the state, number 3 of proc(5).
std::vector<std::string_view> stat_fields(std::string_view stat) {
  const std::size_t bracket = stat.rfind(')');
  return bracket == stat.npos ? std::vector<std::string_view>() : words(stat.substr(bracket + 1));
}

int to_int(const std::vector<std::string_view>& fields, std::size_t number) {
  const std::size_t at = number - 3;
  if (at >= fields.size()) return 0;
  const bool negative = fields[at].starts_with('-');
  const auto value = to_number(fields[at].substr(negative ? 1 : 0));
  return value ? static_cast<int>(*value) * (negative ? -1 : 1) : 0;
}

void read_status(const Tree& tree, Process& process) {
  const std::string status = tree.text(fmt::format("/proc/{}/status", process.pid)).value_or("");
  process.name = field(status, "Name");
  const std::string users = field(status, "Uid");
  const auto ids = words(users);
  if (ids.size() >= 2) process.user = static_cast<uid_t>(to_number(ids[1]).value_or(0));
  process.parent = static_cast<pid_t>(to_number(field(status, "PPid")).value_or(0));
  process.tracer = static_cast<pid_t>(to_number(field(status, "TracerPid")).value_or(0));
  process.seccomp = static_cast<int>(to_number(field(status, "Seccomp")).value_or(0));
  process.processors = to_list(field(status, "Cpus_allowed_list"));
  const std::string state = field(status, "State");
  if (!state.empty()) process.state = state.front();
  const std::string stat = tree.line(fmt::format("/proc/{}/stat", process.pid));
  const auto fields = stat_fields(stat);
  process.nice = to_int(fields, 19);
  process.policy = to_int(fields, 41);
}

void count_memory(std::string_view line, Process& process) {
  const auto columns = words(line);
  if (columns.size() < 6) return;
  const std::string_view name = columns[5];
  const auto number = to_number(columns[4]);
  if (!number) return;
  if (name == "/memfd:farcall-tcp") ++process.tcp_memory[*number];
  if (name == "/memfd:farcall-unix") ++process.unix_memory[*number];
  if (name == "/memfd:farcall-udp") ++process.udp_memory[*number];
}

void read_maps(const Tree& tree, Process& process) {
  const auto maps = tree.memory_text(std::to_string(process.pid), "maps");
  // A kernel thread, a zombie, or one that may not be looked at.
  if (!maps || maps->empty()) return;
  process.library = Library::absent;
  for (const std::string_view line : lines(*maps)) {
    if (line.find("/memfd:farcall-") != line.npos) count_memory(line, process);
    if (line.find(kLibrary) == line.npos) continue;
    if (process.library != Library::replaced)
      process.library = line.ends_with(" (deleted)") ? Library::replaced : Library::loaded;
  }
}

void read_descriptors(const Tree& tree, Process& process) {
  const std::string directory = fmt::format("/proc/{}/fd", process.pid);
  for (const std::string& name : tree.names(directory)) {
    ++process.descriptors;
    const std::string target = tree.link(fmt::format("{}/{}", directory, name));
    if (target == "anon_inode:[io_uring]") process.uring = true;
    if (!target.starts_with("socket:[")) continue;
    const auto inode = to_number(std::string_view(target).substr(8, target.size() - 9));
    if (inode) process.sockets.emplace(*inode, static_cast<int>(to_number(name).value_or(0)));
  }
}

void read_environment(const Tree& tree, Process& process) {
  const auto text = tree.memory_text(std::to_string(process.pid), "environ");
  process.environment_known = text.has_value();
  std::string_view rest = text ? std::string_view(*text) : std::string_view();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\0'), rest.size());
    if (end != 0) process.environment.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

// Pairs of words: what the kernel told the program about itself.
void read_auxiliary_vector(const Tree& tree, Process& process) {
  const std::string text = tree.text(fmt::format("/proc/{}/auxv", process.pid)).value_or("");
  std::array<std::uint64_t, 2> pair{};
  for (std::size_t at = 0; at + sizeof pair <= text.size(); at += sizeof pair) {
    std::memcpy(pair.data(), text.data() + at, sizeof pair);
    if (pair[0] == AT_SECURE) process.more_rights = pair[1] != 0;
  }
}

class Examination {
 public:
  Examination(const Tree& tree, const Process& process, Findings& findings)
      : tree_(tree), process_(process), findings_(findings), about_(describe(process)) {}

  void look_at_state() {
    if (process_.state == 'T' || process_.state == 't')
      add("stopped", Severity::fault,
          process_.state == 'T'
              ? "It is stopped by a signal: nobody who waits for it gets an answer."
              : "A debugger has stopped it: nobody who waits for it gets an answer.",
          fmt::format("Let it go on: `kill -CONT {}`.", process_.pid));
    if (process_.state == 'Z')
      add("ended", Severity::fault, "It has ended, and its parent has not waited for it.",
          fmt::format("Look at its parent, process {}.", process_.parent));
    if (process_.tracer != 0 && process_.state != 't')
      add("traced", Severity::warning,
          fmt::format("Process {} traces it (strace, a debugger): each system call then stops it "
                      "twice, which takes some ten microseconds.",
                      process_.tracer),
          "Detach the tracer; perf and bpftrace can watch at a smaller price.");
  }

  void look_at_scheduling() {
    if (process_.policy == SCHED_IDLE || process_.policy == SCHED_BATCH)
      add("scheduling-class", Severity::warning,
          fmt::format(
              "It runs as {}: others are given the processor first, and its answers come late.",
              process_.policy == SCHED_IDLE ? "SCHED_IDLE" : "SCHED_BATCH"),
          fmt::format("`chrt --other -p 0 {}`.", process_.pid));
    else if (process_.nice >= 10)
      add("nice", Severity::warning,
          fmt::format("Its niceness is {}: while others run, it gets a small share of a processor.",
                      process_.nice),
          fmt::format("`renice -n 0 -p {}`.", process_.pid));
    const bool real_time = process_.policy == SCHED_FIFO || process_.policy == SCHED_RR;
    if (real_time && process_.processors.size() == 1)
      add("real-time-on-one-processor", Severity::warning,
          "It has a real-time priority and may run on one processor only: whoever shares that one "
          "runs only when it sleeps, so that handing the processor over does not work.",
          "Let it run on a second processor, give its peers the same policy, or pin them "
          "elsewhere.");
    if (process_.processors.size() == 1 && !real_time)
      add("pinned-to-one-processor", Severity::note,
          fmt::format("It may run on processor {} only.", process_.processors.front()),
          "That is well where its peers run elsewhere, or only one of them at a time talks to it.");
  }

  void look_at_library() {
    if (process_.library == Library::replaced)
      add("library-replaced", Severity::warning,
          "The preload library that it runs was replaced or removed since it began, so that it and "
          "newer programs may not understand each other.",
          "Start it anew.");
    if (process_.uring && process_.library >= Library::loaded)
      add("io-uring", Severity::warning,
          "It has set up an io_uring, which goes round the library: from then on all of its "
          "sockets "
          "are the kernel's.",
          "Switch io_uring off in the program if it can do without (many have an option), or live "
          "with it.");
    const std::string list = process_.variable("LD_PRELOAD");
    for (const char* const other :
         {"libvma", "libonload", "libproxychains", "libtorsocks", "libtsocks", "libsocket_wrapper"})
      if (list.find(other) != std::string::npos)
        add("other-interposer", Severity::warning,
            fmt::format("{} is preloaded, too, and replaces the same socket calls: whichever comes "
                        "first hides them from the other.",
                        other),
            "Load one of the two only.");
  }

  // A program that confines itself was let go by the library; one that was started in a sandbox has
  // its filter from its parent.
  void look_at_sandbox() {
    if (process_.seccomp == 0 || process_.library < Library::loaded) return;
    const auto parent = read_process(tree_, process_.parent);
    if (parent && parent->seccomp != 0) return;
    add("confined", Severity::note,
        "It runs under a seccomp filter that its parent does not have: if it has set it up itself, "
        "all of its sockets are the kernel's since then.",
        "Where the program can do without, switch its sandbox off; a filter from outside "
        "(SystemCallFilter= of the service) does not matter.");
  }

 private:
  void add(const char* id, Severity severity, std::string cause, std::string cure) {
    findings_.push_back({id, severity, about_, std::move(cause), std::move(cure)});
  }

  const Tree& tree_;
  const Process& process_;
  Findings& findings_;
  const std::string about_;
};

}  // namespace

std::string Process::variable(std::string_view variable_name) const {
  for (const std::string& each : environment)
    if (each.starts_with(variable_name) && each.size() > variable_name.size() &&
        each[variable_name.size()] == '=')
      return each.substr(variable_name.size() + 1);
  return {};
}

std::optional<Process> read_process(const Tree& tree, pid_t pid) {
  if (pid <= 0 || !tree.exists(fmt::format("/proc/{}/status", pid))) return std::nullopt;
  Process process;
  process.pid = pid;
  read_status(tree, process);
  if (process.name.empty()) return std::nullopt;  // it has just ended
  process.network = tree.link(fmt::format("/proc/{}/ns/net", pid));
  read_maps(tree, process);
  read_descriptors(tree, process);
  read_environment(tree, process);
  read_auxiliary_vector(tree, process);
  return process;
}

std::string describe(const Process& process) {
  return fmt::format("{} (process {})", process.name, process.pid);
}

void examine_process(const Tree& tree, const Process& process, Findings& findings) {
  Examination examination(tree, process, findings);
  examination.look_at_state();
  examination.look_at_scheduling();
  examination.look_at_library();
  examination.look_at_sandbox();
}

std::vector<pid_t> all_processes(const Tree& tree) {
  std::vector<pid_t> all;
  for (const std::string& name : tree.names("/proc"))
    if (const auto pid = to_number(name)) all.push_back(static_cast<pid_t>(*pid));
  return all;
}

Holders holders_of_sockets(const Tree& tree) {
  Holders holders;
  for (const pid_t pid : all_processes(tree)) {
    Process process;
    process.pid = pid;
    read_descriptors(tree, process);
    for (auto at = process.sockets.begin(); at != process.sockets.end();
         at = process.sockets.upper_bound(at->first))
      holders[at->first].push_back(pid);
  }
  return holders;
}

}  // namespace farcall::doctor
