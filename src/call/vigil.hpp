// SPDX-License-Identifier: Apache-2.0
//
// A doorbell that is a packet in a socket is dear where nothing is in the caches: of a call after a
// long silence it is half. So where a port has few sessions, one of its idle threads sleeps on a
// word of each of them instead (Side::bell, futex_waitv(2)).
//
//   idle thread                          client
//     for each session that is nobody's:
//       claim; park on the bell; release
//     anything ready? else sleep           parked on the bell: ring it
//     for each session: claim;
//       ready? serve or queue it,
//       else park on the descriptor, release
//
// It hears nothing of what comes through the port's epoll descriptor: sessions that were somebody's
// or are new, what is queued, the port's end. The reactor hears that for it (the relay) and rings
// the vigil's own bell, a word that it sleeps on as well. So there is no vigil over a port that
// serves by priority, which would wait for the reactor's; nor where signal handlers are to end a
// sleep, because the kernel restarts this one (SA_RESTART).
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

// What a port's vigil and those who disturb it share.
struct VigilState {
  std::atomic<std::uint32_t> bell{0};
  std::atomic<bool> kept{false};       // by one thread at most
  std::atomic<bool> relay_set{false};  // the reactor will hear what comes next
  Registration relay;                  // of the thread that keeps the vigil

  std::atomic<int> loss{0};  // grows with vigils that bring nothing or need the reactor
  std::atomic<int> rest{0};  // so many sleeps are to be on the epoll descriptor first

  // The thread that keeps it, if there is one, shall look around.
  void disturb() noexcept;
  // Whether to keep one: not where clients mostly come and go or pass descriptors, which the
  // reactor would hear in addition, nor where somebody lies.
  bool pays() noexcept;
  void account(bool gain) noexcept;
};

class Vigil {
 public:
  // More would cost the one who is served more than they gain: all are looked after before it.
  static constexpr std::size_t kMostSessions = 8;

  explicit Vigil(PortState& port) noexcept;
  ~Vigil();
  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

  // Whether there is one to keep. If not, the thread is to sleep on the epoll descriptor.
  [[nodiscard]] bool kept() const noexcept { return kept_; }
  // Until something comes, or for some other reason: ok, timed_out, interrupted.
  Outcome sleep(Deadline deadline, bool cancellable);
  // The vigil is over. A session that has something to do, claimed for the caller; the others of
  // them are queued.
  SessionPointer end() noexcept;

 private:
  bool set_relay() noexcept;

  PortState& port_;
  VigilState& state_;
  bool kept_ = false;
  bool ready_ = false;  // one is already
  std::uint32_t bell_ = 0;
  std::size_t count_ = 0;
  std::array<SessionPointer, kMostSessions> sessions_;
  std::array<std::uint32_t, kMostSessions> bells_{};  // as they were before
};

}  // namespace farcall::call
