// SPDX-License-Identifier: Apache-2.0
//
// What one end holds while it gives back (handback.hpp), and how long it may take over it.
#pragma once

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/real.hpp"
#include "preload/stream.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {

// Memory for what is given back; it is as large as the peer makes it, within reason.
class Collected {
 public:
  Collected() = default;
  Collected(const Collected&) = delete;
  Collected& operator=(const Collected&) = delete;
  ~Collected() {
    if (bytes_ != nullptr) kernel(SYS_munmap, bytes_, room_);
  }
  bool make_room(std::size_t least) noexcept {
    if (least <= room_ - size_) return true;
    std::size_t room = room_ == 0 ? std::size_t{1} << 20 : 2 * room_;
    while (room <= kMost && room - size_ < least) room *= 2;
    if (room > kMost) return false;
    const long made = bytes_ == nullptr ? kernel(SYS_mmap, nullptr, room, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                        : kernel(SYS_mremap, bytes_, room_, room, MREMAP_MAYMOVE);
    if (made < 0) return false;
    bytes_ = reinterpret_cast<std::byte*>(made);
    room_ = room;
    return true;
  }
  [[nodiscard]] iovec free_part() const noexcept {
    return {.iov_base = bytes_ + size_, .iov_len = room_ - size_};
  }
  void grow(std::size_t size) noexcept { size_ += size; }
  [[nodiscard]] std::byte* data() const noexcept { return bytes_; }
  // As messages are looked at; the room is a power of two.
  [[nodiscard]] Ring as_ring() const noexcept {
    return {.control = nullptr, .bytes = bytes_, .size = room_};
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t kMost = std::size_t{256} << 20;
  std::byte* bytes_ = nullptr;
  std::size_t room_ = 0;
  std::size_t size_ = 0;
};

// For leaving as a whole. A peer that answers each time at the last moment, or sends a byte at a
// time, would hold it up for years otherwise. Whoever moves much gets longer, by what is moved and
// not by how often: slow enough for a busy machine, where a ring of 32 KB comes to its turn every
// few milliseconds, and for the most that can be collected about two minutes.
class Budget {
 public:
  explicit Budget(std::int64_t to_begin_with) noexcept : to_begin_with_(to_begin_with) {}
  void moved(std::size_t bytes) noexcept { moved_ += bytes; }
  [[nodiscard]] bool is_spent() const noexcept {
    constexpr std::size_t kBytesPerMillisecond = 4096;
    const auto earned = static_cast<std::int64_t>(moved_ / kBytesPerMillisecond) * 1'000'000;
    return monotonic_ns() - start_ > to_begin_with_ + earned;
  }

 private:
  const std::int64_t to_begin_with_;
  const std::int64_t start_ = monotonic_ns();
  std::size_t moved_ = 0;
};

// A process may have many peers that never come to an end, and closes them, or leaves them, one by
// one. So what it has waited for such is bounded in all, but in time there is something again to
// wait with: others come to an end, if they are given a moment.
class PatienceWithPeers {
 public:
  constexpr PatienceWithPeers(std::int64_t with_one, std::int64_t in_all,
                              std::int64_t moment) noexcept
      : with_one_(with_one), in_all_(in_all), moment_(moment) {}
  [[nodiscard]] std::int64_t longest() const noexcept {
    return std::clamp(in_all_ - wasted(monotonic_ns()), moment_, with_one_);
  }
  void wasted_more(std::int64_t time) noexcept {
    const std::int64_t now = monotonic_ns();
    wasted_.store(wasted(now) + time, std::memory_order_relaxed);
    since_.store(now, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kForgottenIn = 30;  // times as long

  [[nodiscard]] std::int64_t wasted(std::int64_t now) const noexcept {
    const std::int64_t forgotten = (now - since_.load(std::memory_order_relaxed)) / kForgottenIn;
    return std::max<std::int64_t>(wasted_.load(std::memory_order_relaxed) - forgotten, 0);
  }

  // In nanoseconds.
  const std::int64_t with_one_;
  const std::int64_t in_all_;
  const std::int64_t moment_;
  // Two threads at once may lose what one of them adds.
  std::atomic<std::int64_t> wasted_{0};
  std::atomic<std::int64_t> since_{0};
};

}  // namespace farcall::preload
