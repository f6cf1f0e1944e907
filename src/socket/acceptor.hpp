// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "farcall/socket.hpp"
#include "process/process.hpp"
#include "process/process_mutex.hpp"
#include "process/reactor.hpp"

namespace farcall::process {

// A listening socket of this process. Where the process has no descriptor left, who waits at the
// door is let in all the same, to be told so at once, with one that was kept for that.
class Acceptor {
 public:
  explicit Acceptor(UniqueFd listener) noexcept;

  // Has the reactor tell `watch`, of which this is a part, when somebody connects. Throws
  // SystemError.
  void start(const std::shared_ptr<Watch>& watch);
  // Calls `take` for each who waits to be let in, with the client's socket, which is closed
  // elsewhere unless it is moved from; what `take` throws is dropped. `full`: the client can only
  // be turned away. After a few the reactor tells of the rest; where many have been turned away, a
  // moment later. False: the program has put a file of its own in
  // the listener's place; the address is free now.
  using Take = std::function<void(UniqueFd& client, const Credentials& who, bool full)>;
  bool accept_waiting(const Take& take) noexcept;
  // The same, of a listener that another process shares and can make a blocking one, on a thread
  // that may wait. False, too: it had to be ended after kLongestAccept, and nobody is let in any
  // more.
  bool accept_shared(const Take& take) noexcept;
  static constexpr auto kLongestAccept = std::chrono::seconds(3);
  // Those who wait are turned away; what they have sent is closed elsewhere, too.
  void close() noexcept;

 private:
  class Alarm;
  UniqueFd accept(bool& full, bool& there) noexcept;
  UniqueFd accept_one() const noexcept;
  [[nodiscard]] bool lost() const noexcept { return is_lost(listener_.get()); }
  void keep_spare() noexcept;
  void watch_for(std::uint32_t events) noexcept;
  void look_again() noexcept;
  void look_again_later() noexcept;
  void turn_all_away() noexcept;

  // Another thread closes than accepts. Not held while somebody is let in.
  ProcessMutex lock_;  // protects what follows
  PrivateFd listener_;
  PrivateFd spare_;
  std::weak_ptr<Watch> watch_;  // set before it is watched
  std::atomic<bool> looks_later_{false};
  Registration registration_;
};

}  // namespace farcall::process
