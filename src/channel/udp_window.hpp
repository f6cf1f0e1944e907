// SPDX-License-Identifier: Apache-2.0
//
// How much may be sent over UDP before the receiver has taken it; see udp.hpp for the whole scheme.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace farcall::channel {

inline constexpr std::size_t kUdpLongest = 65507;  // 65,535 less the headers of IP and UDP

// What a datagram with `size` bytes takes from the receiver's SO_RCVBUF, at most. The kernel keeps
// up to some 16 KB in one piece of a power of two, with up to 448 bytes of headers and
// skb_shared_info, and more than that in whole pages; a struct sk_buff comes on top.
constexpr std::size_t udp_cost(std::size_t size) {
  constexpr std::size_t kInOnePiece = 16384;
  constexpr std::size_t kHeaders = 512;
  if (size + kHeaders <= kInOnePiece) return std::bit_ceil(size + kHeaders) + kHeaders;
  return size + kInOnePiece + 2 * kHeaders;
}

// The writer's side. Counts in bytes of cost, from the beginning, so that a grant is never late.
class UdpWindow {
 public:
  explicit UdpWindow(std::size_t size) noexcept : size_(size) {}

  // Whether a datagram of this cost may be sent now. One alone always may.
  [[nodiscard]] bool admits(std::size_t cost) const noexcept {
    return spent_ == granted_ || spent_ - granted_ + cost <= size_;
  }
  void spend(std::size_t cost) noexcept { spent_ += cost; }
  // What the reader says it has taken. More than was sent cannot be: it is ignored.
  void grant(std::uint64_t total) noexcept {
    if (total > granted_ && total <= spent_) granted_ = total;
  }

 private:
  std::uint64_t size_;
  std::uint64_t spent_ = 0;
  std::uint64_t granted_ = 0;
};

// The reader's side: tells what to grant, and when.
class UdpGrants {
 public:
  // A quarter of the window at a time, unless the rest is then too little for the longest datagram.
  explicit UdpGrants(std::size_t window) noexcept
      : step_(window / 4 + udp_cost(kUdpLongest) <= window ? window / 4 : 0) {}

  // After taking a datagram of this cost: whether to tell total() now.
  bool take(std::size_t cost) noexcept {
    taken_ += cost;
    if (taken_ - told_ <= step_) return false;
    told_ = taken_;
    return true;
  }
  [[nodiscard]] std::uint64_t total() const noexcept { return told_; }

 private:
  std::uint64_t step_;
  std::uint64_t taken_ = 0;
  std::uint64_t told_ = 0;
};

}  // namespace farcall::channel
