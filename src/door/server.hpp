// SPDX-License-Identifier: Apache-2.0
//
// Threads that serve doors, of either engine.
#pragma once

#include "door/door.hpp"

namespace farcall::door {

// Of one request or one reply, as on illumos.
inline constexpr std::size_t kMostDescriptors = 1024;
static_assert(kMostDescriptors <= kCallDescriptors);

// Makes the calling thread one of a door's pool, or of the shared one. Returns 0 or an errno value.
int join_pool(std::shared_ptr<OwnDoor> door = nullptr);
// It is bound to nothing, either.
void leave_pool() noexcept;

// Makes a thread for the shared pool. Returns 0 or an errno value.
int make_default_thread() noexcept;
// What door_server_create() starts with.
void create_default_thread(door_info_t* info) noexcept;
// The same, and returns when it is there. Returns 0 or an errno value. Throws std::bad_alloc.
int start_first_thread();
// Has `count` threads made for a door of door_xcreate(), and returns when all are bound to it.
// Returns 0, EINVAL where a thread was declined, EPIPE where one could not be made, or not serve.
int start_bound_threads(const std::shared_ptr<OwnDoor>& door, int count);
// For a server that has a call, when nobody else of its pool may be left to serve the next one: the
// program is asked for one more thread. `door`: the one that a private pool is of, or null.
// Throws std::bad_alloc.
struct Need {
  bool last = true;        // no other thread is known to wait for calls
  std::size_t crowd = 0;   // if others wait already: so many threads may serve them
  bool receiving = false;  // the caller is one of those that count as idle
  bool urgent = false;     // whoever is on the way is not waited for
};
void ask_for_thread(Pool& pool, const std::shared_ptr<OwnDoor>& door, const Need& need);
// The calling thread has taken a call, as the last of its pool, and has not asked for another
// thread, because one may be on its way; or none could be made.
extern thread_local constinit bool left_alone;
// For such a thread, which is about to wait for a door: the one that is called may in turn need its
// own pool, so if there is still nobody, a thread is asked for now.
void ask_before_waiting();
// The door that the calling thread is bound to, or null.
std::shared_ptr<OwnDoor> bound_door() noexcept;
// By which the calling thread serves a call; null outside of one.
Server* call_in_progress() noexcept;

// Turns descriptors that came into what programs see; they become the program's.
void hand_out(ReceivedFds& descriptors, door_desc_t* into);

// Descriptors on their way out.
class Outgoing {
 public:
  // Returns 0, or EFAULT or EINVAL for what cannot be passed; after EINVAL release() closes all.
  int add(const door_desc_t* descriptors, std::size_t count);
  // Each receiver of a door of this process gets a branch of its own, which it can spoil for nobody
  // else; `user`: whom it is charged to. Does it once only. The numbers in descriptors() change,
  // and stay where they are. Throws SystemError: EMFILE where that user has too many.
  void prepare(std::optional<uid_t> user = {});
  [[nodiscard]] const std::vector<int>& descriptors() const noexcept { return sent_; }
  // They have been passed, or are lost: closes what is to be released.
  void release() noexcept;

 private:
  std::vector<int> sent_;
  std::vector<int> release_;
  std::vector<UniqueFd> branches_;
  bool prepared_ = false;
};
// Closes those that are to be released, though they were not passed. As Outgoing::add().
int release_all(const door_desc_t* descriptors, std::size_t count);

}  // namespace farcall::door
