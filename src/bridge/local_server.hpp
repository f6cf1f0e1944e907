// SPDX-License-Identifier: Apache-2.0
//
// A server of this machine that the bridge calls for others: a door by its path, a channel by its
// name.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "bridge/bridge.hpp"
#include "bridge/wire.hpp"

namespace farcall::bridge {

// A thread of the bridge that calls local servers, and how it is interrupted there.
class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Installs the handler, once for the process.
  static void install_handler();
  // The process's own signals are for its first thread. By the worker.
  static void block_signals() noexcept;
  // Ends the local call that the worker is in, if it is one that signals end. May have to be said
  // again: it may come before that call has begun. By any thread.
  void interrupt() noexcept;
  // No signal is on its way any more, so that none meets the next call. By the worker.
  void settle() noexcept;
  // Whether to send messages of that priority would change how this thread is scheduled. 0: as it
  // is by itself.
  [[nodiscard]] bool would_change(int priority) const noexcept;
  // Of the messages that it sends until it has its own again, if this process may choose.
  void take_priority(int priority) noexcept;
  void own_priority() noexcept;

  // For a reply, of at most kLongest bytes; the worker's own. Costs what is used of it. Throws
  // std::bad_alloc.
  std::span<std::byte> room(std::size_t size);
  // So much of the room has been written to.
  void used(std::size_t size) noexcept { room_used_ = std::max(room_used_, size); }
  // Gives back what only long replies need.
  void shrink() noexcept;
  // A reply that is elsewhere, to be unmapped.
  void hold(void* memory, std::size_t size) noexcept;

 private:
  // How a thread is scheduled.
  struct Scheduling {
    int policy;
    sched_param real_time;
    int nice;
    void apply(pthread_t thread) const noexcept;
  };

  void unmap() noexcept;

  const pthread_t thread_;
  Scheduling own_{};
  const int own_priority_;
  std::atomic<unsigned> sent_{0};  // signals
  std::byte* room_ = nullptr;
  std::size_t room_size_ = 0;
  std::size_t room_used_ = 0;
  void* held_ = nullptr;
  std::size_t held_size_ = 0;
  bool changed_ = false;  // its scheduling
};

struct LocalAnswer {
  int error = 0;
  int status = 0;
  bool not_taken = false;                // the server has seen nothing of it
  std::span<const std::byte> data = {};  // valid until the worker's next call
};

// Any thread calls any of it.
class LocalServer {
 public:
  virtual ~LocalServer() = default;
  // Whether there is one. Asks it anew where there was none.
  virtual bool present() = 0;
  // `cancelled` may become true meanwhile; then the worker is interrupted.
  virtual LocalAnswer call(Worker& worker, const Header& header, std::span<const std::byte> data,
                           const std::atomic<bool>& cancelled) = 0;
  virtual int one_way(Worker& worker, const Header& header, std::span<const std::byte> data) = 0;
  virtual int pulse(const Header& header) = 0;
};

std::unique_ptr<LocalServer> local_door(const std::string& path);
std::unique_ptr<LocalServer> local_channel(const std::string& name);

}  // namespace farcall::bridge
