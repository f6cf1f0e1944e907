// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of a reply that a client has no room for. They stay in the socket, and may be long in
// closing: so they are taken out by a thread that may wait for the server, while the client waits
// for another reply. Nothing else is taken out of the socket meanwhile.
#include <pthread.h>

#include <chrono>
#include <thread>

#include "call/client_session.hpp"
#include "socket/strangers.hpp"

namespace farcall::call {

class ClientSession::Dropping {
 public:
  Dropping(uid_t server, int socket) noexcept : server_(server), socket_(socket) {}

  // acquire: pairs with the release in run(), so that what has been taken out is so for everybody.
  [[nodiscard]] bool over() const noexcept { return over_.load(std::memory_order_acquire); }
  void run() noexcept {
    drop_next_set(socket_);
    PrivateFd left;
    {
      const std::lock_guard guard(lock_);
      over_.store(true, std::memory_order_release);
      left = std::move(left_);
    }
    if (left) close_later(server_, std::move(left));
  }
  // The session ends: the socket stays open until it is over. False: it is.
  bool keep(PrivateFd& socket) noexcept {
    const std::lock_guard guard(lock_);
    if (!over()) left_ = std::move(socket);
    return !over();
  }

 private:
  const uid_t server_;
  const int socket_;
  std::atomic<bool> over_{false};
  std::mutex lock_;
  PrivateFd left_;  // protected by that lock
};

// All that is to be dropped has come: the turn came behind it.
void ClientSession::begin_dropping() noexcept {
  if (!stuck()) return;
  try {
    dropping_ = std::make_shared<Dropping>(maker_.user, socket());
    process::catch_up(maker_.user, [dropping = dropping_] { dropping->run(); });
  } catch (const std::exception&) {  // there is no thread, or no memory
    dropping_.reset();
    shut_down();
  }
}

// Who is told again and again that there is something in the socket does not ask without a pause.
bool ClientSession::look_whether_dropped() noexcept {
  if (!dropping_ || !dropping_->over()) {
    const process::NoCancel guard;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  }
  dropping_.reset();
  stuck_ = 0;
  return true;
}

// A reply for which nothing has to be taken out of the socket does not wait for that.
Outcome ClientSession::await_dropped(Turn turn, Deadline deadline, SignalCount since) {
  if ((turn.flags & (kDescriptors | kTransferComes)) == 0) return Outcome::ok;
  while (!look_whether_dropped()) {
    if (cancellable_) ::pthread_testcancel();
    {
      const process::NoCancel guard;
      if (hung_up()) return Outcome::peer_gone;
    }
    if (since != SignalCount::now()) return Outcome::interrupted;
    if (deadline.is_now()) return Outcome::would_block;
    if (monotonic_ns() >= deadline.at()) return Outcome::timed_out;
  }
  return Outcome::ok;
}

void ClientSession::close_mine() noexcept {
  if (dropping_) {
    shut_down();
    if (dropping_->keep(sockets_.mine)) return;
  }
  hang_up_later(maker_.user, std::move(sockets_.mine));
}

}  // namespace farcall::call
