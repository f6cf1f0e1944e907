// SPDX-License-Identifier: Apache-2.0
//
// Small numbers for objects. A number that was given back is not given out again for a long time,
// so that who still uses it is refused.
#pragma once

#include <cerrno>
#include <deque>
#include <memory>
#include <vector>

#include "farcall/error.hpp"
#include "message/reading_lock.hpp"

namespace farcall::message {

template <class T>
class Table {
 public:
  int add(std::shared_ptr<T> object) {
    const Writing guard(lock);
    std::size_t index = entries_.size();
    // The one that has been free for longest.
    if (free_.size() > kRest || (index == kMost && !free_.empty())) {
      index = free_.front();
      free_.pop_front();
    } else if (index == kMost) {
      throw SystemError(EMFILE, "too many channels or connections");
    } else {
      entries_.emplace_back();
    }
    Entry& entry = entries_[index];
    entry.object = std::move(object);
    entry.number = static_cast<int>(entry.generation << kBits | index);
    return entry.number;
  }
  std::shared_ptr<T> find(int number) const {
    const Reading guard(lock);
    if (const std::shared_ptr<T>* const found = look(number)) return *found;
    throw SystemError(EBADF, "no such channel or connection");
  }
  // For who has locked it; null where there is none. Not for longer than that.
  const std::shared_ptr<T>* look(int number) const noexcept {
    const std::size_t index = static_cast<unsigned>(number) & (kMost - 1);
    if (number <= 0 || index >= entries_.size() || entries_[index].number != number) return nullptr;
    return &entries_[index].object;
  }
  std::shared_ptr<T> remove(int number) {
    const Writing guard(lock);
    if (look(number) == nullptr) throw SystemError(EBADF, "no such channel or connection");
    const std::size_t index = static_cast<unsigned>(number) & (kMost - 1);
    Entry& entry = entries_[index];
    entry.number = 0;
    entry.generation = entry.generation == kGenerations - 1 ? 1 : entry.generation + 1;
    free_.push_back(index);
    return std::move(entry.object);
  }

  // Held around a fork, for reading.
  mutable ReadingLock lock;

 private:
  static constexpr unsigned kBits = 15;
  static constexpr std::size_t kMost = std::size_t{1} << kBits;
  static constexpr unsigned kGenerations = 1U << (31 - kBits);
  static constexpr std::size_t kRest = 64;

  struct Entry {
    std::shared_ptr<T> object;
    unsigned generation = 1;
    int number = 0;
  };
  std::vector<Entry> entries_;
  std::deque<std::size_t> free_;
};

}  // namespace farcall::message
