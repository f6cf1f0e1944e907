// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <limits>

#include "farcall/memory.hpp"

// ThreadSanitizer does not see stores by these instructions.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>
#define FARCALL_CAN_PASS_CACHES 1
#endif

namespace farcall {
namespace {

constexpr std::size_t index(CopyToPeer::Way way) { return static_cast<std::size_t>(way); }

#ifdef FARCALL_CAN_PASS_CACHES

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  constexpr std::size_t kBlock = sizeof(__m128i);
  constexpr std::size_t kLine = 64;
  // Only whole lines, else each is written twice.
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::memcpy(to, from, before);
  to += before, from += before, size -= before;
  for (; size >= kLine; to += kLine, from += kLine, size -= kLine) {
    __m128i line[kLine / kBlock];
    std::memcpy(line, from, kLine);
    for (std::size_t i = 0; i < kLine / kBlock; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, line[i]);
  }
  std::memcpy(to, from, size);
  // These stores are in no order with later ones.
  _mm_sfence();
}

#endif

}  // namespace

void detail::copy_in_pieces(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  constexpr std::size_t kPiece = 2048;
  for (; size > kPiece; to += kPiece, from += kPiece, size -= kPiece) std::memcpy(to, from, kPiece);
  std::memcpy(to, from, size);
}

void CopyToPeer::copy_long(std::byte* to, const std::byte* from, std::size_t size) noexcept {
#ifdef FARCALL_CAN_PASS_CACHES
  const Way way = next_way();
  const std::uint64_t before = __builtin_ia32_rdtsc();
  if (way == Way::past)
    copy_past_caches(to, from, size);
  else
    copy_memory(to, from, size);
  learn(way, __builtin_ia32_rdtsc() - before, size);
#else
  copy_memory(to, from, size);
#endif
}

// The other way is tried often at first, then once in so many copies that what it costs is lost
// among them.
CopyToPeer::Way CopyToPeer::next_way() noexcept {
  constexpr std::uint32_t kTryEvery = 64;
  ++copies_;
  const bool other = std::has_single_bit(copies_) || copies_ % kTryEvery == 0;
  // Who shares this memory may have put any value there.
  const bool past = way_ == Way::past;
  return past != other ? Way::past : Way::through;
}

// An interrupt lengthens one copy: the shorter of two counts.
std::uint64_t CopyToPeer::cost(Way way) const noexcept {
  const auto& last = costs_[index(way)];
  return std::min(last[0], last[1]);
}

void CopyToPeer::learn(Way way, std::uint64_t ticks, std::size_t size) noexcept {
  auto& last = costs_[index(way)];
  last[1] = last[0];
  last[0] = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(ticks * 1024 / size, 1, std::numeric_limits<std::uint32_t>::max()));
  const std::uint64_t through = cost(Way::through);
  const std::uint64_t past = cost(Way::past);
  if (through == 0 || past == 0) return;
  // The reader has it easier with what is in a cache that both share. So twice as fast it has to be
  // here, and one and a half times as fast to stay.
  way_ = 2 * through > (way_ == Way::past ? 3 : 4) * past ? Way::past : Way::through;
}

}  // namespace farcall
