// SPDX-License-Identifier: Apache-2.0
//
// The one thread of a serving process that is always there to hear from the outside: new clients,
// and clients that go while nobody attends to them. It only ever does short work.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

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

  // Watches a descriptor, for epoll `events`; returns a number for forget(). Throws SystemError.
  std::uint64_t watch(int fd, std::uint32_t events, std::shared_ptr<Watch> watch);
  // Once more, after an event of what is watched with EPOLLONESHOT.
  void again(int fd, std::uint64_t number, std::uint32_t events) noexcept;
  // Before the descriptor is closed. An event that is being told may still come afterwards.
  void forget(int fd, std::uint64_t number) noexcept;

 private:
  friend class PerProcess<Reactor>;
  Reactor();
  ~Reactor() = default;
  void run() noexcept;

  PrivateFd epoll_;
  std::mutex lock_;  // protects the rest
  std::unordered_map<std::uint64_t, std::shared_ptr<Watch>> watches_;
  std::uint64_t next_ = 1;
};

}  // namespace farcall::process
