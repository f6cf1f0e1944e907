// SPDX-License-Identifier: Apache-2.0
//
// One direction of an accelerated connection: which of its bytes are in shared memory, and which
// in the kernel's own stream.
//
// A byte is in the ring only while its receiver is awake. Before a receiver sleeps in the kernel
// it sets WATCHED in the sender's own tail; the sender, which publishes by compare-exchange, then
// cannot publish any more and sends through the kernel, which wakes the receiver by itself. So
// there are no doorbells, no byte in the kernel that is not the program's, and no lost wake-up.
//
//   sender                                     receiver
//     copy behind tail                           tail.fetch_or(WATCHED) -> old tail
//     tail: old -> new, if it has no flag        bytes behind head?  then read them
//     it had one: open a mark, kernel send       else sleep in the kernel
//
// The stream is a sequence of ring segments and kernel segments. A mark tells of a kernel segment:
// at position P of the ring the data goes on in the kernel from offset K to offset L, then in the
// ring at P again. L is open until the sender goes back to the ring. Offsets in the kernel count
// from the first byte of the connection, so the two sides need not agree on a moment to begin: a
// direction starts with an open mark, watched.
//
//   ring    0 ........ P1 ................ P2 ........
//   kernel      K1 .... L1           K2 .... (open)
//
//   +--------------------+ 0      tail and flags: the sender exchanges, the receiver ors
//   | tail               |
//   +--------------------+ 128    written by the receiver
//   | head, marks_done   |
//   +--------------------+ 256    written by the sender
//   | marks_made, sent   |
//   +--------------------+ 384
//   | 64 marks           |
//   +--------------------+ 4096   bytes of the ring (a power of two)
//
// The other side may be hostile: what is read here is read once and checked, own positions are in
// memory of the own side, and every index is masked. A peer that breaks the protocol is `broken`.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "farcall/wait.hpp"

namespace farcall::preload {

inline constexpr std::uint64_t kWatched = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kRecall = std::uint64_t{1} << 62;
inline constexpr std::uint64_t kFlags = kWatched | kRecall;
inline constexpr std::uint64_t kOpenEnd = ~std::uint64_t{0};
inline constexpr std::uint64_t kMarks = 64;

struct Mark {
  std::atomic<std::uint64_t> position;
  std::atomic<std::uint64_t> from;
  std::atomic<std::uint64_t> to;
};

struct Direction {
  alignas(kFalseSharing) std::atomic<std::uint64_t> tail;

  alignas(kFalseSharing) std::atomic<std::uint64_t> head;
  std::atomic<std::uint64_t> marks_done;
  std::atomic<std::uint32_t> receiver_processor;  // where it last ran, plus one

  enum : std::uint32_t { kFinished = 1, kClosed = 2 };
  alignas(kFalseSharing) std::atomic<std::uint64_t> marks_made;
  std::atomic<std::uint64_t> kernel_sent;  // a hint that spares a look at the kernel
  std::atomic<std::uint32_t> sender_processor;
  std::atomic<std::uint32_t> sender_said;  // kFinished before shutdown, kClosed before close
  std::atomic<std::uint64_t> recall_answer;
  // The one byte in the kernel that is not the program's: at this offset plus one, it wakes a peer
  // that sleeps and is asked to send again what is in its ring.
  std::atomic<std::uint64_t> doorbell;

  alignas(kFalseSharing) Mark marks[kMarks];
};
inline constexpr std::size_t kDirectionBytes = 4096;
static_assert(offsetof(Direction, head) == 128 && offsetof(Direction, marks_made) == 256 &&
              offsetof(Direction, marks) == 384 && sizeof(Direction) <= kDirectionBytes);

// What the sender says to kRecall: that the bytes of the ring come by the kernel, before all newer
// ones; or that newer ones are there already, behind which they cannot go.
inline constexpr std::uint64_t kSentAgain = 1;
inline constexpr std::uint64_t kTooLate = 2;

// The words of a new direction. Its memory is zeroed.
void start_direction(Direction& direction) noexcept;

// A direction as one side has it mapped.
struct Ring {
  Direction* control = nullptr;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
};

// A run of memory of the program, and how far one has come in it.
class Span {
 public:
  Span(const iovec* parts, std::size_t count) noexcept;
  [[nodiscard]] std::size_t left() const noexcept { return left_; }
  void copy_out(std::byte* to, std::size_t size) noexcept;         // size <= left()
  void copy_in(const std::byte* from, std::size_t size) noexcept;  // size <= left()
  void skip(std::size_t size) noexcept;
  // The parts that are left, at most `size` bytes and `most` parts of them. Returns their number.
  std::size_t parts(iovec* to, std::size_t most, std::size_t size) const noexcept;

 private:
  template <class Copy>
  void walk(std::size_t size, Copy copy) noexcept;

  const iovec* parts_;
  std::size_t count_;
  std::size_t done_ = 0;  // of the first part
  std::size_t left_ = 0;
};

// The sending side. Not thread safe: whoever calls holds the lock of that side. It lives in memory
// that all processes share which hold that side.
class Sender {
 public:
  enum class Way : std::uint8_t { ring, kernel, broken };

