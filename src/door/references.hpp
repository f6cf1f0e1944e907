// SPDX-License-Identifier: Apache-2.0
//
// Who refers to doors: what of it this process holds itself, and when it is counted.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "process/per_process.hpp"

namespace farcall::door {

class Door;

// The descriptors that the program has of sockets, all found by one look. Throws std::bad_alloc,
// and looks at each number where there is no descriptor left to look with.
class OwnSockets {
 public:
  struct Entry {
    std::uint64_t socket;  // SO_COOKIE
    int fd;
  };
  OwnSockets();
  [[nodiscard]] std::span<const Entry> of(std::uint64_t socket) const;

 private:
  std::vector<Entry> all_;  // sorted
};

// Doors of which a reference has gone. One look at the process's descriptors serves all that have
// come to wait meanwhile, on a thread that may take its time: strangers who come and go could keep
// others at it.
class ReferenceChecks {
 public:
  // For this process, whose parent's are none of its own.
  static void add(std::shared_ptr<Door> door) noexcept;
  // The same for a door that has just been counted: where it is being counted by what was so
  // before.
  static void add_again(const std::shared_ptr<Door>& door) noexcept;

 private:
  friend class process::PerProcess<ReferenceChecks>;
  void start(std::shared_ptr<Door> door);
  void work() noexcept;
  void check_some() noexcept;
  bool finished() noexcept;
  bool leave_to_thread() noexcept;

  std::mutex lock_;  // protects what follows
  std::unordered_set<std::shared_ptr<Door>> waiting_;
  bool working_ = false;
};

}  // namespace farcall::door
