// SPDX-License-Identifier: Apache-2.0
//
// Doors of stplr.ko that this process serves, and where its threads wait for their calls.
//
// Who is to be cancelled because its client has left is told by the pool's descriptor, to which the
// reactor listens. A thread may have answered, or taken another call, by the time that this is
// read: so each has the number of its call under a lock, and only who still has that call is
// cancelled.
#pragma once

#include <stplr_doors.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "door/engine.hpp"
#include "process/reactor.hpp"

namespace farcall::door::kernel {

class KernelDeferred;
class KernelDoor;
class KernelServer;

class KernelPool final : public Pool, public std::enable_shared_from_this<KernelPool> {
 public:
  // Throws SystemError.
  KernelPool();
  ~KernelPool() override;

  std::unique_ptr<Server> enter() override;
  [[nodiscard]] std::size_t idle_threads() const noexcept override {
    return static_cast<std::size_t>(std::max(idle.load(std::memory_order_relaxed), 0));
  }
  // To be called once. Throws SystemError.
  void listen(std::uint32_t events);
  // What the reactor has seen.
  void on_events(std::uint32_t events) noexcept;

  void add(pid_t thread, KernelServer& server);
  void remove(pid_t thread) noexcept;
  void add(std::uint64_t call, KernelDeferred& deferred);
  // When it has returned the call is not being told of any client that has left.
  void remove_deferred(std::uint64_t call) noexcept;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  // Threads that wait here, or are about to. relaxed: who looks decides by it whether to ask for
  // one more, and asks again at the next call.
  std::atomic<int> idle{0};
  std::weak_ptr<KernelDoor> only_door;  // of a private pool

 private:
  process::PrivateFd fd_;
  process::Registration registration_;
  std::mutex lock_;  // protects the rest; taken before that of a server or a call
  std::unordered_map<pid_t, KernelServer*> servers_;
  std::unordered_map<std::uint64_t, KernelDeferred*> deferred_;
};

// One that is private. The module knows all that there is to know of others.
class KernelDoor final : public OwnDoor {
 public:
  KernelDoor(const Order& order, std::shared_ptr<Pool> threads, const door_info_t& as_made) noexcept
      : OwnDoor(order, std::move(threads)) {
    lasting_info_ = as_made;
  }
  [[nodiscard]] door_info_t info() const noexcept override {
    door_info_t now = lasting_info_;
    if (revoked.load(std::memory_order_relaxed)) now.di_attributes |= DOOR_REVOKED;
    return now;
  }
  std::atomic<bool> revoked{false};
};

// The private door of this process that has this number, or null.
std::shared_ptr<KernelDoor> own_door(std::uint64_t id);
// Nobody can refer to it any more.
void forget_own_door(std::uint64_t id) noexcept;

}  // namespace farcall::door::kernel
