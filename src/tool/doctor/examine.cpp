// SPDX-License-Identifier: Apache-2.0
#include "tool/doctor/examine.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <map>
#include <set>
#include <system_error>

#include "compare/preload_library.hpp"
#include "doctor/abilities.hpp"
#include "doctor/costs.hpp"
#include "doctor/limits.hpp"
#include "doctor/machine.hpp"
#include "doctor/module.hpp"
#include "doctor/placement.hpp"
#include "doctor/process.hpp"
#include "farcall/error.hpp"
#include "tool/doctor/settings.hpp"
#include "watch/memory.hpp"
#include "watch/process.hpp"
#include "watch/status.hpp"

namespace farcall::tool::doctor {
namespace {

using namespace farcall::doctor;

constexpr const char* kHere = "programs started here";

// Whether the library that `farcall run` would load is there.
void look_for_library(Findings& findings) {
#ifdef FARCALL_HAVE_PRELOAD
  try {
    const std::string library = compare::find_library();
    if (::access(library.c_str(), R_OK) != 0)
      findings.push_back(
          {"library-not-readable", Severity::fault, kThisMachine,
           fmt::format("{} cannot be read by this user, so that none of its programs loads it.",
                       library),
           fmt::format("`chmod a+r {}`, and a+x its directories.", library)});
  } catch (const std::system_error& error) {
    findings.push_back({"library-not-installed", Severity::fault, kThisMachine,
                        fmt::format("There is no preload library to be loaded: {}.", error.what()),
                        "Install farcall whole (`cmake --install build/release`, or its packages); "
                        "the command and the library belong together."});
  }
#else
  findings.push_back({"library-not-installed", Severity::fault, kThisMachine,
                      "This farcall was built without the preload library, as with sanitizers.",
                      "Use one that was built with it."});
#endif
}

std::string cure_of(run::Obstacle obstacle) {
  switch (obstacle) {
    case run::Obstacle::no_linker:
      return "Link it dynamically, if it is yours or its distribution has such a package; of a Go "
             "program call libfarcall-c from cgo instead.";
    case run::Obstacle::more_rights:
      return "Start it as the user that it becomes, without the bit; in place of file capabilities "
             "use AmbientCapabilities= of its service, which the dynamic linker does not mind.";
    case run::Obstacle::other_machine:
      return "Install its package for this machine's architecture, or build farcall for its.";
    case run::Obstacle::other_library:
      return "Use a build of it for the GNU C library, or build farcall for its library.";
    case run::Obstacle::own_calls:
      return "Nothing can be preloaded there: let it call libfarcall-c from cgo, or leave it as it "
             "is.";
    case run::Obstacle::not_readable: return "Let this user read it: `chmod a+r`.";
    case run::Obstacle::no_program: return "Give a program, or a script with a first line \"#!\".";
    case run::Obstacle::none: break;
  }
  return "Nothing need be done.";
}

const char* id_of(run::Obstacle obstacle) {
  switch (obstacle) {
    case run::Obstacle::no_linker: return "static-program";
    case run::Obstacle::more_rights: return "program-with-more-rights";
    case run::Obstacle::other_machine: return "other-architecture";
    case run::Obstacle::other_library: return "other-c-library";
    case run::Obstacle::own_calls: return "go-program";
    case run::Obstacle::not_readable: return "program-not-readable";
    case run::Obstacle::no_program: return "no-program";
    case run::Obstacle::none: break;
  }
  return "program";
}

// Why a process cannot have the library; or nothing.
std::string obstacle_of(const Process& process, Findings& findings) {
  if (process.more_rights)
    return "it was started with more rights than its caller's (setuid, setgid or file "
           "capabilities), "
           "and the dynamic linker ignores LD_PRELOAD there";
  try {
    const std::string path = fmt::format("/proc/{}/exe", process.pid);
    run::Program program = run::examine(path);
    program.path = describe(process);
    if (program.obstacle == run::Obstacle::own_calls) judge(program, findings);
    if (const std::size_t at = program.refusal.find(path); at != std::string::npos)
      program.refusal.replace(at, path.size(), "it");
    return program.refusal;
  } catch (const SystemError&) {
    return {};  // not to be seen, or it has ended
  }
}

}  // namespace

void judge(const run::Program& program, Findings& findings) {
  if (program.obstacle == run::Obstacle::none) return;
  const bool refused = !program.refusal.empty();
  std::string cause = refused ? program.refusal : program.reservation;
  if (!cause.empty() && cause.front() >= 'a' && cause.front() <= 'z')
    cause.front() = static_cast<char>(cause.front() - 'a' + 'A');
  findings.push_back({id_of(program.obstacle), refused ? Severity::fault : Severity::warning,
                      program.path, cause + ".", cure_of(program.obstacle)});
}

void examine_surroundings(bool own, bool module_wanted, Findings& findings) {
  const Tree tree;
  if (!tree.exists("/proc/self/status"))
    findings.push_back({"no-proc", Severity::fault, kThisMachine,
                        "There is no /proc here, by which processes find each other's descriptors, "
                        "and without which most of this cannot be looked at.",
                        "`mount -t proc proc /proc`, in the chroot or container, too."});
  look_for_library(findings);
  judge(try_abilities(), findings);
  examine_machine(tree, own, findings);
  judge(measure_costs(), findings);
  examine_system(tree, findings);
  judge(look_at_module(tree), module_wanted, findings);
}

Report examine_here() {
  Report report{.target = kThisMachine, .connections = {}, .findings = {}};
  const Tree tree;
  const Environment environment = own_environment();
  examine_surroundings(true, wants_module(environment), report.findings);
  examine_limits(tree, "self", kHere, report.findings);
  examine_group(tree, "self", kHere, report.findings);
  examine_environment(environment, kHere, report.findings);
  join_alike(report.findings);
  sort_by_severity(report.findings);
  return report;
}

namespace {

// What the process tells of its own traffic.
class Traffic {
 public:
  explicit Traffic(pid_t pid) {
    if (watch::look(pid, process_) != watch::Seen::yes) process_.ends.clear();
  }

