// SPDX-License-Identifier: Apache-2.0
//
// Those who attach doors, open them and detach them: they ask whoever serves the door.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "door/attach.hpp"
#include "door/real.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "process/background.hpp"
#include "process/identity.hpp"
#include "process/process.hpp"
#include "socket/answers.hpp"
#include "socket/listener.hpp"
#include "socket/strangers.hpp"

namespace farcall::door {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kBacklogPatience = std::chrono::seconds(1);

// The answer to what was sent; its kind is `nothing` where none comes in time.
Packet await_answer(int socket, Deadline within = Deadline::never()) {
  const Deadline deadline = std::min(within, Deadline::after(kPatience));
  for (;;) {
    Packet packet = take_strangers_packet(socket);
    if (packet.kind != Packet::Kind::nothing) return packet;
    const std::int64_t left = (deadline.at() - monotonic_ns() + 999'999) / 1'000'000;
    pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
    if (left <= 0 || (::poll(&entry, 1, static_cast<int>(left)) < 0 && errno != EINTR))
      return packet;
  }
}

// A connection to the attachment of a file. What its server leaves in it is closed by a thread that
// may wait.
class Connection {
 public:
  Connection() noexcept = default;
  Connection(process::PrivateFd socket, uid_t server) noexcept
      : socket_(std::move(socket)), server_(server) {}
  Connection(Connection&&) noexcept = default;
  Connection& operator=(Connection&&) = delete;
  ~Connection() {
    // In a vfork child the number is its own, and the threads that would close it the parent's.
    if (!process::is_own(server_) && descriptors_are_ours())
      process::hang_up_later(server_, std::move(socket_));
  }

  explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  [[nodiscard]] uid_t server() const noexcept { return server_; }
  // Throws SystemError, as send_descriptors does.
  void ask(std::span<const int> descriptors, std::uint8_t purpose) const {
    send_descriptors(socket_.get(), descriptors, purpose);
  }
  // The only descriptor of the answer; none where it is another one, or, as `why` says, a refusal,
  // or where none comes in time.
  [[nodiscard]] UniqueFd only_descriptor(Deadline within, int& why) const {
    Packet packet = await_answer(socket_.get(), within);
    // Where the other end has closed with something unread, that is told before what it has sent.
    if (packet.kind == Packet::Kind::closed) packet = take_packet(socket_.get());
    if (packet.kind == Packet::Kind::nothing) why = ETIMEDOUT;
    if (packet.kind == Packet::Kind::overflow) why = EMFILE;
    packet.descriptors.sent_by(server_);
    if (packet.kind != Packet::Kind::descriptors) return {};
    if (packet.descriptors.empty() && packet.purpose == EAGAIN) why = EAGAIN;
    if (packet.descriptors.size() == 1 && read_name(packet.descriptors[0].get()))
      return std::move(packet.descriptors[0]);
    return {};
  }
  // 0, or the errno that it answers; ETIMEDOUT where no answer comes in time, EBADF for another.
  [[nodiscard]] int refusal() const {
    Packet packet = await_answer(socket_.get());
    packet.descriptors.sent_by(server_);
    if (packet.kind == Packet::Kind::nothing) return ETIMEDOUT;
    return packet.kind == Packet::Kind::descriptors ? packet.purpose : EBADF;
  }

 private:
  process::PrivateFd socket_;
  uid_t server_ = 0;
};

// None where there is no attachment that counts, or, as `refusal` says, one whose server lets
// nobody in (ETIMEDOUT), or where it cannot be asked (the errno of socket(2)).
Connection connect_to(const struct stat& status, int& refusal,
                      Deadline within = Deadline::never()) noexcept {
  refusal = 0;
  const NoCancel guard;
  // Whoever serves it is the file's owner, or root.
  if (process::is_flooding(status.st_uid)) return {};
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    refusal = errno;
    return {};
  }
  const AbstractAddress address = address_of(status);
  int result = ::connect(fd.get(), address.get(), address.size());
  if (result != 0 && errno == EAGAIN) {
    // Too many are there before us. Anybody may take the name and let nobody in: only for those who
    // may attach is it worth to wait, and not for ever.
    const auto owner = owner_of_listener(address.name(), SOCK_SEQPACKET);
    if (!owner || !may_attach(*owner, status.st_uid)) return {};
    const Deadline deadline = std::min(within, Deadline::after(kBacklogPatience));
    ::fcntl(fd.get(), F_SETFL, O_RDWR);
    do {
      const std::int64_t left = std::max<std::int64_t>((deadline.at() - monotonic_ns()) / 1000, 1);
      const timeval longest{.tv_sec = left / 1'000'000, .tv_usec = left % 1'000'000};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
      result = ::connect(fd.get(), address.get(), address.size());
    } while (result != 0 && errno == EINTR && monotonic_ns() < deadline.at());
    if (result != 0 && (errno == EAGAIN || errno == EINTR)) refusal = ETIMEDOUT;
  }
  if (result != 0) return {};
  ucred server{};
  socklen_t size = sizeof server;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &server, &size) != 0 ||
      !may_attach(server.uid, status.st_uid))
    return {};
  return {process::PrivateFd(std::move(fd)), server.uid};
}

