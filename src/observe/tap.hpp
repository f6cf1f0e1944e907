// SPDX-License-Identifier: Apache-2.0
//
// What passes an end while somebody captures it, for that somebody to read: rings of records in
// private memory of the process that writes them.
//
//   tap_ring ->      +----------------------+ 0      written by this process alone
//                    | magic, bytes         |
//                    | kRings times: holder,|
//                    | tail                 |
//                    +----------------------+ 4096   kRings times `bytes`, a power of two
//                    | TapRecord, name,     |
//                    | bytes, up to 16      |
//                    | ...                  |
//                    +----------------------+
//
// Nobody waits. A thread writes to the first ring that no other thread is writing to, so one that
// is interrupted in the middle keeps nobody else from writing; where there is none, the record is
// counted as refused. What stands in a ring is overwritten, be it read or not. Positions only grow;
// the low bits say where in the ring. All before the tail is whole. Who reads (with
// process_vm_readv) looks at the tail before and after, and knows by it what may have been
// overwritten meanwhile; what was, it sees by the numbers of the records. Where one begins it finds
// by its stamp.
//
// The memory is made with the first record and given back, but for its addresses, by the first
// message that passes after the lease has ended. No child inherits it.
#pragma once

#include <sys/uio.h>

#include <atomic>

#include "farcall/observe.hpp"

namespace farcall::observe {

// A variable of the environment: until that process ends, programs that are started are captured
// from their beginning. It is a number, see capturer().
inline constexpr char kTapVariable[] = "FARCALL_TAP_UNTIL";
// A process, and when it was started, in ticks as /proc/PID/stat has it.
inline constexpr unsigned kCapturerTicks = 42;
constexpr std::uint64_t capturer(std::int32_t pid, std::uint64_t started) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(pid)} << kCapturerTicks |
         (started & ((std::uint64_t{1} << kCapturerTicks) - 1));
}
// By what tables say in Header::spare who has had their program started to be captured, whatever
// becomes of its environment, and children go on with. 0: nobody, or an older library says nothing.
constexpr std::uint32_t mark_of(std::uint64_t capturer) noexcept {
  return static_cast<std::uint32_t>((capturer * 0x9e3779b97f4a7c15) >> 32) |
         static_cast<std::uint32_t>(capturer != 0);
}

struct TapRing {
  static constexpr std::size_t kBytes = std::size_t{4} << 20;

  alignas(128) std::atomic<std::uint32_t> held;  // by a thread that writes
  std::uint32_t records;                         // until now
  std::atomic<std::uint64_t> tail;
};

struct TapRings {
  static constexpr std::uint64_t kMagic = 0x3150415443434146;  // "FACCTAP1"
  static constexpr std::size_t kRings = 8;
  static constexpr std::size_t kControlBytes = 4096;

  std::uint64_t magic;
  std::uint64_t bytes;
  std::atomic<std::uint64_t> refused;  // records for which no ring was free
  std::atomic<std::int64_t> seen;      // all of before then has been read; see wait_to_be_read()
  std::array<TapRing, kRings> rings;
};
static_assert(sizeof(TapRings) <= TapRings::kControlBytes);

struct TapRecord {
  enum What : std::uint8_t { kSent = 1, kReceived = 2, kClosed = 3 };
  static constexpr std::uint64_t kStamp = 0x9e3779b97f4a7c15;
  static constexpr std::size_t kAlign = 16;
  // Bytes of one, which a datagram fits into; a longer message is several.
  static constexpr std::uint32_t kMost = 65'536;

  std::uint64_t stamp;     // stamp_of(position), and never 0
  std::int64_t time;       // CLOCK_MONOTONIC, ns
  std::uint64_t sent;      // bytes that this end has sent before
  std::uint64_t received;  // and received
  std::uint64_t session;   // as in Identity; `opened` too
  std::int64_t opened;
  std::uint32_t size;    // of what passed
  std::uint32_t copied;  // how much of it stands here; less: it could not be copied
  std::uint8_t kind;     // Kind
  std::uint8_t what;
  std::uint8_t role;  // Role
  std::uint8_t name_bytes;
  std::int32_t owner;  // as in Identity; `peer` too
  std::int32_t peer;
  std::uint32_t number;  // among those of its ring
  Address local;
  Address remote;

  static constexpr std::uint64_t stamp_of(std::uint64_t position) noexcept {
    return (position + 1) * kStamp;
  }
  static constexpr std::uint64_t space_of(std::size_t name, std::size_t copied) noexcept;
};
static_assert(sizeof(TapRecord) % TapRecord::kAlign == 0 && kLongestName < 256);

constexpr std::uint64_t TapRecord::space_of(std::size_t name, std::size_t copied) noexcept {
  return (sizeof(TapRecord) + name + copied + kAlign - 1) / kAlign * kAlign;
}
// So much behind the tail may be in the middle of being written.
inline constexpr std::uint64_t kLongestTapRecord =
    TapRecord::space_of(kLongestName, TapRecord::kMost);

// Of what is captured, as the caller knows it better than the entry.
struct Passed {
  std::int64_t time = 0;  // 0: now
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  const Address* local = nullptr;  // null: as the entry says
  const Address* remote = nullptr;
};

// Whether bytes of this half are captured; to be asked before each message. A null half: no.
inline bool is_tapped(const Half* half) noexcept {
  return half != nullptr && detail::get(half->tap) != 0;
}
// Records that `size` bytes have passed, which stand in `parts`; with fewer there, the rest is
// said to be missing. Ends the tap if its time is over. Safe in signal handlers; keeps errno.
[[gnu::cold]] void tap(Half& half, const iovec* parts, std::size_t count, std::uint64_t size,
                       const Passed& passed) noexcept;
// A process that was started to be captured, and ends: the rings end with it. Waits until somebody
// has read them, for two seconds at most; no other process waits. Called by exit(3) itself. Safe in
// signal handlers.
void wait_to_be_read() noexcept;
// From now on it ends at once.
void end_without_being_read() noexcept;
// The end of the connection, as this side has it.
[[gnu::cold]] void tap_closed(Half& half, const Passed& passed) noexcept;

// The first table of this process; null: it has none.
Process* first_process() noexcept;

}  // namespace farcall::observe
