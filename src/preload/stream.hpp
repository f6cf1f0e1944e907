// SPDX-License-Identifier: Apache-2.0
//
// One direction of an accelerated connection: which of its bytes are in shared memory, and which
// in the kernel's own stream.
//
// Two rules hold for every byte, and everything here serves them:
//
//  1. A byte lies in the ring only while the kernel need not know of it. Before a receiver sleeps
//     in the kernel, or returns to a program that may wait in a way which the library does not see,
//     it sets WATCHED in the sender's own tail; the sender, which publishes by compare-exchange,
//     then cannot publish any more and sends through the kernel, which wakes whoever waits. And a
//     sender that is about to sleep, to close or to leave takes back what nobody has taken out of
//     the ring, and sends it through the kernel (reclaim).
//  2. Leaving never loses. A receiver that will not read the ring any more (it executes another
//     program, or passes the socket on) first gives back what it has not read, and the sender sends
//     it again through the kernel, before anything newer (handback.hpp).
//
//   sender                                     receiver
//     copy behind tail                           tail.fetch_or(WATCHED) -> old tail
//     tail: old -> new, if it has no flag        bytes behind head?  then read them
//     it had one: open a mark, kernel send       else sleep in the kernel
//
//   reclaim: head.fetch_or(RECLAIMING)         copy, then head: old -> new, if it has no flag
//     kernel send, mark, new head                it had one: the copy is void, the kernel has it
//
// The stream is a sequence of ring segments and kernel segments. A mark tells of a kernel segment:
// at position P of the ring the data goes on in the kernel, up to offset L, then in the ring at P
// again. L is open until the sender goes back to the ring. Offsets in the kernel count
// from the first byte of the connection, so the two sides need not agree on a moment to begin: a
// direction starts with an open mark, watched.
//
//   ring    0 ........ P1 ................ P2 ........
//   kernel        ..... L1             .... (open)
//
// Before a sender leaves the ring for the kernel it takes back what lies there, so that the kernel
// has everything in order and bytes of the kernel rarely come behind bytes of the ring.
//
// Positions only grow; the low bits say where in the ring. Where the ring is empty at the end of
// its first pages the sender moves both positions on to the next multiple of its size, so a
// connection with little in flight touches little memory.
//
//   +--------------------+ 0      tail and flags: the sender exchanges, the receiver ors
//   | tail               |
//   +--------------------+ 128    head: the receiver exchanges, the sender ors and moves;
//   | head, marks_done   |        the rest is written by the receiver
//   +--------------------+ 256    written by the sender
//   | marks_made, sent   |
//   +--------------------+ 384    written by both, when a receiver leaves
//   | handback           |
//   +--------------------+ 512
//   | 64 marks           |
//   +--------------------+ 2048   (the other direction's words, then the rings)
//
// The other side may be hostile: what is read here is read once and checked, own positions are in
// memory of the own side, and every index is masked. A peer that breaks the protocol is `broken`.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "farcall/memory.hpp"
#include "farcall/wait.hpp"
#include "preload/handback_word.hpp"

namespace farcall::preload {

// In the tail: the kernel must tell of what comes; the receiver has left the ring for good.
inline constexpr std::uint64_t kWatched = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kLeft = std::uint64_t{1} << 62;
inline constexpr std::uint64_t kFlags = kWatched | kLeft;
// In the head: the sender moves what has not been taken to the kernel.
inline constexpr std::uint64_t kReclaiming = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kOpenEnd = ~std::uint64_t{0};
inline constexpr std::uint64_t kMarks = 64;

struct Mark {
  std::atomic<std::uint64_t> position;
  std::atomic<std::uint64_t> to;
};

struct Direction {
  alignas(kFalseSharing) std::atomic<std::uint64_t> tail;

  alignas(kFalseSharing) std::atomic<std::uint64_t> head;
  std::atomic<std::uint64_t> marks_done;
  std::atomic<std::uint64_t> kernel_taken;
  std::atomic<std::uint32_t> receiver_processor;  // where it last ran, plus one
  // It has shut down reading: the kernel refuses what comes, but what lies in the ring can be read.
  std::atomic<std::uint32_t> receiver_finished;
  std::atomic<std::uint64_t> message_bytes_taken;  // as below

