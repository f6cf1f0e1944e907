// SPDX-License-Identifier: Apache-2.0
//
// The one thread of a serving process that always waits for what comes from outside: new clients,
// and clients that go while nobody attends to them. It only ever does short work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "process/per_process.hpp"
#include "process/process.hpp"

namespace farcall::process {

// Something that the reactor listens to.
class Watch {
 public:
  virtual ~Watch() = default;
  // Called on the reactor's thread with epoll's events.
  virtual void on_readable(std::uint32_t events) noexcept = 0;
};

class Reactor {
 public:
  // This process's, started by the first who asks. Throws SystemError.
  static Reactor& here();

  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

 private:
  friend class PerProcess<Reactor>;
  friend class Registration;
  Reactor();
  ~Reactor() = default;
  // Before the first event is told, `number` is what the descriptor is known by here.
  void watch(int fd, std::uint32_t events, std::shared_ptr<Watch> watch,
             std::atomic<std::uint64_t>& number);
  void forget(int fd, std::uint64_t number) noexcept;
  void run() noexcept;

  PrivateFd epoll_;
  std::mutex lock_;  // protects the rest
  std::unordered_map<std::uint64_t, std::shared_ptr<Watch>> watches_;
  std::uint64_t next_ = 1;
};

// A descriptor that this process's reactor watches, until stop() or the end of this. A forked child
// leaves its parent's alone.
class Registration {
 public:
  Registration() noexcept = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { stop(); }

  // Has `watch` told of epoll's `events`, and keeps it. The descriptor stays open until stop(), and
  // is the caller's. Once. Throws SystemError.
  void start(int fd, std::uint32_t events, std::shared_ptr<Watch> watch);
  // Other events, or the same once more: after one of EPOLLONESHOT, or for what an edge told of
  // before. Does nothing before start(), nor after stop().
  void rearm(std::uint32_t events) noexcept;
  // An event that is being told may still come afterwards. May destroy the watch.
  void stop() noexcept;
  [[nodiscard]] bool active() const noexcept {
    return number_.load(std::memory_order_relaxed) != 0;
  }

 private:
  std::uint64_t generation_ = 0;
  int fd_ = -1;
  std::atomic<std::uint64_t> number_{0};  // what the reactor knows it by; 0: nothing
};

}  // namespace farcall::process
