// SPDX-License-Identifier: Apache-2.0
//
// What keeps peers out of the conversations of others: a bridge publishes where a peer says, with
// permissions that the peer may not have.
#pragma once

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "bridge/bridge.hpp"
#include "bridge/nats.hpp"

namespace farcall::bridge {

// Numbers that nobody guesses who knows others of them.
class Numbers {
 public:
  [[nodiscard]] std::uint64_t next() {
    if (left_ == 0) {
      if (::getentropy(some_.data(), sizeof some_) != 0)
        throw std::system_error(errno, std::generic_category(), "getentropy");
      left_ = some_.size();
    }
    const std::uint64_t number = some_[--left_];
    return number != 0 ? number : 1;
  }

 private:
  std::array<std::uint64_t, 32> some_{};
  std::size_t left_ = 0;
};

// Subjects that peers say, to be answered.
class PeerSubjects {
 public:
  PeerSubjects(const Config& config, const Connection& own) : own_(own) {
    for (const Name& name : config.names) names_.insert(own.full(name.subject));
  }
  // Whether it may be a peer's: it is none of the names of this bridge, nor of the server's own
  // subjects, nor of those that peers publish to on this connection.
  [[nodiscard]] bool may_answer(std::string_view subject) const noexcept {
    return !subject.empty() && subject.front() != '$' && own_.word_of(subject).empty() &&
           !names_.contains(subject);
  }

 private:
  const Connection& own_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace farcall::bridge