// What the name of an attachment belongs to for as long as it is open anywhere: no child has it.
// Returns 0, or an errno value.
int listen_at(const AbstractAddress& address, process::PrivateFd& into) noexcept {
  const process::NoFork guard;
  process::PrivateFd listener(UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)));
  if (!listener) return errno;
  if (::bind(listener.get(), address.get(), address.size()) != 0)
    return errno == EADDRINUSE ? EBUSY : errno;
  if (::listen(listener.get(), SOMAXCONN) != 0) return errno;
  into = std::move(listener);
  return 0;
}

}  // namespace

int Handle::attach(int d, int file, const struct stat& status) {
  if (is_revoked(d)) return EBADF;  // nobody could call it
  process::PrivateFd listener;
  if (const int error = listen_at(address_of(status), listener); error != 0) return error;
  auto [mine, theirs] = private_socket_pair();
  const Connection answers(std::move(mine), peer_credentials(d).uid);
  try {
    send_descriptors(d, std::array{listener.get(), file, theirs.get()}, kPurposeAttach);
  } catch (const SystemError& error) {
    // Its server has just died.
    if (error.code().value() == EPIPE || error.code().value() == ECONNRESET) return EBADF;
    throw;
  }
  theirs.reset();
  const int refusal = answers.refusal();
  return refusal == ETIMEDOUT ? EBADF : refusal;  // the errno that fattach(3) has for it
}

namespace shared {

bool is_attached(const struct stat& status) noexcept {
  const NoCancel guard;  // stat() is no point of cancellation
  int refusal = 0;
  return connect_to(status, refusal) || refusal == ETIMEDOUT;
}

namespace {

// The file once more, with a position and locks of its own, for reading if possible.
UniqueFd reopened(int fd) noexcept {
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  constexpr int kQuietly = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  UniqueFd file(real::openat(AT_FDCWD, path.data(), O_RDONLY | kQuietly, 0));
  if (!file) file = UniqueFd(real::openat(AT_FDCWD, path.data(), O_WRONLY | kQuietly, 0));
  return file;
}

}  // namespace

// The server is shown that the file may be opened here. It gets no more power by that than it has:
// of another user's server, which may be a stranger to whoever opens, the program's own descriptor
// would be a way to its position, its locks and what it may write; and root needs to show nothing.
UniqueFd open_attached(int fd, const struct stat& status, Deadline within, Sought sought,
                       int& refusal) noexcept {
  const Connection connection = connect_to(status, refusal, within);
  // A program that opens a file need not have a descriptor for the question whether it is a door.
  if (sought == Sought::file_or_door && refusal != ETIMEDOUT) refusal = 0;
  if (!connection) return {};
  try {
    UniqueFd copy;
    if (process::is_only(connection.server())) {
      connection.ask(std::array{fd}, kPurposeOpen);
    } else if (::geteuid() == 0 && process::knows_all_users()) {
      connection.ask({}, kPurposeOpen);
    } else if (copy = reopened(fd); copy) {
      connection.ask(std::array{copy.get()}, kPurposeOpen);
    } else {
      return {};
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Its server has just died, or has not waited for what is asked: it has no room.
  }
  try {
    return connection.only_descriptor(within, refusal);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it has just died
  }
  return {};
}

int detach(const struct stat& status) noexcept {
  int refused = 0;
  const Connection connection = connect_to(status, refused);
  if (!connection) return refused != 0 ? refused : EINVAL;
  try {
    connection.ask({}, kPurposeDetach);
    const int refusal = connection.refusal();
    if (refusal == 0 || refusal == ETIMEDOUT || refusal == EAGAIN) return refusal;
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): its server has just died
  }
  return EINVAL;
}

}  // namespace shared
}  // namespace farcall::door
