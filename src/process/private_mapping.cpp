// SPDX-License-Identifier: Apache-2.0
#include "process/private_mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "farcall/error.hpp"

namespace farcall::process {
namespace {

using detail::Place;

// Places are never given back: a child looks through them without a lock. Each block is as large as
// all before it together.
struct Block {
  std::size_t count;
  Place* places;
  Block* before;
};
constinit std::array<Place, 64> first_places{};
constinit Block first_block{
    .count = first_places.size(), .places = first_places.data(), .before = nullptr};
constinit std::atomic<Block*> last_block{&first_block};
constinit std::atomic<std::size_t> used{0};  // places; a child counts anew

// In a place's address: somebody is about to fill it.
std::byte* const kTaken = reinterpret_cast<std::byte*>(1);

bool claim(Place& place) noexcept {
  std::byte* none = place.address.load(std::memory_order_relaxed);
  return none == nullptr &&
         place.address.compare_exchange_strong(none, kTaken, std::memory_order_relaxed);
}

std::size_t all_places(const Block* block) noexcept {
  std::size_t count = 0;
  for (; block != nullptr; block = block->before) count += block->count;
  return count;
}

Place* free_place(const Block* block) noexcept {
  for (; block != nullptr; block = block->before)
    for (std::size_t i = 0; i < block->count; ++i)
      if (claim(block->places[i])) return &block->places[i];
  return nullptr;
}

// Throws std::bad_alloc.
Place& take_place() {
  for (;;) {
    // acquire: pairs with the release below.
    Block* last = last_block.load(std::memory_order_acquire);
    const std::size_t count = all_places(last);
    // Half of them stay free, so that the search is a short one.
    if (used.load(std::memory_order_relaxed) < count / 2)
      if (Place* const place = free_place(last)) return *place;
    auto places = std::make_unique<Place[]>(count);
    auto block = std::make_unique<Block>(count, places.get(), last);
    if (!last_block.compare_exchange_strong(last, block.get(), std::memory_order_acq_rel)) continue;
    (void)places.release();
    (void)block.release();
  }
}

// Addresses with nothing at them, or no longer; a child may read there all the same. At `where`, or
// anywhere.
void* blank(void* where, std::size_t size) noexcept {
  return ::mmap(where, size, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (where != nullptr ? MAP_FIXED : 0),
                -1, 0);
}

// What one page holds stays; it may be changing.
void put_private_memory(std::byte* address, std::size_t size) noexcept {
  constexpr std::size_t kKept = 4096;
  std::array<std::byte, kKept> kept;
  if (size == kKept) std::memcpy(kept.data(), address, kKept);
  if (::mmap(address, size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    ::munmap(address, size);  // who uses it ends by that; it is not the parent's, at any rate
    return;
  }
  if (size == kKept) std::memcpy(address, kept.data(), kKept);
}

}  // namespace

// What is kTaken may be the calling thread's, in a signal handler, and stays so.
void detail::hide_parents_memory() noexcept {
  const int saved = errno;
  used.store(0, std::memory_order_relaxed);
  for (const Block* block = last_block.load(std::memory_order_acquire); block != nullptr;
       block = block->before)
    for (std::size_t i = 0; i < block->count; ++i) {
      Place& place = block->places[i];
      std::byte* const address = place.address.load(std::memory_order_acquire);
      if (address == nullptr || address == kTaken) continue;
      put_private_memory(address, place.size.load(std::memory_order_relaxed));
      place.address.store(nullptr, std::memory_order_relaxed);
    }
  errno = saved;
}

// The addresses first, then the place, and the file last: a child that is forked in between finds
// all that it has of the file.
PrivateMapping::PrivateMapping(int file, std::size_t size, int flags) {
  // Such a file cannot be mapped so; kernels before 6.13 say that when the addresses are free
  // again, and another thread's memory may be there by then.
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
    throw SystemError(EPERM, "shared memory from the peer cannot be written to");
  void* const address = blank(nullptr, size);
  if (address == MAP_FAILED) throw_errno("mmap to reserve addresses");
  memory_ = Mapping(address, size);
  Place& place = take_place();
  used.fetch_add(1, std::memory_order_relaxed);
  place.size.store(size, std::memory_order_relaxed);
  // release: the size is there before.
  place.address.store(memory_.data(), std::memory_order_release);
  place_ = &place;
  if (::mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | flags, file, 0) !=
      MAP_FAILED)
    return;
  const int error = errno;
  // What is there may be another thread's.
  place.address.store(nullptr, std::memory_order_release);
  used.fetch_sub(1, std::memory_order_relaxed);
  place_ = nullptr;
  (void)memory_.release();
  throw SystemError(error, "mmap of shared memory");
}

// The other way round: nobody else gets the addresses while a child would look for them. Where the
// place is another's by now, this is a child, and the mapping was its parent's.
void PrivateMapping::unmap() noexcept {
  if (place_ == nullptr) return memory_.reset();
  (void)blank(memory_.data(), memory_.size());
  std::byte* mine = memory_.data();
  if (place_->address.compare_exchange_strong(mine, nullptr, std::memory_order_release))
    used.fetch_sub(1, std::memory_order_relaxed);
  place_ = nullptr;
  memory_.reset();
}

}  // namespace farcall::process
