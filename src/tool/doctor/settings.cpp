// SPDX-License-Identifier: Apache-2.0
#include "tool/doctor/settings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "watch/flows.hpp"

namespace farcall::tool::doctor {
namespace {

using farcall::doctor::Findings;
using farcall::doctor::Severity;

constexpr auto kKnown = std::to_array<std::string_view>(
    {"ACCELERATE", "CALLER_GID", "CALLER_PID", "CALLER_UID",  "DOORFS",      "ENABLED",
     "ENGINE",     "EXCLUDE",    "LOG_LEVEL",  "MAX_SOCKETS", "PACKET_SIZE", "RING_BYTES",
     "RING_SIZE",  "SOCKET_DIR", "STATS",      "TAP_UNTIL",   "TCP",         "UDP",
     "UNIX",       "USERS",      "WAIT"});

// How many letters must be changed, added or taken away.
std::size_t distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t changed = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string_view nearest(std::string_view name) {
  return *std::ranges::min_element(kKnown, {},
                                   [&](std::string_view known) { return distance(name, known); });
}

std::string value_of(const Environment& environment, std::string_view name) {
  for (const std::string& word : environment)
    if (word.starts_with(name) && word.size() > name.size() && word[name.size()] == '=')
      return word.substr(name.size() + 1);
  return {};
}

std::vector<const char*> pointers(const Environment& environment) {
  std::vector<const char*> all;
  for (const std::string& word : environment) all.push_back(word.c_str());
  all.push_back(nullptr);
  return all;
}

// The library calls a plain function; one environment is read at a time.
std::vector<std::string>* complaints = nullptr;
void note_complaint(const char* sentence) noexcept {
  if (complaints != nullptr) complaints->emplace_back(sentence);
}

class Examination {
 public:
  Examination(const Environment& environment, const std::string& about, Findings& findings)
      : environment_(environment),
        variables_(pointers(environment)),
        about_(about),
        findings_(findings) {
    complaints = &complaints_;
    settings_ = preload::read_settings(variables_.data(), note_complaint);
    complaints = nullptr;
  }

  void look_at_names() {
    for (const std::string& word : environment_) {
      if (!word.starts_with("FARCALL_")) continue;
      const std::string_view name = std::string_view(word).substr(8, word.find('=') - 8);
      if (std::ranges::find(kKnown, name) != kKnown.end() || name.starts_with("TEST_")) continue;
      const std::string_view near = nearest(name);
      if (distance(name, near) <= 2)
        add("setting-misspelt", Severity::warning,
            fmt::format("FARCALL_{} means nothing: the setting is called FARCALL_{}.", name, near),
            fmt::format("Spell it FARCALL_{}.", near));
      else
        add("setting-unknown", Severity::note,
            fmt::format("FARCALL_{} means nothing to farcall.", name),
            "Take it out of the environment if it was meant for farcall; `man farcall-run` lists "
            "what "
            "there is.");
    }
  }

  void look_at_values() {
    for (const std::string& complaint : complaints_)
      add("setting-not-understood", Severity::warning,
          fmt::format("{}; the default is used instead.", complaint),
          "Write a value that it takes: `man farcall-run`.");
    look_at_word("FARCALL_ENGINE", {"auto", "shared", "kernel"});
    look_at_word("FARCALL_WAIT", {"spin", "adaptive", "block"});
  }

  void look_at_switches() {
    if (!settings_.enabled) {
      add("switched-off", Severity::fault,
          "FARCALL_ENABLED says no: where the library is loaded, it accelerates nothing.",
          "Take it out of the environment.");
      return;
    }
    std::string off;
    if (!settings_.tcp) off += ", TCP";
    if (!settings_.udp) off += ", UDP";
    if (!settings_.unix_streams) off += ", unix sockets";
    if (!off.empty())
      add("kinds-switched-off", Severity::note,
          fmt::format("The settings accelerate no {}.", off.substr(2)),
          "Take FARCALL_TCP, FARCALL_UDP or FARCALL_UNIX out of the environment if you do not mean "
          "it.");
    if (settings_.accelerate.count != 0 || settings_.exclude.count != 0)
      add("some-endpoints-only", Severity::note,
          "FARCALL_ACCELERATE or FARCALL_EXCLUDE leaves the rest of the connections to the kernel.",
          "Take them out of the environment to have all accelerated.");
  }

  void look_at_sizes() {
    if (settings_.log_level <= preload::LogLevel::debug)
      add("log-level", Severity::warning,
          names({"LOG_LEVEL"}) + " lets the library write lines for single connections.",
          "Set it to warn, which is the default, once you have seen what you wanted to.");
    if (settings_.ring_bytes < 16 * 1024)
      add("small-rings", Severity::warning,
          fmt::format("Rings have {} bytes per direction: what is longer waits for the reader in "
                      "between.",
                      settings_.ring_bytes),
          fmt::format("Take {} out of the environment: 256K is the default.",
                      names({"RING_BYTES", "RING_SIZE", "PACKET_SIZE"})));
    if (settings_.max_sockets < 64)
      add("few-connections", Severity::note,
          fmt::format("{} lets {} connections be accelerated at once.", names({"MAX_SOCKETS"}),
                      settings_.max_sockets),
          "Take it out of the environment: 16384 is the default.");
  }

