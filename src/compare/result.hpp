// SPDX-License-Identifier: Apache-2.0
//
// What a comparison has found out, before anybody formats it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/placement.hpp"
#include "compare/row.hpp"
#include "compare/samples.hpp"
#include "compare/slot.hpp"

namespace farcall::compare {

// One row at one size in one placement, over all rounds.
struct Result {
  const Row* row = nullptr;
  Placement placement = Placement::free;
  std::size_t message_bytes = 0;
  unsigned readers = 0;  // of a broadcast: then `rtt` are its rounds, and calls are rounds
  Crowd crowd = {};      // of many clients: then calls are those of all
  std::string error;     // if not empty, the figures below are not to be used

  std::int64_t spent_ns = 0;  // in all its slots
  Samples rtt;
  std::int64_t rtt_ns = 0;
  std::uint64_t rtt_calls = 0;
  Usage rtt_usage;  // of both sides

  // Streaming; messages_per_s of each round. For rows with calls only: calls one after another. Of
  // a broadcast: as the slowest reader has received them.
  std::vector<double> messages_per_s;
  std::uint64_t streamed = 0;
  Usage stream_usage;
  std::optional<std::uint64_t> depth;  // messages that the channel takes unread

  std::vector<double> missed;  // of a broadcast: by whom misses most, of 1
  // Of many clients: what each has called in all rounds, and of each round what the slowest called
  // of the fastest's calls, of 1.
  std::vector<std::uint64_t> calls_of_clients;
  std::vector<double> fairness;
  // Of idle connections, of each round, in the order of roles.
  struct Idle {
    std::vector<double> bytes[2];        // per connection
    std::vector<double> descriptors[2];  // per connection
    std::vector<double> cpu[2];          // seconds per second
  };
  Idle idle = {};
  // Of a client whose server is killed: what has become of it, the worst of all rounds, and in what
  // time if it does not wait for ever; the processor time of both while idle, by role, seconds per
  // second.
  struct Loss {
    Board::Loss::Fate fate = Board::Loss::told;
    std::vector<double> ns;
    std::string text;  // the last error
    std::vector<double> cpu[2];
  };
  Loss loss = {};
  std::vector<double> wakeup_ns;
  std::vector<double> setup_ns;
  std::optional<double> system_calls_per_message;
  std::string system_calls_note;  // why there is no such figure
  bool fragmented = false;

  // Messages in the round trips: two each, except where there is nobody at the other end.
  [[nodiscard]] double rtt_messages() const noexcept {
    return static_cast<double>(rtt_calls) * (row->info().one_process ? 1 : 2);
  }
  [[nodiscard]] double cpu_s_per_million() const noexcept {
    return rtt_calls == 0 ? 0 : static_cast<double>(rtt_usage.cpu_ns) * 1e-3 / rtt_messages();
  }
  [[nodiscard]] double switches_per_message() const noexcept {
    return rtt_calls == 0 ? 0 : static_cast<double>(rtt_usage.switches) / rtt_messages();
  }
  [[nodiscard]] bool is_control() const noexcept { return row->info().engine == "control"; }
};

// A row that exists here, but cannot be measured at a size or in a placement.
struct Skipped {
  std::string mechanism;
  std::string placement;                     // empty: in any
  std::optional<std::size_t> message_bytes;  // none: of any size
  std::string reason;
};

struct Settings {
  std::vector<const Row*> rows;
  std::vector<std::size_t> sizes;
  std::vector<Placement> placements;
  std::vector<unsigned> readers{0};  // of a broadcast, how many; 0: two sides
  std::vector<Crowd> crowds{{}};     // of many clients; without clients: two sides
  Effort effort;
  bool dead_peer = false;
  bool quick = false;
  std::size_t depth_bytes = 0;
  std::uint64_t seed = 1;

  [[nodiscard]] bool is_broadcast() const noexcept { return readers.front() != 0; }
  [[nodiscard]] bool is_scaling() const noexcept { return crowds.front().clients != 0; }
};

struct Comparison {
  Settings settings;
  std::vector<Result> results;
  std::vector<AbsentRow> absent;
  std::vector<Skipped> skipped;
  double seconds = 0;  // how long it took

  // nullptr if it was not measured or failed. Size 0: the row's own.
  [[nodiscard]] const Result* find(std::string_view mechanism, std::string_view wait,
                                   Placement placement, std::size_t message_bytes) const;
  // What the ratios of a placement refer to: the cache line where the sides run at the same time,
  // the futex where they share a processor; nullptr if it was not measured.
  [[nodiscard]] const Result* control(Placement placement) const;
  [[nodiscard]] bool any_failed() const;
};

// Measures. Tells on stderr how far it is. Throws Interrupted, SystemError.
Comparison run_comparison(Settings settings, const Processors& processors,
                          std::vector<AbsentRow> absent);

}  // namespace farcall::compare
