// SPDX-License-Identifier: Apache-2.0
#include "call/request_buffer.hpp"

#include <sys/mman.h>

#include <atomic>
#include <utility>

#include "process/background.hpp"

namespace farcall::call {
namespace {

constinit std::atomic<std::size_t> kept{0};
constinit std::atomic<std::size_t> being_freed{0};

struct BeingFreed {
  explicit BeingFreed(std::size_t size) noexcept : bytes(size) {
    being_freed.fetch_add(bytes, std::memory_order_relaxed);
  }
  ~BeingFreed() { being_freed.fetch_sub(bytes, std::memory_order_relaxed); }
  BeingFreed(const BeingFreed&) = delete;
  BeingFreed& operator=(const BeingFreed&) = delete;
  const std::size_t bytes;
};

}  // namespace

// relaxed: it orders nothing.
void drop_later(uid_t user, std::size_t bytes, std::function<void()> holder) {
  constexpr std::size_t kMost = std::size_t{256} << 20;
  if (being_freed.load(std::memory_order_relaxed) >= kMost) return;
  const auto counted = std::make_shared<BeingFreed>(bytes);
  process::run_later(user, [counted, holder = std::move(holder)] {});
}

std::byte* RequestBuffer::reserve(std::size_t size, Charge charge, uid_t user) noexcept {
  if (!charge) return nullptr;
  user_ = user;
  if (size > memory_.size()) {
    drop();
    const std::size_t pages = round_up_to_pages(size);
    void* address =
        ::mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    memory_ = Mapping(address, pages);
  }
  charge_ = std::move(charge);
  return memory_.data();
}

void RequestBuffer::release() noexcept {
  constexpr std::size_t kSmall = std::size_t{1} << 20;
  constexpr std::size_t kLarge = std::size_t{32} << 20;
  charge_ = {};
  const std::size_t size = memory_.size();
  if (size <= kSmall || counted_ != 0) return;
  // relaxed: it orders nothing.
  counted_ = size;
  if (kept.fetch_add(size, std::memory_order_relaxed) + size > kMostKept || size > kLarge) drop();
}

void RequestBuffer::drop() noexcept {
  const std::size_t size = memory_.size();
  free_later(user_, size, std::move(memory_));
  forget();
}

void RequestBuffer::forget() noexcept {
  memory_.reset();
  kept.fetch_sub(std::exchange(counted_, 0), std::memory_order_relaxed);
}

}  // namespace farcall::call
