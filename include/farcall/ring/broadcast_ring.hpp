// SPDX-License-Identifier: Apache-2.0
//
// Messages from one writer to many readers, each at its own pace.
//
// The memory is the writer's; readers can map it only to read. A message is laid out as in a
// message ring (farcall/ring/message_ring.hpp): whole lines, the header in the same line as its
// first bytes.
//
//   header        bit 63..33                      32        31..0
//                 lowest bits of the message's    ready     bytes of the message
//                 number
//
//            floor                    tail
//             |  oldest that holds     |  write next
//   ----------+========================+------------
//    is being | messages               | is being
//    written  |                        | written
//
// The writer raises the floor before it writes over what lies below it. A reader copies a message,
// and only then looks whether the floor has passed it meanwhile: if so, what was copied is nothing,
// and the reader goes on at the floor. Each floor is published with the number of the message that
// begins there, so that a reader knows exactly how many it has missed. It is raised an eighth of
// the ring at a time: readers look at its line after each message, and mostly it has not changed.
//
// Who may be written over at all is not decided here: see farcall/broadcast.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "farcall/memory.hpp"
#include "farcall/ring/message_ring.hpp"

namespace farcall {

// Where a message begins, and which it is, counted from 0.
struct BroadcastPlace {
  std::uint64_t position = 0;
  std::uint64_t number = 0;
};

// The first page.
struct BroadcastControl {
  static constexpr std::size_t kFloors = 8;
  struct Floor {
    std::atomic<std::uint64_t> position;
    std::atomic<std::uint64_t> number;
  };

  alignas(kFalseSharing) std::uint64_t magic;
  RingKind kind;
  std::uint32_t reserved;
  std::uint64_t capacity;
  // How often the floor has been raised; the n-th is in floors[n % kFloors], the first is 0.
  alignas(kFalseSharing) std::atomic<std::uint64_t> raised;
  std::array<Floor, kFloors> floors;
};
static_assert(sizeof(BroadcastControl) <= kRingControlBytes);

struct BroadcastView {
  BroadcastControl* control = nullptr;
  std::byte* data = nullptr;
  std::size_t capacity = 0;
};

// The memory as one of the two sides has it mapped.
class BroadcastMemory {
 public:
  // The writer's: maps new memory, which nobody else can map to write afterwards. Throws
  // SystemError; MisuseError unless capacity is a power of two, at least 4096, and at most
  // kLargestRingCapacity.
  static BroadcastMemory create(std::size_t capacity);
  // A reader's. Throws SystemError with EPROTO if it is something else, or has a capacity of more
  // than `most`; EPERM if it is not sealed.
  static BroadcastMemory attach(UniqueFd&& fd, std::size_t most);

  [[nodiscard]] int fd() const noexcept { return memory_.fd(); }
  [[nodiscard]] BroadcastView view() const noexcept;

 private:
  BroadcastMemory(SharedMemory memory, Mapping mapping) noexcept
      : memory_(std::move(memory)), mapping_(std::move(mapping)) {}

  SharedMemory memory_;
  Mapping mapping_;
};

class BroadcastWriter {
 public:
  explicit BroadcastWriter(BroadcastView ring) noexcept : ring_(ring) {}

  [[nodiscard]] std::size_t longest() const noexcept {
    return message_ring::longest_piece(ring_.capacity);
  }
  // Whether a message of `size` bytes, at most longest(), can be written over nothing but what lies
  // below the floor; and how high that has to be.
  [[nodiscard]] bool has_room(std::size_t size) const noexcept {
    return lowest_floor(size) <= floor_.position;
  }
  [[nodiscard]] std::uint64_t lowest_floor(std::size_t size) const noexcept {
    const std::uint64_t end = tail_.position + message_ring::footprint(size) + kLine;
    return end > ring_.capacity ? end - ring_.capacity : 0;
  }
  // Raises the floor for a message of `size` bytes, and for some more; not above `limit`, at which
  // a message begins, and which is at least lowest_floor(size).
  void raise_floor(std::size_t size, std::uint64_t limit) noexcept;
  // Needs room. Wakes nobody.
  void write(std::span<const std::byte> message) noexcept;

  [[nodiscard]] BroadcastPlace floor() const noexcept { return floor_; }
  [[nodiscard]] BroadcastPlace tail() const noexcept { return tail_; }

 private:
  [[nodiscard]] std::byte* line(std::uint64_t position) const noexcept {
    return ring_.data + (position & (ring_.capacity - 1));
  }

  BroadcastView ring_;
  BroadcastPlace tail_;
  BroadcastPlace floor_;
};

class BroadcastReader {
 public:
  BroadcastReader(BroadcastView ring, BroadcastPlace start) noexcept : ring_(ring), next_(start) {}

  // Takes the next message, if there is one: ok, would_block, broken, or too_big where `into` is
  // smaller than `size`: the message is then still there. would_block also where the writer was
  // quicker each time; then ready() says so. `missed`: how many have been written over
  // that were to be read before it; counted once, with whatever outcome.
  Outcome take(std::span<std::byte> into, std::size_t& size, std::uint64_t& missed) noexcept;
  // Whether take() would not end with would_block.
  [[nodiscard]] bool ready() const noexcept {
    return is_next(header()) ||
           ring_.control->raised.load(std::memory_order_relaxed) != floors_seen_;
  }
  [[nodiscard]] BroadcastPlace next() const noexcept { return next_; }
  // How often the floor had been raised when this looked last: a writer that has raised it since is
  // quicker, and one that has not writes nothing over.
  [[nodiscard]] std::uint64_t raised() const noexcept { return raised_; }

 private:
  // acquire: pairs with the release in BroadcastWriter::write.
  [[nodiscard]] std::uint64_t header() const noexcept {
    return message_ring::header(ring_.data + (next_.position & (ring_.capacity - 1)))
        .load(std::memory_order_acquire);
  }
  [[nodiscard]] bool is_next(std::uint64_t header) const noexcept;
  bool read_floor() noexcept;
  [[nodiscard]] bool may_follow(BroadcastPlace floor, std::uint64_t count) const noexcept;
  bool overtaken(std::uint64_t& missed) noexcept;
  void skip_half(std::uint64_t& missed) noexcept;

  BroadcastView ring_;
  BroadcastPlace next_;
  BroadcastPlace floor_;
  std::uint64_t floors_seen_ = 0;  // which of them floor_ is
  std::uint64_t raised_ = 0;       // as last seen
  bool broken_ = false;
};

}  // namespace farcall
