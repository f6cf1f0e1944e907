// SPDX-License-Identifier: Apache-2.0
//
// What threads of one client wait for: answers of its sessions, and sessions that have been asked
// for. Who closes the client ends these waits, except for answers that a server is about to give.
//
//   caller                                closer
//     a request is in the slot              closed
//     ---- fence ----                       ---- fence ----
//     closed? then it is taken back         a request in the slot? then it is taken back
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <unordered_set>

#include "process/process_mutex.hpp"

namespace farcall::call {

class ClientSession;

class OpenSessions {
 public:
  // Seen by who has passed a full fence since its request was there, or after the closer's look.
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }
  void close() noexcept;
  // As long as it lives. Throws std::bad_alloc.
  void add(ClientSession& session) {
    const std::lock_guard guard(lock_);
    sessions_.insert(&session);
  }
  void remove(ClientSession& session) noexcept {
    if (generation_ != process::generation()) return;
    const std::lock_guard guard(lock_);
    sessions_.erase(&session);
  }

  // While a thread waits at a socket.
  class Wait {
   public:
    Wait(OpenSessions& all, int socket) : all_(all), socket_(socket) {
      const std::lock_guard guard(all_.lock_);
      all_.waited_at_.insert(socket);
      if (all_.closed()) ::shutdown(socket, SHUT_RD);
    }
    ~Wait() {
      if (all_.generation_ != process::generation()) return;
      const std::lock_guard guard(all_.lock_);
      all_.waited_at_.erase(socket_);
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    OpenSessions& all_;
    const int socket_;
  };

 private:
  const std::uint64_t generation_ = process::generation();
  process::ProcessMutex lock_;  // protects what follows
  std::unordered_set<ClientSession*> sessions_;
  std::unordered_set<int> waited_at_;
  std::atomic<bool> closed_{false};  // changed under the lock
};

}  // namespace farcall::call
