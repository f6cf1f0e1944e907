// SPDX-License-Identifier: Apache-2.0
//
// What a call of a door brings, and what goes back. Included by farcall/door.hpp.
#pragma once

#include <door.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace farcall {

// code() holds the errno value in the system category; what() names what failed, the errno and,
// where there is one, the way out.
class DoorError : public std::system_error {
 public:
  DoorError(int errno_value, const std::string& what)
      : std::system_error(errno_value, std::system_category(), what + ": " + name(errno_value)) {}

 private:
  static std::string name(int errno_value) {
    const char* const known = ::strerrorname_np(errno_value);
    return known != nullptr ? known : "unknown errno";
  }
};

// Owns one file descriptor that came with a call or a reply; -1 is "none".
class DoorDescriptor {
 public:
  DoorDescriptor() noexcept = default;
  explicit DoorDescriptor(int fd) noexcept : fd_(fd) {}
  DoorDescriptor(DoorDescriptor&& other) noexcept : fd_(other.release()) {}
  DoorDescriptor& operator=(DoorDescriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~DoorDescriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  // Closes what is held; errno is kept.
  void reset(int fd = -1) noexcept {
    const int held = std::exchange(fd_, fd);
    if (held < 0) return;
    const int before = errno;
    ::close(held);
    errno = before;
  }

 private:
  int fd_ = -1;
};

namespace door_detail {

// Owners of all that came along, or of nothing: where memory is out they are closed. Throws
// std::bad_alloc.
inline std::vector<DoorDescriptor> own(const door_desc_t* descriptors, uint_t count) {
  std::vector<DoorDescriptor> all;
  const auto number_of = [&](uint_t i) { return descriptors[i].d_data.d_desc.d_descriptor; };
  try {
    all.reserve(count);
  } catch (...) {
    for (uint_t i = 0; i < count; ++i) DoorDescriptor(number_of(i)).reset();
    throw;
  }
  for (uint_t i = 0; i < count; ++i) all.emplace_back(number_of(i));
  return all;
}

}  // namespace door_detail

// The process behind a call, as the kernel knows it.
struct DoorCaller {
  pid_t pid;
  uid_t effective_user;
  gid_t effective_group;
  uid_t real_user;
  gid_t real_group;
};

// What a call brings. Its data is the server's own copy, and is there until the procedure returns.
class DoorRequest {
 public:
  DoorRequest(std::span<std::byte> data, std::vector<DoorDescriptor> descriptors,
              bool unreferenced) noexcept
      : data_(data), descriptors_(std::move(descriptors)), unreferenced_(unreferenced) {}

  [[nodiscard]] std::span<std::byte> data() const noexcept { return data_; }
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(data_.data()), data_.size()};
  }
  // Closed with the request, unless they are moved away.
  [[nodiscard]] std::vector<DoorDescriptor>& descriptors() noexcept { return descriptors_; }
  // No call: of a door with DOOR_UNREF or DOOR_UNREF_MULTI, only one reference is left.
  [[nodiscard]] bool unreferenced() const noexcept { return unreferenced_; }
  // Throws DoorError: EINVAL where the client has given up, or where unreferenced().
  [[nodiscard]] static DoorCaller caller() {
    door_cred_t credentials;
    if (::door_cred(&credentials) != 0) throw DoorError(errno, "door_cred");
    return {.pid = credentials.dc_pid,
            .effective_user = credentials.dc_euid,
            .effective_group = credentials.dc_egid,
            .real_user = credentials.dc_ruid,
            .real_group = credentials.dc_rgid};
  }

 private:
  std::span<std::byte> data_;
  std::vector<DoorDescriptor> descriptors_;
  bool unreferenced_;
};

namespace door_detail {

// The thread that serves never comes back from door_return(), so what a reply is made of belongs
// to the thread, and its memory serves again for the next reply.
struct ReplyMemory {
  std::vector<std::byte> bytes;
  std::vector<door_desc_t> descriptors;

  static ReplyMemory& of_this_thread() {
    static thread_local ReplyMemory memory;
    return memory;
  }
  void clear() {
    constexpr std::size_t kKeptBytes = std::size_t{1} << 20;
    if (bytes.capacity() > kKeptBytes) std::vector<std::byte>().swap(bytes);
    bytes.clear();
    for (const door_desc_t& left : descriptors)
      if ((left.d_attributes & DOOR_RELEASE) != 0) ::close(left.d_data.d_desc.d_descriptor);
    descriptors.clear();
  }
};

}  // namespace door_detail

// What goes back. It is sent when the procedure returns.
class DoorReply {
 public:
  explicit DoorReply(door_detail::ReplyMemory& memory) noexcept : memory_(memory) {}

  // Appends.
  void write(std::span<const std::byte> bytes) {
    memory_.bytes.insert(memory_.bytes.end(), bytes.begin(), bytes.end());
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Room for `size` more bytes, to be filled in before anything else is written.
  [[nodiscard]] std::span<std::byte> extend(std::size_t size) {
    memory_.bytes.resize(memory_.bytes.size() + size);
    return std::span(memory_.bytes).last(size);
  }
  // The client gets a duplicate. This one has to stay open after the procedure has returned, for
  // it is then that the reply is sent.
  void pass(int fd) { add(fd, DOOR_DESCRIPTOR); }
  // The client gets it, and it is closed here.
  void give(DoorDescriptor descriptor) {
    add(descriptor.get(), DOOR_DESCRIPTOR | DOOR_RELEASE);
    static_cast<void>(descriptor.release());
  }

 private:
  void add(int fd, door_attr_t attributes) {
    door_desc_t descriptor{};
    descriptor.d_attributes = attributes;
    descriptor.d_data.d_desc.d_descriptor = fd;
    memory_.descriptors.push_back(descriptor);
  }

  door_detail::ReplyMemory& memory_;
};

// Called in any thread of the pool, also in several at once. An exception that leaves it ends the
// call without a reply: the client gets EINTR, and another thread takes the place of this one.
using DoorProcedure = std::function<void(DoorRequest& request, DoorReply& reply)>;

}  // namespace farcall
