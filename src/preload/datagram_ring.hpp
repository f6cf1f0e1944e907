// SPDX-License-Identifier: Apache-2.0
//
// Datagrams from one UDP socket to another, in memory that the sender made and the receiver mapped.
//
// As with streams (stream.hpp) the receiver sets WATCHED in the sender's tail before it sleeps in
// the kernel, and a sender that finds it there sends that datagram through the kernel, which wakes
// the receiver. A full ring is no reason to drop anything either: the kernel takes the datagram,
// or drops it as it always would.
//
// Datagrams of one sender keep their order across both ways: each in the ring says how many of the
// same sender went through the kernel before it, and a receiver that has seen fewer looks there
// first. If the kernel has none, they were dropped.
//
//   +------------------------+ 0     tail and WATCHED: the sender exchanges, the receiver ors
//   | tail                   |
//   +------------------------+ 128   written by the receiver
//   | head, gone             |
//   +------------------------+ 256   written by the sender
//   | kernel_sent, processor,|
//   | gone, sending          |
//   +------------------------+ 4096  bytes (a power of two): records, each
//   | size | kernel_before   |       a header of 16 bytes and the datagram, rounded up to 16
//   | the datagram ...       |
//   +------------------------+
//
// The other side may be hostile: each shared word is read once and checked; what a side knows
// itself it keeps in its own memory.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "farcall/wait.hpp"
#include "memory/load_once.hpp"

namespace farcall::preload {

struct DatagramControl {
  static constexpr std::uint64_t kWatchedBit = std::uint64_t{1} << 63;
  // What a receiver says: nothing is read any more; or only what is there.
  static constexpr std::uint32_t kGone = 1;
  static constexpr std::uint32_t kLeaves = 2;

  alignas(kFalseSharing) std::atomic<std::uint64_t> tail;

  alignas(kFalseSharing) std::atomic<std::uint64_t> head;
  std::atomic<std::uint32_t> receiver_said;  // kGone, or kLeaves

  alignas(kFalseSharing) std::atomic<std::uint64_t> kernel_sent;  // completed
  std::atomic<std::uint32_t> sender_processor;                    // where it last ran, plus one
  std::atomic<std::uint32_t> sender_gone;
  std::atomic<std::uint32_t> sending;  // how many the kernel is just being given
};
inline constexpr std::size_t kDatagramControlBytes = 4096;
inline constexpr std::size_t kMostDatagram = 65507;
static_assert(offsetof(DatagramControl, head) == 128 &&
              offsetof(DatagramControl, kernel_sent) == 256 &&
              sizeof(DatagramControl) <= kDatagramControlBytes);

// A ring as one side has it mapped.
struct DatagramMemory {
  DatagramControl* control = nullptr;
  std::byte* bytes = nullptr;
  std::uint64_t size = 0;
};

// The sending half; whoever calls holds the lock of its socket.
class DatagramSender {
 public:
  // `memory` is zeroed; the receiver has not seen it yet. It begins watched.
  void start(const DatagramMemory& memory) noexcept;

  // False: the receiver sleeps, or there is no room; the datagram goes through the kernel.
  // `bytes` is the sum of the parts, at most kMostDatagram.
  bool send(const iovec* parts, std::size_t count, std::size_t bytes) noexcept;
  // Around each that goes through the kernel: a receiver that it wakes may run first, and find more
  // than have been counted.
  void begin_sending() noexcept { tell_sending(sending_ + 1); }
  void end_sending() noexcept {
    if (sending_ != 0) tell_sending(sending_ - 1);  // else it was given before there was memory
  }
  // A datagram has gone through the kernel, or several.
  void sent_by_kernel(std::uint64_t count = 1) noexcept {
    kernel_sent_ += count;
    // release: pairs with the acquire in kernel_sent(): the datagrams are in the kernel by now
    memory_.control->kernel_sent.store(kernel_sent_, std::memory_order_release);
  }

  // The receiver takes nothing more from memory.
  [[nodiscard]] bool receiver_gone() const noexcept {
    return memory_.control->receiver_said.load(std::memory_order_relaxed) != 0;
  }
  // Whether the receiver has read all that is in the ring.
  [[nodiscard]] bool all_read() const noexcept {
    return memory_.control->head.load(std::memory_order_relaxed) == tail_;
  }
  // The receiver is dead: calls `take(first part, its size, second part, its size)` for each
  // datagram that it has not read.
  template <class Take>
  void take_back(Take take) noexcept;
  void say_gone() noexcept { memory_.control->sender_gone.store(1, std::memory_order_release); }
  void note_processor(std::uint32_t processor) noexcept {
    if (processor == processor_) return;
    processor_ = processor;
    memory_.control->sender_processor.store(processor, std::memory_order_relaxed);
  }
  [[nodiscard]] const DatagramMemory& memory() const noexcept { return memory_; }

 private:
  void tell_sending(std::uint32_t now) noexcept {
    sending_ = now;
    // release: pairs with the acquire in sender_sends(): what has been sent is counted by now
    memory_.control->sending.store(now, std::memory_order_release);
  }
  [[nodiscard]] bool has_room(std::uint64_t bytes) noexcept;

