// SPDX-License-Identifier: Apache-2.0
#include "bridge/status.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "farcall/message.h"

namespace farcall::bridge {

namespace {

// Local servers may answer with any number.
std::string error_name(int error) {
  if (error == 0) return {};
  const char* const name = ::strerrorname_np(error);
  return name != nullptr ? name : fmt::format("errno {}", error);
}

}  // namespace

nlohmann::json describe(const Name& name, const Statistics& statistics) {
  const std::string local = (name.local == Local::door ? "door:" : "channel:") + name.path;
  const auto microseconds = [&](double share) {
    return static_cast<double>(statistics.latencies.percentile(share)) / 1000;
  };
  return {{"direction", name.direction == Direction::exported ? "export" : "import"},
          {"local", local},
          {"subject", name.subject},
          {"calls", statistics.calls.load()},
          {"in_progress", statistics.in_progress.load()},
          {"answered", statistics.answered.load()},
          {"errors", statistics.errors.load()},
          {"last_error", error_name(statistics.last_error)},
          {"cancelled", statistics.cancelled.load()},
          {"resent", statistics.resent.load()},
          {"one_way", statistics.one_way.load()},
          {"pulses", statistics.pulses.load()},
          {"undelivered", statistics.undelivered.load()},
          {"uncertain", statistics.uncertain.load()},
          {"malformed", statistics.malformed.load()},
          {"latency_us",
           {{"p50", microseconds(0.5)}, {"p90", microseconds(0.9)}, {"p99", microseconds(0.99)}}}};
}

StatusChannel::StatusChannel(const std::string& name, std::function<std::string()> tell)
    : tell_(std::move(tell)), channel_(::farcall_name_attach(name.c_str(), 0, 0600)) {
  if (channel_ < 0)
    throw BridgeError(fmt::format(
        "cannot tell the status as channel {}: {}{}", name, ::strerrorname_np(errno),
        errno == EADDRINUSE || errno == EBUSY
            ? " (another bridge of this user runs: end it, or give this one another --status-name)"
            : ""));
  thread_ = std::thread([this] { run(); });
}

StatusChannel::~StatusChannel() {
  ::farcall_channel_destroy(channel_);
  thread_.join();
}

void StatusChannel::run() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    farcall_info info{};
    const std::int64_t id = ::farcall_receive(channel_, nullptr, 0, &info);
    if (id < 0 && errno == EBADF) return;  // destroyed
    (void)::farcall_drop_descriptors(&info);
    if (id <= FARCALL_ONE_WAY) continue;
    const std::string text = tell_();
    if (::farcall_reply(id, 0, text.data(), text.size()) != 0) (void)::farcall_error(id, EPROTO);
  }
}

namespace {

// The channels of that name that users have, each with the user's number before it.
std::vector<std::string> of_all_users(const std::string& channel) {
  std::string all(4096, '\0');
  for (bool whole = false; !whole;) {
    const ssize_t size = std::max<ssize_t>(::farcall_channel_names(all.data(), all.size()), 0);
    whole = static_cast<std::size_t>(size) <= all.size();
    all.resize(static_cast<std::size_t>(size));
  }
  std::vector<std::string> found;
  std::istringstream lines(all);
  for (std::string name; std::getline(lines, name);)
    if (name.ends_with("/" + channel)) found.push_back(name);
  return found;
}

// That of the unit has a user whose number nobody knows before, so the only one there is will do.
int open_status(const std::string& channel) {
  const int connection = ::farcall_name_open(channel.c_str());
  if (connection >= 0 || errno != ENOENT || channel.find('/') != std::string::npos)
    return connection;
  const std::vector<std::string> all = of_all_users(channel);
  if (all.size() > 1)
    throw BridgeError(fmt::format("several users have bridges here: say which by --status-name: {}",
                                  fmt::join(all, ", ")));
  errno = ENOENT;
  return all.empty() ? -1 : ::farcall_name_open(all.front().c_str());
}

}  // namespace

std::string ask_status(const std::string& channel) {
  const int connection = open_status(channel);
  if (connection < 0) {
    const char* cure = "start it, or say --status-name";
    if (errno == EACCES)
      cure = ::geteuid() == 0 ? "somebody else serves under that name: say --status-name UID/NAME"
                              : "only its user and root may ask";
    throw BridgeError(fmt::format("no bridge tells its status as channel {}: {} ({})", channel,
                                  ::strerrorname_np(errno), cure));
  }
  std::string text(std::size_t{1} << 20, '\0');
  constexpr std::int64_t kPatience = 5'000'000'000;
  ::farcall_timeout(kPatience);
  const iovec room{.iov_base = text.data(), .iov_len = text.size()};
  farcall_message message{};
  message.reply = &room;
  message.reply_count = 1;
  const int status = ::farcall_send_message(connection, &message);
  const int error = errno;
  ::farcall_disconnect(connection);
  if (status < 0)
    throw BridgeError(fmt::format("the bridge does not answer: {}", ::strerrorname_np(error)));
  text.resize(message.replied);
  return text;
}

}  // namespace farcall::bridge