  void look_at_waiting() {
    if (value_of(environment_, "FARCALL_WAIT") == "block")
      add("waits-block", Severity::note,
          "FARCALL_WAIT=block lets doors and channels sleep at once: each message wakes somebody.",
          "Take it out of the environment, unless processor time matters more than speed.");
    if (value_of(environment_, "FARCALL_WAIT") == "spin")
      add("waits-spin", Severity::note,
          "FARCALL_WAIT=spin lets whoever waits keep a processor busy, for ever.",
          "Take it out of the environment: adaptive, the default, spins as long as that pays.");
  }

 private:
  // The variables that say these settings, as they are spelt here.
  [[nodiscard]] std::string names(std::initializer_list<std::string_view> settings) const {
    std::string all;
    for (const std::string_view setting : settings) {
      const std::string_view found = preload::find_setting(variables_.data(), setting);
      if (found.empty()) continue;
      all += all.empty() ? "" : ", ";
      all += found.substr(0, found.find('='));
    }
    return all;
  }

  void look_at_word(const char* name, std::initializer_list<std::string_view> words) {
    const std::string value = value_of(environment_, name);
    if (value.empty() || std::ranges::find(words, value) != words.end()) return;
    std::string all;
    for (const std::string_view word : words)
      all += fmt::format("{}{}", all.empty() ? "" : ", ", word);
    add("setting-not-understood", Severity::warning,
        fmt::format("{}=\"{}\" is not one of {}.", name, value, all),
        "Write one of them, or take it out of the environment.");
  }
  void add(const char* id, Severity severity, std::string cause, std::string cure) {
    findings_.push_back({id, severity, about_, std::move(cause), std::move(cure)});
  }

  const Environment& environment_;
  const std::vector<const char*> variables_;  // the same, for the library
  const std::string& about_;
  Findings& findings_;
  std::vector<std::string> complaints_;
  preload::Settings settings_;
};

preload::Endpoint to_endpoint(const farcall::doctor::Address& address) {
  return {.address = address.bytes, .port = address.port};
}

preload::UnixName to_name(std::string_view text) {
  preload::UnixName name{};
  name.size = static_cast<std::uint8_t>(std::min(text.size(), name.bytes.size()));
  std::copy_n(text.begin(), name.size, name.bytes.begin());
  if (name.size != 0 && name.bytes[0] == '@') name.bytes[0] = '\0';
  return name;
}

}  // namespace

Environment own_environment() {
  Environment all;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) all.emplace_back(*at);
  return all;
}

void examine_environment(const Environment& environment, const std::string& about,
                         Findings& findings) {
  Examination examination(environment, about, findings);
  examination.look_at_names();
  examination.look_at_values();
  examination.look_at_switches();
  examination.look_at_sizes();
  examination.look_at_waiting();
}

bool wants_module(const Environment& environment) {
  return value_of(environment, "FARCALL_ENGINE") == "kernel";
}

static_assert(watch::kUnknownReason == preload::kReasons + 1);

const char* reason_id(preload::Reason reason) noexcept {
  switch (reason) {
    case preload::Reason::not_local: return "not-local";
    case preload::Reason::excluded: return "excluded";
    case preload::Reason::too_short: return "too-short";
    case preload::Reason::peer_plain: return "peer-silent";
    case preload::Reason::other_user: return "other-user";
    case preload::Reason::no_proof: return "no-proof";
    case preload::Reason::too_many: return "too-many";
    case preload::Reason::no_memory: return "no-memory";
    case preload::Reason::shared: return "held-by-several";
    case preload::Reason::seen_too_late: return "seen-too-late";
    case preload::Reason::option: return "option";
    case preload::Reason::urgent: return "urgent";
    case preload::Reason::passed: return "passed";
    case preload::Reason::broken: return "broken";
    case preload::Reason::unseen: return "unseen";
    case preload::Reason::count_: break;
  }
  return "undecided";
}

const preload::Settings& ProcessSettings::of(const farcall::doctor::Process& process) {
  const auto [at, fresh] = settings_.try_emplace(process.pid);
  if (fresh)
    at->second = preload::read_settings(pointers(process.environment).data(), note_complaint);
  return at->second;
}

bool ProcessSettings::wants(const farcall::doctor::Process& process,
                            const farcall::doctor::End& end) {
  const preload::Settings& settings = of(process);
  if (!settings.enabled) return false;
  switch (end.protocol) {
    case farcall::doctor::Protocol::tcp:
      return settings.tcp && settings.wants(to_endpoint(end.local), to_endpoint(end.remote));
    case farcall::doctor::Protocol::udp:
      return settings.udp && settings.wants(to_endpoint(end.local), to_endpoint(end.remote));
    case farcall::doctor::Protocol::unix_socket:
      return settings.unix_streams && settings.wants(to_name(end.name));
  }
  return true;
}

bool ProcessSettings::may_share(const farcall::doctor::Process& one,
                                const farcall::doctor::Process& other) {
  switch (of(one).uids) {
    case preload::UidPolicy::same_user: return one.user == other.user;
    case preload::UidPolicy::same_user_or_root:
      return one.user == other.user || one.user == 0 || other.user == 0;
    case preload::UidPolicy::anybody: return true;
  }
  return true;
}

}  // namespace farcall::tool::doctor
