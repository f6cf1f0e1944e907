// SPDX-License-Identifier: Apache-2.0
//
// What the kernel does for the library, as far as scenarios need it: futexes, doorbells and streams
// between two descriptors, mutexes, fences that reach all threads. Time stands still.
//
// A futex call reads the newest value, and orders nothing in the sense of the memory model. What is
// received from a socket happens after it was sent.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "model/checker/memory.hpp"

namespace farcall::model {

class Kernel {
 public:
  // Descriptors of scenarios; what is below belongs to the real kernel.
  static constexpr int kFirstDescriptor = 1 << 20;

  void reset();
  [[nodiscard]] std::uint64_t hash() const noexcept;

  // Two connected ends, the one returned and the next, each of which takes so many bytes.
  int connect(std::size_t room);
  static bool owns(int fd) noexcept { return fd >= kFirstDescriptor; }

  // As the system calls: a result, or minus an errno.
  long futex_wait(const void* word, std::uint32_t expected, bool has_deadline);
  long futex_wake(const void* word, unsigned most);
  long send(int fd, std::span<const std::byte> bytes);
  // What is there; -EAGAIN, or 0 at the end.
  long receive(int fd, std::span<std::byte> into, bool peek);
  int queued(int fd);
  void shut_down(int fd);
  int poll(pollfd& entry, bool wait, bool has_deadline);
  void fence_all();

  void lock(const void* mutex);
  void unlock(const void* mutex);

 private:
  struct Sleeper {
    const void* word;
    unsigned thread;
    bool woken;
  };
  struct End {
    std::deque<std::byte> bytes;  // to be received here
    std::size_t room = 0;
    View view;  // of who has sent or shut down
    bool peer_gone = false;
    std::uint64_t version = 0;
  };
  struct Mutex {
    const void* address;
    bool held = false;
    View view;
    std::uint64_t version = 0;
  };
  End& end(int fd) { return ends_.at(static_cast<std::size_t>(fd - kFirstDescriptor)); }
  End& other_end(int fd) { return ends_.at(static_cast<std::size_t>((fd - kFirstDescriptor) ^ 1)); }
  Mutex& mutex(const void* address);
  void leave_behind(View& view, std::uint64_t& version);

  std::vector<Sleeper> sleepers_;
  std::deque<End> ends_;
  std::deque<Mutex> mutexes_;
};

}  // namespace farcall::model
