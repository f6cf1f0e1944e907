// SPDX-License-Identifier: Apache-2.0
#include "message/names.hpp"

#include <grp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "farcall/error.hpp"
#include "farcall/message.h"
#include "memory/to_number.hpp"
#include "process/background.hpp"
#include "process/identity.hpp"
#include "socket/listener.hpp"
#include "socket/peer.hpp"

namespace farcall::message {
namespace {

AbstractAddress address_of(std::string_view prefix, std::string_view full_name) {
  return AbstractAddress(std::string(prefix) + std::string(full_name));
}

UniqueFd stream_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("socket");
  return fd;
}

void check(std::string_view name) {
  if (name.empty()) throw SystemError(EINVAL, "name of a channel");
  if (name.size() > FARCALL_NAME_MAX) throw SystemError(ENAMETOOLONG, "name of a channel");
  for (const char c : name)
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f)
      throw SystemError(EINVAL, "name of a channel");
}

uid_t owner_of(std::string_view full_name) {
  uid_t owner = 0;
  std::from_chars(full_name.data(), full_name.data() + full_name.size(), owner);
  return owner;
}

bool may_hold(uid_t who, uid_t owner) noexcept {
  return who == 0 || process::same_user(who, owner);
}

// A connection to whoever serves under a name.
class Line {
 public:
  // Throws as ask() does.
  Line(const AbstractAddress& address, uid_t owner, Deadline deadline,
       std::optional<SignalCount> since)
      : socket_(stream_socket()), since_(since) {
    if (process::is_flooding(owner))
      throw SystemError(EAGAIN, "too much that the server has sent waits to be closed");
    for (Deadline turn = Deadline::now(); !connect(address, turn);) {
      // Too many are there before us. Anybody may take a name and let nobody in: only for those who
      // may hold it is it worth to wait; in turns, for they may end, and others come, meanwhile.
      const auto listener = owner_of_listener(address.name(), SOCK_STREAM);
      if (!listener) throw SystemError(ENOENT, "no channel has that name");
      if (!may_hold(*listener, owner)) throw NameSquatted();
      if (!deadline.is_never() && monotonic_ns() >= deadline.at())
        throw SystemError(ETIMEDOUT, "open a name: there are too many others");
      turn = std::min(deadline, Deadline::after(kTurn));
    }
    server_ = peer_credentials(socket_.get());
    if (!may_hold(server_.uid, owner)) {
      let_go();
      throw NameSquatted();
    }
    // A child that has come by a system call of the server's own may hold what it listened with.
    if (has_peer_ended(socket_.get())) {
      let_go();
      throw SystemError(ENOENT, "no channel has that name");
    }
  }
  ~Line() { let_go(); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  [[nodiscard]] const Credentials& server() const noexcept { return server_; }

 private:
  static constexpr auto kTurn = std::chrono::milliseconds(200);

  // False: there are too many others.
  [[nodiscard]] bool connect(const AbstractAddress& address, Deadline turn) const {
    try {
      connect_until(socket_.get(), address, turn, since_);
      return true;
    } catch (const SystemError& error) {
      const int code = error.code().value();
      if (code == ETIMEDOUT) return false;
      if (code != ECONNREFUSED) throw;
      throw SystemError(ENOENT, "no channel has that name");
    }
  }
  // What nobody has received may be long in closing.
  void let_go() noexcept {
    if (socket_ && !process::is_own(server_.uid))
      process::close_later(server_.uid, std::move(socket_));
  }

  UniqueFd socket_;
  const std::optional<SignalCount> since_;
  Credentials server_{};
};

// Whose group cannot be known here is in none.
bool in_group(const Credentials& who, std::span<const gid_t> groups, gid_t group) noexcept {
  return (who.gid == group || std::ranges::find(groups, group) != groups.end()) &&
         (!process::is_overflow_id(group) || process::knows_all_users());
}

}  // namespace

std::string own_name(std::string_view name, const std::string& user) {
  check(name);
  if (name.find('/') != std::string_view::npos) throw SystemError(EINVAL, "name of a channel");
  return user + "/" + std::string(name);
}

std::vector<std::string> full_names(std::string_view name, const std::string& user) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) {
    std::vector<std::string> names{own_name(name, user)};
    if (user != "0") names.push_back("0/" + std::string(name));
    return names;
  }
  const std::string_view digits = name.substr(0, slash);
  check(name.substr(slash + 1));
  if (!to_number<uid_t>(digits)) throw SystemError(EINVAL, "name of a channel");
  return {std::string(name)};
}

UniqueFd listen_at(std::string_view prefix, std::string_view full_name) {
  const AbstractAddress address = address_of(prefix, full_name);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno("socket");
  if (::bind(fd.get(), address.get(), address.size()) != 0) throw_errno("attach a name");
  if (::listen(fd.get(), SOMAXCONN) != 0) throw_errno("listen");
  return fd;
}

bool may_connect(const Credentials& who, std::span<const gid_t> groups,
                 const Permissions& of) noexcept {
  constexpr mode_t kWrite = 2;
  if (who.uid == 0) return true;
  mode_t mode = of.mode;
  if (process::same_user(who.uid, of.owner))
    mode >>= 6;
  else if (in_group(who, groups, of.group))
    mode >>= 3;
  return (mode & kWrite) != 0;
}

void answer(int socket, int error, UniqueFd descriptor) {
  const int number = descriptor.get();
  send_fd_message(socket, std::as_bytes(std::span(&error, 1)),
                  std::span(&number, descriptor ? 1 : 0));
}

UniqueFd ask(std::string_view prefix, std::string_view full_name, Deadline deadline,
             Credentials* server, std::optional<SignalCount> since) {
  const Line line(address_of(prefix, full_name), owner_of(full_name), deadline, since);
  if (server != nullptr) *server = line.server();
  std::optional<FdMessage> fd_message;
  try {
    fd_message = receive_fd_message(line.socket(), deadline, since);
  } catch (const SystemError& error) {
    if (error.code().value() != ECONNRESET) throw;
  }
  ReceivedFds came(fd_message ? std::move(fd_message->descriptors) : std::vector<UniqueFd>(),
                   line.server().uid);
  if (!fd_message) throw SystemError(ENOENT, "the server of that name is ending");
  int error = 0;
  if (fd_message->bytes.size() != sizeof error) throw SystemError(EPROTO, "open a name");
  std::memcpy(&error, fd_message->bytes.data(), sizeof error);
  if (error != 0)
    throw SystemError(error > 0 && error <= EHWPOISON ? error : EPROTO, "open a name");
  if (came.size() != 1) throw SystemError(EPROTO, "open a name");
  return std::move(came[0]);
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  std::ifstream file("/proc/net/unix");
  const std::string wanted = "@" + std::string(kStatusPrefix);
  // Connections to it carry the name, too; only who listens has SO_ACCEPTCON.
  constexpr std::string_view kListens = "00010000";
  std::string number;
  std::string references;
  std::string protocol;
  std::string flags;
  std::string type;
  std::string state;
  std::string inode;
  std::string path;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    if (fields >> number >> references >> protocol >> flags >> type >> state >> inode >> path &&
        flags == kListens && path.starts_with(wanted))
      names.push_back(path.substr(wanted.size()));
  }
  std::ranges::sort(names);
  const auto rest = std::ranges::unique(names);
  names.erase(rest.begin(), rest.end());
  return names;
}

}  // namespace farcall::message
