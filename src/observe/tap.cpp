// SPDX-License-Identifier: Apache-2.0
#include "observe/tap.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "observe/kernel_call.hpp"
#include "observe/lease.hpp"

namespace farcall::observe {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::byte* data_of(TapRing& ring) noexcept {
  return reinterpret_cast<std::byte*>(&ring) + TapRing::kControlBytes;
}

TapRing* ring_at(std::uint64_t address) noexcept {
  return reinterpret_cast<TapRing*>(static_cast<std::uintptr_t>(address));
}

TapRing* ring_of(Process& process) noexcept {
  // acquire: pairs with the exchange of who made it.
  std::uint64_t known = __atomic_load_n(&process.tap_ring, __ATOMIC_ACQUIRE);
  if (known != 0) [[likely]]
    return ring_at(known);
  constexpr std::size_t kAll = TapRing::kControlBytes + TapRing::kBytes;
  const long got = kernel(SYS_mmap, nullptr, kAll, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got < 0 && got >= -4095) return nullptr;
  // A child has a tap of its own, or none.
  if (kernel(SYS_madvise, got, kAll, MADV_DONTFORK) != 0) {
    kernel(SYS_munmap, got, kAll);
    return nullptr;
  }
  TapRing* const made = ring_at(static_cast<std::uint64_t>(got));
  made->bytes = TapRing::kBytes;
  made->magic = TapRing::kMagic;
  if (__atomic_compare_exchange_n(&process.tap_ring, &known, static_cast<std::uint64_t>(got), false,
                                  __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return made;
  kernel(SYS_munmap, got, kAll);
  return ring_at(known);
}

// Puts bytes behind one another, where the ring ends from its begin.
class Place {
 public:
  Place(TapRing& ring, std::uint64_t position) noexcept : data_(data_of(ring)), at_(position) {}
  void put(const void* from, std::size_t size) noexcept {
    const std::size_t at = at_ & (TapRing::kBytes - 1);
    const std::size_t first = std::min(size, TapRing::kBytes - at);
    std::memcpy(data_ + at, from, first);
    if (first != size)
      std::memcpy(data_, static_cast<const std::byte*>(from) + first, size - first);
    at_ += size;
  }

 private:
  std::byte* data_;
  std::uint64_t at_;
};

// What is left of the program's parts.
class Parts {
 public:
  Parts(const iovec* parts, std::size_t count) noexcept : parts_(parts), count_(count) {}
  [[nodiscard]] std::size_t left() const noexcept {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < count_; ++i) sum += parts_[i].iov_len;
    return sum - done_;
  }
  void move(std::size_t size, Place& to) noexcept {
    while (size != 0 && count_ != 0) {
      const std::size_t here = std::min(size, parts_->iov_len - done_);
      if (here != 0) to.put(static_cast<const std::byte*>(parts_->iov_base) + done_, here);
      size -= here;
      done_ += here;
      if (done_ != parts_->iov_len) continue;
      ++parts_;
      --count_;
      done_ = 0;
    }
  }

 private:
  const iovec* parts_;
  std::size_t count_;
  std::size_t done_ = 0;  // of the first
};

TapRecord begin_record(Half& half, TapRecord::What what, const Passed& passed) noexcept {
  const Identity& identity = identity_of(*counters_of(&half));
  return {.stamp = 0,
          .time = passed.time != 0 ? passed.time : monotonic_ns(),
          .sent = passed.sent,
          .received = passed.received,
          .session = identity.session,
          .opened = identity.opened,
          .size = 0,
          .copied = 0,
          .kind = identity.kind,
          .what = what,
          .role = identity.role,
          .name_bytes =
              static_cast<std::uint8_t>(std::min<std::size_t>(identity.name_bytes, kLongestName)),
          .owner = identity.owner,
          .peer = identity.peer,
          .spare = 0,
          .local = passed.local != nullptr ? *passed.local : identity.local,
          .remote = passed.remote != nullptr ? *passed.remote : identity.remote};
}

void write_record(TapRing& ring, const TapRecord& record, const char* name, Parts& from) noexcept {
  const std::uint64_t space = TapRecord::space_of(record.name_bytes, record.copied);
  // Before the tail: who reads the tail first, and then this, never counts too few.
  ring.records.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t position = ring.tail.fetch_add(space, std::memory_order_relaxed);
  // release: pairs with the reader's loads of the tail: it has moved before anything is overwritten
  std::atomic_thread_fence(std::memory_order_release);
  Place place(ring, position + sizeof record.stamp);
  place.put(&record.time, sizeof record - sizeof record.stamp);
  place.put(name, record.name_bytes);
  from.move(record.copied, place);
  auto* const stamp =
      reinterpret_cast<std::uint64_t*>(data_of(ring) + (position & (TapRing::kBytes - 1)));
  __atomic_store_n(stamp, TapRecord::stamp_of(position), __ATOMIC_RELEASE);
}

// Nobody captures any more: the memory, not its place, goes back to the kernel. Another thread
// that still writes there writes for nobody.
void end_lease(Process& process, std::int64_t now) noexcept {
  std::uint64_t until = detail::get(process.tap_until);
  if (until == 0 || lasts(until, now) ||
      !__atomic_compare_exchange_n(&process.tap_until, &until, 0, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED))
    return;
  const std::uint64_t ring = __atomic_load_n(&process.tap_ring, __ATOMIC_ACQUIRE);
  if (ring != 0) kernel(SYS_madvise, ring + TapRing::kControlBytes, TapRing::kBytes, MADV_DONTNEED);
}

// The ring to write to; null if nobody captures this half any more.
TapRing* tapped_ring(Half& half) noexcept {
  Process* const process = first_process();
  if (process == nullptr) return nullptr;
  const std::int64_t now = monotonic_ns();
  const std::uint64_t until = detail::get(half.tap);
  if (lasts(until, now)) return ring_of(*process);
  // One that is renewed just now is lost until it is renewed again.
  if (until != 0) detail::set(half.tap, 0);
  end_lease(*process, now);
  return nullptr;
}

}  // namespace

void tap(Half& half, const iovec* parts, std::size_t count, std::uint64_t size,
         const Passed& passed) noexcept {
  TapRing* const ring = tapped_ring(half);
  if (ring == nullptr) return;
  TapRecord record =
      begin_record(half, is_sent(&half) ? TapRecord::kSent : TapRecord::kReceived, passed);
  const char* const name = identity_of(*counters_of(&half)).name.data();
  Parts from(parts, count);
  std::uint64_t there = std::min<std::uint64_t>(from.left(), size);
  do {
    record.copied = static_cast<std::uint32_t>(std::min<std::uint64_t>(there, TapRecord::kMost));
    // With the last one goes what is not there.
    const std::uint64_t rest = there == record.copied ? size : record.copied;
    record.size = static_cast<std::uint32_t>(std::min<std::uint64_t>(rest, UINT32_MAX));
    write_record(*ring, record, name, from);
    there -= record.copied;
    size -= record.size;
    (is_sent(&half) ? record.sent : record.received) += record.size;
  } while (there != 0);
}

void tap_closed(Half& half, const Passed& passed) noexcept {
  TapRing* const ring = tapped_ring(half);
  if (ring == nullptr) return;
  const TapRecord record = begin_record(half, TapRecord::kClosed, passed);
  Parts nothing(nullptr, 0);
  write_record(*ring, record, identity_of(*counters_of(&half)).name.data(), nothing);
}

}  // namespace farcall::observe
