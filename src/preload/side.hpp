// SPDX-License-Identifier: Apache-2.0
//
// This program's side of a connection, over TCP or a unix socket, and which descriptors refer to
// it.
//
// Sides stand in memory that forked children share, since parent and child may both go on with a
// connection. The peer never sees them. Which numbers refer to a side, and where its memory is
// mapped, is private to each process. A child may be less trusted than its parent, so numbers in
// shared memory are checked before they are used, and there are no pointers.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "farcall/observe.hpp"
#include "preload/lock.hpp"
#include "preload/stats.hpp"
#include "preload/stream.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {

enum class Kind : std::uint8_t { tcp, unix_stream, unix_packets };
inline constexpr bool is_unix(Kind kind) noexcept { return kind != Kind::tcp; }

// Whoever takes both locks takes the receiving half's first.
struct Side {
  // --- the sending half, under its lock
  alignas(kFalseSharing) Lock send_lock;
  std::uint32_t sends_unchecked;   // since the kernel was asked whether the peer lives
  std::uint64_t checked_at;        // ticks
  std::int64_t peer_leaves_since;  // nanoseconds; as who must not wait has found; 0: it does not
  Sender sender;
  std::uint64_t reclaimed_to;  // in the kernel's stream: the end of what was taken back at last
  std::atomic<std::uint64_t> bytes_sent;  // by the program, whatever the way

  // --- the receiving half, under its lock
  alignas(kFalseSharing) Lock receive_lock;
  std::uint32_t empty_calls;
  std::uint64_t looked_at;                    // ticks
  std::uint64_t looked_for_reset_at;          // ticks; of packets, with messages in the ring
  std::atomic<std::uint64_t> bytes_received;  // by the program
  Receiver receiver;
  Patience patience;
  std::atomic<bool>
      reset_told;  // ECONNRESET for a peer that died with bytes of ours unread; or not to be told
  // How this side waits, see between_calls.hpp.
  bool waited;                   // in a receive call
  std::uint32_t reclaims_seen;   // what the peer took back, when that was last looked at
  std::uint32_t probation;       // calls for which the direction is watched on that account
  std::uint32_t last_probation;  // how long the one before was
  std::uint32_t quick_calls;     // that have been served unwatched since
  std::uint32_t direct_calls;    // that were left to the kernel, see receive_kernel.hpp
  std::uint32_t waits_in_vain;   // for bytes on their way through the kernel
  std::uint32_t busy_calls;      // for which the program is taken to wait by looking
  std::uint32_t looks_in_vain;   // since something came
  std::uint32_t looks_again;     // soon after one in vain
  std::uint64_t looked_in_vain;  // ticks
  bool out_of_set;               // it has been taken out of an epoll set
  std::uint8_t put_back;         // how often it was put into one again after that

  // --- the rest
  enum Stage : std::uint32_t { kCandidate, kListening, kJoined, kNever };
  alignas(kFalseSharing) std::atomic<std::uint32_t> stage;
  std::atomic<std::uint32_t> generation;  // odd while in use
  std::atomic<std::int32_t> processes;    // that hold it
  std::atomic<std::uint32_t> calls;       // while it is a candidate
  std::atomic<std::uint32_t> next_try;    // at that many calls
  std::atomic<bool> advancing;            // somebody takes the next step to acceleration
  std::atomic<bool> nonblocking;          // O_NONBLOCK, once accelerated
  std::atomic<bool> finished;             // shut down for sending; written under the send lock
  std::atomic<bool> nodelay;              // what the program wants of TCP_NODELAY, once accelerated
  std::atomic<bool> corked;               // TCP_CORK: the kernel holds back what is sent
  std::atomic<bool> broken_told;          // that the peer breaks the protocol
  // What the kernel has said, once, to a call that returned bytes or was the library's own: the
  // next call of the program tells it.
  std::atomic<int> error_kept;
  std::atomic<bool> stay_watched;    // waited for in ways that only the kernel serves
  std::atomic<bool> polled;          // waited for with poll or select
  std::atomic<pid_t> registered_by;  // in an epoll set; 0: nobody, kSeveral: more than one process
  std::atomic<std::uint32_t> room;   // SO_SNDBUF, once accelerated; of packets
  Kind kind;
  bool connector;
  bool other_holders_unknown;  // handed back: others may hold it that the library does not see
  // While it is kListening; private to the process that began to listen.
  int listener;
  int guest;                     // who has come, but has not left anything yet
  std::uint32_t listener_place;  // among those that listen
  pid_t listener_owner;
  pid_t peer_pid;                     // who agreed to share memory; 0 if that is not known
  std::atomic<std::int64_t> left_at;  // when a process last ended with it

  static constexpr pid_t kSeveral = -1;

  // What lies in the rings, and what the kernel counts, are messages: packet.hpp.
  [[nodiscard]] bool has_messages() const noexcept { return kind == Kind::unix_packets; }
  [[nodiscard]] bool accelerated() const noexcept {
    return stage.load(std::memory_order_relaxed) == kJoined;
  }

