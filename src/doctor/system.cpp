// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>

#include "doctor/machine.hpp"

namespace farcall::doctor {
namespace {

// A limit of the kernel below what it is by default, or below what mechanisms here need.
struct Limit {
  const char* id;
  const char* name;  // of the sysctl
  std::uint64_t least;
  Severity severity;
  const char* harm;  // after "NAME is N: "
  std::uint64_t suggested;
};

constexpr auto kLimits = std::to_array<Limit>({
    {"socket-send-buffer", "net.core.wmem_max", 212'992, Severity::warning,
     "below the kernel's default, so that messages over unix and UDP sockets must be shorter",
     212'992},
    {"socket-receive-buffer", "net.core.rmem_max", 212'992, Severity::warning,
     "below the kernel's default, so that UDP between processes is lost sooner", 212'992},
    {"listen-backlog", "net.core.somaxconn", 128, Severity::warning,
     "clients that come at once are turned away before a server can accept them", 4096},
    {"unix-datagrams", "net.unix.max_dgram_qlen", 10, Severity::warning,
     "senders of unix datagrams block after very few", 512},
    {"message-queue-length", "fs.mqueue.msg_max", 10, Severity::note,
     "a POSIX message queue holds fewer messages than usual", 10},
    {"message-queue-size", "fs.mqueue.msgsize_max", 8'192, Severity::note,
     "a message in a POSIX queue must be shorter than usual", 8'192},
    {"system-v-shared-memory", "kernel.shmmax", std::uint64_t{64} << 20, Severity::note,
     "System V shared memory must be smaller than usual", std::uint64_t{1} << 34},
    {"system-v-message-size", "kernel.msgmax", 8'192, Severity::note,
     "a System V message must be shorter than usual", 8'192},
    {"pipe-size", "fs.pipe-max-size", 1'048'576, Severity::note,
     "pipes of users cannot be made as large as usual", 1'048'576},
    {"pipe-pages", "fs.pipe-user-pages-soft", 16'384, Severity::note,
     "a user's pipes shrink to one or two pages once there are a few", 16'384},
    {"open-files-of-system", "fs.file-max", 65'536, Severity::warning,
     "all processes together soon have no descriptor left", 1'048'576},
    {"memory-mappings", "vm.max_map_count", 65'530, Severity::warning,
     "each accelerated connection is a mapping, and a process may have so many in all", 262'144},
});

void look_at_limits(const Tree& tree, Findings& findings) {
  for (const Limit& limit : kLimits) {
    std::string path = fmt::format("/proc/sys/{}", limit.name);
    for (char& c : path)
      if (c == '.') c = '/';
    const auto value = tree.number(path);
    // Zero means no limit where it can be one at all.
    const bool unlimited = value == 0 && std::string_view(limit.name).ends_with("pages-soft");
    if (!value || unlimited || *value >= limit.least) continue;
    findings.push_back({limit.id, limit.severity, kThisMachine,
                        fmt::format("{} is {}: {}.", limit.name, *value, limit.harm),
                        fmt::format("`sysctl -w {}={}`, and the same in /etc/sysctl.d to keep it.",
                                    limit.name, limit.suggested)});
  }
}

// What it forbids to processes that are not each other's children; see Documentation/admin-guide/
// LSM/Yama.rst. Root is not bound below 3.
void look_at_ptrace(const Tree& tree, Findings& findings) {
  const auto scope = tree.number("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || *scope == 0) return;
  findings.push_back(
      {"ptrace-scope", *scope >= 3 ? Severity::warning : Severity::note, kThisMachine,
       fmt::format(
           "kernel.yama.ptrace_scope is {}: {}, so that a connection whose sender is stopped "
           "or busy cannot always be given back to the kernel, and process_vm_readv may be "
           "refused.",
           *scope,
           *scope == 1   ? "a process may look into its children only"
           : *scope == 2 ? "only root may look into processes"
                         : "nobody may look into processes"),
       *scope >= 3 ? "It cannot be lowered before the next boot; if you need it, set it to 1 in "
                     "/etc/sysctl.d and reboot."
                   : "If you trust the programs of one user with each other: `sysctl -w "
                     "kernel.yama.ptrace_scope=0`."});
}

void look_at_preload_file(const Tree& tree, Findings& findings) {
  const std::string all = tree.text("/etc/ld.so.preload").value_or("");
  if (words(all).empty()) return;
  std::string list;
  for (const std::string_view library : words(all))
    list += fmt::format("{}{}", list.empty() ? "" : ", ", library);
  findings.push_back(
      {"preload-file", Severity::note, kThisMachine,
       fmt::format("/etc/ld.so.preload loads into every program: {}.", list),
       "Make sure that none of them replaces socket calls: whichever comes first sees "
       "them, and hides them from the other."});
}

}  // namespace

void examine_system(const Tree& tree, Findings& findings) {
  look_at_limits(tree, findings);
  look_at_ptrace(tree, findings);
  look_at_preload_file(tree, findings);
}

}  // namespace farcall::doctor
