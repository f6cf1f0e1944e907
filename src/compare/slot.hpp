// SPDX-License-Identifier: Apache-2.0
//
// A slot: one row, at one size, in one placement, measured for a fraction of a second in two new
// processes. The rounds of a comparison are made of slots.
//
//   phase      client                                   server
//   open       make, fork, open                         open
//   warm-up    calls for a while                        serves
//   rtt        timed calls, one sample each             serves
//   wake-up    sleeps, one timed call, again            serves
//   fill       sends until it is told that it is full   reads nothing till nothing more fits
//   stream     sends for a while, awaits one reply      reads, replies to the last message
//   (trace)    instead of all after the warm-up: calls while the tool counts one side's system
//              calls
//
// Each phase but the first ends with the message that says so (see payload.hpp).
//
// A broadcast has one writer and a process for each reader. Each reader acknowledges through a ring
// of its own, whatever the row, so that rows differ in how the message gets there:
//
//   phase      client: the writer                       each server: a reader
//   open       make, fork, open, await all              open, acknowledge
//   warm-up    rounds for a while                       reads, acknowledges
//   rounds     timed: sends, awaits all                 reads, acknowledges
//   stream     sends for a while, awaits all            reads, acknowledges the last message
//
// With many clients this process is none of them, but starts them and the servers, and watches:
//
//   phase      the slot's process                       each client          each server
//   open       make, fork, await all                    open                 open
//   (idle)     looks at what idle connections cost      waits                serves
//   warm-up    says when measuring begins               calls for a while    serves
//   calls      looks at what the servers use            timed calls          serves
//   end        awaits the clients, then the servers     the last call        ends with the last
//
// Where a peer dies, none of this takes much:
//
//   phase      client                                   server
//   open       make, fork, open                         open
//   warm-up    some calls                               serves
//   idle       looks at what both use                   waits
//   death      one call                                 is killed with the request in its hands
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "compare/placement.hpp"
#include "compare/row.hpp"

namespace farcall::compare {

// How much is measured. A phase ends when its time or its number of samples is reached.
struct Effort {
  unsigned rounds;
  std::int64_t warmup_ns;
  std::int64_t rtt_ns;
  std::size_t rtt_samples;  // the most per slot
  std::int64_t stream_ns;
  unsigned wakeups;  // per slot
  std::int64_t trace_ns;
  std::size_t trace_calls;

  static Effort full() noexcept;
  static Effort quick() noexcept;
  // `ns` of measuring per slot, for tests.
  static Effort tiny(std::int64_t ns) noexcept;
  // With many clients, whose calls are all sampled where the memory for that lasts.
  static Effort scaling(bool quick) noexcept;
  // What a slot takes, roughly.
  [[nodiscard]] std::int64_t slot_ns(const RowInfo& row,
                                     const Conditions& conditions) const noexcept;
  [[nodiscard]] std::int64_t trace_slot_ns(std::size_t message_bytes) const noexcept;
};

inline constexpr std::int64_t kIdlePause = 20'000'000;
// A phase that is out of time still takes so many samples: a median needs some.
inline constexpr std::size_t kLeastSamples = 3;
// A row that has taken so long in all, because its messages are slow, has no further rounds.
inline constexpr std::int64_t kMostPerRow = 5'000'000'000;

struct SlotPlan {
  const Row* row;
  Conditions conditions;
  std::optional<int> processor[2];  // by role
  Effort effort;
  std::uint64_t key;  // of the payload
  bool measure_depth;
  std::uint64_t depth;        // if it has been measured before
  std::optional<Role> trace;  // count this side's system calls, measure nothing
  bool dead_peer = false;  // look at what becomes of a client whose server dies, and nothing else
};

// Who has been told nothing of its server's death for so long waits for ever.
inline constexpr std::int64_t kLongestWait = 5'000'000'000;

// What one process used between two moments.
struct Usage {
  std::int64_t cpu_ns = 0;
  std::int64_t switches = 0;  // of context, voluntary or not