  enum : std::uint32_t { kFinished = 1, kClosed = 2 };
  alignas(kFalseSharing) std::atomic<std::uint64_t> marks_made;
  std::atomic<std::uint64_t> kernel_sent;
  std::atomic<std::uint32_t> kernel_sending;  // threads in the middle of a kernel send
  std::atomic<std::uint32_t> sender_processor;
  std::atomic<std::uint32_t> sender_said;  // kFinished before shutdown, kClosed before close
  // The one byte in the kernel that is not the program's: at this offset plus one, it wakes a peer
  // that sleeps and is asked to send again what it was given back.
  std::atomic<std::uint64_t> doorbell;
  std::atomic<std::uint64_t>
      message_bytes_sent;                  // where the kernel's units are messages: packet.hpp
  std::atomic<std::uint32_t> sends_empty;  // such messages may have had no bytes
  // An urgent byte was sent, which a receiver may leave out: what the two count may never meet.
  std::atomic<std::uint32_t> urgent_sent;
  // In ticks: so long nobody stays awake where the sender runs, nor will for what it waits for.
  std::atomic<std::uint64_t> sender_competes_until;

  alignas(kFalseSharing) HandbackWord handback;

  alignas(kFalseSharing) Mark marks[kMarks];
};
inline constexpr std::size_t kDirectionBytes = 2048;
static_assert(offsetof(Direction, head) == 128 && offsetof(Direction, marks_made) == 256 &&
              offsetof(Direction, handback) == 384 && offsetof(Direction, marks) == 512 &&
              sizeof(Direction) <= kDirectionBytes);

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
  [[nodiscard]] std::size_t part_count() const noexcept { return count_; }
  // `size` <= left(), both.
  void copy_out(std::byte* to, std::size_t size, CopyToPeer& copier) noexcept;
  void copy_in(const std::byte* from, std::size_t size) noexcept;
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
  // crowded: the kernel, unless the caller finds out that no more than most_beside() bytes wait
  // there to be sent, and asks again.
  enum class Way : std::uint8_t { ring, kernel, crowded, broken };

  // Where the next byte goes. Leaves the kernel where that is possible.
  Way way(const Ring& ring, bool has_asked = false) noexcept;
  // All that is in the ring may have to go to the kernel at once, beside what waits there: it takes
  // `bytes` in all. Without this, as much as there may be.
  void limit(const Ring& ring, std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t most_beside() const noexcept { return most_beside_; }
  // Copies what fits and publishes it; returns how much. Zero: the ring is full, or closed.
  std::size_t put(const Ring& ring, Span& from) noexcept;
  // Puts a message there (packet.hpp), whole, if no more than `room` is used then. False: as zero.
  bool put_message(const Ring& ring, const Span& message, std::size_t room) noexcept;
  // The receiver waits for the kernel, or has left.
  [[nodiscard]] static bool closed(const Ring& ring) noexcept {
    return (ring.control->tail.load(std::memory_order_relaxed) & kFlags) != 0;
  }
  // Goes over to the kernel from here on: before a kernel send.
  void use_kernel(const Ring& ring) noexcept;
  // For good.
  void leave_ring(const Ring& ring) noexcept {
    use_kernel(ring);
    for_ever_ = true;
  }
  // Until the receiver has taken all that was sent through the kernel until now: more than bytes
  // is among it, which could not be given back from behind bytes of the ring.
  void stay_in_kernel_until_taken() noexcept { must_be_taken_ = kernel_sent_; }
  // Around a kernel send, so that nobody leaves the kernel meanwhile. enter_kernel() is false if
  // the receiver is leaving the ring and must be served first (handback.hpp).
  [[nodiscard]] bool enter_kernel(const Ring& ring) noexcept;
  // `bytes` is of messages, where those are what is counted.
  void leave_kernel(const Ring& ring, std::size_t sent, std::size_t bytes = 0) noexcept;
  // Before a message that may have no bytes.
  void note_empty(const Ring& ring) noexcept {
    sends_empty_ = true;
    publish(ring);
  }
  // Tells the other end what has been counted here, when the ring comes into use.
  void publish(const Ring& ring) const noexcept;

  // Takes back all that the receiver has not taken, if no bytes of the kernel come behind it;
  // unless `always`, only where the kernel does not tell the receiver of anything: one or two runs,
  // whose number is returned, which the caller sends through the kernel, between enter_kernel() and
  // leave_kernel(). Zero: there is nothing to take back. Then reclaimed() with the number of bytes
  // that were sent; the rest can be taken out of the ring again.
  std::size_t reclaim(const Ring& ring, bool always, iovec (&runs)[2]) noexcept;
  void reclaimed(const Ring& ring, std::size_t sent) noexcept;
  // The kernel has not taken all, and the receiver has already had what it took: it may sleep by
  // now, and have looked last while the rest could not be seen. Then that is to be taken back, too.
  [[nodiscard]] bool left_behind(const Ring& ring) const noexcept;

  // Whether it has written into the ring what it then could not publish; asked for once.
  [[nodiscard]] bool wrote_in_vain() noexcept { return std::exchange(wrote_in_vain_, false); }
  // The receiver has written over what this side put into the ring.
  void give_up() noexcept { broken_ = true; }
  // The receiver has begun to leave, and does not come to an end: the connection is reset, and
  // what the receiver says of leaving does not hold up anything any more.
  void give_up_leaving_peer() noexcept { gave_up_leaving_peer_ = true; }
  [[nodiscard]] bool gave_up_leaving_peer() const noexcept { return gave_up_leaving_peer_; }

  [[nodiscard]] bool in_kernel() const noexcept { return in_kernel_; }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] bool busy() const noexcept { return sending_ != 0; }
  [[nodiscard]] bool gone_for_ever() const noexcept { return for_ever_; }
  [[nodiscard]] std::uint64_t kernel_sent() const noexcept { return kernel_sent_; }
  [[nodiscard]] std::uint64_t message_bytes() const noexcept { return message_bytes_; }
  [[nodiscard]] std::uint64_t position() const noexcept { return tail_; }
  // Where what is unread begins, as of the last look.
  [[nodiscard]] std::uint64_t unread_from() const noexcept { return head_seen_; }
  // Bytes in the ring that the receiver has not read.
  [[nodiscard]] std::size_t unread(const Ring& ring) noexcept;

