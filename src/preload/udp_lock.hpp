// SPDX-License-Identifier: Apache-2.0
//
// A lock that a signal handler may meet in the middle, and that siglongjmp() may leave behind.
//
// send(), recv() and close() may be called by signal handlers, and old programs jump out of them.
// Keeping signals off would cost two system calls. Instead the lock knows the stack frame of its
// holder. If the thread that holds it comes again from the same frame or an outer one, the holder's
// frame is gone: the lock was left behind, and is taken over. From an inner frame it may be a
// handler in the middle of the holder; it is refused and does without the lock, as does whoever
// waits too long for another thread. So all that is changed under this lock must be of use at any
// moment to those who do without, and be put right by whoever takes it over.
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/lock.hpp"

namespace farcall::preload {

class FrameLock {
 public:
  enum class Answer : std::uint8_t { held, taken_over, refused };

  Answer enter(std::uintptr_t frame) noexcept {
    if (try_enter(frame)) [[likely]]
      return Answer::held;
    return enter_slowly(frame);
  }
  // False if anybody holds it.
  bool try_enter(std::uintptr_t frame) noexcept {
    std::uint32_t free = 0;
    // acquire: pairs with the release in leave()
    if (!holder_.compare_exchange_strong(free, this_thread(), std::memory_order_acquire,
                                         std::memory_order_relaxed))
      return false;
    frame_.store(frame, std::memory_order_relaxed);
    return true;
  }
  void leave() noexcept {
    // First: without a frame it is refused to a handler that comes before the next line.
    frame_.store(0, std::memory_order_relaxed);
    holder_.store(0, std::memory_order_release);
  }
  [[nodiscard]] bool is_mine() const noexcept {
    return holder_.load(std::memory_order_relaxed) == this_thread();
  }
  // In the child of a fork: whoever held it is not there.
  void free_in_child() noexcept { leave(); }

 private:
  Answer enter_slowly(std::uintptr_t frame) noexcept;

  std::atomic<std::uint32_t> holder_{0};
  std::atomic<std::uintptr_t> frame_{0};
  std::atomic<bool> left_behind_{false};  // somebody has waited too long: nobody waits again
};

// Whether a frame of this thread has ended, seen from `frame`; on another stack nothing is known.
bool frame_has_ended(std::uintptr_t of_holder, std::uintptr_t frame) noexcept;

[[gnu::always_inline]] inline std::uintptr_t this_frame() noexcept {
  return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
}

// Holds it for as long as it lives, if it is granted.
class FrameGuard {
 public:
  // In line, so that the frame is that of the function which holds the lock.
  [[gnu::always_inline]] explicit FrameGuard(FrameLock& lock) noexcept
      : lock_(lock), answer_(lock.enter(this_frame())) {}
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;
  ~FrameGuard() { unlock(); }
  explicit operator bool() const noexcept { return answer_ != FrameLock::Answer::refused; }
  [[nodiscard]] bool taken_over() const noexcept {
    return answer_ == FrameLock::Answer::taken_over;
  }
  void unlock() noexcept {
    if (answer_ != FrameLock::Answer::refused) lock_.leave();
    answer_ = FrameLock::Answer::refused;
  }
  [[gnu::always_inline]] bool lock() noexcept {
    answer_ = lock_.enter(this_frame());
    return static_cast<bool>(*this);
  }

 private:
  FrameLock& lock_;
  FrameLock::Answer answer_;
};

}  // namespace farcall::preload
