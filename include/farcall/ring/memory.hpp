// SPDX-License-Identifier: Apache-2.0
//
// The memory of a ring, as both processes see it.
//
//   offset     0  RingControl: what this is                     written once, by the creator
//            128  writer's WaitState: parked, processor, state       written by the writer
//            256  reader's WaitState                                 written by the reader
//            384  tail: bytes ever written (byte ring only)     written by the writer
//            512  head: bytes ever read                         written by the reader
//           4096  data, `capacity` bytes                        written by the writer
//  4096+capacity  the same data once more                       (a second mapping)
//
// Every word is stored in the machine's own byte order: the two processes share one machine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall {

enum class RingKind : std::uint32_t { bytes = 1, messages = 2, broadcast = 3 };

// For two rings that make one pipe, so that parts of different ones are not taken for it by
// mistake. Whoever holds the memory can write it: it proves nothing.
struct RingPair {
  std::uint64_t number;         // the same in both; 0: this ring is no such half
  std::uint64_t writer_socket;  // the lifelines (SO_COOKIE)
  std::uint64_t reader_socket;
  std::uint32_t direction;  // 0 in one of them, 1 in the other
  std::uint32_t reserved;
};

struct RingControl {
  static constexpr std::uint64_t kMagic = 0x31676e6972636166;  // "facring1"

  struct alignas(kFalseSharing) Position {
    std::atomic<std::uint64_t> value;
  };

  alignas(kFalseSharing) std::uint64_t magic;
  RingKind kind;
  std::atomic<std::uint32_t> taken;  // for writers that several processes could be: one is
  std::uint64_t capacity;
  RingPair pair;
  WaitState writer;
  WaitState reader;
  Position tail;
  Position head;
};
// The data begin there in the file: a page is no larger where rings can be made.
inline constexpr std::size_t kRingControlBytes = 4096;
static_assert(offsetof(RingControl, writer) == 128 && offsetof(RingControl, reader) == 256 &&
              offsetof(RingControl, tail) == 384 && offsetof(RingControl, head) == 512);
static_assert(sizeof(RingControl) <= kRingControlBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// What a half of a ring works on. Owns nothing; `capacity` comes from the mapping's real size.
struct RingView {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  std::size_t capacity = 0;
};

// A message ring has a quarter of it as its longest piece, whose size has 32 bits.
inline constexpr std::size_t kLargestRingCapacity = std::size_t{1} << 34;

// Bytes of memory that a ring of `capacity` needs in a file.
constexpr std::size_t ring_bytes(std::size_t capacity) { return kRingControlBytes + capacity; }
// The smallest permitted capacity (a power of two, at least 4096) that holds `bytes`.
std::size_t ring_capacity(std::size_t bytes) noexcept;

// A mapping of a ring, which may be taken by either half, or by both in one process.
class RingMemory {
 public:
  // Formats zeroed memory of ring_bytes(capacity) bytes and maps it. Throws SystemError;
  // MisuseError unless capacity is a power of two, at least 4096, and at most kLargestRingCapacity.
  static RingMemory format(int fd, std::size_t capacity, RingKind kind);
  static RingMemory format(Mapping memory, std::size_t capacity, RingKind kind);

  // Maps a ring that the peer has formatted. `data` is read_only for a reader. Throws SystemError
  // with EPROTO if the file is not a ring of its size, EPROTOTYPE if it is one of another kind.
  static RingMemory attach(int fd, std::size_t file_bytes, RingKind kind, Access data);
  static RingMemory attach(const SharedMemory& memory, RingKind kind, Access data) {
    return attach(memory.fd(), memory.size(), kind, data);
  }

  [[nodiscard]] RingView view() const noexcept { return view_; }
  // Of the file that it maps, by which its two ends are told to be such; 0: it has none.
  [[nodiscard]] std::uint64_t inode() const noexcept { return inode_; }

 private:
  RingMemory(Mapping mapping, std::size_t capacity) noexcept;

  Mapping mapping_;
  RingView view_;
  std::uint64_t inode_ = 0;
};

}  // namespace farcall
