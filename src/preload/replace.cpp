// SPDX-License-Identifier: Apache-2.0
#include "preload/replace.hpp"

#include <array>
#include <atomic>

#include "preload/connection.hpp"
#include "preload/epoll.hpp"
#include "preload/hooked_call.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {
namespace {

constinit std::array<std::atomic<std::uint64_t>, kMostDescriptors / 64> replaced{};

bool in_range(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMostDescriptors);
}
std::atomic<std::uint64_t>& word_of(int fd) noexcept {
  return replaced[static_cast<std::size_t>(fd) / 64];
}
constexpr std::uint64_t bit_of(int fd) noexcept { return std::uint64_t{1} << fd % 64; }

// For the old socket, while it has no other; -1: there is none.
int make_aside(int fd) noexcept {
  const int aside = copy_to_private(fd);
  if (aside < 0 ||
      (find_side(aside) == nullptr && find_udp(aside) == nullptr && !is_registered(aside)))
    return aside;
  close_private(aside);  // something is known of the number, which was closed unseen
  return -1;
}

// While this lives nobody takes a step to acceleration, for which the number is looked at without
// a lock.
class NoSteps {
 public:
  explicit NoSteps(Side& side) noexcept
      : side_(side), held_(!side.advancing.exchange(true, std::memory_order_acquire)) {}
  NoSteps(const NoSteps&) = delete;
  NoSteps& operator=(const NoSteps&) = delete;
  ~NoSteps() {
    if (held_) side_.advancing.store(false, std::memory_order_release);
  }
  explicit operator bool() const noexcept { return held_; }

 private:
  Side& side_;
  bool held_;
};

class Replacement {
 public:
  explicit Replacement(const Duplication& asked) noexcept
      : asked_(asked), after_(hold(asked.from)) {}
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() {
    // Whoever has closed its last descriptor meanwhile has not seen that it was.
    if (after_ != nullptr) release(let_go(*after_));
  }

  bool carry_out(long& result) noexcept {
    constexpr unsigned kTurns = 16;
    for (unsigned turns = 0;;) {
      Side* const before = find_side(asked_.to);
      if (before == nullptr) return false;
      if (after_ != nullptr && is_registered(asked_.from))
        after_->stay_watched.store(true, std::memory_order_relaxed);
      int aside = -1;
      const Came came = attempt(*before, aside, result);
      if (aside >= 0) close_aside(*before, aside);
      switch (came) {
        case Came::done: return true;
        case Came::no_room: return false;
        case Came::again: kernel(SYS_sched_yield); break;
        case Came::from_moved:
          if (after_ != nullptr) release(let_go(*after_));
          after_ = hold(asked_.from);
          left_ = nullptr;
          break;
        case Came::in_use:
          // Who sends is gone in a moment, most of the time.
          if (turns++ < kTurns)
            kernel(SYS_sched_yield);
          else
            leave_both(*before);
          break;
      }
    }
  }

 private:
  enum class Came : std::uint8_t { done, again, from_moved, in_use, no_room };

  Came attempt(Side& before, int& aside, long& result) noexcept {
    const Guard receiving(before.receive_lock);
    const Guard sending(before.send_lock);
    if (!receiving || !sending) return Came::no_room;
    if (find_side(asked_.to) != &before) return Came::again;
    const NoSteps no_steps(before);
    const bool in_use = before.receiver.busy() || before.sender.busy() || !no_steps;
    if (in_use && left_ != &before && after_ != &before) return Came::in_use;
    Lock& replacing = replacing_lock();
    if (!replacing.try_lock()) return Came::again;
    const Came came = exchange(before, aside, result);
    replacing.unlock();
    return came;
  }

  // Holds all three locks.
  Came exchange(const Side& before, int& aside, long& result) noexcept {
    if (find_side(asked_.from) != after_) return Came::from_moved;
    if (after_ == &before) {
      result = asked_.make(asked_.from, asked_.to, asked_.flags);
      return Came::done;
    }
    aside = make_aside(asked_.to);
    if (aside < 0) return Came::no_room;
    result = asked_.make(asked_.from, asked_.to, asked_.flags);
    if (result < 0) return Came::done;
    note_replaced(asked_.to);
    replace_entry(asked_.to, after_, aside);
    after_ = nullptr;
    return Came::done;
  }

  // Without the locks, as it may linger.
  static void close_aside(Side& before, int aside) noexcept {
    if (find_side(aside) == &before) {
      // What was put by that number, whoever was told of it, is not looked at by it any more.
      const Guard sending(before.send_lock);
      if (sending && before.out().control != nullptr && before.sender.unread(before.out()) != 0)
        reclaim(before, aside, false);
    }
    const Released last = forget(aside);
    say_closed(last, aside);
    close_private(aside);
    ends_made.fetch_add(1, std::memory_order_relaxed);
    release(last);
  }

  void leave_both(const Side& before) noexcept {
    leave_socket(asked_.to);
    leave_socket(asked_.from);
    leave_to_kernel(asked_.from);
    left_ = &before;
  }

  const Duplication& asked_;
  Side* after_;                 // counted, until the table has it
  const Side* left_ = nullptr;  // what was there when both were left to the kernel
};

}  // namespace

bool replace(const Duplication& asked, long& result) noexcept {
  return Replacement(asked).carry_out(result);
}

bool was_replaced(int fd) noexcept {
  return in_range(fd) && (word_of(fd).load(std::memory_order_relaxed) & bit_of(fd)) != 0;
}

void note_replaced(int fd, bool now) noexcept {
  if (!in_range(fd) || was_replaced(fd) == now) return;
  if (now)
    word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
  else
    word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

int descriptor_of(const Side& side, int likely) noexcept {
  if (find_side(likely) == &side) return likely;
  for (int fd = 0; fd <= highest_descriptor(); ++fd)
    if (find_side(fd) == &side && !is_private(fd)) return fd;
  return -1;
}

}  // namespace farcall::preload
