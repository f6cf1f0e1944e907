// SPDX-License-Identifier: Apache-2.0
//
// Peers whose libraries do something as soon as they are loaded: they take time, set handlers of
// signals, look for hardware. Each of them is a module of its own, which is loaded by the client's
// process of its row and by nobody else. modules.cpp has their rows; the files that include this
// are the modules.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "compare/row.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

// What a module exports: makes the connection of one of its rows, which belongs to the caller.
extern "C" farcall::compare::Connection* farcall_peer_connection(
    const farcall::compare::Conditions& conditions, const farcall::compare::RowInfo& row);

namespace farcall::compare {

// Rows of peers that are modules, or the word that they are absent; of pairs or of broadcasts.
void add_modules(RowList& list, Workload workload);

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
  // For those who speak over the pair itself.
  [[nodiscard]] UniqueFd release() { return std::move(own_); }

 private:
  std::array<UniqueFd, 2> ends_;
  UniqueFd own_;
};

}  // namespace farcall::compare
