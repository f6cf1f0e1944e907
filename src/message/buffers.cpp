// SPDX-License-Identifier: Apache-2.0
#include "message/buffers.hpp"

#include <limits.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "farcall/error.hpp"
#include "farcall/message.h"

namespace farcall::message {

Buffers checked(const iovec* buffers, int count) {
  if (count < 0 || count > IOV_MAX || (buffers == nullptr && count != 0))
    throw SystemError(EINVAL, "buffers");
  const Buffers all(buffers, static_cast<std::size_t>(count));
  std::size_t left = FARCALL_MESSAGE_MAX;
  for (const iovec& buffer : all) {
    if (buffer.iov_len > left) throw SystemError(EMSGSIZE, "buffers");
    if (buffer.iov_base == nullptr && buffer.iov_len != 0) throw SystemError(EINVAL, "buffers");
    left -= buffer.iov_len;
  }
  return all;
}

std::size_t size_of(Buffers buffers) noexcept {
  std::size_t size = 0;
  for (const iovec& buffer : buffers) size += buffer.iov_len;
  return size;
}

std::size_t scatter(std::span<const std::byte> from, Buffers to, std::size_t offset) noexcept {
  std::size_t done = 0;
  for (const iovec& buffer : to) {
    if (offset >= buffer.iov_len) {
      offset -= buffer.iov_len;
      continue;
    }
    const auto into = bytes_of(buffer).subspan(offset);
    offset = 0;
    const std::size_t now = std::min(into.size(), from.size() - done);
    if (now == 0) break;
    std::memcpy(into.data(), from.data() + done, now);
    done += now;
  }
  return done;
}

std::size_t gather(Buffers from, std::span<std::byte> to) noexcept {
  std::size_t done = 0;
  for (const iovec& buffer : from) {
    const std::size_t now = std::min(buffer.iov_len, to.size() - done);
    if (now == 0) continue;
    std::memcpy(to.data() + done, buffer.iov_base, now);
    done += now;
  }
  return done;
}

Gathered::Gathered(Buffers from) {
  if (from.size() == 1) {
    bytes_ = bytes_of(from.front());
  } else if (!from.empty()) {
    copy_.resize(size_of(from));
    gather(from, copy_);
    bytes_ = copy_;
  }
}

}  // namespace farcall::message
