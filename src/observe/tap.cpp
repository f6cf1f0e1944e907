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

constexpr std::size_t kAll = TapRings::kControlBytes + TapRings::kRings * TapRing::kBytes;

TapRings* rings_at(std::uint64_t address) noexcept {
  return reinterpret_cast<TapRings*>(static_cast<std::uintptr_t>(address));
}

TapRings* rings_of(Process& process) noexcept {
  // acquire: pairs with the exchange of who made them.
  std::uint64_t known = __atomic_load_n(&process.tap_ring, __ATOMIC_ACQUIRE);
  if (known != 0) [[likely]]
    return rings_at(known);
  const long got = kernel(SYS_mmap, nullptr, kAll, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got < 0 && got >= -4095) return nullptr;
  // A child has a tap of its own, or none. What a handler forks goes on in the middle of a record,
  // which nobody reads then.
  if (kernel(SYS_madvise, got, kAll, MADV_WIPEONFORK) != 0) {
    kernel(SYS_munmap, got, kAll);
    return nullptr;
  }
  TapRings* const made = rings_at(static_cast<std::uint64_t>(got));
  made->bytes = TapRing::kBytes;
  made->magic = TapRings::kMagic;
  if (__atomic_compare_exchange_n(&process.tap_ring, &known, static_cast<std::uint64_t>(got), false,
                                  __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return made;
  kernel(SYS_munmap, got, kAll);
  return rings_at(known);
}

// A ring that this thread alone writes to, as long as this lives.
class HeldRing {
 public:
  explicit HeldRing(TapRings& all) noexcept {
    for (std::size_t i = 0; i < TapRings::kRings; ++i) {
      TapRing& ring = all.rings[i];
      // acquire: pairs with the release below: what the last one wrote.
      if (ring.held.load(std::memory_order_relaxed) != 0 ||
          ring.held.exchange(1, std::memory_order_acquire) != 0)
        continue;
      ring_ = &ring;
      data_ = reinterpret_cast<std::byte*>(&all) + TapRings::kControlBytes + i * TapRing::kBytes;
      return;
    }
    all.refused.fetch_add(1, std::memory_order_relaxed);
  }
  HeldRing(const HeldRing&) = delete;
  HeldRing& operator=(const HeldRing&) = delete;
  ~HeldRing() {
    if (ring_ != nullptr) ring_->held.store(0, std::memory_order_release);
  }
  explicit operator bool() const noexcept { return ring_ != nullptr; }
  [[nodiscard]] TapRing& ring() const noexcept { return *ring_; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  TapRing* ring_ = nullptr;
  std::byte* data_ = nullptr;
};

// Puts bytes behind one another, where the ring ends from its begin.
class Place {
 public:
  Place(std::byte* data, std::uint64_t position) noexcept : data_(data), at_(position) {}
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
    walk(size, [&](const std::byte* part, std::size_t here) { to.put(part, here); });
  }
  void skip(std::size_t size) noexcept {
    walk(size, [](const std::byte*, std::size_t) {});
  }

 private:
  template <class Visit>
  void walk(std::size_t size, Visit visit) noexcept {
    while (size != 0 && count_ != 0) {
      const std::size_t here = std::min(size, parts_->iov_len - done_);
      if (here != 0) visit(static_cast<const std::byte*>(parts_->iov_base) + done_, here);
      size -= here;
      done_ += here;
      if (done_ != parts_->iov_len) continue;
      ++parts_;
      --count_;
      done_ = 0;
    }
  }

  const iovec* parts_;
  std::size_t count_;
  std::size_t done_ = 0;  // of the first
};

TapRecord begin_record(Half& half, TapRecord::What what, const Passed& passed,
                       std::int64_t now) noexcept {
  const Identity& identity = identity_of(*counters_of(&half));
  return {.stamp = 0,
          .time = passed.time != 0 ? passed.time : now,
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
          .number = 0,
          .local = passed.local != nullptr ? *passed.local : identity.local,
          .remote = passed.remote != nullptr ? *passed.remote : identity.remote};
}

void write_record(TapRings& all, TapRecord& record, const char* name, Parts& from) noexcept {
  const HeldRing held(all);
  if (!held) {
    from.skip(record.copied);
    return;
  }
  TapRing& ring = held.ring();
  const std::uint64_t position = ring.tail.load(std::memory_order_relaxed);
  record.stamp = TapRecord::stamp_of(position);
  record.number = ring.records++;
  Place place(held.data(), position);
  place.put(&record, sizeof record);
  place.put(name, record.name_bytes);
  from.move(record.copied, place);
  // release: for the reader, who sees the tail after what is before it.
  ring.tail.store(position + TapRecord::space_of(record.name_bytes, record.copied),
                  std::memory_order_release);
}

// Nobody captures any more: the memory, not its place, goes back to the kernel. Another thread
// that still writes there writes for nobody.
void end_lease(Process& process, std::int64_t now) noexcept {
  std::uint64_t until = detail::get(process.tap_until);
  if (until == 0 || lasts(until, now) ||
      !__atomic_compare_exchange_n(&process.tap_until, &until, 0, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED))
    return;
  const std::uint64_t rings = __atomic_load_n(&process.tap_ring, __ATOMIC_ACQUIRE);
  if (rings != 0)
    kernel(SYS_madvise, rings + TapRings::kControlBytes, kAll - TapRings::kControlBytes,
           MADV_DONTNEED);
}

// The rings to write to; null if nobody captures this half any more.
TapRings* tapped_rings(Half& half, std::int64_t now) noexcept {
  Process* const process = first_process();
  if (process == nullptr) return nullptr;
  const std::uint64_t until = detail::get(half.tap);
  if (lasts(until, now)) return rings_of(*process);
  // One that is renewed just now is lost until it is renewed again.
  if (until != 0) detail::set(half.tap, 0);
  end_lease(*process, now);
  return nullptr;
}

}  // namespace

void tap(Half& half, const iovec* parts, std::size_t count, std::uint64_t size,
         const Passed& passed) noexcept {
  const std::int64_t now = monotonic_ns();
  TapRings* const rings = tapped_rings(half, now);
  if (rings == nullptr) return;
  TapRecord record =
      begin_record(half, is_sent(&half) ? TapRecord::kSent : TapRecord::kReceived, passed, now);
  const char* const name = identity_of(*counters_of(&half)).name.data();
  Parts from(parts, count);
  std::uint64_t there = std::min<std::uint64_t>(from.left(), size);
  do {
    record.copied = static_cast<std::uint32_t>(std::min<std::uint64_t>(there, TapRecord::kMost));
    // With the last one goes what is not there.
    const std::uint64_t rest = there == record.copied ? size : record.copied;
    record.size = static_cast<std::uint32_t>(std::min<std::uint64_t>(rest, UINT32_MAX));
    write_record(*rings, record, name, from);
    there -= record.copied;
    size -= record.size;
    (is_sent(&half) ? record.sent : record.received) += record.size;
  } while (there != 0);
}

void tap_closed(Half& half, const Passed& passed) noexcept {
  const std::int64_t now = monotonic_ns();
  TapRings* const rings = tapped_rings(half, now);
  if (rings == nullptr) return;
  TapRecord record = begin_record(half, TapRecord::kClosed, passed, now);
  Parts nothing(nullptr, 0);
  write_record(*rings, record, identity_of(*counters_of(&half)).name.data(), nothing);
}

}  // namespace farcall::observe
