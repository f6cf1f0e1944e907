// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "farcall/memory.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"

namespace farcall::call {

// Gives up `thing`, which holds so many bytes of memory, or the last hold on them, for `user`. What
// is large takes milliseconds, and so is given up by a thread that serves nobody, unless too much
// waits for that already.
template <class Thing>
void free_later(uid_t user, std::size_t bytes, Thing thing) noexcept;
// Drops `holder` so.
void drop_later(uid_t user, std::size_t bytes, std::function<void()> holder);
inline constexpr std::size_t kLongToFree = std::size_t{4} << 20;

// Where long requests are copied to; kept from one to the next, because fresh memory is expensive.
class RequestBuffer {
 public:
  RequestBuffer() noexcept = default;
  ~RequestBuffer() { forget(); }
  RequestBuffer(const RequestBuffer&) = delete;
  RequestBuffer& operator=(const RequestBuffer&) = delete;

  // At least `size` bytes for `user`'s request, as long as `charge` lasts; null where it is empty
  // or there is no memory.
  std::byte* reserve(std::size_t size, Charge charge, uid_t user) noexcept;
  // The request is over. Gives back what is too much to be kept: nobody is charged for that.
  void release() noexcept;
  // It is not needed any more.
  void free() noexcept {
    charge_ = {};
    drop();
  }
  static constexpr std::size_t kMostKept = std::size_t{64} << 20;  // of all in a process

 private:
  void drop() noexcept;
  void forget() noexcept;

  Mapping memory_;
  std::size_t counted_ = 0;  // of those bytes, among what is kept
  Charge charge_;
  uid_t user_ = 0;  // whose request it was last for
};

// For requests that are answered by other threads than those that have taken them.
class SpareBuffers {
 public:
  // Null where there is none.
  std::unique_ptr<RequestBuffer> take() noexcept {
    const std::lock_guard guard(lock_);
    return count_ == 0 ? nullptr : std::move(all_[--count_]);
  }
  void keep(std::unique_ptr<RequestBuffer> buffer) noexcept {
    if (!buffer) return;
    buffer->release();
    const std::lock_guard guard(lock_);
    if (count_ < all_.size()) all_[count_++] = std::move(buffer);
  }

 private:
  std::mutex lock_;  // protects what follows
  std::array<std::unique_ptr<RequestBuffer>, 4> all_;
  std::size_t count_ = 0;
};

template <class Thing>
void free_later(uid_t user, std::size_t bytes, Thing thing) noexcept {
  if (bytes < kLongToFree) return;
  try {
    drop_later(user, bytes, [held = std::make_shared<Thing>(std::move(thing))] {});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it is given up here
  }
}

}  // namespace farcall::call
