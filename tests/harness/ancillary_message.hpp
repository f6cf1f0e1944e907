// SPDX-License-Identifier: Apache-2.0
//
// Messages of sockets with ancillary data (cmsg(3)), descriptors above all, made by hand as anybody
// may make them.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace farcall::test {

class AncillaryMessage {
 public:
  // To be sent.
  AncillaryMessage(const void* bytes, std::size_t size)
      : AncillaryMessage(const_cast<void*>(bytes), size, 0) {}
  // To be received, with `room` for ancillary data.
  AncillaryMessage(void* bytes, std::size_t size, std::size_t room)
      : piece_{.iov_base = bytes, .iov_len = size} {
    head_.msg_iov = &piece_;
    head_.msg_iovlen = 1;
    set_room(room);
  }
  // Either, of one byte.
  explicit AncillaryMessage(std::size_t room = 0) : AncillaryMessage(nullptr, 1, room) {
    piece_.iov_base = &byte_;
  }
  AncillaryMessage(const AncillaryMessage&) = delete;
  AncillaryMessage& operator=(const AncillaryMessage&) = delete;

  AncillaryMessage& add(int level, int type, const void* data, std::size_t size) {
    const std::size_t before = control_.size();
    set_room(before + CMSG_SPACE(size));
    auto* const item = reinterpret_cast<cmsghdr*>(control_.data() + before);
    item->cmsg_level = level;
    item->cmsg_type = type;
    item->cmsg_len = CMSG_LEN(size);
    if (size != 0) std::memcpy(CMSG_DATA(item), data, size);
    return *this;
  }
  template <class T>
  AncillaryMessage& add(int level, int type, const T& value) {
    return add(level, type, &value, sizeof value);
  }
  AncillaryMessage& add(std::span<const int> descriptors) {
    return add(SOL_SOCKET, SCM_RIGHTS, descriptors.data(), descriptors.size_bytes());
  }

  ssize_t send(int socket, int flags = 0) { return ::sendmsg(socket, &head_, flags); }
  ssize_t receive(int socket, int flags = 0) { return ::recvmsg(socket, &head_, flags); }
  // For calls of other kinds.
  msghdr& head() noexcept { return head_; }

  // The first thing that has come; nullptr: nothing.
  [[nodiscard]] const cmsghdr* first() const noexcept { return CMSG_FIRSTHDR(&head_); }
  // What has come of this kind, if anything.
  template <class T>
  [[nodiscard]] std::optional<T> find(int level, int type) {
    for (cmsghdr* item = CMSG_FIRSTHDR(&head_); item != nullptr; item = CMSG_NXTHDR(&head_, item)) {
      if (item->cmsg_level != level || item->cmsg_type != type) continue;
      T value;
      std::memcpy(&value, CMSG_DATA(item), sizeof value);
      return value;
    }
    return {};
  }
  // Those that have come. They are the caller's.
  [[nodiscard]] std::vector<int> descriptors() {
    std::vector<int> all;
    for (cmsghdr* item = CMSG_FIRSTHDR(&head_); item != nullptr; item = CMSG_NXTHDR(&head_, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t before = all.size();
      all.resize(before + (item->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(all.data() + before, CMSG_DATA(item), (all.size() - before) * sizeof(int));
    }
    return all;
  }

 private:
  void set_room(std::size_t bytes) {
    control_.resize(bytes);
    head_.msg_control = bytes == 0 ? nullptr : control_.data();
    head_.msg_controllen = bytes;
  }

  char byte_ = 'x';
  iovec piece_;
  std::vector<char> control_;
  msghdr head_{};
};

inline constexpr std::size_t kRoomForOneDescriptor = CMSG_SPACE(sizeof(int));

// As sendmsg(2).
inline ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                                     std::span<const int> descriptors, int flags = MSG_NOSIGNAL) {
  AncillaryMessage message(bytes.data(), bytes.size());
  if (!descriptors.empty()) message.add(descriptors);
  return message.send(socket, flags);
}
// With a byte. False: it was not sent.
inline bool send_descriptor(int socket, int descriptor, int flags = MSG_NOSIGNAL) {
  return AncillaryMessage().add(std::span(&descriptor, 1)).send(socket, flags) == 1;
}
// -1: no byte came, or none came with it.
inline int receive_descriptor(int socket) {
  AncillaryMessage message(kRoomForOneDescriptor);
  if (message.receive(socket, MSG_CMSG_CLOEXEC) != 1) return -1;
  const std::vector<int> descriptors = message.descriptors();
  return descriptors.empty() ? -1 : descriptors.front();
}

}  // namespace farcall::test
