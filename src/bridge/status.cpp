// SPDX-License-Identifier: Apache-2.0
#include "bridge/status.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "farcall/message.h"

namespace farcall::bridge {

nlohmann::json describe(const Name& name, const Statistics& statistics) {
  const std::string local = (name.local == Local::door ? "door:" : "channel:") + name.path;
  const auto microseconds = [&](double share) {
    return static_cast<double>(statistics.latencies.percentile(share)) / 1000;
  };
  const int error = statistics.last_error;
  return {{"direction", name.direction == Direction::exported ? "export" : "import"},
          {"local", local},
          {"subject", name.subject},
          {"calls", statistics.calls.load()},
          {"in_progress", statistics.in_progress.load()},
          {"answered", statistics.answered.load()},
          {"errors", statistics.errors.load()},
          {"last_error", error != 0 ? ::strerrorname_np(error) : ""},
          {"cancelled", statistics.cancelled.load()},
          {"resent", statistics.resent.load()},
          {"one_way", statistics.one_way.load()},
          {"pulses", statistics.pulses.load()},
          {"unheard", statistics.unheard.load()},
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
    if (id < 0 && errno != EINTR && errno != EAGAIN && errno != ENOMEM) return;
    if (id <= FARCALL_ONE_WAY) continue;
    for (unsigned i = 0; i < info.descriptor_count; ++i) ::close(info.descriptors[i]);
    const std::string text = tell_();
    (void)::farcall_reply(id, 0, text.data(), text.size());
  }
}

std::string ask_status(const std::string& channel) {
  const int connection = ::farcall_name_open(channel.c_str());
  if (connection < 0)
    throw BridgeError(
        fmt::format("no bridge tells its status as channel {}: {} (start it, or say "
                    "--status-name)",
                    channel, ::strerrorname_np(errno)));
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
