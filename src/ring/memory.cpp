// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/memory.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "farcall/error.hpp"
#include "farcall/observe.hpp"

namespace farcall {
namespace {

constexpr std::size_t kSmallestCapacity = 4096;

bool is_capacity(std::size_t bytes) noexcept {
  return bytes >= kSmallestCapacity && bytes <= kLargestRingCapacity && std::has_single_bit(bytes);
}

void check_capacity(std::size_t capacity) {
  if (!is_capacity(capacity))
    throw MisuseError("ring capacity must be a power of two of 4096 bytes to 16 GiB");
}

void stamp(RingControl& control, std::size_t capacity, RingKind kind) {
  control.kind = kind;
  control.capacity = capacity;
  control.magic = RingControl::kMagic;
}

}  // namespace

std::size_t ring_capacity(std::size_t bytes) noexcept {
  return std::bit_ceil(std::max(bytes, kSmallestCapacity));
}

RingMemory::RingMemory(Mapping mapping, std::size_t capacity) noexcept
    : mapping_(std::move(mapping)),
      view_{.control = reinterpret_cast<RingControl*>(mapping_.data()),
            .data = mapping_.data() + kRingControlBytes,
            .capacity = capacity} {}

RingMemory RingMemory::format(int fd, std::size_t capacity, RingKind kind) {
  check_capacity(capacity);
  RingMemory memory(map_twice(fd, kRingControlBytes, capacity, Access::read_write), capacity);
  stamp(*memory.view_.control, capacity, kind);
  memory.inode_ = observe::inode_of(fd);
  return memory;
}

RingMemory RingMemory::format(Mapping plain, std::size_t capacity, RingKind kind) {
  check_capacity(capacity);
  if (plain.size() < ring_bytes(capacity)) throw MisuseError("memory too small for the ring");
  RingMemory memory(map_twice(std::move(plain), kRingControlBytes, capacity), capacity);
  stamp(*memory.view_.control, capacity, kind);
  return memory;
}

RingMemory RingMemory::attach(int fd, std::size_t file_bytes, RingKind kind, Access data) {
  // The file's real size decides; what the peer has written is only compared with it.
  const std::size_t capacity = file_bytes - std::min(file_bytes, kRingControlBytes);
  if (!is_capacity(capacity))
    throw SystemError(EPROTO, "attach a ring: the memory has no ring's size");
  RingMemory memory(map_twice(fd, kRingControlBytes, capacity, data), capacity);
  const RingControl& control = *memory.view_.control;
  if (control.magic != RingControl::kMagic || control.capacity != capacity)
    throw SystemError(EPROTO, "attach a ring: the memory holds something else");
  if (control.kind != kind) throw SystemError(EPROTOTYPE, "attach a ring: it is of another kind");
  memory.inode_ = observe::inode_of(fd);
  return memory;
}

}  // namespace farcall
