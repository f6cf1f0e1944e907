// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "compare/row.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {

// A pair of sockets from before the processes part, by which they tell each other where they are.
class Introduction {
 public:
  explicit Introduction(int type = SOCK_SEQPACKET) {
    int pair[2];
    if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) != 0) throw_errno("socketpair");
    for (std::size_t i = 0; i < ends_.size(); ++i) ends_[i].reset(pair[i]);
  }
  // In the process that has this role, first of all.
  void take(Role role) {
    own_ = std::move(ends_[static_cast<std::size_t>(role)]);
    for (UniqueFd& end : ends_) end.reset();
  }
  void send(std::span<const std::byte> words) const {
    if (::send(own_.get(), words.data(), words.size(), MSG_NOSIGNAL) < 0)
      throw_errno("send to the other process");
  }
  // The next message of the other side. Throws when it has gone.
  [[nodiscard]] std::vector<std::byte> receive() const {
    constexpr std::size_t kMost = 64 << 10;
    std::vector<std::byte> words(kMost);
    ssize_t count = 0;
    do count = ::recv(own_.get(), words.data(), words.size(), 0);
    while (count < 0 && errno == EINTR);
    if (count < 0) throw_errno("receive from the other process");
    if (count == 0) throw SystemError(ECONNRESET, "the other process has gone");
    words.resize(static_cast<std::size_t>(count));
    return words;
  }
  // Returns when both sides are here.
  void meet() const {
    constexpr std::array<std::byte, 1> kHere{};
    send(kHere);
    static_cast<void>(receive());
  }
  // For those who speak over the pair itself, in place of take().
  [[nodiscard]] UniqueFd release(Role role) {
    take(role);
    return std::move(own_);
  }

 private:
  std::array<UniqueFd, 2> ends_;
  UniqueFd own_;
};

}  // namespace farcall::compare
