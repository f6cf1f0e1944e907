// SPDX-License-Identifier: Apache-2.0
//
// What a process tells of its own traffic, and how somebody who may look reads it. The contract:
//
// - Each process that uses farcall has tables of its own, in private memory. Nobody is asked,
//   nothing has a name on disk, and nothing is left when it ends. Each copy of the library in a
//   process has tables of its own, and a table has 255 entries, so a process may have several.
// - In /proc/PID/maps a table is anonymous memory without access, followed without a gap by
//   anonymous memory of 64 KiB and by more of 192 KiB, both rw-p (they differ in what a child gets,
//   so the kernel never joins them), where the first begins with Header::kMagic. (Names of
//   anonymous memory are not in every kernel, and a memory file takes a descriptor.)
// - Who looks reads with process_vm_readv(2). So only those see a process who may trace it, and
//   neither is anybody stopped nor woken. Nothing that is read may be believed: the layout can be
//   scribbled over by the process. What it says, it says of itself alone.
// - An entry is one end: of a connection, a ring, a call session. Its identity changes seldom and
//   has a generation, odd while it changes. Its counters are written by one thread at a time, with
//   plain stores in lines that are nobody else's; those of the kernel by fetch_add.
// - What costs a clock is done only while somebody looks: `watch` and `tap` are written by the
//   watcher with process_vm_writev(2), last until a moment on CLOCK_MONOTONIC that they hold
//   themselves, and are cleared by the owner afterwards. A watcher that dies leaves nothing.
// - A forked child inherits identities, but not counters, which the kernel clears
//   (MADV_WIPEONFORK). `Process::pid`, which is cleared too, tells whose the table is: 0 means that
//   the child has opened nothing of its own. An identity whose `owner` is another process is of
//   interest only where its counters have moved: the child goes on with what it was given.
//
//   +-------------+  -64 KiB   no access, at least so much
//   +-------------+  0         Header, then 255 times Identity    256 bytes each
//   |  identities |
//   +-------------+  64 KiB    Process, then 255 times Counters   256 bytes each, wiped by fork
//   |  counters   |
//   +-------------+  128 KiB   Ended, then 255 times Times        512 bytes each, wiped by fork
//   |  times      |
//   +-------------+  256 KiB   no access, at least 64 KiB
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

// Probes (USDT) of provider "farcall", where farcall itself is built with <sys/sdt.h>: an
// instruction that does nothing, and a note of where it is. Each has the address of the entry's
// half, or of the entry, by which a tracer tells ends apart, and numbers.
#ifdef FARCALL_HAVE_SDT
#include <sys/sdt.h>
#define FARCALL_PROBE1(name, a) DTRACE_PROBE1(farcall, name, a)
#define FARCALL_PROBE2(name, a, b) DTRACE_PROBE2(farcall, name, a, b)
#define FARCALL_PROBE3(name, a, b, c) DTRACE_PROBE3(farcall, name, a, b, c)
#else
#define FARCALL_PROBE1(name, a) static_cast<void>(0)
#define FARCALL_PROBE2(name, a, b) static_cast<void>(0)
#define FARCALL_PROBE3(name, a, b, c) static_cast<void>(0)
#endif

