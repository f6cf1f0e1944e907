// SPDX-License-Identifier: Apache-2.0
#include "preload/datagram_ring.hpp"

#include <algorithm>
#include <cstring>

namespace farcall::preload {

using detail::DatagramHeader;
using detail::record_bytes;

namespace {

constexpr std::uint64_t kWatched = DatagramControl::kWatchedBit;

void copy_in(const DatagramMemory& memory, std::uint64_t at, const std::byte* from,
             std::size_t size) noexcept {
  const std::uint64_t place = at & (memory.size - 1);
  const std::size_t first = std::min<std::uint64_t>(size, memory.size - place);
  std::memcpy(memory.bytes + place, from, first);
  if (first != size) std::memcpy(memory.bytes, from + first, size - first);
}

void copy_out(const DatagramMemory& memory, std::uint64_t at, std::byte* to,
              std::size_t size) noexcept {
  const std::uint64_t place = at & (memory.size - 1);
  const std::size_t first = std::min<std::uint64_t>(size, memory.size - place);
  std::memcpy(to, memory.bytes + place, first);
  if (first != size) std::memcpy(to + first, memory.bytes, size - first);
}

}  // namespace

void DatagramSender::start(const DatagramMemory& memory) noexcept {
  memory_ = memory;
  tail_ = next_tail_ = head_ = 0;
  kernel_sent_.store(0, std::memory_order_relaxed);
  processor_ = 0;
  memory_.control->tail.store(kWatched, std::memory_order_relaxed);
}

bool DatagramSender::has_room(std::uint64_t bytes) noexcept {
  if (tail_ + bytes - head_ <= memory_.size) return true;
  // acquire: pairs with the release in take(); what is overwritten has been read
  const std::uint64_t head = memory_.control->head.load(std::memory_order_acquire);
  if (head - head_ > tail_ - head_) return false;  // it cannot be; the receiver harms itself
  head_ = head;
  return tail_ + bytes - head_ <= memory_.size;
}

bool DatagramSender::send(const iovec* parts, std::size_t count, std::size_t bytes) noexcept {
  const std::uint64_t record = record_bytes(bytes);
  // Large ones would leave no room for others.
  if (record > memory_.size / 2 || !has_room(record)) return false;
  const DatagramHeader header{.length = bytes,
                              .kernel_before = kernel_sent_.load(std::memory_order_relaxed)};
  // A header never wraps: records are multiples of its size.
  std::memcpy(memory_.bytes + (tail_ & (memory_.size - 1)), &header, sizeof header);
  std::uint64_t at = tail_ + sizeof header;
  for (std::size_t i = 0; i < count; ++i) {
    copy_in(memory_, at, static_cast<const std::byte*>(parts[i].iov_base), parts[i].iov_len);
    at += parts[i].iov_len;
  }
  std::uint64_t expected = tail_;
  next_tail_ = tail_ + record;
  // release: pairs with the acquire in next(), for the record. It fails if WATCHED is set.
  if (!memory_.control->tail.compare_exchange_strong(
          expected, next_tail_, std::memory_order_release, std::memory_order_relaxed))
    return false;
  tail_ = next_tail_;
  return true;
}

void DatagramSender::repair() noexcept {
  // Published, or not: next_tail_ is written before the exchange, tail_ after.
  if ((memory_.control->tail.load(std::memory_order_relaxed) & ~kWatched) == next_tail_)
    tail_ = next_tail_;
}

void DatagramSender::sent_by_kernel() noexcept {
  kernel_sent_.fetch_add(1, std::memory_order_relaxed);
  // release: pairs with the acquire in kernel_sent(): the datagram is in the kernel by now
  memory_.control->kernel_sent.fetch_add(1, std::memory_order_release);
}

bool DatagramSender::receiver_gone() const noexcept {
  return memory_.control->receiver_said.load(std::memory_order_relaxed) != 0;
}

std::uint32_t DatagramSender::receiver_processor() const noexcept {
  return memory_.control->receiver_processor.load(std::memory_order_relaxed);
}

bool DatagramSender::all_read() const noexcept {
  return memory_.control->head.load(std::memory_order_relaxed) == tail_;
}

void DatagramSender::say_gone() noexcept {
  memory_.control->sender_gone.store(1, std::memory_order_release);
}

void DatagramReceiver::start(const DatagramMemory& memory) noexcept {
  memory_ = memory;
  head_.store(0, std::memory_order_relaxed);
  kernel_seen_.store(0, std::memory_order_relaxed);
  watched_ = true;
}

std::uint64_t DatagramReceiver::published() const noexcept {
  return memory_.control->tail.load(std::memory_order_relaxed) & ~kWatched;
}

bool DatagramReceiver::looks_ready() const noexcept {
  return published() != head_.load(std::memory_order_relaxed);
}

DatagramReceiver::Next DatagramReceiver::next(Record& record) const noexcept {
  record.at = head_.load(std::memory_order_relaxed);
  // acquire: pairs with the release in send(), for the record
  const std::uint64_t tail = memory_.control->tail.load(std::memory_order_acquire) & ~kWatched;
  if (tail == record.at) return Next::none;
  DatagramHeader header;
  std::memcpy(&header, memory_.bytes + (record.at & (memory_.size - 1)), sizeof header);
  const std::uint64_t there = tail - record.at;
  if (there > memory_.size || there < sizeof header || header.length > kMostDatagram ||
      record_bytes(header.length) > there) {
    // It may be that somebody else took it, and the sender wrote over it.
    return record.at == head_.load(std::memory_order_acquire) ? Next::broken : next(record);
  }
  record.length = header.length;
  record.kernel_before = header.kernel_before;
  return record.kernel_before > kernel_seen() ? Next::kernel_first : Next::ready;
}

DatagramReceiver::Taken DatagramReceiver::take(const Record& record, const iovec* parts,
                                               std::size_t count, bool peek) noexcept {
  std::uint64_t at = record.at + sizeof(DatagramHeader);
  std::size_t left = record.length;
  for (std::size_t i = 0; i < count && left != 0; ++i) {
    const std::size_t size = std::min(left, parts[i].iov_len);
    copy_out(memory_, at, static_cast<std::byte*>(parts[i].iov_base), size);
    at += size;
    left -= size;
  }
  Taken taken{.done = true, .bytes = record.length - left, .length = record.length};
  std::uint64_t head = record.at;
  if (peek) {
    taken.done = head_.load(std::memory_order_acquire) == head;
    return taken;
  }
  // release: what has been copied is not read again
  taken.done = head_.compare_exchange_strong(head, record.at + record_bytes(record.length),
                                             std::memory_order_acq_rel, std::memory_order_relaxed);
  if (!taken.done) return taken;
  // Two who take one after the other may come here in the other order; the last one puts it right.
  do {
    head = head_.load(std::memory_order_relaxed);
    // release: pairs with the acquire in has_room()
    memory_.control->head.store(head, std::memory_order_release);
  } while (head != head_.load(std::memory_order_relaxed));
  return taken;
}

void DatagramReceiver::watch() noexcept {
  if (!watched_) watch_again();
}

void DatagramReceiver::watch_again() noexcept {
  watched_ = true;
  // One instruction with the sender's exchange: what is published before it is seen by next(), and
  // after it nothing is.
  memory_.control->tail.fetch_or(kWatched, std::memory_order_acq_rel);
}

void DatagramReceiver::unwatch() noexcept {
  if (!watched_) return;
  memory_.control->tail.fetch_and(~kWatched, std::memory_order_acq_rel);
  // Last: a handler that watches in between is not undone, only repeated later.
  watched_ = false;
}

std::uint64_t DatagramReceiver::kernel_sent() const noexcept {
  return memory_.control->kernel_sent.load(std::memory_order_acquire);
}

bool DatagramReceiver::sender_gone() const noexcept {
  return memory_.control->sender_gone.load(std::memory_order_acquire) != 0;
}

std::uint32_t DatagramReceiver::sender_processor() const noexcept {
  return memory_.control->sender_processor.load(std::memory_order_relaxed);
}

void DatagramReceiver::note_processor(std::uint32_t processor) noexcept {
  memory_.control->receiver_processor.store(processor, std::memory_order_relaxed);
}

void DatagramReceiver::say_gone() noexcept {
  memory_.control->receiver_said.store(DatagramControl::kGone, std::memory_order_release);
  watch_again();
}

void DatagramReceiver::say_leaves() noexcept {
  memory_.control->receiver_said.store(DatagramControl::kLeaves, std::memory_order_release);
  watch_again();
}

}  // namespace farcall::preload
