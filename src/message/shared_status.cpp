// SPDX-License-Identifier: Apache-2.0
//
// What a channel tells of itself:
//
//   channel NAME server PID engine shared flags unblock,disconnect
//   counters messages N replies N pulses N queued N connections N unsolicited N
//   receive-blocked PID TID
//   send-blocked PID TID priority N
//   reply-blocked PID TID priority N id N
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "memory/write_all.hpp"
#include "message/shared.hpp"
#include "process/background.hpp"

namespace farcall::message {

std::string SharedChannel::status() const {
  const std::vector<Waiting> senders = port_.waiting();
  Receiver::Counts counts;
  std::string lines;
  const std::string here = std::to_string(::getpid());
  std::size_t connections = 0;
  std::uint64_t unsolicited = 0;
  {
    const std::lock_guard guard(lock_);
    connections = links_.size();
    for (const auto& [number, link] : links_) {
      const Unsolicited sent = link->endpoint->unsolicited();
      unsolicited += sent.control_messages + sent.descriptors;
    }
    counts.add(of_ended_);
    for (const auto& receiver : receivers_) {
      counts.add(receiver->counts);
      if (receiver->waiting.load(std::memory_order_relaxed))
        lines += "receive-blocked " + here + " " + std::to_string(receiver->id) + "\n";
    }
    for (const Waiting& sender : senders)
      lines += "send-blocked " + std::to_string(sender.caller.pid) + " " +
               std::to_string(sender.origin & kThreadMask) + " priority " +
               std::to_string(sender.priority) + "\n";
    for (const auto& pending : all_pending_) {
      const std::int64_t id = pending->id();
      if (id == 0) continue;
      lines += "reply-blocked " + std::to_string(pending->process.load()) + " " +
               std::to_string(pending->origin.load() & kThreadMask) + " priority " +
               std::to_string(pending->priority.load()) + " id " + std::to_string(id) + "\n";
    }
  }
  std::size_t queued = 0;
  {
    const std::lock_guard guard(pulses_lock_);
    for (const auto& [user, his] : pulses_of_) queued += his.pulses.size();
  }
  std::string flags;
  const auto name_flag = [&](unsigned flag, const char* name) {
    if ((flags_ & flag) != 0) flags += (flags.empty() ? "" : ",") + std::string(name);
  };
  name_flag(FARCALL_UNBLOCK, "unblock");
  name_flag(FARCALL_DISCONNECT, "disconnect");
  name_flag(FARCALL_INHERIT, "inherit");
  return "channel " + full_name_ + " server " + here + " engine shared flags " +
         (flags.empty() ? "none" : flags) + "\ncounters messages " +
         std::to_string(counts.messages) + " replies " + std::to_string(counts.replies) +
         " pulses " + std::to_string(counts.pulses) + " queued " + std::to_string(queued) +
         " connections " + std::to_string(connections) + " unsolicited " +
         std::to_string(unsolicited) + "\n" + lines;
}

void tell_status(int socket, const SharedChannel& channel) noexcept {
  try {
    const std::string text = channel.status();
    const FileSizeGuard guard;
    UniqueFd file(::memfd_create("farcall-status", MFD_CLOEXEC));
    if (!file) throw_errno("memfd_create");
    write_all(file.get(), std::as_bytes(std::span(text)), "write");
    answer(socket, 0, std::move(file));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who asked sees an end
  }
}

std::string ask_status(const std::string& full_name) {
  Credentials server{};
  UniqueFd file = ask(kStatusPrefix, full_name, Deadline::after(std::chrono::seconds(5)), &server);
  // Nothing but memory is read without waiting for anybody; only such a file has seals.
  if (::fcntl(file.get(), F_GET_SEALS) < 0) {
    process::close_later(server.uid, std::move(file));
    throw SystemError(EPROTO, "read a channel's status");
  }
  std::string text;
  char bytes[4096];
  // Whatever the server has put there. A line of an honest one is some 60 bytes.
  constexpr std::size_t kMost = std::size_t{1} << 20;
  while (text.size() < kMost) {
    const ssize_t count = ::pread(file.get(), bytes, std::min(sizeof bytes, kMost - text.size()),
                                  static_cast<off_t>(text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("read a channel's status");
    if (count == 0) break;
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace farcall::message
