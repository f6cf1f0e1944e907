// SPDX-License-Identifier: Apache-2.0
//
// What became of connections, for `farcall run --stats`: a memory file of that command, which the
// environment names in FARCALL_STATS as /proc/PID/fd/N. Each program that is executed maps it when
// the library is loaded, its children inherit the mapping, and no descriptor is left; so what is
// counted survives any death. Without it counting goes nowhere and costs a look at one pointer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/settings.hpp"

namespace farcall::preload {

enum class Protocol : std::uint8_t { tcp, udp, unix_stream };

// Why a connection was not accelerated, or no longer is.
enum class Reason : std::uint8_t {
  not_local,      // the peer is on another machine
  excluded,       // by the settings
  too_short,      // ended before it was worth it
  peer_plain,     // the peer never answered: it has no library, or goes round it
  other_user,     // the peer belongs to somebody else
  no_proof,       // the kernel would not tell who holds the other end (sock_diag)
  too_many,       // as many as the settings allow
  no_memory,      // or no descriptors
  shared,         // several processes held it before it could be accelerated
  seen_too_late,  // data had gone past the library
  option,         // an option that changes the stream itself
  urgent,         // out-of-band data
  passed,         // handed to a program that this one executes, or over a unix socket
  broken,         // the peer broke the protocol
  unseen,         // the program does what is not seen here: io_uring, seccomp
  count_,         // not a reason
};
inline constexpr std::size_t kReasons = static_cast<std::size_t>(Reason::count_);

// Counters of one endpoint: the address of the server, seen from either end.
struct Counters {
  struct Way {
    std::atomic<std::uint64_t> bytes;
    std::atomic<std::uint64_t> messages;  // calls that moved something
    void count(std::uint64_t size) noexcept {
      bytes.fetch_add(size, std::memory_order_relaxed);
      messages.fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::atomic<std::uint64_t> connections;  // seen, or sockets of UDP
  std::atomic<std::uint64_t> accelerated;
  std::array<std::atomic<std::uint64_t>, kReasons> reasons;
  // Sent and received together.
  Way ring;
  Way kernel;
  std::atomic<std::uint64_t> dropped;  // datagrams
};

inline void count(Counters* counters, Reason reason) noexcept {
  if (counters != nullptr)
    counters->reasons[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

// The whole file. Slots are taken in order and never given back.
struct StatsPage {
  static constexpr std::uint64_t kMagic = 0x3353544154534346;  // "FCSTATS3"
  static constexpr std::size_t kSlots = 512;
  struct Slot {
    enum : std::uint32_t { kFree = 0, kBeingMade = 1, kUsed = 2 };
    std::atomic<std::uint32_t> state;
    Protocol protocol;
    Endpoint endpoint;  // or, of a unix socket:
    UnixName name;
    Counters counters;
  };
  std::uint64_t magic;
  std::atomic<std::uint64_t> overflow;  // endpoints that found no slot
  std::array<Slot, kSlots> slots;
};

inline constexpr const char* kStatsVariable = "FARCALL_STATS";

// The text for the table of reasons.
const char* to_string(Reason reason) noexcept;

// Whether anybody wants to know; what a data call asks before it counts.
[[nodiscard]] bool stats_wanted() noexcept;

// Where to count for `server`; null if nobody wants to know, or there are too many endpoints.
Counters* counters_for(Protocol protocol, const Endpoint& server) noexcept;
Counters* counters_for(const UnixName& server) noexcept;

}  // namespace farcall::preload
