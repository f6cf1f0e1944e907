// SPDX-License-Identifier: Apache-2.0
//
// Plain accesses: whether each is ordered with all others of the same bytes.
#include <algorithm>
#include <cstring>

#include "model/checker/memory.hpp"

namespace farcall::model {
namespace {

constexpr std::byte kSpoilt{0xdb};

}  // namespace

void Memory::race(unsigned thread, unsigned other, const std::byte* address) const {
  const Region& region = *region_of(address);
  violation("a data race of threads " + std::to_string(thread) + " and " + std::to_string(other) +
            " at byte " + std::to_string(address - region.base) + " of region " +
            std::to_string(&region - regions_.data()));
}

// A plain access belongs to the next event of its thread: what is released before does not cover
// it.
void Memory::check_plain(unsigned thread, std::byte* address, std::size_t size, bool stores) {
  Region& region = *region_of(address);
  const auto offset = static_cast<std::size_t>(address - region.base);
  if (offset + size > region.size) violation("an access leaves its region");
  region.touched = true;
  check_words(thread, region, offset, size, stores);
  const auto& clock = threads_[thread].now.clock;
  const auto event = static_cast<std::uint16_t>(clock[thread] + 1);
  for (std::size_t i = offset; i < offset + size; ++i) {
    Byte& byte = region.bytes[i];
    if (byte.by != 0xff && byte.by != thread && clock[byte.by] < byte.stored)
      race(thread, byte.by, region.base + i);
    if (!stores) {
      byte.loaded[thread] = event;
      continue;
    }
    for (unsigned other = 0; other < kMostThreads; ++other)
      if (other != thread && clock[other] < byte.loaded[other])
        race(thread, other, region.base + i);
    byte.by = static_cast<std::uint8_t>(thread);
    byte.stored = event;
  }
}

// Words that are atomic at other times.
void Memory::check_words(unsigned thread, Region& region, std::size_t offset, std::size_t size,
                         bool stores) {
  constexpr std::size_t kLargest = sizeof(std::uint64_t);
  for (std::size_t i = offset - std::min(offset, kLargest - 1); i < offset + size; ++i) {
    if (region.locations[i] == 0) continue;
    Location& at = locations_[region.locations[i] - 1];
    if (i + at.size <= offset) continue;
    at.mixed = true;
    const auto& clock = threads_[thread].now.clock;
    for (unsigned other = 0; other < kMostThreads; ++other) {
      if (other == thread) continue;
      if (clock[other] < at.stores[other] || (stores && clock[other] < at.loads[other]))
        race(thread, other, at.address);
    }
    if (!stores) continue;
    // It happens after all that has been stored, so it is the newest.
    begin(thread, at.key);
    const auto id = static_cast<MessageId>(at.messages.size());
    Message& message = at.messages.emplace_back();
    message.thread = static_cast<std::uint8_t>(thread);
    message.event = clock[thread];
    at.order.push_back(id);
    at.position.push_back(static_cast<std::uint16_t>(at.order.size() - 1));
    threads_[thread].now.seen[static_cast<std::size_t>(&at - locations_.data())] = id;
    at.hash = mix(at.hash, message.identity());
    at.stale = true;
  }
}

void Memory::check_atomic(unsigned thread, Location& at, bool stores) {
  const Region& region = *region_of(at.address);
  const auto offset = static_cast<std::size_t>(at.address - region.base);
  const auto& clock = threads_[thread].now.clock;
  for (std::size_t i = offset; i < offset + at.size; ++i) {
    const Byte& byte = region.bytes[i];
    if (byte.by != 0xff && byte.by != thread && clock[byte.by] < byte.stored)
      race(thread, byte.by, region.base + i);
    if (!stores) continue;
    for (unsigned other = 0; other < kMostThreads; ++other)
      if (other != thread && clock[other] < byte.loaded[other])
        race(thread, other, region.base + i);
  }
}

void Memory::plain_load(unsigned thread, const void* address, std::size_t size) {
  check_plain(thread, const_cast<std::byte*>(static_cast<const std::byte*>(address)), size, false);
}

void Memory::plain_store(unsigned thread, void* address, std::size_t size) {
  auto* const where = static_cast<std::byte*>(address);
  check_plain(thread, where, size, true);
  if (!copies_.empty()) spoil_copies(thread, where, size);
}

void Memory::copy(unsigned thread, void* to, const void* from, std::size_t size) {
  auto* const into = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  if (is_shared(to)) plain_store(thread, to, size);
  const bool shared = is_shared(from);
  if (shared && !forgiving_) plain_load(thread, from, size);
  std::memmove(to, from, size);
  if (!shared || !forgiving_) return;
  forget_copies(into, size);
  const Region& region = *region_of(source);
  const auto offset = static_cast<std::size_t>(source - region.base);
  if (offset + size > region.size) violation("a copy leaves its region");
  const auto& clock = threads_[thread].now.clock;
  for (std::size_t i = 0; i < size; ++i) {
    const Byte& byte = region.bytes[offset + i];
    if (byte.by != 0xff && byte.by != thread && clock[byte.by] < byte.stored) into[i] = kSpoilt;
  }
  copies_.push_back({.thread = thread,
                     .clock = static_cast<std::uint16_t>(clock[thread] + 1),
                     .from = source,
                     .to = into,
                     .size = size,
                     .confirmed = false});
}

void Memory::spoil_copies(unsigned thread, const std::byte* address, std::size_t size) {
  const auto& clock = threads_[thread].now.clock;
  for (const Copy& copy : copies_) {
    if (copy.thread == thread || clock[copy.thread] >= copy.clock) continue;
    const std::byte* const begin = std::max(address, copy.from);
    const std::byte* const end = std::min(address + size, copy.from + copy.size);
    if (begin >= end) continue;
    if (copy.confirmed) race(thread, copy.thread, begin);
    std::fill_n(copy.to + (begin - copy.from), end - begin, kSpoilt);
  }
}

void Memory::settle_copies(unsigned thread, const std::byte* begin, const std::byte* end) {
  std::erase_if(copies_, [&](const Copy& copy) {
    return copy.thread == thread && !copy.confirmed && (copy.to < begin || copy.to >= end);
  });
  for (Copy& copy : copies_)
    if (copy.thread == thread) copy.confirmed = true;
}

void Memory::forget_copies(const std::byte* at, std::size_t size) noexcept {
  std::erase_if(copies_, [&](const Copy& copy) {
    return !copy.confirmed && copy.to < at + size && at < copy.to + copy.size;
  });
}

}  // namespace farcall::model
