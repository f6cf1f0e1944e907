// SPDX-License-Identifier: Apache-2.0
//
// Pipes by name. Whoever opens the name asks for an end, and gets its descriptors:
//
//   opens    connect                    "farcall pipe 1"
//   serves              accept, if it is this user or root    "farcall pipe 1" + 4 descriptors
//
// Of a pipe of bytes that is "farcall bytes 1". Who asks for the other kind is told of this one,
// without descriptors. Names are shared with other things that are served by name, and one that
// asks for something else is turned away. Who comes too late finds the connection closed, and tries
// again: the name may be served once more. So does who has asked too late, and is told that. Who
// never asks, as he expects something else of the name, learns by that that it is a pipe's.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

#include "c/pipe.hpp"
#include "c/pipe_options.hpp"
#include "c/translate.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "process/background.hpp"
#include "process/process.hpp"
#include "socket/listener.hpp"

namespace farcall::c {
namespace {

constexpr std::string_view greeting_of(RingKind kind) noexcept {
  return kind == RingKind::bytes ? "farcall bytes 1" : "farcall pipe 1";
}
constexpr std::string_view kTooLate = "farcall pipe too late";
constexpr RingKind other_than(RingKind kind) noexcept {
  return kind == RingKind::bytes ? RingKind::messages : RingKind::bytes;
}

// A client that has connected asks at once; one that does not must not hold up the others.
constexpr std::chrono::seconds kPatience{1};

FdMessage greeting(RingKind kind) {
  FdMessage message;
  const auto bytes = std::as_bytes(std::span(greeting_of(kind)));
  message.bytes.assign(bytes.begin(), bytes.end());
  return message;
}

bool says(const FdMessage& message, std::string_view expected) noexcept {
  return message.bytes.size() == expected.size() &&
         std::memcmp(message.bytes.data(), expected.data(), expected.size()) == 0;
}

bool is_greeting(const FdMessage& message, RingKind kind) noexcept {
  return says(message, greeting_of(kind));
}

// What one client does wrong, or is too slow for, is not the end of it.
bool is_of_client(int error) noexcept {
  return error == EPIPE || error == ECONNRESET || error == EPROTO || error == ETIMEDOUT;
}

// The end for whoever opens the name: this process has it for as long as it waits, and no child
// ever. Were one to keep it, nobody would be told when the opener dies.
using Offer = std::array<process::PrivateFd, PipeParts::kCount>;

struct ServedPipe {
  PipeParts mine;
  Offer theirs;
};

ServedPipe make_served_pipe(const PipeOptions& chosen) {
  const process::NoFork guard;
  std::array<PipeParts, 2> parts = make_pipe(chosen.capacity, chosen.kind);
  ServedPipe pipe{.mine = std::move(parts[0]), .theirs = {}};
  for (std::size_t i = 0; i < pipe.theirs.size(); ++i)
    pipe.theirs[i] = process::PrivateFd(std::move(parts[1].fds[i]));
  return pipe;
}

void tell_too_late(int client) {
  try {
    send_fd_message(client, std::as_bytes(std::span(kTooLate)), {}, Deadline::now());
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has gone
  }
}

void serve(const PrivateListener& listener, const Offer& offer, RingKind kind, Deadline deadline,
           SignalCount since) {
  std::array<int, PipeParts::kCount> descriptors{};
  std::ranges::transform(offer, descriptors.begin(), &process::PrivateFd::get);
  for (;;) {
    const process::PrivateFd client = listener.accept(deadline, since);
    try {
      const auto request =
          receive_fd_message(client.get(), std::min(deadline, Deadline::after(kPatience)), since);
      if (request && is_greeting(*request, other_than(kind)))
        send_fd_message(client.get(), greeting(kind));
      if (!request || !is_greeting(*request, kind)) continue;
      send_fd_message(client.get(), std::as_bytes(std::span(greeting_of(kind))), descriptors);
      return;
    } catch (const SystemError& error) {
      if (!is_of_client(error.code().value())) throw;
      if (error.code().value() == ETIMEDOUT) tell_too_late(client.get());
    }
  }
}

// std::nullopt where the name has been served to somebody else, or this was too late.
std::optional<FdMessage> ask(int server, RingKind kind, Deadline deadline, SignalCount since) {
  try {
    send_fd_message(server, greeting(kind));
    auto answer = receive_fd_message(server, deadline, since);
    if (answer && answer->descriptors.empty() && says(*answer, kTooLate)) return std::nullopt;
    return answer;
  } catch (const SystemError& error) {
    if (error.code().value() != EPIPE && error.code().value() != ECONNRESET) throw;
    return std::nullopt;
  }
}

PipeParts open(std::string_view name, RingKind kind, Deadline deadline, SignalCount since) {
  for (;;) {
    const UniqueFd server = connect_named(name, deadline, since);
    std::optional<FdMessage> answer = ask(server.get(), kind, deadline, since);
    if (!answer && monotonic_ns() < deadline.at()) continue;
    if (!answer) throw SystemError(ECONNREFUSED, "open a pipe: it was served to somebody else");
    if (!is_greeting(*answer, kind) || answer->descriptors.size() != PipeParts::kCount) {
      if (answer->descriptors.empty() && is_greeting(*answer, other_than(kind)))
        throw SystemError(EPROTOTYPE, "open a pipe: one of another kind is served there");
      process::close_later(peer_credentials(server.get()).uid, std::move(answer->descriptors));
      throw SystemError(EPROTO, "open a pipe: something else is served there");
    }
    PipeParts parts;
    std::move(answer->descriptors.begin(), answer->descriptors.end(), parts.fds.begin());
    return parts;
  }
}

// Where to put an end, and under which name.
void check(const char* name, farcall_pipe* const* end) {
  if (name == nullptr || end == nullptr) throw SystemError(EINVAL, "a pipe by name");
}

}  // namespace
}  // namespace farcall::c

using namespace farcall;  // C functions follow
using namespace farcall::c;

int farcall_pipe_serve(const char* name, const farcall_pipe_options* options, std::int64_t timeout,
                       farcall_pipe** end) {
  const SignalCount since = SignalCount::now();
  return unless_now(guarded([&] {
                      check(name, end);
                      const PipeOptions chosen = PipeOptions::read(options);
                      const Deadline deadline = deadline_of(timeout);
                      const PrivateListener listener{std::string_view(name)};
                      ServedPipe pipe = make_served_pipe(chosen);
                      auto mine = chosen.make(pipe.mine, chosen.capacity);
                      serve(listener, pipe.theirs, chosen.kind, deadline, since);
                      mine->set_label(name, observe::Role::server);
                      *end = handle_of(std::move(mine));
                      return 0;
                    }),
                    timeout);
}

int farcall_pipe_open(const char* name, const farcall_pipe_options* options, std::int64_t timeout,
                      farcall_pipe** end) {
  const SignalCount since = SignalCount::now();
  return unless_now(guarded([&] {
                      check(name, end);
                      const PipeOptions chosen = PipeOptions::read(options);
                      PipeParts parts = open(name, chosen.kind, deadline_of(timeout), since);
                      auto mine = chosen.make(parts, chosen.most);
                      mine->set_label(name, observe::Role::client);
                      *end = handle_of(std::move(mine));
                      return 0;
                    }),
                    timeout);
}