 private:
  std::uint64_t tail_ = 0;
  std::uint64_t head_seen_ = 0;
  std::uint64_t marks_made_ = 1;  // the first one is made by start_direction()
  std::uint64_t kernel_sent_ = 0;
  std::uint64_t message_bytes_ = 0;
  std::uint64_t last_mark_ = 0;  // its position
  std::uint64_t restart_at_ = kFirstPages;
  std::uint64_t must_be_taken_ = 0;
  std::size_t most_in_ring_ = SIZE_MAX;
  std::size_t most_beside_ = SIZE_MAX;  // in the kernel, when the ring comes into use again
  // Until the receiver has taken so much from the kernel nothing is put behind the rest of what was
  // taken back; 0: all was, or there is no limit.
  std::uint64_t full_until_ = 0;
  std::uint32_t sending_ = 0;
  CopyToPeer copier_;
  bool in_kernel_ = true;
  bool for_ever_ = false;
  bool broken_ = false;
  bool wrote_in_vain_ = false;
  bool sends_empty_ = false;
  bool gave_up_leaving_peer_ = false;

  static constexpr std::uint64_t kFirstPages = 4096;
  // Whether `size` bytes are not even to be copied: the receiver may use the memory otherwise by
  // now, or they are many and could not be published. For few the tail is not looked at, whose line
  // the receiver has: fetched to be read, and then again to be written, it would cost two
  // transfers.
  [[nodiscard]] static bool refuses(const Ring& ring, std::size_t size) noexcept {
    constexpr std::size_t kFew = 1024;
    return (size > kFew || !ring.control->handback.is_quiet()) && closed(ring);
  }
  // What was taken back has filled the kernel.
  [[nodiscard]] bool is_full(const Ring& ring) noexcept;
  void restart(const Ring& ring) noexcept;
  bool publish_bytes(const Ring& ring, std::size_t size) noexcept;
  std::size_t unread_runs(const Ring& ring, iovec (&runs)[2]) const noexcept;
  void make_mark(const Ring& ring, std::uint64_t position, std::uint64_t to) noexcept;
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
  // The stream from here on, as far as it is known and there is room for; the last one may be open.
  struct Segment {
    bool in_ring;
    std::uint64_t position;  // of one in the ring
    std::uint64_t bytes;
    [[nodiscard]] bool open() const noexcept { return bytes == kOpenEnd; }
  };
  std::size_t segments(const Ring& ring, std::span<Segment> to) const noexcept;
  // Cheap, and without the lock: may something have come since next() said `nothing` or `open`?
  [[nodiscard]] bool may_have_news(const Ring& ring) const noexcept;

