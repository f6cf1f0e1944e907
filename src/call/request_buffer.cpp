// SPDX-License-Identifier: Apache-2.0
#include "call/request_buffer.hpp"

#include <sys/mman.h>

#include <atomic>
#include <utility>

namespace farcall::call {
namespace {

constinit std::atomic<std::size_t> kept{0};

}  // namespace

std::byte* RequestBuffer::reserve(std::size_t size, Charge charge) noexcept {
  if (!charge) return nullptr;
  if (size > memory_.size()) {
    drop();
    const std::size_t pages = round_up_to_pages(size);
    if (pages < size) return nullptr;
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
  memory_.reset();
  kept.fetch_sub(std::exchange(counted_, 0), std::memory_order_relaxed);
}

}  // namespace farcall::call
