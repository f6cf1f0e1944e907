// SPDX-License-Identifier: Apache-2.0
//
// Threads that serve doors.
#pragma once

#include "door/door.hpp"

namespace farcall::door {

// Of one request or one reply, as on illumos.
inline constexpr std::size_t kMostDescriptors = 1024;
static_assert(kMostDescriptors <= kCallDescriptors);

// What door_server_create() starts with: makes a thread for the shared pool.
void create_default_thread(door_info_t* info) noexcept;
// Has `count` threads made for a door of door_xcreate(), and returns when all are bound to it.
// Returns 0, EINVAL where a thread was declined, EPIPE where none could be made.
int start_bound_threads(const std::shared_ptr<Door>& door, int count);
// The door that the calling thread is bound to, or null.
std::shared_ptr<Door> bound_door() noexcept;
// What the calling thread serves; null outside a call.
Incoming* call_in_progress() noexcept;

// Turns descriptors that came into what programs see; they become the program's.
void hand_out(ReceivedFds& descriptors, door_desc_t* into);

// Descriptors on their way out.
class Outgoing {
 public:
  // Returns 0, or EFAULT or EINVAL for what cannot be passed; after EINVAL release() closes all.
  int add(const door_desc_t* descriptors, std::size_t count);
  // Each receiver of a door of this process gets a branch of its own, which it can spoil for nobody
  // else. Throws SystemError.
  void prepare();
  [[nodiscard]] const std::vector<int>& descriptors() const noexcept { return sent_; }
  // They have been passed, or are lost: closes what is to be released.
  void release() noexcept;

 private:
  std::vector<int> sent_;
  std::vector<int> release_;
  std::vector<UniqueFd> branches_;
};

}  // namespace farcall::door
