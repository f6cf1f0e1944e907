// SPDX-License-Identifier: Apache-2.0
#include "preload/datagram_ring.hpp"

#include <algorithm>
#include <cstring>

#include "memory/load_once.hpp"

namespace farcall::preload {

using detail::DatagramHeader;
using detail::record_bytes;

namespace {

constexpr std::uint64_t kWatched = DatagramControl::kWatchedBit;

// Calls copy(place, offset, size) for the one or two pieces that [at, at + size) has in the ring.
template <class Copy>
void each_piece(const DatagramMemory& memory, std::uint64_t at, std::size_t size,
                Copy copy) noexcept {
  const std::uint64_t place = at & (memory.size - 1);
  const std::size_t first = std::min<std::uint64_t>(size, memory.size - place);
  copy(memory.bytes + place, 0, first);
  if (first != size) copy(memory.bytes, first, size - first);
}

}  // namespace

void DatagramSender::start(const DatagramMemory& memory) noexcept {
  *this = DatagramSender{};
  memory_ = memory;
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
  const DatagramHeader header{.length = bytes, .kernel_before = kernel_sent_};
  // A header never wraps: records are multiples of its size.
  std::memcpy(memory_.bytes + (tail_ & (memory_.size - 1)), &header, sizeof header);
  std::uint64_t at = tail_ + sizeof header;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* const from = static_cast<const std::byte*>(parts[i].iov_base);
    each_piece(memory_, at, parts[i].iov_len,
               [from](std::byte* place, std::size_t offset, std::size_t size) noexcept {
                 std::memcpy(place, from + offset, size);
               });
    at += parts[i].iov_len;
  }
  std::uint64_t expected = tail_;
  // release: pairs with the acquire in next(), for the record. It fails if WATCHED is set.
  if (!memory_.control->tail.compare_exchange_strong(
          expected, tail_ + record, std::memory_order_release, std::memory_order_relaxed))
    return false;
  tail_ += record;
  return true;
}

void DatagramReceiver::start(const DatagramMemory& memory) noexcept {
  *this = DatagramReceiver{};
  memory_ = memory;
}

DatagramReceiver::Next DatagramReceiver::next() noexcept {
  if (!known_) {
    // acquire: pairs with the release in send(), for the record
    const std::uint64_t tail = memory_.control->tail.load(std::memory_order_acquire) & ~kWatched;
    const std::uint64_t there = tail - head_;
    if (there == 0) return Next::none;
    const std::byte* const place = memory_.bytes + (head_ & (memory_.size - 1));
    const DatagramHeader header{
        .length = load_once<std::uint64_t>(place + offsetof(DatagramHeader, length)),
        .kernel_before = load_once<std::uint64_t>(place + offsetof(DatagramHeader, kernel_before))};
    if (there > memory_.size || there < sizeof header || header.length > kMostDatagram ||
        record_bytes(header.length) > there)
      return Next::broken;
    next_length_ = header.length;
    next_before_ = header.kernel_before;
    known_ = true;
  }
  return next_before_ > kernel_seen_ ? Next::kernel_first : Next::ready;
}

DatagramReceiver::Taken DatagramReceiver::take(const iovec* parts, std::size_t count,
                                               bool peek) noexcept {
  std::uint64_t at = head_ + sizeof(DatagramHeader);
  std::size_t left = next_length_;
  for (std::size_t i = 0; i < count && left != 0; ++i) {
    auto* const to = static_cast<std::byte*>(parts[i].iov_base);
    const std::size_t size = std::min(left, parts[i].iov_len);
    each_piece(memory_, at, size,
               [to](const std::byte* place, std::size_t offset, std::size_t piece) noexcept {
                 std::memcpy(to + offset, place, piece);
               });
    at += size;
    left -= size;
  }
  const Taken taken{.bytes = next_length_ - left, .length = next_length_};
  if (peek) return taken;
  known_ = false;
  head_ += record_bytes(next_length_);
  // release: pairs with the acquire in has_room(); what has been copied is not read again
  memory_.control->head.store(head_, std::memory_order_release);
  return taken;
}

std::size_t DatagramReceiver::parts_of_next(iovec* parts) const noexcept {
  std::size_t count = 0;
  each_piece(memory_, head_ + sizeof(DatagramHeader), next_length_,
             [&](std::byte* place, std::size_t, std::size_t piece) noexcept {
               parts[count++] = {.iov_base = place, .iov_len = piece};
             });
  return count;
}

void DatagramReceiver::watch() noexcept {
  if (watched_) return;
  watched_ = true;
  // One instruction with the sender's exchange: what is published before it is seen by next(), and
  // after it nothing is.
  memory_.control->tail.fetch_or(kWatched, std::memory_order_acq_rel);
}

void DatagramReceiver::unwatch() noexcept {
  if (!watched_) return;
  watched_ = false;
  memory_.control->tail.fetch_and(~kWatched, std::memory_order_acq_rel);
}

}  // namespace farcall::preload
