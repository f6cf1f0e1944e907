// SPDX-License-Identifier: Apache-2.0
//
// Memory shared with another process that a forked child must not share. A child may be somebody
// else, without the parent's privileges: what it wrote there would be the parent's word.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "farcall/memory.hpp"

namespace farcall::process {

namespace detail {
// Where a child looks for it. The size is written before the address, and both lie on one page, of
// which a child has a copy of one moment.
struct alignas(16) Place {
  std::atomic<std::byte*> address{nullptr};
  std::atomic<std::size_t> size{0};
};
// In a child, for what its parent had: async-signal-safe.
void hide_parents_memory() noexcept;
}  // namespace detail

// Owns a shared mapping of a file. In a forked child private memory is in its place as soon as that
// notices what it is, so that a thread that is in the middle of using it goes on: with what was
// there, if that is no more than a page, or else with zeros.
class PrivateMapping {
 public:
  PrivateMapping() noexcept = default;
  // `size` bytes (whole pages) of `file`, read-write; `flags`: of mmap(2), beside MAP_SHARED.
  // Throws SystemError, and std::bad_alloc.
  PrivateMapping(int file, std::size_t size, int flags = 0);
  // Of memory that a child may have as well.
  explicit PrivateMapping(Mapping memory) noexcept : memory_(std::move(memory)) {}
  PrivateMapping(PrivateMapping&& other) noexcept
      : memory_(std::move(other.memory_)), place_(std::exchange(other.place_, nullptr)) {}
  PrivateMapping& operator=(PrivateMapping&& other) noexcept {
    if (this != &other) {
      reset();
      memory_ = std::move(other.memory_);
      place_ = std::exchange(other.place_, nullptr);
    }
    return *this;
  }
  ~PrivateMapping() { reset(); }

  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  explicit operator bool() const noexcept { return static_cast<bool>(memory_); }
  void reset() noexcept {
    if (memory_) unmap();
  }

 private:
  void unmap() noexcept;

  Mapping memory_;
  detail::Place* place_ = nullptr;
};

}  // namespace farcall::process
