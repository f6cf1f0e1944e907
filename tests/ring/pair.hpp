// SPDX-License-Identifier: Apache-2.0
//
// Both halves of a ring for tests.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "farcall/ring.hpp"
#include "farcall/socket.hpp"

namespace farcall::test {

template <class Half>
constexpr RingKind kKindOf =
    std::is_same_v<Half, MessageWriter> || std::is_same_v<Half, MessageReader> ? RingKind::messages
                                                                               : RingKind::bytes;

// In one process, over one mapping, so that ThreadSanitizer sees what both halves do.
template <class Writer, class Reader>
struct Pair {
  explicit Pair(std::size_t capacity, WaitMode mode = WaitMode::adaptive)
      : memory(RingMemory::format(Mapping::anonymous_shared(ring_bytes(capacity)), capacity,
                                  kKindOf<Writer>)),
        writer(memory.view(), Waiter(lifeline.first.get(), mode)),
        reader(memory.view(), Waiter(lifeline.second.get(), mode)) {}

  std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  RingMemory memory;
  Writer writer;
  Reader reader;
};
using BytePair = Pair<ByteWriter, ByteReader>;
using MessagePair = Pair<MessageWriter, MessageReader>;

// The calling thread runs on the processor that it runs on now, for good: where it waits decides
// how it is woken.
inline void stay_on_this_processor() {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(static_cast<unsigned>(::sched_getcpu()), &here);
  ASSERT_EQ(::sched_setaffinity(0, sizeof here, &here), 0) << std::strerror(errno);
}

// Across processes: made before a fork, then each process attaches its half.
struct Unattached {
  explicit Unattached(RingKind ring_kind, std::size_t capacity = 1 << 16)
      : kind(ring_kind), shared(SharedMemory::create(ring_bytes(capacity))) {
    RingMemory::format(shared.fd(), capacity, kind);
  }

  // Keeps this side's end of the lifeline and closes the other.
  RingMemory attach_writer() {
    lifeline.second.reset();
    return RingMemory::attach(shared, kind, Access::read_write);
  }
  RingMemory attach_reader() {
    lifeline.first.reset();
    return RingMemory::attach(shared, kind, Access::read_only);
  }
  [[nodiscard]] int writer_lifeline() const { return lifeline.first.get(); }
  [[nodiscard]] int reader_lifeline() const { return lifeline.second.get(); }

  RingKind kind;
  SharedMemory shared;
  std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
};

// A sequence of bytes that both ends can make; no period that fits a ring.
class Pattern {
 public:
  explicit Pattern(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::byte next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::byte>(state_ >> 56);
  }
  void fill(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = next();
  }
  [[nodiscard]] bool matches(std::span<const std::byte> bytes) {
    bool same = true;
    for (const std::byte byte : bytes) same &= byte == next();
    return same;
  }

 private:
  std::uint64_t state_;
};

inline std::vector<std::byte> message(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  Pattern(seed).fill(bytes);
  return bytes;
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace farcall::test
