// SPDX-License-Identifier: Apache-2.0
#include <door.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/local_server.hpp"
#include "farcall/message.h"

namespace farcall::bridge {
namespace {

constexpr std::size_t kRoom = std::size_t{64} << 10;  // longer replies come in memory of their own

class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {
    int type = 0;
    socklen_t size = sizeof type;
    is_socket_ = ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  // Of a door over shared memory; those of the kernel are none.
  [[nodiscard]] bool is_socket() const noexcept { return is_socket_; }

 private:
  const int fd_;
  bool is_socket_ = false;
};

class LocalDoor final : public LocalServer {
 public:
  explicit LocalDoor(std::string path) : path_(std::move(path)) {}

  bool present() override {
    const auto door = current();
    return (door && serves(*door)) || reopen(door) != nullptr;
  }
  LocalAnswer call(Worker& worker, const Header& header, std::span<const std::byte> data,
                   const std::atomic<bool>& cancelled) override;
  int one_way(Worker& worker, const Header& header, std::span<const std::byte> data) override {
    const std::atomic<bool> never{false};
    return call(worker, header, data, never).error;
  }
  int pulse(const Header&) override { return EOPNOTSUPP; }

 private:
  using Handle = std::shared_ptr<Descriptor>;
  static bool serves(const Descriptor& door) {
    door_info_t info;
    return ::door_info(door.get(), &info) == 0 && info.di_target > 0 &&
           (info.di_attributes & DOOR_REVOKED) == 0;
  }
  // The same without asking a server, who may take long: a socket tells of its other end.
  static bool is_gone(const Descriptor& door) {
    if (!door.is_socket()) return !serves(door);
    pollfd it{.fd = door.get(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&it, 1, 0) > 0 && (it.revents & (POLLRDHUP | POLLHUP)) != 0;
  }
  Handle current() {
    const std::lock_guard guard(lock_);
    return door_;
  }
  // Another one than `stale`, or null.
  Handle reopen(const Handle& stale) {
    const std::lock_guard guard(lock_);
    if (door_ != stale) return door_;
    door_ = nullptr;
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return nullptr;
    auto made = std::make_shared<Descriptor>(fd);
    if (!serves(*made)) return nullptr;
    door_ = std::move(made);
    return door_;
  }
  LocalAnswer took(Worker& worker, int door, const door_arg_t& arguments,
                   std::span<std::byte> room);

  const std::string path_;
  std::mutex lock_;  // protects what follows
  Handle door_;
};

// They may be long in closing: not by a worker.
void drop(int door, const door_arg_t& reply) {
  ucred server{};
  socklen_t size = sizeof server;
  // Of a door of the kernel's it is not known.
  if (::getsockopt(door, SOL_SOCKET, SO_PEERCRED, &server, &size) != 0)
    server.uid = static_cast<uid_t>(-1);
  farcall_info all{};
  all.uid = server.uid;
  for (uint_t i = 0; i < reply.desc_num; ++i) {
    all.descriptors[0] = reply.desc_ptr[i].d_data.d_desc.d_descriptor;
    all.descriptor_count = 1;
    ::farcall_drop_descriptors(&all);
  }
}

// Nothing of the reply is left open or mapped.
LocalAnswer LocalDoor::took(Worker& worker, int door, const door_arg_t& arguments,
                            std::span<std::byte> room) {
  LocalAnswer answer;
  if (arguments.desc_num != 0) drop(door, arguments);
  if (arguments.rbuf != reinterpret_cast<char*>(room.data()))
    worker.hold(arguments.rbuf, arguments.rsize);
  if (arguments.desc_num != 0) {
    answer.error = EOPNOTSUPP;
  } else if (arguments.data_size > kLongest) {
    answer.error = E2BIG;
  } else if (arguments.data_size != 0) {
    answer.data = {reinterpret_cast<const std::byte*>(arguments.data_ptr), arguments.data_size};
  }
  return answer;
}

LocalAnswer LocalDoor::call(Worker& worker, const Header&, std::span<const std::byte> data,
                            const std::atomic<bool>& cancelled) {
  constexpr LocalAnswer kAbsent{.error = ECONNREFUSED, .status = 0, .not_taken = true, .data = {}};
  Handle door = current();
  // Only before the call it is certain that nobody has seen it. Later EBADF may be the word of a
  // server that has, and whose door is gone since.
  if (!door || is_gone(*door)) door = reopen(door);
  if (!door) return kAbsent;
  const std::span<std::byte> room = worker.room(kRoom);
  door_arg_t arguments{.data_ptr = reinterpret_cast<char*>(const_cast<std::byte*>(data.data())),
                       .data_size = data.size(),
                       .desc_ptr = nullptr,
                       .desc_num = 0,
                       .rbuf = reinterpret_cast<char*>(room.data()),
                       .rsize = room.size()};
  if (::door_call(door->get(), &arguments) == 0) {
    worker.used(std::min(arguments.data_size, room.size()));
    return took(worker, door->get(), arguments, room);
  }
  const int error = errno;
  worker.used(room.size());  // perhaps
  if (cancelled && (error == EINTR || error == EAGAIN)) return {.error = EINTR};
  // Without an answer, though nobody has given up: the server has failed.
  return {.error = error == EINTR || error == EBADF ? ECONNRESET : error};
}

}  // namespace

std::unique_ptr<LocalServer> local_door(const std::string& path) {
  return std::make_unique<LocalDoor>(path);
}

}  // namespace farcall::bridge
