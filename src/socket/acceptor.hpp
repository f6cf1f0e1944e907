// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "process/process.hpp"

namespace farcall::process {

// A listening socket of this process. Where the process has no descriptor left, who waits at the
// door is let in all the same, to be told so at once, with one that was kept for that.
class Acceptor {
 public:
  explicit Acceptor(UniqueFd listener) noexcept;

  [[nodiscard]] int fd() const noexcept { return listener_.get(); }
  // The next who wants to connect, if there is one. `full`: it can only be turned away, before the
  // next call.
  UniqueFd accept(bool& full) noexcept;
  void close() noexcept;

 private:
  UniqueFd accept_one() const noexcept;
  void keep_spare() noexcept;

  PrivateFd listener_;
  PrivateFd spare_;
};

// Has the reactor look at a listener again, in a moment, although nothing more may come: there was
// no descriptor to let anybody in. `watch` is its, which may have gone by then.
void look_again_later(int listener, std::uint64_t number, std::weak_ptr<void> watch) noexcept;

}  // namespace farcall::process
