// SPDX-License-Identifier: Apache-2.0
//
// Abstract names, and the listeners of those of channels.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "process/background.hpp"
#include "process/identity.hpp"
#include "socket/listener.hpp"
#include "socket/wait_for.hpp"

namespace farcall {
namespace {

AbstractAddress address_of_channel(std::string_view name) {
  const std::string full = "farcall/" + std::to_string(::geteuid()) + "/" + std::string(name);
  if (name.empty() || full.size() > AbstractAddress::kLongest)
    throw SystemError(EINVAL, "a name has 1 byte at least and, with \"farcall/UID/\" in front, " +
                                  std::to_string(AbstractAddress::kLongest) + " at most: \"" +
                                  std::string(name) + "\"");
  return AbstractAddress(full);
}

[[noreturn]] void throw_served_by_another(std::string_view name) {
  throw SystemError(EPERM, "\"" + std::string(name) + "\" is served by another user");
}

UniqueFd stream_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("socket");
  return fd;
}

}  // namespace

// The byte before the name, zero, is what makes it abstract.
constexpr std::size_t kBeforeName = offsetof(sockaddr_un, sun_path) + 1;

AbstractAddress::AbstractAddress(std::string_view name) {
  if (name.empty()) throw SystemError(EINVAL, "an abstract name must not be empty");
  if (name.size() > kLongest) throw SystemError(ENAMETOOLONG, std::string(name));
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path + 1, name.data(), name.size());
  size_ = static_cast<socklen_t>(kBeforeName + name.size());
}

std::optional<AbstractAddress> AbstractAddress::of(int socket) noexcept {
  AbstractAddress address;
  address.size_ = sizeof address.address_;
  // Of other families a name may be long in coming: whoever holds their lock decides.
  int family = 0;
  socklen_t family_size = sizeof family;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &family_size) != 0 || family != AF_UNIX)
    return std::nullopt;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.address_), &address.size_) != 0 ||
      address.address_.sun_family != AF_UNIX || address.size_ <= kBeforeName ||
      address.address_.sun_path[0] != 0)
    return std::nullopt;
  return address;
}

std::string_view AbstractAddress::name() const noexcept {
  return {address_.sun_path + 1, size_ - kBeforeName};
}

NamedListener::NamedListener(std::string_view name) : fd_(stream_socket()) {
  const AbstractAddress address = address_of_channel(name);
  if (::bind(fd_.get(), address.get(), address.size()) != 0)
    throw_errno("serve \"" + std::string(name) + "\"");
  if (::listen(fd_.get(), SOMAXCONN) != 0) throw_errno("listen");
}

namespace {

// The next client of this user, of those that `accept_one` brings (UniqueFd or PrivateFd).
template <class Accept>
auto accept_own(int listener, Deadline deadline, std::optional<SignalCount> since,
                Accept accept_one) {
  while (wait_for(listener, POLLIN, deadline, since)) {
    auto client = accept_one();
    if (!client) {
      if (errno == EINTR || errno == ECONNABORTED || errno == EAGAIN) continue;
      throw_errno("accept");
    }
    const uid_t who = peer_credentials(client.get()).uid;
    if (process::is_own(who)) return client;
    // With what it may have sent. Strangers who come without end take none of the caller's time.
    bool waits = !process::close_turned_away(who, process::PrivateFd(std::move(client)));
    while (monotonic_ns() < deadline.at()) {
      if (since && SignalCount::now() != *since) throw SystemError(EINTR, "accept");
      if (!waits) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      waits = process::turned_away_wait();
    }
    if (waits || monotonic_ns() >= deadline.at()) break;
  }
  throw SystemError(ETIMEDOUT, "wait for a client");
}

}  // namespace

UniqueFd NamedListener::accept(Deadline deadline, std::optional<SignalCount> since) const {
  return accept_own(fd_.get(), deadline, since, [this] {
    return UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  });
}

PrivateListener::PrivateListener(std::string_view name) {
  const process::NoFork guard;
  fd_ = process::PrivateFd(NamedListener(name).release());
  // The kernel must not wait in accept(2), while no fork may begin.
  if (::fcntl(fd_.get(), F_SETFL, O_RDWR | O_NONBLOCK) != 0) throw_errno("listen");
}

