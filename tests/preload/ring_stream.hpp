// SPDX-License-Identifier: Apache-2.0
//
// A direction of a stream whose both ends are in this process, for tests of what goes through its
// ring.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <string>

#include "one_way.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {

// Puts what fits into the ring or, without waiting, into the kernel. kNothing: nothing fits now.
inline long send_now(Sender& sender, const Ring& ring, int fd, Span& from) {
  switch (sender.way(ring)) {
    case Sender::Way::broken: return -ECONNRESET;
    case Sender::Way::ring: {
      const std::size_t put = sender.put(ring, from);
      if (put != 0) return static_cast<long>(put);
      if (sender.broken()) return -ECONNRESET;
      if (!sender.closed(ring)) return kNothing;
      sender.use_kernel(ring);
      break;
    }
    case Sender::Way::crowded:
    case Sender::Way::kernel: break;
  }
  if (!sender.enter_kernel(ring)) return kNothing;
  const long sent = kernel_send(fd, from, from.left(), MSG_NOSIGNAL);
  sender.leave_kernel(ring, sent > 0 ? static_cast<std::size_t>(sent) : 0);
  if (sent > 0) from.skip(static_cast<std::size_t>(sent));
  return sent == -EAGAIN ? kNothing : sent;
}

struct Stream : OneWay {
  explicit Stream(std::size_t ring_bytes = 4096) : OneWay(SOCK_STREAM, ring_bytes) {}

  long send(const std::string& text) {
    iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    Span span(&part, 1);
    return send_now(sender, ring, out.get(), span);
  }
  std::string receive(std::size_t size = 10'000, bool peek = false) {
    std::string text(size, '\0');
    iovec part{.iov_base = text.data(), .iov_len = size};
    Span span(&part, 1);
    const long got = receive_now(receiver, ring, in.get(), span, peek, nullptr);
    if (got == kNothing) return "(nothing)";
    if (got < 0) return "(error " + std::to_string(-got) + ")";
    if (got == 0) return "(end)";
    text.resize(static_cast<std::size_t>(got));
    return text;
  }
};

}  // namespace farcall::preload