namespace farcall::observe {

enum class Kind : std::uint8_t {
  none,
  tcp,
  udp,
  unix_stream,
  unix_packets,
  ring,
  call,
  door,
  channel,
  broadcast,
  count_
};
enum class Role : std::uint8_t { none, client, server, writer, reader, count_ };
// What carries the bytes. `trying`: the two ends have not agreed yet. `kernel`: they will not, and
// `reason` says why (of sockets preload's Reason plus one, or kLeftByPeer; 0: not known).
enum class Carrier : std::uint8_t { none, trying, memory, kernel, count_ };
// The other end has given the connection back to the kernel, and says why.
inline constexpr std::uint8_t kLeftByPeer = 255;

struct Address {
  std::array<std::uint8_t, 16> bytes;  // IPv4 as ::ffff:a.b.c.d
  std::uint16_t port;                  // of this host's byte order
  std::uint16_t known;                 // 0: there is none
};

inline constexpr std::size_t kLongestName = 160;

struct alignas(256) Identity {
  std::uint32_t generation;  // odd while the rest changes
  std::uint8_t kind;         // Kind; none: the entry is free
  std::uint8_t role;
  std::uint8_t carrier;
  std::uint8_t reason;
  std::int32_t owner;     // the process that opened it, as it numbers itself
  std::int32_t peer;      // the process at the other end, as the owner numbers it; 0: not known
  std::uint64_t session;  // the inode of the memory that both ends map (see maps); 0: not known
  std::int64_t opened;    // CLOCK_MONOTONIC, ns
  std::int32_t fd;        // -1: none, or more than one
  std::uint32_t name_bytes;
  Address local;
  Address remote;
  std::uint64_t spare;
  std::array<char, kLongestName> name;  // path or name; not terminated. '\0' first: abstract
};
static_assert(sizeof(Identity) == 256);

// One direction, as this end sees it. The first line is the hot one.
struct alignas(128) Half {
  std::uint64_t watch;  // ends at; the low 4 bits: one of 2^n messages is timed. Sending half only
  std::uint64_t tap;    // ends at: bytes are captured
  std::uint64_t started;  // receiving half: when the message went whose answer is timed
  std::uint64_t messages;
  std::uint64_t bytes;
  std::uint64_t kernel_messages;
  std::uint64_t kernel_bytes;
  std::uint64_t dropped;  // datagrams, and broadcasts that a slow reader missed