  DatagramMemory memory_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // as last seen
  std::uint64_t kernel_sent_ = 0;
  std::uint32_t sending_ = 0;
  std::uint32_t processor_ = 0;
};

// The receiving half; whoever calls holds the lock of its socket.
class DatagramReceiver {
 public:
  enum class Next : std::uint8_t { none, ready, kernel_first, broken };
  struct Taken {
    std::size_t bytes;   // copied
    std::size_t length;  // of the datagram
  };

  void start(const DatagramMemory& memory) noexcept;

  // What is next. `ready`: it may be taken. `kernel_first`: datagrams that come before it are in
  // the kernel.
  Next next() noexcept;
  // Of the datagram that is next.
  [[nodiscard]] std::size_t next_length() const noexcept { return next_length_; }
  // Whether it is worth to call next().
  [[nodiscard]] bool looks_ready() const noexcept { return published() != head_; }
  // Grows with every datagram that is taken, by at most the ring's size for all that it holds.
  [[nodiscard]] std::uint64_t position() const noexcept { return head_; }
  // Changes with every datagram that is published.
  [[nodiscard]] std::uint64_t published() const noexcept {
    return memory_.control->tail.load(std::memory_order_relaxed) & ~DatagramControl::kWatchedBit;
  }
  // Where it lies: returns how many parts it has, at most two.
  std::size_t parts_of_next(iovec* parts) const noexcept;
  // Copies the datagram that is next, and removes it unless `peek`.
  Taken take(const iovec* parts, std::size_t count, bool peek) noexcept;

  // From now on the sender uses the kernel, until unwatch().
  void watch() noexcept;
  void unwatch() noexcept;
  [[nodiscard]] bool watched() const noexcept { return watched_; }

  // A datagram of this sender has come by the kernel.
  void came_by_kernel() noexcept { ++kernel_seen_; }
  [[nodiscard]] std::uint64_t kernel_seen() const noexcept { return kernel_seen_; }
  // To be asked before the kernel is found empty, and told after: what it has not given is lost.
  [[nodiscard]] std::uint64_t kernel_sent() const noexcept {
    return memory_.control->kernel_sent.load(std::memory_order_acquire);
  }
  // Whether kernel_sent() may not count yet what the kernel has been given.
  [[nodiscard]] bool sender_sends() const noexcept {
    return memory_.control->sending.load(std::memory_order_acquire) != 0;
  }
  void kernel_is_empty(std::uint64_t sent) noexcept { kernel_seen_ = sent; }
  // The kernel still owes something that comes before the next: it has dropped that.
  void kernel_has_no_more() noexcept { kernel_seen_ = next_before_; }

  [[nodiscard]] bool sender_gone() const noexcept {
    return memory_.control->sender_gone.load(std::memory_order_acquire) != 0;
  }
  [[nodiscard]] std::uint32_t sender_processor() const noexcept {
    return memory_.control->sender_processor.load(std::memory_order_relaxed);
  }
  void say_gone() noexcept { say(DatagramControl::kGone); }
  // Nothing is put into memory any more; what is there is still read.
  void say_leaves() noexcept { say(DatagramControl::kLeaves); }
  [[nodiscard]] const DatagramMemory& memory() const noexcept { return memory_; }

 private:
  void say(std::uint32_t word) noexcept {
    memory_.control->receiver_said.store(word, std::memory_order_release);
    watch();
  }

  DatagramMemory memory_;
  std::uint64_t head_ = 0;
  std::uint64_t kernel_seen_ = 0;
  // The header at head_, read once.
  bool known_ = false;
  std::size_t next_length_ = 0;
  std::uint64_t next_before_ = 0;
  bool watched_ = true;
};

namespace detail {

struct DatagramHeader {
  std::uint64_t length;
  std::uint64_t kernel_before;
};
static_assert(sizeof(DatagramHeader) == 16);

constexpr std::uint64_t record_bytes(std::uint64_t length) noexcept {
  return sizeof(DatagramHeader) + (length + 15) / 16 * 16;
}

}  // namespace detail

template <class Take>
void DatagramSender::take_back(Take take) noexcept {
  std::uint64_t at = memory_.control->head.load(std::memory_order_acquire);
  // What the receiver wrote need not be true.
  if (tail_ - at > memory_.size || at % sizeof(detail::DatagramHeader) != 0) return;
  while (at != tail_) {
    const std::uint64_t place = at & (memory_.size - 1);
    const auto length =
        load_once<std::uint64_t>(memory_.bytes + place + offsetof(detail::DatagramHeader, length));
    if (length > kMostDatagram || detail::record_bytes(length) > tail_ - at) return;
    const std::uint64_t from = (place + sizeof(detail::DatagramHeader)) & (memory_.size - 1);
    const std::uint64_t first = length < memory_.size - from ? length : memory_.size - from;
    take(memory_.bytes + from, first, memory_.bytes, length - first);
    at += detail::record_bytes(length);
  }
}

}  // namespace farcall::preload