  static Usage now() noexcept;
  Usage& operator+=(const Usage& other) noexcept;
  Usage operator-(const Usage& other) const noexcept;
};

// Lies in memory that the tool, the client and the server share; zeroed before each slot. The
// tool reads the results when both processes have ended; only the atomics are read earlier.
struct Board {
  static constexpr std::size_t kErrorBytes = 400;

  std::atomic<pid_t> server_pid;
  std::atomic<bool> failing[2];  // by role: the first of several readers tells
  std::atomic<bool> failed[2];   // error[role] is complete then
  char error[2][kErrorBytes];
  std::atomic<bool> client_done;  // the server may close
  std::atomic<bool> server_done;

  std::atomic<std::uint64_t> last_short;  // see payload.hpp

  std::array<pid_t, kMostHelpers> helpers;  // 0: none

  std::int64_t make_ns;
  std::int64_t open_ns[2];
  bool fragmented;

  std::size_t samples;    // in the memory for samples
  std::int64_t rtt_ns;    // the whole phase
  std::size_t rtt_calls;  // with the one that ends it
  Usage rtt[2];

  static constexpr std::size_t kMostWakeups = 16;
  std::size_t wakeups;
  float wakeup_ns[kMostWakeups];

  std::atomic<std::uint64_t> filled;  // messages sent while the server reads nothing
  std::atomic<bool> full;
  std::uint64_t depth;

  std::uint64_t streamed;  // messages
  std::int64_t stream_begin;
  std::int64_t stream_end;  // at the server's last read
  Usage stream[2];

  // Of a broadcast: what each reader has seen of the stream, and used.
  struct Reader {
    std::uint64_t received;
    std::uint64_t missed;
    std::int64_t end;  // when it had the last message
    Usage rounds;
    Usage stream;
    std::atomic<bool> done;  // it has the last message, which may have to be sent again
  };
  std::array<Reader, kMostReaders> readers;

  // With many clients: what each has seen.
  struct Client {
    std::uint64_t calls;
    std::size_t samples;  // at the client's part of the memory for samples
    std::int64_t ns;      // from the common start until its last call has ended
    Usage used;
  };
  std::array<Client, kMostClients> clients;
  std::atomic<unsigned> opened;     // processes that can begin
  std::atomic<std::int64_t> begin;  // the common start; 0: not known yet
  // What many idle connections cost, by role: the server, and the process that holds the others.
  struct Idle {
    std::int64_t ns;  // how long nobody called
    std::int64_t cpu_ns[2];
    std::int64_t bytes[2];  // more than without them
    std::int64_t descriptors[2];
  };
  Idle idle;

  // Of a client whose server is killed. It waits for ever unless it says something else.
  struct Loss {
    enum Fate : int { waits, told, returned };
    std::int64_t idle_ns;
    std::int64_t cpu_ns[2];          // meanwhile, by role
    std::atomic<std::int64_t> died;  // when
    std::int64_t ns;                 // from then until the call has ended
    char error[kErrorBytes];
    std::atomic<Fate> fate;  // the rest is complete then
  };
  Loss loss;

  std::atomic<bool> ready_to_trace;
  std::atomic<bool> traced;
  std::atomic<bool> count_calls;  // warmed up
  std::uint64_t traced_calls;     // between the marks; written before the second

  void fail(Role role, std::string_view message) noexcept;
};

// The system calls by which a traced side tells its tracer where it is: prctl with an option that
// no kernel has. It marks the same point of two cycles of call and answer, so that what lies
// between belongs to whole cycles.
enum class TraceMark : int { begin = 0x46430001, end = 0x46430002 };

// The bodies of the two processes; they return the exit code. The client forks the server.
int client_main(const SlotPlan& plan, Board& board, std::span<float> samples) noexcept;

}  // namespace farcall::compare
