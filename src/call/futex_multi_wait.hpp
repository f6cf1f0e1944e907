// SPDX-License-Identifier: Apache-2.0
//
// A doorbell that is a packet in a socket is expensive where nothing is in the caches: of a call
// after a long silence it is half. So where a port has few sessions, one of its idle threads sleeps
// on a futex of each of them instead (WaitState::bell, futex_waitv(2)).
//
//   idle thread                          client
//     for each session that is nobody's:
//       claim; park on the bell; release
//     anything ready? else sleep           parked on the bell: ring it
//     for each session: claim;
//       ready? serve or queue it,
//       else park on the descriptor, release
//
// This wait does not see what comes through the port's epoll descriptor: sessions that were
// somebody's or are new, what is queued, the port's end. The reactor watches that for it (the
// relay) and wakes it by one more futex. So a port that serves by priority, which would wait for
// the reactor, does without; and so does a thread whose sleep signal handlers are to end, because
// the kernel restarts this one (SA_RESTART).
//
// Such a call finds its own code in no cache either; what short calls pass through is marked hot,
// so that it lies in few pages.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "call/server_session.hpp"
#include "process/reactor.hpp"

namespace farcall::call {

struct PortState;

// What the thread that waits and those who wake it share.
struct FutexMultiWaitState {
  std::atomic<std::uint32_t> bell{0};
  std::atomic<bool> active{false};     // one thread waits so, at most
  std::atomic<bool> relay_set{false};  // the reactor will tell what comes next
  Registration relay;                  // of the thread that waits

  std::atomic<int> loss{0};  // grows with waits that bring nothing or need the reactor
  std::atomic<int> rest{0};  // so many sleeps are to be on the epoll descriptor first

  // Wakes the thread that waits, if there is one.
  void wake() noexcept;
  // Whether to wait so: not where clients mostly come and go or pass descriptors, which the reactor
  // would be told in addition, nor where somebody lies.
  bool pays() noexcept;
  void account(bool gain) noexcept;
};

class FutexMultiWait {
 public:
  // More would cost the one who is served more than they gain: all are looked after before it.
  static constexpr std::size_t kMostSessions = 8;

  explicit FutexMultiWait(PortState& port) noexcept;
  ~FutexMultiWait();
  FutexMultiWait(const FutexMultiWait&) = delete;
  FutexMultiWait& operator=(const FutexMultiWait&) = delete;

  // If not, the thread is to sleep on the epoll descriptor.
  [[nodiscard]] bool active() const noexcept { return active_; }
  // Until something comes, or for some other reason: ok, timed_out, interrupted.
  Outcome sleep(Deadline deadline, bool cancellable);
  // Ends the wait. A session that has something to do, claimed for the caller; the others of
  // them are queued.
  SessionPointer end() noexcept;

 private:
  bool set_relay() noexcept;

  PortState& port_;
  FutexMultiWaitState& state_;
  bool active_ = false;
  bool ready_ = false;  // one is already
  std::uint32_t bell_ = 0;
  std::size_t count_ = 0;
  std::array<SessionPointer, kMostSessions> sessions_;
  std::array<std::uint32_t, kMostSessions> bells_{};  // as they were before
};

}  // namespace farcall::call
