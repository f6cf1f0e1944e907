// SPDX-License-Identifier: Apache-2.0
#include "doctor/limits.hpp"

#include <fmt/format.h>

#include <optional>

namespace farcall::doctor {
namespace {

struct Bounds {
  std::optional<std::uint64_t> soft;  // nothing: there is none
  std::optional<std::uint64_t> hard;
  bool known = false;
};

// Of /proc/PID/limits, whose names have blanks in them: "Max open files   1024   4096   files".
Bounds bounds(std::string_view text, std::string_view name) {
  for (const std::string_view line : lines(text)) {
    if (!line.starts_with(name)) continue;
    const auto values = words(line.substr(name.size()));
    if (values.size() < 2) break;
    return {.soft = to_number(values[0]), .hard = to_number(values[1]), .known = true};
  }
  return {};
}

class Examination {
 public:
  Examination(const Tree& tree, const std::string& pid, const std::string& about,
              Findings& findings)
      : tree_(tree),
        pid_(pid),
        about_(about),
        findings_(findings),
        limits_(tree.text(fmt::format("/proc/{}/limits", pid)).value_or("")),
        status_(tree.text(fmt::format("/proc/{}/status", pid)).value_or("")) {}

  void look_at_descriptors() {
    const Bounds files = bounds(limits_, "Max open files");
    if (!files.known || !files.soft) return;
    const std::size_t used = tree_.names(fmt::format("/proc/{}/fd", pid_)).size();
    if (used * 10 >= *files.soft * 9)
      add("descriptors-exhausted", Severity::fault,
          fmt::format("{} of {} descriptors are in use: two more are needed for a moment for each "
                      "connection that is to be accelerated.",
                      used, *files.soft),
          "Raise the limit (`ulimit -n`, LimitNOFILE= of the service), or find what does not close "
          "its descriptors.");
    else if (*files.soft < 1024)
      add("few-descriptors", Severity::warning,
          fmt::format(
              "There may be {} descriptors only; a connection that is to be accelerated and "
              "a session of calls need two each.",
              *files.soft),
          "Raise the limit: `ulimit -n 4096`, LimitNOFILE= of the service.");
    else if (*files.soft == 1024 && files.hard.value_or(UINT64_MAX) > 1024)
      add("descriptors-can-grow", Severity::note,
          "There may be 1024 descriptors, though more are permitted; a server of calls lets one "
          "user "
          "have a quarter of them.",
          "For servers with hundreds of clients raise the soft limit: `ulimit -n 65536`.");
  }

  // Threads of the user; root is not bound by it.
  void look_at_threads() {
    const Bounds threads = bounds(limits_, "Max processes");
    if (!threads.known || !threads.soft || *threads.soft >= 256) return;
    if (field(status_, "Uid").starts_with("0\t")) return;
    add("few-threads", Severity::warning,
        fmt::format("The user may have {} processes and threads in all, and a server needs one for "
                    "each call that it serves at a time.",
                    *threads.soft),
        "Raise the limit: `ulimit -u 4096`, LimitNPROC= of the service.");
  }

  void look_at_address_space() {
    constexpr std::uint64_t kLittle = std::uint64_t{4} << 30;
    const Bounds space = bounds(limits_, "Max address space");
    if (!space.known || !space.soft || *space.soft >= kLittle) return;
    add("address-space", Severity::warning,
        fmt::format("The process may map {} MiB only, and each accelerated connection takes half a "
                    "MiB of addresses.",
                    *space.soft >> 20),
        "Remove the limit (`ulimit -v unlimited`, LimitAS= of the service), or make rings smaller: "
        "FARCALL_RING_BYTES=64K.");
  }

  void look_at_locked_memory() {
    const Bounds locked = bounds(limits_, "Max locked memory");
    if (!locked.known || !locked.soft || *locked.soft >= 64 * 1024) return;
    add("locked-memory", Severity::note,
        fmt::format(
            "The process may lock {} KiB only, which counts for regions of the kernel module.",
            *locked.soft >> 10),
        "Raise it where programs register memory with the module: `ulimit -l 8192`, LimitMEMLOCK= "
        "of "
        "the service.");
  }

  void look_at_queues() {
    constexpr std::uint64_t kDefault = 819'200;
    const Bounds queues = bounds(limits_, "Max msgqueue size");
    if (!queues.known || !queues.soft || *queues.soft >= kDefault) return;
    add("message-queue-bytes", Severity::note,
        fmt::format("All POSIX message queues of the user may hold {} bytes, less than by default.",
                    *queues.soft),
        "`ulimit -q 819200`, LimitMSGQUEUE= of the service.");
  }

  // Raised by what is received, and that only if it may be: see src/message/priority.cpp.
  void look_at_priority() {
    const std::string maps = tree_.memory_text(pid_, "maps").value_or("");
    if (maps.find("libfarcall-messages") == std::string::npos) return;
    const Bounds priority = bounds(limits_, "Max realtime priority");
    if (!priority.known || !priority.soft || *priority.soft != 0) return;
    const auto capabilities = to_number(field(status_, "CapEff"), 16);
    constexpr unsigned kSysNice = 23;
    if (!capabilities || (*capabilities >> kSysNice & 1) != 0) return;
    add("no-real-time", Severity::note,
        "The process may not take a real-time priority, so that a server does not inherit that of "
        "the clients that wait for it.",
        "If clients have real-time priorities: `ulimit -r 50`, LimitRTPRIO= of the service, or an "
        "entry in /etc/security/limits.d.");
  }

 private:
  void add(const char* id, Severity severity, std::string cause, std::string cure) {
    findings_.push_back({id, severity, about_, std::move(cause), std::move(cure)});
  }

  const Tree& tree_;
  const std::string& pid_;
  const std::string& about_;
  Findings& findings_;
  const std::string limits_;
  const std::string status_;
};

}  // namespace

void examine_limits(const Tree& tree, const std::string& pid, const std::string& about,
                    Findings& findings) {
  Examination examination(tree, pid, about, findings);
  examination.look_at_descriptors();
  examination.look_at_threads();
  examination.look_at_address_space();
  examination.look_at_locked_memory();
  examination.look_at_queues();
  examination.look_at_priority();
}

}  // namespace farcall::doctor
