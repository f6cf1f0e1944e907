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

namespace farcall::door {

class Door;

// The descriptors that this process has of sockets, all found by one look. Throws std::bad_alloc.
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
  static ReferenceChecks& here();  // of this process, without its parent's
  void add(std::shared_ptr<Door> door) noexcept;

 private:
  void work() noexcept;
  void check_all() noexcept;
  bool finished() noexcept;
  bool leave_to_thread() noexcept;

  std::mutex lock_;  // protects what follows
  std::unordered_set<std::shared_ptr<Door>> waiting_;
  bool working_ = false;
};

}  // namespace farcall::door
