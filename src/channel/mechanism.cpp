// SPDX-License-Identifier: Apache-2.0
//
// Channels of a mechanism chosen at run time, and how an end travels to an unrelated process:
//
//   client                                server
//   connect to the name               ->  accept
//   request: mechanism, end(s)        ->
//                                     <-  answer: 0, or the errno of a refusal
//                                     <-  the message of each end asked for
//   opened                            ->  (may close its own end from now on)
#include "farcall/channel/mechanism.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "farcall/error.hpp"
#include "socket/listener.hpp"

namespace farcall::channel {
namespace {

enum class Wanted : std::uint32_t { reader, writer, both };

// What a client asks for. Both sides are of one machine and may be of different versions.
struct Request {
  static constexpr std::uint32_t kMagic = 0x66636831;
  std::uint32_t magic;
  Wanted wanted;
  std::array<char, 56> mechanism;  // padded with zeros
};
static_assert(sizeof(Request) == 64);

struct Answer {
  std::uint32_t magic;
  std::int32_t refusal;  // an errno, or 0
};

// A client that has connected asks at once; one that does not must not hold up the others.
constexpr std::chrono::seconds kPatience{1};

Request request_for(const AnyMechanism& mechanism, Wanted wanted) {
  const Properties& properties = mechanism.properties();
  if (!properties.by_name)
    throw MisuseError(std::string(properties.name) +
                      " cannot leave its family of processes: it has nothing that can be sent");
  Request request{.magic = Request::kMagic, .wanted = wanted, .mechanism = {}};
  if (properties.name.size() > request.mechanism.size())
    throw MisuseError("the name of a mechanism is too long");
  std::copy(properties.name.begin(), properties.name.end(), request.mechanism.begin());
  return request;
}

template <class T>
FdMessage fd_message_of(const T& value) {
  FdMessage message;
  const auto bytes = std::as_bytes(std::span(&value, 1));
  message.bytes.assign(bytes.begin(), bytes.end());
  return message;
}

template <class T>
bool unpack(const FdMessage& message, T& value) {
  if (message.bytes.size() != sizeof value) return false;
  std::memcpy(&value, message.bytes.data(), sizeof value);
  return true;
}

// Whether the client on `socket` asks for exactly `expected`; if not, it has been told so.
bool asks_for(int socket, const Request& expected, Deadline deadline) {
  const Deadline patience = Deadline::after(kPatience);
  const auto message =
      receive_fd_message(socket, patience.at() < deadline.at() ? patience : deadline);
  Request request{};
  if (!message || !unpack(*message, request)) return false;
  if (request.magic == expected.magic && request.wanted == expected.wanted &&
      request.mechanism == expected.mechanism)
    return true;
  send_fd_message(socket, fd_message_of(Answer{.magic = Request::kMagic, .refusal = EPROTO}));
  return false;
}

// Hands `handles` to the first client that asks for exactly that. Returns the connection to it.
process::PrivateFd serve(std::string_view name, const Request& expected,
                         std::span<const Handle> handles, Deadline deadline) {
  const PrivateListener listener(name);
  for (;;) {
    process::PrivateFd client = listener.accept(deadline);
    try {
      if (!asks_for(client.get(), expected, deadline)) continue;
      send_fd_message(client.get(), fd_message_of(Answer{.magic = Request::kMagic, .refusal = 0}));
      for (const Handle& handle : handles) send_fd_message(client.get(), handle.message);
      return client;
    } catch (const SystemError& error) {
      // A client that went away, sent something else or never asked; the next may do better.
      const int value = error.code().value();
      if (value != EPIPE && value != ECONNRESET && value != EPROTO && value != ETIMEDOUT) throw;
    }
  }
}

// What has no descriptor lives only as long as somebody is attached to it, so the server keeps its
// own end at least until the client has opened the other one, or died.
void await_opened(int client, Deadline deadline) {
  try {
    receive_fd_message(client, deadline);
  } catch (const SystemError& error) {
    if (error.code().value() != ECONNRESET) throw;
  }
}

void tell_opened(int server) {
  try {
    send_fd_message(server, FdMessage{});
  } catch (const SystemError& error) {
    // The server has died; the end that was opened tells of that.
    if (error.code().value() != EPIPE && error.code().value() != ECONNRESET) throw;
  }
}

// Sends the request and returns the answer; std::nullopt where another client was first.
std::optional<FdMessage> converse(int server, const Request& request, Deadline deadline) {
  try {
    send_fd_message(server, fd_message_of(request));
    return receive_fd_message(server, deadline);
  } catch (const SystemError& error) {
    const int value = error.code().value();
    if (value != EPIPE && value != ECONNRESET) throw;
    return std::nullopt;
  }
}

// Asks whoever serves `name`. Returns the connection, on which the handles follow.
UniqueFd ask(std::string_view name, const Request& request, Deadline deadline) {
  const std::string what = "open \"" + std::string(name) + "\": ";
  for (;;) {
    UniqueFd server = connect_named(name, deadline);
    const auto message = converse(server.get(), request, deadline);
    if (!message) {
      // The name went with the client that was first; it may be served again.
      if (monotonic_ns() < deadline.at()) continue;
      throw SystemError(ECONNREFUSED, what + "it was served to somebody else");
    }
    Answer answer{};
    if (!unpack(*message, answer) || answer.magic != Request::kMagic)
      throw SystemError(EPROTO, what + "it is not a channel");
    if (answer.refusal != 0)
      throw SystemError(answer.refusal, what + "it serves another mechanism or the same end");
    return server;
  }
}

Handle receive_handle(int socket, Deadline deadline) {
  auto message = receive_fd_message(socket, deadline);
  if (!message) throw SystemError(ECONNRESET, "open a channel: the server has gone");
  return {.message = std::move(*message), .memory = {}};
}

}  // namespace

AnyChannel::AnyChannel(const AnyMechanism& mechanism, const Options& options)
    : mechanism_(&mechanism), options_(options), handles_(mechanism.create(options)) {}

Handles AnyChannel::take_handles() {
  if (!handles_) throw MisuseError("an end of this channel has been taken here before");
  Handles handles = std::move(*handles_);
  handles_.reset();
  return handles;
}

std::unique_ptr<Reader> AnyChannel::take_reader() {
  Handle handle = take_handles().reader;
  return mechanism_->open_reader(std::move(handle), options_);
}

std::unique_ptr<Writer> AnyChannel::take_writer() {
  Handle handle = take_handles().writer;
  return mechanism_->open_writer(std::move(handle), options_);
}

std::pair<std::unique_ptr<Reader>, std::unique_ptr<Writer>> AnyChannel::take_both() {
  Handles handles = take_handles();
  auto reader = mechanism_->open_reader(std::move(handles.reader), options_);
  return {std::move(reader), mechanism_->open_writer(std::move(handles.writer), options_)};
}

std::unique_ptr<Reader> AnyChannel::serve_reader(const AnyMechanism& mechanism,
                                                 std::string_view name, const Options& options,
                                                 Deadline deadline) {
  const Request request = request_for(mechanism, Wanted::writer);
  Handles handles = mechanism.create(options);
  const process::PrivateFd client = serve(name, request, std::span(&handles.writer, 1), deadline);
  handles.writer = {};
  auto reader = mechanism.open_reader(std::move(handles.reader), options);
  await_opened(client.get(), deadline);
  return reader;
}

std::unique_ptr<Writer> AnyChannel::serve_writer(const AnyMechanism& mechanism,
                                                 std::string_view name, const Options& options,
                                                 Deadline deadline) {
  const Request request = request_for(mechanism, Wanted::reader);
  Handles handles = mechanism.create(options);
  const process::PrivateFd client = serve(name, request, std::span(&handles.reader, 1), deadline);
  handles.reader = {};
  auto writer = mechanism.open_writer(std::move(handles.writer), options);
  await_opened(client.get(), deadline);
  return writer;
}

std::unique_ptr<Reader> AnyChannel::open_reader(const AnyMechanism& mechanism,
                                                std::string_view name, const Options& options,
                                                Deadline deadline) {
  const UniqueFd server = ask(name, request_for(mechanism, Wanted::reader), deadline);
  auto reader = mechanism.open_reader(receive_handle(server.get(), deadline), options);
  tell_opened(server.get());
  return reader;
}

std::unique_ptr<Writer> AnyChannel::open_writer(const AnyMechanism& mechanism,
                                                std::string_view name, const Options& options,
                                                Deadline deadline) {
  const UniqueFd server = ask(name, request_for(mechanism, Wanted::writer), deadline);
  auto writer = mechanism.open_writer(receive_handle(server.get(), deadline), options);
  tell_opened(server.get());
  return writer;
}

AnyDuplex::AnyDuplex(const AnyMechanism& mechanism, const Options& options)
    : forth_(mechanism, options), back_(mechanism, options) {}

DuplexEnd AnyDuplex::take_first() {
  return {.reader = back_.take_reader(), .writer = forth_.take_writer()};
}

DuplexEnd AnyDuplex::take_second() {
  return {.reader = forth_.take_reader(), .writer = back_.take_writer()};
}

std::pair<DuplexEnd, DuplexEnd> AnyDuplex::take_both() {
  auto [forth_reader, forth_writer] = forth_.take_both();
  auto [back_reader, back_writer] = back_.take_both();
  return {DuplexEnd{.reader = std::move(back_reader), .writer = std::move(forth_writer)},
          DuplexEnd{.reader = std::move(forth_reader), .writer = std::move(back_writer)}};
}

DuplexEnd AnyDuplex::serve(const AnyMechanism& mechanism, std::string_view name,
                           const Options& options, Deadline deadline) {
  const Request request = request_for(mechanism, Wanted::both);
  Handles forth = mechanism.create(options);
  Handles back = mechanism.create(options);
  process::PrivateFd client;
  {
    const std::array<Handle, 2> theirs{std::move(forth.reader), std::move(back.writer)};
    client = channel::serve(name, request, theirs, deadline);
  }
  DuplexEnd end{.reader = mechanism.open_reader(std::move(back.reader), options),
                .writer = mechanism.open_writer(std::move(forth.writer), options)};
  await_opened(client.get(), deadline);
  return end;
}

DuplexEnd AnyDuplex::open(const AnyMechanism& mechanism, std::string_view name,
                          const Options& options, Deadline deadline) {
  const UniqueFd server = ask(name, request_for(mechanism, Wanted::both), deadline);
  Handle reader = receive_handle(server.get(), deadline);
  Handle writer = receive_handle(server.get(), deadline);
  DuplexEnd end{.reader = mechanism.open_reader(std::move(reader), options),
                .writer = mechanism.open_writer(std::move(writer), options)};
  tell_opened(server.get());
  return end;
}

}  // namespace farcall::channel
