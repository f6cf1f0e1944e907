// SPDX-License-Identifier: Apache-2.0
#include "compare/machine.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "compare/samples.hpp"
#include "compare/units.hpp"
#include "farcall/wait.hpp"

#ifdef FARCALL_HAVE_ZEROMQ
#include <zmq.h>
#endif
#ifdef FARCALL_HAVE_NNG
#include <nng/nng.h>
#endif
#ifdef FARCALL_HAVE_ASIO
#include <asio/version.hpp>
#endif
#ifdef FARCALL_HAVE_BOOST_MQ
#include <boost/version.hpp>
#endif

namespace farcall::compare {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string or_unknown(std::string text) { return text.empty() ? "unknown" : std::move(text); }

// The value of a field of /proc/cpuinfo, from the first processor that has it.
std::string cpuinfo(std::string_view field) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(field) || colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(' ', colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

std::string virtualization() {
  const std::string flags = " " + cpuinfo("flags") + " ";
  if (flags.find(" hypervisor ") == std::string::npos) return "none";
  for (const char* file :
       {"/sys/hypervisor/type", "/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name"})
    if (std::string name = first_line(file); !name.empty()) return name;
  return "hypervisor";
}

std::map<std::string, std::string> mitigations() {
  std::map<std::string, std::string> found;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator("/sys/devices/system/cpu/vulnerabilities", none))
    found[entry.path().filename()] = first_line(entry.path());
  return found;
}

double timer_overhead() {
  std::vector<double> gaps(2001);
  std::int64_t before = monotonic_ns();
  for (double& gap : gaps) {
    const std::int64_t after = monotonic_ns();
    gap = static_cast<double>(after - before);
    before = after;
  }
  return median(std::move(gaps));
}

double load_average() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? load : 0;
}

using Versions = std::map<std::string, std::optional<std::string>>;

// Those that it was built with, as "name=1.2,other=,": CMake knows.
void add_built(Versions& versions) {
  std::istringstream all(FARCALL_PEER_VERSIONS);
  for (std::string each; std::getline(all, each, ',');) {
    const std::size_t end = each.find('=');
    if (end == std::string::npos) continue;
    std::string version = each.substr(end + 1);
    versions[each.substr(0, end)] =
        version.empty() ? std::nullopt : std::optional(std::move(version));
  }
}

// The last word that `program --version` prints first: "nats-server: v2.9.10".
[[maybe_unused]] std::optional<std::string> version_of_program(const std::string& program) {
  std::FILE* const said = ::popen((program + " --version 2>/dev/null").c_str(), "r");
  if (said == nullptr) return std::nullopt;
  std::array<char, 256> line{};
  const bool any = std::fgets(line.data(), line.size(), said) != nullptr;
  ::pclose(said);
  std::istringstream words(any ? line.data() : "");
  std::string last;
  for (std::string word; words >> word;) last = word;
  if (last.starts_with('v')) last.erase(0, 1);
  if (last.empty()) return std::nullopt;
  return last;
}

Versions libraries() {
  Versions versions;
  add_built(versions);
  versions["libc"] = fmt::format("glibc {}", ::gnu_get_libc_version());
#ifdef FARCALL_HAVE_ZEROMQ
  int major = 0;
  int minor = 0;
  int patch = 0;
  ::zmq_version(&major, &minor, &patch);
  versions["zeromq"] = fmt::format("{}.{}.{}", major, minor, patch);
#endif
#ifdef FARCALL_HAVE_NNG
  versions["nng"] = ::nng_version();
#endif
#ifdef FARCALL_HAVE_BOOST_MQ
  versions["boost_mq"] = fmt::format("{}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
                                     BOOST_VERSION % 100);
#endif
#ifdef FARCALL_HAVE_ASIO
  versions["asio"] =
      fmt::format("{}.{}.{}", ASIO_VERSION / 100000, ASIO_VERSION / 100 % 1000, ASIO_VERSION % 100);
#endif
#ifdef FARCALL_HAVE_NATS
  versions["nats-server"] = version_of_program("/usr/sbin/nats-server");
#endif
#ifdef FARCALL_HAVE_DBUS
  versions["dbus-daemon"] = version_of_program("dbus-daemon");
#endif
  return versions;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  return shell_line(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace

Machine describe_machine(const Processors& processors) {
  utsname system{};
  ::uname(&system);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return {
      .cpu = or_unknown(cpuinfo("model name")),
      .processors = std::thread::hardware_concurrency(),
      .allowed = processors.allowed(),
      .first_processor = *processors.processor(Placement::two_cpus, Role::client),
      .second_processor = *processors.processor(Placement::two_cpus, Role::server),
      .siblings = processors.two_are_siblings(),
      .kernel = fmt::format("{} {}", system.release, system.machine),
      .virtualization = virtualization(),
      .governor = or_unknown(first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
      .mitigations = mitigations(),
      .clock_source = or_unknown(
          first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
      .timer_ns = timer_overhead(),
      .page_bytes = page,
      .memory_bytes = page * static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)),
      .load = load_average(),
      .build_type = FARCALL_BUILD_TYPE,
      .compiler = FARCALL_COMPILER,
      .time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(
                                                       std::chrono::system_clock::now()))),
      .libraries = libraries(),
      .command = command_line(),
  };
}

}  // namespace farcall::compare
