// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/broadcast_ring.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "farcall/error.hpp"

namespace farcall {
namespace {

using message_ring::footprint;
using message_ring::kHeader;

constexpr std::uint64_t kMagic = 0x3167727473616362;  // "bcastrg1"
constexpr std::uint64_t kReady = std::uint64_t{1} << 32;
constexpr int kNumberShift = 33;

constexpr std::uint64_t header_of(std::uint64_t number, std::size_t size) noexcept {
  return number << kNumberShift | kReady | size;
}

#if defined(__SANITIZE_THREAD__) || defined(FARCALL_ATOMIC_COPIES)
// What is read while it is written over is thrown away. ThreadSanitizer is not to be told of each
// such place, so for it, and for the model checker, all is read and written in atomic words.
constexpr std::size_t kWord = sizeof(std::uint64_t);
void put(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  for (std::size_t at = 0; at < size; at += kWord) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, std::min(kWord, size - at));
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to + at))
        .store(word, std::memory_order_relaxed);
  }
}
void get(std::byte* to, std::byte* from, std::size_t size) noexcept {
  for (std::size_t at = 0; at < size; at += kWord) {
    const std::uint64_t word = std::atomic_ref(*reinterpret_cast<std::uint64_t*>(from + at))
                                   .load(std::memory_order_relaxed);
    std::memcpy(to + at, &word, std::min(kWord, size - at));
  }
}
#else
void put(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  copy_memory(to, from, size);
}
void get(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  copy_memory(to, from, size);
}
#endif

bool is_capacity(std::size_t bytes) noexcept {
  return bytes >= page_size() && bytes <= kLargestRingCapacity && std::has_single_bit(bytes);
}

}  // namespace

BroadcastMemory BroadcastMemory::create(std::size_t capacity) {
  if (!is_capacity(capacity))
    throw MisuseError("ring capacity must be a power of two of 4096 bytes to 16 GiB");
  SharedMemory memory =
      SharedMemory::create(ring_bytes(capacity), "farcall-broadcast", Writers::creator);
  Mapping mapping = map_twice(memory.fd(), kRingControlBytes, capacity, Access::read_write);
  memory.forbid_writing();
  BroadcastMemory made(std::move(memory), std::move(mapping));
  BroadcastControl& control = *made.view().control;
  control.kind = RingKind::broadcast;
  control.capacity = capacity;
  control.magic = kMagic;
  return made;
}

BroadcastMemory BroadcastMemory::attach(UniqueFd&& fd, std::size_t most) {
  SharedMemory memory = SharedMemory::adopt(std::move(fd));
  // The file's real size decides; what the writer says is only compared with it.
  const std::size_t capacity = memory.size() - std::min(memory.size(), kRingControlBytes);
  if (!is_capacity(capacity))
    throw SystemError(EPROTO, "attach a broadcast ring: the memory has no ring's size");
  // What is read where its file has a hole is memory in the reader's name.
  if (capacity > most)
    throw SystemError(EPROTO, "attach a broadcast ring: its memory is larger than permitted");
  Mapping mapping =
      map_twice(memory.fd(), kRingControlBytes, capacity, Access::read_only, Access::read_only);
  BroadcastMemory attached(std::move(memory), std::move(mapping));
  const BroadcastControl& control = *attached.view().control;
  if (control.magic != kMagic || control.kind != RingKind::broadcast ||
      control.capacity != capacity)
    throw SystemError(EPROTO, "attach a broadcast ring: the memory holds something else");
  return attached;
}

BroadcastView BroadcastMemory::view() const noexcept {
  return {.control = reinterpret_cast<BroadcastControl*>(mapping_.data()),
          .data = mapping_.data() + kRingControlBytes,
          .capacity = memory_.size() - kRingControlBytes};
}

void BroadcastWriter::raise_floor(std::size_t size, std::uint64_t limit) noexcept {
  const std::uint64_t wanted = std::min(lowest_floor(size) + ring_.capacity / 8, limit);
  if (floor_.position >= wanted) return;
  while (floor_.position < wanted) {
    // What this side alone can have written.
    const std::uint64_t header =
        message_ring::header(line(floor_.position)).load(std::memory_order_relaxed);
    floor_.position += footprint(static_cast<std::uint32_t>(header));
    ++floor_.number;
  }
  std::atomic<std::uint64_t>& raised = ring_.control->raised;
  const std::uint64_t next = raised.load(std::memory_order_relaxed) + 1;
  BroadcastControl::Floor& floor = ring_.control->floors[next % BroadcastControl::kFloors];
  floor.position.store(floor_.position, std::memory_order_relaxed);
  floor.number.store(floor_.number, std::memory_order_relaxed);
  // release: the floor is visible before it counts ...
  raised.store(next, std::memory_order_release);
  // ... and that before anything that is written below it.
  std::atomic_thread_fence(std::memory_order_release);
}

