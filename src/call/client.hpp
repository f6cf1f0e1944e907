// SPDX-License-Identifier: Apache-2.0
//
// What a Client is inside: its sessions, kept from one call to the next.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "call/client_session.hpp"

namespace farcall {

class Client::State {
 public:
  State(int port, WaitMode mode);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  inline Outcome transact(const CallArguments& arguments, CallResults* results, Deadline deadline,
                          SignalCount since);
  std::unique_ptr<call::ClientSession> take(int port, bool cancellable, Deadline deadline,
                                            std::optional<SignalCount> since, Outcome& outcome);
  // One that no call is in, or null.
  std::unique_ptr<call::ClientSession> take_idle();
  // One that an interrupted call has asked for, or a new one; throws as that does.
  call::SessionRequest ask(int port, Deadline deadline, std::optional<SignalCount> since);
  void keep(call::SessionRequest&& request);  // for the next call
  // Waits for what has been asked for; see SessionRequest::await().
  // Throws SystemError as well: EAGAIN, where the request was dropped and the server is there.
  std::unique_ptr<call::ClientSession> await(call::SessionRequest& request, int port,
                                             bool cancellable, Deadline deadline,
                                             std::optional<SignalCount> since, Outcome& outcome);
  void give_back(std::unique_ptr<call::ClientSession> session) noexcept;
  void retire() noexcept;
  void close() noexcept;
  // Returns 0, or the errno that the call is to fail with.
  static int admit(const call::ClientSession& session, Admission* admission) {
    return admission == nullptr ? 0 : admission->admit(session.live_terms());
  }
  [[nodiscard]] int port_or_own(int port) const noexcept { return port < 0 ? port_.get() : port; }

  observe::Label label;
  std::uint64_t socket = 0;  // SO_COOKIE of ports that are given; 0: any

 private:
  // What belongs to one process, and to no child of it.
  struct Own;

  inline Own& own();
  Own& own_after_fork(Own* parents);
  Outcome transact_slowly(std::unique_ptr<call::ClientSession>&& at_hand, bool begun,
                          const CallArguments& arguments, CallResults* results, Deadline deadline,
                          SignalCount since);

  call::PortFd<UniqueFd> port_;
  const WaitMode mode_;
  std::atomic<Own*> own_;
};

namespace call {

// Whether a port's socket says that nobody serves there any more, or comes to say so by then;
// `process`: or that becomes readable, where it is not -1.
bool hung_up(int port, Deadline deadline = Deadline::now(), int process = -1) noexcept;
// Whether that error says so.
bool means_gone(const SystemError& error) noexcept;
// Whether a session may be used on: its call has been answered, be there room for that or not.
constexpr bool is_answered(Outcome outcome) noexcept {
  return outcome == Outcome::ok || outcome == Outcome::too_big;
}
// What is waited for may still come.
inline bool goes_on(Outcome outcome) noexcept {
  return outcome == Outcome::interrupted || outcome == Outcome::timed_out ||
         outcome == Outcome::would_block;
}

}  // namespace call
}  // namespace farcall