  // What belongs to each process alone, and is copied by fork(): a child that has given up its
  // privileges may write whatever it likes into the rest.
  struct Own {
    Ring out;  // without a control: not accelerated (yet)
    Ring in;
    std::byte* mapping = nullptr;
    std::size_t mapped = 0;
    Counters* counters = nullptr;
    observe::Counters* observed = nullptr;  // what is counted for who looks
    std::uint64_t cookie = 0;               // of the socket, once accelerated
    bool resets_at_end = false;             // for bytes that this process has not read
    linger linger_before = {};
  };
  [[nodiscard]] Own& own() const noexcept;
  [[nodiscard]] const Ring& out() const noexcept { return own().out; }
  [[nodiscard]] const Ring& in() const noexcept { return own().in; }
};
static_assert(sizeof(Side::Own) <= sizeof(Side));

inline constexpr int kMostDescriptors = 1 << 20;
inline constexpr std::uint32_t kMostSides = 1 << 16;

// Each side's own part stands as far behind it in private memory as all sides are long.
inline Side::Own& Side::own() const noexcept {
  const auto here = reinterpret_cast<std::uintptr_t>(this);
  return *reinterpret_cast<Own*>(here + sizeof(Side) * kMostSides);
}

namespace detail {
extern std::array<std::atomic<Side*>, kMostDescriptors> table;
extern std::array<std::atomic<std::uint64_t>, kMostDescriptors / 64> private_descriptors;
}  // namespace detail

// The side that a descriptor refers to, or null. Costs a comparison and a load.
inline Side* find_side(int fd) noexcept {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMostDescriptors)) return nullptr;
  // acquire: pairs with the release in adopt(): what stands in the side
  return detail::table[static_cast<std::size_t>(fd)].load(std::memory_order_acquire);
}

// Whether others compete for the processor of either end, as far as it is known there: each tells
// the other, which would otherwise have to lose as much itself.
inline bool others_compete(const Side& side) noexcept {
  const Direction* const in = side.in().control;
  Direction* const out = side.out().control;
  if (in == nullptr || out == nullptr) return false;
  if (others_compete(this_processor())) {
    const std::uint64_t until = somewhere.until();
    if (out->sender_competes_until.load(std::memory_order_relaxed) != until)
      out->sender_competes_until.store(until, std::memory_order_relaxed);
    return true;
  }
  const std::uint64_t until = in->sender_competes_until.load(std::memory_order_relaxed);
  return until != 0 && Competition::lasts(until, now_ticks());
}

// A new side, that nothing refers to; null if there is no room.
Side* make_side(Kind kind, bool connector) noexcept;
// From now on `fd` refers to `side`; whatever it referred to before is forgotten.
void adopt(int fd, Side& side) noexcept;

// `fd` no longer refers to its side, and is about to be closed. If nobody else holds the side the
// caller says so to the peer, where the socket itself is closed too, closes fd and calls release().
struct Released {
  Side* side = nullptr;  // to be freed
};
Released forget(int fd) noexcept;
void say_closed(Released released, int fd) noexcept;
// In a child of another PID namespace: all that it has inherited, without their locks, which say
// by a number of this process's namespace who holds them. They are the kernel's by then.
void forget_inherited() noexcept;
// Those that come stand in memory that others share no longer who have shared it so far; not where
// any is left that has come. No other thread may be there.
void separate_sides() noexcept;
// Whether this process shares that memory with its parent, or a child.
bool shares_sides() noexcept;
// Whether the connection ends here, or goes on without the library.
enum class Ending : bool { closed, goes_on };
void release(Released released, Ending ending = Ending::closed) noexcept;

// This process will hold its sides no longer: it ends, executes another program, which closes
// those that the program has not handed back, or goes on without the library. Once only, until
// stay_in_process(): the execution has failed. False: it had left before, or is a child of
// vfork(2).
enum class Leaving : std::uint8_t { ends, executes, goes_on };
bool leave_process(Leaving how) noexcept;
void stay_in_process() noexcept;

// Closes what the side waits for its peer with.
void stop_listening(Side& side) noexcept;

// Its place among all sides; and back, null if there is none.
std::uint32_t index_of(const Side& side) noexcept;
Side* side_at(std::uint32_t index) noexcept;

// How many descriptors of this process refer to it.
unsigned local_references(const Side& side) noexcept;

int highest_descriptor() noexcept;

// One more, or one less, accelerated connection; false if there are as many as allowed.
bool count_accelerated() noexcept;
void uncount_accelerated() noexcept;

// False in a child of vfork or of a bare clone: it runs on its parent's memory, or on a copy that
// nobody prepared, and must not touch the table.
bool in_own_process() noexcept;
pid_t own_pid() noexcept;

// Descriptors of the library itself, put where programs do not see them.
int make_private(int fd) noexcept;
// RLIMIT_NOFILE.
std::uint64_t ask_descriptor_limit() noexcept;
bool is_private(int fd) noexcept;
int highest_private_descriptor() noexcept;
void close_private(int fd) noexcept;
void forget_private(int fd) noexcept;

// Held while the table changes and while the process forks.
Lock& life_lock() noexcept;

void note_reason(Side& side, Reason reason) noexcept;

}  // namespace farcall::preload