void BroadcastWriter::write(std::span<const std::byte> message) noexcept {
  std::byte* const mine = line(tail_.position);
  const std::uint64_t next = tail_.position + footprint(message.size());
  put(mine + kHeader, message.data(), message.size());
  // relaxed: ordered before a reader's sight of it by the release below.
  message_ring::header(line(next)).store(0, std::memory_order_relaxed);
  // release: the message, and that nothing is behind it, are visible before it is ready.
  message_ring::header(mine).store(header_of(tail_.number, message.size()),
                                   std::memory_order_release);
  tail_ = {.position = next, .number = tail_.number + 1};
}

bool BroadcastReader::is_next(std::uint64_t header) const noexcept {
  return header >> 32 == header_of(next_.number, 0) >> 32;
}

// What no writer writes, however quick: each time that a floor is raised it leaves a message behind
// at least, and each message a line.
bool BroadcastReader::may_follow(BroadcastPlace floor, std::uint64_t count) const noexcept {
  if (floor.position < floor_.position || floor.number < floor_.number) return false;
  const std::uint64_t messages = floor.number - floor_.number;
  return messages >= count - floors_seen_ && (floor.position - floor_.position) / kLine >= messages;
}

// Reads the last floor that has been published. False: the writer was quicker, or makes no sense.
bool BroadcastReader::read_floor() noexcept {
  const std::atomic<std::uint64_t>& raised = ring_.control->raised;
  // acquire: pairs with the release in raise_floor().
  const std::uint64_t count = raised.load(std::memory_order_acquire);
  if (count < raised_) broken_ = true;
  if (broken_) return false;
  raised_ = count;
  if (count == floors_seen_) return true;
  const BroadcastControl::Floor& floor = ring_.control->floors[count % BroadcastControl::kFloors];
  const BroadcastPlace found{.position = floor.position.load(std::memory_order_relaxed),
                             .number = floor.number.load(std::memory_order_relaxed)};
  std::atomic_thread_fence(std::memory_order_acquire);  // before the look at the count
  if (raised.load(std::memory_order_relaxed) - count >= BroadcastControl::kFloors - 1) return false;
  if (!may_follow(found, count)) {
    broken_ = true;
    return false;
  }
  floors_seen_ = count;
  floor_ = found;
  return true;
}

// Whether the next message has been written over, or may be by now; then the next is another, if
// the writer has not been too quick for that as well.
bool BroadcastReader::overtaken(std::uint64_t& missed) noexcept {
  constexpr int kMostTries = 100;
  for (int tries = 0; !read_floor(); ++tries)
    if (broken_ || tries == kMostTries) return true;
  if (floor_.position <= next_.position) return false;
  if (floor_.position % kLine != 0 || floor_.number < next_.number) {
    broken_ = true;
    return true;
  }
  missed += floor_.number - next_.number;
  next_ = floor_;
  return true;
}

// The oldest message is the next to be written over: who was too slow for it will be again. Goes on
// in the middle, or where the messages end.
void BroadcastReader::skip_half(std::uint64_t& missed) noexcept {
  const BroadcastPlace oldest = next_;
  for (std::uint64_t found = header(); is_next(found); found = header()) {
    const std::uint64_t step = footprint(static_cast<std::uint32_t>(found));
    const BroadcastPlace behind{.position = next_.position + step, .number = next_.number + 1};
    if (behind.position - oldest.position > ring_.capacity / 2) break;
    next_ = behind;
  }
  // acquire: these were headers if nothing has been written over since.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (ring_.control->raised.load(std::memory_order_relaxed) == floors_seen_)
    missed += next_.number - oldest.number;
  else
    next_ = oldest;
}

Outcome BroadcastReader::take(std::span<std::byte> into, std::size_t& size,
                              std::uint64_t& missed) noexcept {
  constexpr int kPatience = 2;
  constexpr int kMostTimes = 20;  // in which others may have to be looked at
  for (int times = 0; times < kMostTimes && !broken_; ++times) {
    if (times > kPatience) skip_half(missed);
    const std::uint64_t found = header();
    if (!is_next(found)) {
      if (overtaken(missed)) continue;
      return Outcome::would_block;
    }
    size = static_cast<std::uint32_t>(found);
    const bool fits = size <= into.size();
    const bool possible = size <= message_ring::longest_piece(ring_.capacity);
    if (fits && possible)
      get(into.data(), ring_.data + (next_.position & (ring_.capacity - 1)) + kHeader, size);
    // acquire: what has been copied was read before the look at the floor.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (ring_.control->raised.load(std::memory_order_relaxed) != floors_seen_ && overtaken(missed))
      continue;
    if (!possible) {
      broken_ = true;
      break;
    }
    if (!fits) return Outcome::too_big;
    next_ = {.position = next_.position + footprint(size), .number = next_.number + 1};
    return Outcome::ok;
  }
  return broken_ ? Outcome::broken : Outcome::would_block;
}

}  // namespace farcall
