// SPDX-License-Identifier: Apache-2.0
//
// Who talks to whom: ends of processes put together to flows, and what has passed since the last
// look.
//
// Two ends are a flow where the kernel says that both processes map the same memory, or where both
// are one user's and say that their TCP addresses mirror each other. Flows of the same two
// processes, kind, name and carrier are one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "watch/process.hpp"

namespace farcall::watch {

// One process of a flow. `seen`: its own counters are in the figures.
struct Party {
  pid_t pid = 0;  // 0: not known
  std::string command;
  bool seen = false;
};

// How one party waits.
struct Waits {
  std::uint64_t sleeps = 0;
  std::uint64_t slept_ns = 0;
  std::uint64_t spun_ns = 0;
  std::uint64_t since = 0;  // asleep now: the longest, CLOCK_MONOTONIC; 1: since when is not known
};

struct Figures {
  Passed forward;  // what the left party sends
  Passed back;
  Waits left;
  Waits right;
  std::uint64_t dropped = 0;
  observe::Times times{};  // of answers to the left party
};

struct Flow {
  observe::Kind kind{};
  observe::Carrier carrier{};
  std::uint8_t reason = 0;
  std::string name;  // printable
  Party left;        // client, writer, or who opened it first
  Party right;
  unsigned connections = 0;
  Figures total;  // of the connections that there are now
  Figures since;  // the last look; nothing of what was open then and is seen only now
  Figures grown;  // of all looks at this flow: never less, though connections go, and nothing twice
};

// Time below which so many of a hundred answers have stayed, roughly; 0 where nothing is known.
std::uint64_t percentile(const observe::Times& times, unsigned percent);

// Adds what has been recorded since. A counter that has gone back has recorded nothing.
void add_times(observe::Times& to, const observe::Times& now, const observe::Times& before);

// As the preload library counts them, with none before, and behind them one that is not known.
inline constexpr std::uint8_t kUnknownReason = 16;
// The name of a reason for which a socket stays with the kernel; "" for none.
const char* reason_text(std::uint8_t reason) noexcept;

// Looks again and again. Asks processes to time answers, if that is wanted.
class Flows {
 public:
  struct Options {
    bool timed = true;
    std::int64_t interval_ns = 1'000'000'000;  // about, until the next look
  };
  explicit Flows(const Options& options) : options_(options) {}

  // The first look has `since` the same as `total`.
  void look(const std::vector<Process>& processes);
  [[nodiscard]] const std::vector<Flow>& flows() const noexcept { return flows_; }
  // Between the last two looks; 0 after the first.
  [[nodiscard]] std::int64_t elapsed_ns() const noexcept { return elapsed_ns_; }
  [[nodiscard]] std::int64_t looked_at() const noexcept { return looked_at_; }

 private:
  struct Ref {
    const Process* process = nullptr;
    const End* end = nullptr;
  };
  using Key = std::tuple<pid_t, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t>;
  // What makes connections one flow: no more than is told of it, so that no two look the same.
  using Place =
      std::tuple<observe::Kind, observe::Carrier, std::uint8_t, pid_t, pid_t, std::string>;
  struct Last {
    observe::Counters counters;
    observe::Times times;
  };

  static Key key_of(const Ref& ref);
  void time_answers(const std::vector<Process>& processes);
  void read_all_times(const std::vector<Process>& processes);
  void pair(std::vector<Ref>& lefts, std::vector<Ref>& rights);
  void add(const Ref& left, const Ref& right, const Ref& left_known, const Ref& right_known);
  void add_half(Flow& flow, const Ref& ref, bool is_left, const Ref& other) const;

  const Options options_;
  std::map<Key, Last> last_;
  std::map<Key, Last> now_;
  std::vector<Flow> flows_;
  std::map<Place, std::size_t> places_;
  std::map<Place, Figures> grown_;  // as of the last look
  std::int64_t looked_at_ = 0;
  std::int64_t looked_before_ = 0;
  std::int64_t elapsed_ns_ = 0;
};

}  // namespace farcall::watch