  [[nodiscard]] std::optional<Told> told(int fd) const {
    for (const watch::End& end : process_.ends) {
      if (end.fd != fd || !is_socket(end)) continue;
      const bool known = end.carrier == observe::Carrier::kernel && end.reason != 0;
      return Told{.accelerated = end.carrier == observe::Carrier::memory,
                  .reason = known ? reason_told(end.reason) : ""};
    }
    return std::nullopt;
  }

  // Of connections that are accelerated: whether they gain by it.
  void judge(const std::string& about, Findings& findings) const {
    constexpr std::uint64_t kMany = 1000;
    std::uint64_t kernel = 0;
    std::uint64_t all = 0;
    for (const watch::End& end : process_.ends) {
      if (end.carrier != observe::Carrier::memory || !is_socket(end)) continue;
      for (const observe::Half* const half : {&end.counters.sent, &end.counters.received}) {
        kernel += half->kernel_messages;
        all += half->messages + half->kernel_messages;
      }
    }
    if (all >= kMany && kernel > all / 2) findings.push_back(receivers_sleep(about, kernel, all));
  }

 private:
  static const char* reason_told(std::uint8_t reason) {
    return reason == observe::kLeftByPeer ? "peer-gave-back"
                                          : reason_id(static_cast<preload::Reason>(reason - 1));
  }
  static bool is_socket(const watch::End& end) {
    return end.kind >= observe::Kind::tcp && end.kind <= observe::Kind::unix_packets;
  }
  watch::Process process_;
};

}  // namespace

Finding receivers_sleep(const std::string& about, std::uint64_t kernel, std::uint64_t all) {
  return {
      "receivers-sleep", Severity::note, about,
      fmt::format("Though accelerated, {} of {} calls went through the kernel: receivers slept, "
                  "or wait in a way which the library does not see.",
                  kernel, all),
      "Let few connections carry much rather than many little; wait with poll, epoll or a "
      "receive call, and have each socket in one epoll set only."};
}

namespace {

// As root with root's rights, but without being held up.
std::optional<std::string> read_memory_text(pid_t pid, std::string_view file) {
  watch::Status status;
  std::string text;
  if (!watch::read_status(pid, status) ||
      watch::read_text({.pid = pid, .user = status.user, .group = status.group},
                       file == "maps" ? watch::ProcFile::maps : watch::ProcFile::environ, text,
                       watch::Rights::own) != 0)
    return std::nullopt;
  return text;
}

}  // namespace

Report examine_running(pid_t pid) {
  Tree tree;
  tree.read_memory_by(read_memory_text);
  const auto process = read_process(tree, pid);
  if (!process) throw SystemError(ESRCH, fmt::format("look at process {}", pid));
  Report report{.target = describe(*process), .connections = {}, .findings = {}};
  Findings& findings = report.findings;
  const bool unseen = process->library == Library::unknown && !process->environment_known;
  if (watch::Status now; unseen && !watch::read_status(pid, now))
    throw SystemError(ESRCH, fmt::format("look at {} (it has ended)", report.target));
  if (unseen)
    throw SystemError(EACCES, fmt::format("look at {} (it belongs to another user, or is a kernel "
                                          "thread; try as root)",
                                          report.target));
  const bool same_network = process->network == tree.link("/proc/self/ns/net");
  ProcessSettings settings;
  std::map<pid_t, Traffic> traffic;
  const auto traffic_of = [&](pid_t who) -> const Traffic& {
    return traffic.try_emplace(who, who).first->second;
  };
  const Search search{
      .tree = tree,
      .process = *process,
      .unix_sockets = same_network ? ask_for_unix_sockets() : std::vector<UnixSocket>(),
      .wanted = [&](const Process& one, const End& end) { return settings.wants(one, end); },
      .may_share = [&](const Process& one,
                       const Process& other) { return settings.may_share(one, other); },
      .told = [&](pid_t who, int fd) { return traffic_of(who).told(fd); }};
  report.connections = find_connections(search);
  traffic_of(pid).judge(report.target, findings);
  judge(*process, *report.connections, obstacle_of(*process, findings), findings);
  if (!same_network)
    findings.push_back({"other-namespace", Severity::note, report.target,
                        "It is in another network namespace, so that its unix sockets are not seen "
                        "from here.",
                        fmt::format("`nsenter --net=/proc/{0}/ns/net farcall doctor {0}`.", pid)});
  std::set<pid_t> peers;
  for (const Connection& connection : *report.connections)
    if (connection.peer_pid != 0 && peers.insert(connection.peer_pid).second)
      if (const auto peer = read_process(tree, connection.peer_pid))
        judge_placement(tree, *process, *peer, findings);
  examine_process(tree, *process, findings);
  examine_environment(process->environment, report.target, findings);
  examine_limits(tree, std::to_string(pid), report.target, findings);
  examine_group(tree, std::to_string(pid), report.target, findings);
  examine_surroundings(false, wants_module(process->environment), findings);
  join_alike(findings);
  sort_by_severity(findings);
  return report;
}

}  // namespace farcall::tool::doctor