  // Where the next byte goes. Leaves the kernel where that is possible.
  Way way(const Ring& ring) noexcept;
  // Copies what fits and publishes it; returns how much. Zero: the ring is full, or way() is no
  // longer the ring.
  std::size_t put(const Ring& ring, Span& from) noexcept;
  // Goes over to the kernel from here on: before a kernel send.
  void use_kernel(const Ring& ring) noexcept;
  // For good.
  void leave_ring(const Ring& ring) noexcept {
    use_kernel(ring);
    for_ever_ = true;
  }
  // Around a kernel send, so that nobody leaves the kernel meanwhile.
  void enter_kernel() noexcept { ++sending_; }
  void leave_kernel(const Ring& ring, std::size_t sent) noexcept;

  [[nodiscard]] bool in_kernel() const noexcept { return in_kernel_; }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] bool busy() const noexcept { return sending_ != 0; }
  [[nodiscard]] bool gone_for_ever() const noexcept { return for_ever_; }
  [[nodiscard]] std::uint64_t kernel_sent() const noexcept { return kernel_sent_; }
  [[nodiscard]] std::uint64_t position() const noexcept { return tail_; }
  // Bytes in the ring that the receiver has not read.
  [[nodiscard]] std::size_t unread(const Ring& ring) noexcept;
  [[nodiscard]] std::size_t room(const Ring& ring) noexcept { return ring.size - unread(ring); }
  // The receiver will not read the ring any more, and has not been answered: before any other
  // kernel send.
  [[nodiscard]] bool recalled(const Ring& ring) const noexcept;
  // Goes over to the kernel for good. The bytes of the ring that must go there first, as one or two
  // runs, whose number is returned; 0 also if that is too late.
  std::size_t answer_recall(const Ring& ring, iovec (&again)[2]) noexcept;

 private:
  std::uint64_t tail_ = 0;
  std::uint64_t head_seen_ = 0;
  std::uint64_t marks_made_ = 1;  // the first one is made by start_direction()
  std::uint64_t kernel_sent_ = 0;
  std::uint32_t sending_ = 0;
  bool in_kernel_ = true;
  bool for_ever_ = false;
  bool broken_ = false;
  bool recall_answered_ = false;
};

// The receiving side; as Sender.
class Receiver {
 public:
  struct Next {
    enum Kind : std::uint8_t {
      nothing,  // the ring is empty and no mark stands here
      ring,     // that many bytes
      kernel,   // that many bytes belong here, then the ring again
      open,     // all of the kernel belongs here until the sender goes back to the ring
      broken,
    };
    Kind kind;
    std::uint64_t bytes;
  };
  Next next(const Ring& ring) noexcept;
  // How many bytes of the kernel follow the next `ring_bytes` bytes of the ring, if no mark stands
  // in between: 0 if there is none behind them, kOpenEnd if their segment is open.
  [[nodiscard]] std::uint64_t kernel_bytes_behind(const Ring& ring,
                                                  std::uint64_t ring_bytes) const noexcept;
  // Cheap, and without the lock: may something have come since next() said `nothing` or `open`?
  [[nodiscard]] bool may_have_news(const Ring& ring) const noexcept;

  void take(const Ring& ring, Span& to, std::size_t size) noexcept;
  void peek(const Ring& ring, Span& to, std::size_t size) const noexcept;
  void taken_from_kernel(std::size_t size) noexcept { kernel_taken_ += size; }

  // From here on the sender uses the kernel. next() afterwards tells what came first; if that is
  // `nothing` or `open`, everything in the kernel belongs here until unwatch().
  void watch(const Ring& ring) noexcept;
  void unwatch(const Ring& ring) noexcept;
  // For good. What is in the ring can still be read.
  void watch_for_ever(const Ring& ring) noexcept {
    watch(ring);
    for_ever_ = true;
  }

  // Asks the sender to send the bytes of the ring again by the kernel, and never reads them.
  void recall(const Ring& ring) noexcept;

  // Threads that sleep in the kernel on account of this direction; it stays watched meanwhile.
  void enter_kernel() noexcept { ++sleeping_; }
  void leave_kernel(std::size_t taken) noexcept {
    if (sleeping_ != 0) --sleeping_;
    kernel_taken_ += taken;
  }

  [[nodiscard]] bool busy() const noexcept { return sleeping_ != 0; }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] bool watched() const noexcept { return watched_; }
  [[nodiscard]] bool gone_for_ever() const noexcept { return for_ever_; }
  [[nodiscard]] std::uint64_t kernel_taken() const noexcept { return kernel_taken_; }
  [[nodiscard]] std::uint64_t position() const noexcept { return head_; }
  // The sender says that it has put so much into the kernel; only a hint.
  [[nodiscard]] bool kernel_has_more(const Ring& ring) const noexcept {
    return ring.control->kernel_sent.load(std::memory_order_relaxed) > kernel_taken_;
  }

 private:
  std::uint64_t head_ = 0;
  std::uint64_t marks_done_ = 0;
  std::uint64_t kernel_taken_ = 0;
  std::uint32_t sleeping_ = 0;
  bool watched_ = true;
  bool for_ever_ = false;
  bool broken_ = false;
};

}  // namespace farcall::preload