process::PrivateFd PrivateListener::accept(Deadline deadline,
                                           std::optional<SignalCount> since) const {
  return accept_own(fd_.get(), deadline, since, [this] {
    const process::NoFork guard;
    return process::PrivateFd(UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  });
}

void connect_until(int socket, const AbstractAddress& address, Deadline deadline,
                   std::optional<SignalCount> since) {
  // A signal may come just before the kernel is asked to wait.
  constexpr auto kLongestDeaf = std::chrono::milliseconds(10);
  const auto set_timeout = [&](timeval time) {
    if (::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) != 0)
      throw_errno("SO_SNDTIMEO");
  };
  for (;;) {
    // The kernel waits for room in the listener's queue, for that long; of 0 it makes "for ever".
    const timespec all = deadline.left();
    const bool over = !deadline.is_never() && all.tv_sec == 0 && all.tv_nsec == 0;
    const Deadline soon = since ? std::min(deadline, Deadline::after(kLongestDeaf)) : deadline;
    const timespec left = soon.left();
    const long least = left.tv_sec == 0 ? 1 : 0;
    if (!soon.is_never())
      set_timeout({.tv_sec = left.tv_sec, .tv_usec = std::max(left.tv_nsec / 1000, least)});
    if (::connect(socket, address.get(), address.size()) == 0) break;
    if (errno != EAGAIN && errno != EINTR) throw_errno("connect");
    if (since && SignalCount::now() != *since) throw SystemError(EINTR, "connect");
    if (over) throw SystemError(ETIMEDOUT, "connect: there are too many others");
  }
  if (since || !deadline.is_never()) set_timeout({});
}

namespace {

// Where too many are there before us. Anybody may take a name and let nobody in: only for this
// user's own is it worth to wait; in turns, for it may end, and others come, meanwhile. A kernel
// that does not tell whose it is, is believed that it is.
void connect_in_turns(int socket, const AbstractAddress& address, std::string_view name,
                      Deadline deadline, std::optional<SignalCount> since) {
  constexpr auto kTurn = std::chrono::milliseconds(200);
  for (Deadline turn = Deadline::now();; turn = std::min(deadline, Deadline::after(kTurn))) {
    try {
      return connect_until(socket, address, turn, since);
    } catch (const SystemError& error) {
      if (error.code().value() != ETIMEDOUT) throw;
    }
    const auto listener = owner_of_listener(address.name(), SOCK_STREAM);
    if (listener && !process::is_own(*listener)) throw_served_by_another(name);
    if (monotonic_ns() >= deadline.at())
      throw SystemError(ETIMEDOUT, "connect: there are too many others");
  }
}

// `make_socket`: returns one to connect, a UniqueFd or a PrivateFd.
template <class MakeSocket>
auto connect_with(MakeSocket make_socket, std::string_view name, Deadline deadline,
                  std::optional<SignalCount> since) {
  const AbstractAddress address = address_of_channel(name);
  for (;;) {
    auto fd = make_socket();
    try {
      connect_in_turns(fd.get(), address, name, deadline, since);
      const uid_t who = peer_credentials(fd.get()).uid;
      if (!process::is_own(who)) {
        process::close_later(who, std::move(fd));  // with what it may have sent
        throw_served_by_another(name);
      }
      return fd;
    } catch (const SystemError& error) {
      if (error.code().value() != ECONNREFUSED) throw;
    }
    if (monotonic_ns() >= deadline.at())
      throw SystemError(ECONNREFUSED, "nobody serves \"" + std::string(name) + "\"");
    if (since && SignalCount::now() != *since) throw SystemError(EINTR, "connect");
    // The server may be about to start; there is no event to wait for.
    const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace

UniqueFd connect_named(std::string_view name, Deadline deadline, std::optional<SignalCount> since) {
  return connect_with(stream_socket, name, deadline, since);
}

process::PrivateFd connect_privately(std::string_view name, Deadline deadline,
                                     std::optional<SignalCount> since) {
  const auto private_socket = [] {
    const process::NoFork guard;
    return process::PrivateFd(stream_socket());
  };
  return connect_with(private_socket, name, deadline, since);
}

}  // namespace farcall