  // False: the sender has just taken them back; next() tells what is there instead.
  bool take(const Ring& ring, Span& to, std::size_t size) noexcept;
  static void peek(const Ring& ring, std::uint64_t position, Span& to, std::size_t size) noexcept;
  // Takes the message, or looks at it, that stands first among `available` bytes of the ring, as
  // much as `to` takes. False: as take(), or there is none, which next() tells.
  bool take_message(const Ring& ring, std::uint64_t available, Span& to, bool peek,
                    std::size_t& length) noexcept;
  // `bytes` as of Sender::leave_kernel().
  void taken_from_kernel(const Ring& ring, std::size_t size, std::size_t bytes = 0) noexcept;
  void publish(const Ring& ring) const noexcept;  // as Sender's

  // From here on the sender uses the kernel. next() afterwards tells what came first; if that is
  // `nothing` or `open`, everything in the kernel belongs here until unwatch().
  void watch(const Ring& ring) noexcept;
  void unwatch(const Ring& ring) noexcept;
  // For good. What is in the ring can still be read.
  void watch_for_ever(const Ring& ring) noexcept {
    watch(ring);
    for_ever_ = true;
  }

  // The ring has been read to its end and is not used again: all that comes is in the kernel.
  void leave(const Ring& ring) noexcept;

  // Threads that sleep in the kernel on account of this direction; it stays watched meanwhile.
  void enter_kernel() noexcept { ++sleeping_; }
  void leave_kernel(const Ring& ring, std::size_t taken, std::size_t bytes = 0) noexcept {
    if (sleeping_ != 0) --sleeping_;
    taken_from_kernel(ring, taken, bytes);
  }

  // The sender has died while it moved to the kernel what lies in the ring, and this side has taken
  // all that the kernel has: what the kernel never had can be taken out of the ring from here on.
  // False: it has not, or nobody can tell how far it came. `messages`: as of reclaim_now().
  bool recover(const Ring& ring, bool messages) noexcept;

  // The sender began to move bytes to the kernel.
  [[nodiscard]] bool reclaim_unfinished(const Ring& ring) const noexcept {
    return (ring.control->head.load(std::memory_order_acquire) & kReclaiming) != 0;
  }
  // The sender has taken back what this side has not noticed yet.
  [[nodiscard]] bool is_moved(const Ring& ring) const noexcept {
    return ring.control->head.load(std::memory_order_acquire) != head_;
  }
  // How often the sender has taken back what this side had promised to look at.
  [[nodiscard]] std::uint32_t reclaims() const noexcept { return reclaims_; }
  // Bytes in the ring, whatever stands before them, that the sender is not about to take back.
  [[nodiscard]] std::uint64_t held(const Ring& ring) noexcept;
  // Nothing is in the ring, and the sender is not about to take anything back. Asked as one
  // question: it may take back in vain, and then the bytes are in the ring again.
  [[nodiscard]] bool emptied(const Ring& ring) noexcept;

  // From now on the kernel gives this side more than is counted.
  void stop_counting() noexcept { counts_ = false; }

  [[nodiscard]] bool busy() const noexcept { return sleeping_ != 0; }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] bool watched() const noexcept { return watched_; }
  [[nodiscard]] bool gone_for_ever() const noexcept { return for_ever_; }
  [[nodiscard]] bool has_left() const noexcept { return left_; }
  [[nodiscard]] std::uint64_t kernel_taken() const noexcept { return kernel_taken_; }
  [[nodiscard]] std::uint64_t message_bytes() const noexcept { return message_bytes_; }
  [[nodiscard]] std::uint64_t position() const noexcept { return head_; }
  // The sender says that it has put so much into the kernel; only a hint.
  [[nodiscard]] bool kernel_has_more(const Ring& ring) const noexcept {
    return counts_ && ring.control->kernel_sent.load(std::memory_order_relaxed) > kernel_taken_ &&
           ring.control->urgent_sent.load(std::memory_order_relaxed) == 0;
  }

 private:
  std::uint64_t head_ = 0;
  std::uint64_t marks_done_ = 0;
  std::uint64_t kernel_taken_ = 0;
  std::uint64_t message_bytes_ = 0;
  std::uint32_t sleeping_ = 0;
  std::uint32_t reclaims_ = 0;
  bool watched_ = true;
  bool for_ever_ = false;
  bool left_ = false;
  bool broken_ = false;
  bool counts_ = true;

  // The head is not where this side left it: goes on where the sender has put it. False while the
  // sender is about to.
  bool follow(const Ring& ring) noexcept;
};

}  // namespace farcall::preload