  std::uint64_t sleeps;
  std::uint64_t slept_ns;
  std::uint64_t spun_ns;        // looking, beyond the first moment
  std::uint64_t wakes;          // of a peer that slept
  std::uint64_t waiting_since;  // asleep now: since when, ns; 0: not
  std::array<std::uint64_t, 3> spare;
};
static_assert(sizeof(Half) == 128);

struct alignas(256) Counters {
  Half sent;
  Half received;
};
static_assert(sizeof(Counters) == 256);

// How long answers took, in classes: four for each power of two, beginning with 64 ns.
struct alignas(512) Times {
  static constexpr std::size_t kClasses = 112;
  std::array<std::uint32_t, kClasses> classes;
  std::uint64_t count;
  std::uint64_t sum_ns;
  std::array<std::uint64_t, 6> spare;
};
static_assert(sizeof(Times) == 512);

// What has passed at the ends of a table that are closed now. In place of the first Times; written
// as they close, by any thread.
struct alignas(512) Ended {
  struct Way {
    std::uint64_t messages;
    std::uint64_t bytes;
  };
  struct Ways {
    Way sent;
    Way received;
  };
  static constexpr std::size_t kKinds = static_cast<std::size_t>(Kind::count_) - 1;
  static constexpr std::size_t kSockets = static_cast<std::size_t>(Kind::unix_packets);
  std::array<Ways, kKinds> passed;    // of each kind, without `none`
  std::array<Ways, kSockets> kernel;  // the same through the kernel: of tcp to unix_packets
  std::array<std::uint64_t, kKinds> ends;
  std::array<std::uint64_t, 3> spare;
};
static_assert(sizeof(Ended) == sizeof(Times));

// The class of a time, and the least time of a class.
constexpr std::size_t class_of(std::uint64_t ns) noexcept;
constexpr std::uint64_t least_of(std::size_t index) noexcept;

struct alignas(256) Header {
  static constexpr std::uint64_t kMagic = 0x3153424f'4c4c4143;  // "CALLOBS1"
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t identity_bytes;
  std::uint32_t counters_bytes;
  std::uint32_t times_bytes;
  std::uint32_t entries;
  std::uint32_t spare;
  std::array<std::uint64_t, 4> used;  // a bit for each entry that is open; for this process's eyes
  std::uint64_t tap_until;            // what children begin with, see Process
};
static_assert(sizeof(Header) == sizeof(Identity));

struct alignas(256) Process {
  std::int32_t pid;  // whose counters these are, as it numbers itself
  std::uint32_t spare;
  std::uint64_t not_listed;  // entries for which there was no room
  std::uint64_t tap_until;   // new entries are captured until then; see tap.hpp
  std::uint64_t tap_ring;    // the address of a TapRing; 0: not made yet. In the first table
};
static_assert(sizeof(Process) == sizeof(Counters));

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kEntries = 256;  // of which the first is the header
inline constexpr std::size_t kGuard = 65'536;

struct Table {
  std::array<Identity, kEntries> identities;
  std::array<Counters, kEntries> counters;
  std::array<Times, kEntries> times;
};
static_assert(offsetof(Table, counters) == 65'536 && offsetof(Table, times) == 131'072 &&
              sizeof(Table) == 262'144);

constexpr std::size_t class_of(std::uint64_t ns) noexcept {
  if (ns < 64) return 0;
  const auto power = static_cast<std::size_t>(63 - __builtin_clzll(ns));
  const std::size_t index = (power - 6) * 4 + ((ns >> (power - 2)) & 3);
  return index < Times::kClasses ? index : Times::kClasses - 1;
}
constexpr std::uint64_t least_of(std::size_t index) noexcept {
  return std::uint64_t{4 + index % 4} << (index / 4 + 4);
}

// --- for the owner of an end

namespace detail {
inline std::uint64_t get(const std::uint64_t& word) noexcept {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}
inline void set(std::uint64_t& word, std::uint64_t value) noexcept {
  __atomic_store_n(&word, value, __ATOMIC_RELAXED);
}
// By one thread at a time; no locked instruction.
inline std::uint64_t add(std::uint64_t& word, std::uint64_t more) noexcept {
  const std::uint64_t now = get(word) + more;
  set(word, now);
  return now;
}
inline void add_shared(std::uint64_t& word, std::uint64_t more) noexcept {
  __atomic_fetch_add(&word, more, __ATOMIC_RELAXED);
}
inline constexpr std::uint64_t kSampleBits = 15;

// Somebody looks: the rest of what happens to a message. Cold, and safe in signal handlers.
[[gnu::cold]] void sent_watched(Half& half, const void* data, std::size_t size) noexcept;
[[gnu::cold]] void received_watched(Half& half, const void* data, std::size_t size) noexcept;
}  // namespace detail

// A message of `size` bytes has passed, which stand at `data` for this moment (null: they do not).
// By whoever sends, or receives, at this end, one thread at a time. A null half: not observed. With
// count 0 it is a part of a message of which more follows. Of streams a message is what one call
// moves.
inline void note_sent(Half* half, const void* data, std::size_t size,
                      std::uint64_t count = 1) noexcept {
  FARCALL_PROBE3(send, half, size, 0);
  if (half == nullptr) return;
  const std::uint64_t messages = detail::add(half->messages, count);
  detail::add(half->bytes, size);
  const std::uint64_t watch = detail::get(half->watch);
  const std::uint64_t tap = detail::get(half->tap);
  if ((watch | tap) == 0) [[likely]]
    return;
  const std::uint64_t others = (std::uint64_t{1} << (watch & detail::kSampleBits)) - 1;
  if (tap != 0 || (messages & others) == 0) detail::sent_watched(*half, data, size);
}
inline void note_received(Half* half, const void* data, std::size_t size,
                          std::uint64_t count = 1) noexcept {
  FARCALL_PROBE3(receive, half, size, 0);
  if (half == nullptr) return;
  detail::add(half->messages, count);
  detail::add(half->bytes, size);
  if ((detail::get(half->started) | detail::get(half->tap)) != 0) [[unlikely]]
    detail::received_watched(*half, data, size);
}
// Of a sender: it has been taken back, nobody has had it; of a receiver: what was sent last gets no
// answer.
inline void note_taken_back(Half* half, std::size_t size) noexcept {
  if (half == nullptr) return;
  detail::add(half->messages, ~std::uint64_t{0});
  detail::add(half->bytes, ~std::uint64_t{0} - size + 1);
}
inline void expect_no_answer(Half* half) noexcept {
  if (half != nullptr) detail::set(half->started, 0);
}
// The same through the kernel; by several threads at once, unless they take turns.
enum class Threads : std::uint8_t { at_once, in_turns };
void note_sent_by_kernel(Half* half, const void* data, std::size_t size,
                         Threads threads = Threads::at_once) noexcept;
void note_received_by_kernel(Half* half, const void* data, std::size_t size,
                             Threads threads = Threads::at_once) noexcept;

// What is known of waits, since it was measured anyway.
inline void note_spun(Half* half, std::int64_t ns) noexcept {
  if (half != nullptr) detail::add(half->spun_ns, static_cast<std::uint64_t>(ns));
}
inline void note_sleep(Half* half, std::int64_t now) noexcept {
  FARCALL_PROBE1(sleep, half);
  if (half != nullptr) detail::set(half->waiting_since, static_cast<std::uint64_t>(now));
}
inline void note_awake(Half* half, std::int64_t ns) noexcept {
  FARCALL_PROBE2(awake, half, ns);
  if (half == nullptr) return;
  detail::set(half->waiting_since, 0);
  detail::add(half->sleeps, 1);
  detail::add(half->slept_ns, static_cast<std::uint64_t>(ns));
}
// Whoever sleeps there tells no more when it awakes.
inline void forget_sleep(Half& half) noexcept { detail::set(half.waiting_since, 0); }
inline void note_wake(Half* half) noexcept {
  FARCALL_PROBE1(wake, half);
  if (half != nullptr) detail::add(half->wakes, 1);
}

// Of who calls: the request has gone, the reply has come.
inline void note_call(Half* half, const void* data, std::size_t size) noexcept {
  FARCALL_PROBE2(call, half, size);
  note_sent(half, data, size);
}
inline void note_reply(Half* half, const void* data, std::size_t size) noexcept {
  FARCALL_PROBE2(reply, half, size);
  note_received(half, data, size);
}

// What is to be said of a new end.
struct Description {
  Kind kind = Kind::none;
  Role role = Role::none;
  Carrier carrier = Carrier::memory;
  std::int32_t peer = 0;
  std::int32_t fd = -1;
  std::uint64_t session = 0;
  const char* name = nullptr;
  std::size_t name_bytes = 0;
  Address local{};
  Address remote{};
};

// What ends of calls are called by who looks at them.
class Label {
 public:
  Label() noexcept = default;
  // A longer name is cut.
  explicit Label(Kind kind, std::string_view name = {}) noexcept
      : kind_(kind), size_(std::min(name.size(), kLongestName)) {
    std::copy_n(name.data(), size_, name_.data());
  }
  [[nodiscard]] Description description(Role role) const noexcept {
    Description end{.kind = kind_, .role = role};
    end.name = name_.data();
    end.name_bytes = size_;
    return end;
  }

 private:
  Kind kind_ = Kind::call;
  std::size_t size_ = 0;
  std::array<char, kLongestName> name_{};
};

// Opens an entry, closes it. Neither allocates by malloc, throws, takes a lock, or changes errno;
// both are safe in signal handlers. Null: there is no room, or the kernel gives no memory.
Counters* open(const Description& description) noexcept;
void close(Counters* counters) noexcept;
// Whose identity changes: what carries the bytes, why, and who is at the other end. Null is borne.
void set_carrier(Counters* counters, Carrier carrier, std::uint8_t reason = 0) noexcept;
void set_session(Counters* counters, std::uint64_t session, std::int32_t peer) noexcept;
Carrier carrier_of(Counters& counters) noexcept;
// Makes the first table, so that this process can be looked at before it has any ends.
void prepare() noexcept;
// The inode of a descriptor's file, for `session`; 0: it has none.
std::uint64_t inode_of(int fd) noexcept;

// Where the rest of an entry is.
inline Counters* counters_of(Half* half) noexcept {
  return reinterpret_cast<Counters*>(reinterpret_cast<std::uintptr_t>(half) &
                                     ~std::uintptr_t{sizeof(Counters) - 1});
}
inline bool is_sent(const Half* half) noexcept {
  return (reinterpret_cast<std::uintptr_t>(half) & sizeof(Half)) == 0;
}
Identity& identity_of(Counters& counters) noexcept;
Times& times_of(Counters& counters) noexcept;

// An entry, with its owner.
class Entry {
 public:
  Entry() noexcept = default;
  explicit Entry(const Description& description) noexcept : counters_(open(description)) {}
  Entry(Entry&& other) noexcept : counters_(std::exchange(other.counters_, nullptr)) {}
  Entry& operator=(Entry&& other) noexcept {
    if (this != &other) {
      close(counters_);
      counters_ = std::exchange(other.counters_, nullptr);
    }
    return *this;
  }
  ~Entry() { close(counters_); }

  [[nodiscard]] Counters* get() const noexcept { return counters_; }
  [[nodiscard]] Half* sent() const noexcept {
    return counters_ == nullptr ? nullptr : &counters_->sent;
  }
  [[nodiscard]] Half* received() const noexcept {
    return counters_ == nullptr ? nullptr : &counters_->received;
  }

 private:
  Counters* counters_ = nullptr;
};

}  // namespace farcall::observe
