// SPDX-License-Identifier: Apache-2.0
#include "call/request_buffer.hpp"

#include <sys/mman.h>

#include <utility>

namespace farcall::call {

std::byte* RequestBuffer::reserve(std::size_t size, Charge charge) noexcept {
  if (!charge) return nullptr;
  if (size > memory_.size()) {
    memory_.reset();
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
  constexpr std::size_t kKeep = std::size_t{32} << 20;
  if (memory_.size() > kKeep) memory_.reset();
  charge_ = {};
}

}  // namespace farcall::call
