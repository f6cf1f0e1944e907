// SPDX-License-Identifier: Apache-2.0
//
// Starts the two processes of a slot, watches over them and leaves none behind.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "compare/children.hpp"
#include "compare/slot.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {

// SIGINT, SIGTERM or SIGHUP came; the processes of the slot are gone.
struct Interrupted {
  int signal;
};

// There is one; it handles the signals of this process as long as it lives.
class Supervisor {
 public:
  // `patience_ns`: how much longer a slot may take than planned before it counts as hanging.
  // Two that spin take a time slice for each step where others keep the processors busy.
  explicit Supervisor(std::size_t most_samples, std::int64_t patience_ns = 60'000'000'000);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();

  // Runs a slot to its end; results are on the board then. Returns what went wrong, empty if
  // nothing did. Throws Interrupted; SystemError where processes cannot be made.
  std::string run(const SlotPlan& plan);
  // Runs a slot with one side traced. Returns that side's system calls per round trip, or
  // std::nullopt and the reason in `why` if they could not be counted.
  std::optional<double> trace(const SlotPlan& plan, std::string& why);

  [[nodiscard]] const Board& board() const noexcept { return *board_; }
  [[nodiscard]] std::span<const float> samples() const noexcept {
    return samples_.first(board_->samples);
  }

 private:
  pid_t start(const SlotPlan& plan);
  [[nodiscard]] std::string what_failed() const;
  // Kills what is left of the slot, by descriptors that may be none, and waits for it: not for
  // ever, as something that has become our child may not end.
  void reap(const UniqueFd& client, const UniqueFd& server) noexcept;

  // As files, for a side that executes this program anew.
  SharedMemory board_file_;
  SharedMemory sample_file_;
  Mapping board_memory_;
  Mapping sample_memory_;
  Board* board_;
  std::span<float> samples_;
  std::int64_t patience_ns_;
  OtherChildren others_;
};

// Counts the system calls of a process and its threads between its marks, per call between them;
// returns when the processes of the slot have ended, which are all children but `others`. Called
// while the client waits on the board for that. Throws SystemError where tracing is not permitted;
// Interrupted; std::runtime_error at the deadline or when a process died.
double count_system_calls(pid_t process, Board& board, std::int64_t deadline,
                          const OtherChildren& others);

// Set by the signal handler; 0 if none came.
int interrupting_signal() noexcept;

}  // namespace farcall::compare
