// SPDX-License-Identifier: Apache-2.0
//
// The order of a comparison. Rounds are outermost, so that whatever drifts on the machine (clock
// frequency, neighbours) hits all rows alike; within a round the rows of one placement and size
// follow each other in random order, so that no row always runs behind the same other.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>

#include "compare/progress.hpp"
#include "compare/result.hpp"
#include "compare/supervisor.hpp"
#include "compare/units.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

// One row with one size in one placement. Rows without a size have one result per placement, to
// which the blocks of all sizes add: so they are measured as close in time to each row as any.
struct Case {
  const Row* row;
  Conditions conditions;
  Placement placement;
  Result* result;
};
using Block = std::vector<Case>;

class Runner {
 public:
  Runner(Settings settings, const Processors& processors, std::vector<AbsentRow> absent)
      : processors_(processors), supervisor_(settings.effort.rtt_samples), random_(settings.seed) {
    comparison_.settings = std::move(settings);
    comparison_.absent = std::move(absent);
    for (const Placement placement : this->settings().placements) add_placement(placement);
  }

  Comparison run() {
    const std::int64_t begin = monotonic_ns();
    {
      Progress progress(expected_ns());
      for (unsigned round = 0; round < settings().effort.rounds; ++round) {
        for (Block& block : blocks_) {
          std::shuffle(block.begin(), block.end(), random_);
          for (const Case& one : block) measure(one, round, progress);
        }
      }
      for (const Block& block : blocks_) {
        if (!counts_system_calls()) break;
        for (const Case& one : block) {
          if (!one.result->system_calls_per_message) count_system_calls(one, progress);
        }
      }
    }
    comparison_.seconds = static_cast<double>(monotonic_ns() - begin) * 1e-9;
    for (Result& result : results_) comparison_.results.push_back(std::move(result));
    return std::move(comparison_);
  }

 private:
  [[nodiscard]] const Settings& settings() const { return comparison_.settings; }

  void skip(const Row* row, Placement placement, std::optional<std::size_t> bytes,
            std::string reason) {
    comparison_.skipped.push_back({.mechanism = row == nullptr ? "" : row->info().mechanism,
                                   .placement = std::string(to_string(placement)),
                                   .message_bytes = bytes,
                                   .reason = std::move(reason)});
  }

  void add_placement(Placement placement) {
    if (std::string reason = processors_.refuses(placement); !reason.empty())
      return skip(nullptr, placement, std::nullopt, std::move(reason));
    std::vector<std::pair<const Row*, Result*>> fixed;
    for (const Crowd& crowd : settings().crowds)
      for (const unsigned readers : settings().readers)
        for (const std::size_t size : settings().sizes)
          add_block(placement, size, readers, crowd, fixed);
  }

  void add_block(Placement placement, std::size_t size, unsigned readers, const Crowd& crowd,
                 std::vector<std::pair<const Row*, Result*>>& fixed) {
    Block block;
    for (const Row* row : settings().rows) {
      const std::size_t own = row->info().fixed_bytes;
      Case one{.row = row,
               .conditions = {.message_bytes = own != 0 ? own : size,
                              .depth_bytes = settings().depth_bytes,
                              .name = {},
                              .readers = readers,
                              .crowd = crowd},
               .placement = placement,
               .result = nullptr};
      if (std::string reason = row->refuses(one.conditions); !reason.empty()) {
        skip(row, placement, one.conditions.message_bytes, std::move(reason));
        continue;
      }
      one.result = own != 0 ? fixed_result(fixed, one) : new_result(one);
      block.push_back(std::move(one));
    }
    blocks_.push_back(std::move(block));
  }

  Result* new_result(const Case& one) {
    Result& result = results_.emplace_back();
    result.row = one.row;
    result.placement = one.placement;
    result.message_bytes = one.conditions.message_bytes;
    result.readers = one.conditions.readers;
    result.crowd = one.conditions.crowd;
    return &result;
  }
  Result* fixed_result(std::vector<std::pair<const Row*, Result*>>& known, const Case& one) {
    for (const auto& [row, result] : known)
      if (row == one.row) return result;
    return known.emplace_back(one.row, new_result(one)).second;
  }

  [[nodiscard]] std::int64_t slot_ns(const Case& one) const {
    constexpr std::int64_t kLoss = 700'000'000;
    return settings().dead_peer ? kLoss
                                : settings().effort.slot_ns(one.row->info(), one.conditions);
  }
  // Of two processes alone.
  [[nodiscard]] bool counts_system_calls() const {
    return !settings().is_broadcast() && !settings().is_scaling() && !settings().dead_peer;
  }
  // One per side.
  [[nodiscard]] std::int64_t trace_ns(const Case& one) const {
    const RowInfo& info = one.row->info();
    return info.one_process || info.helped || !counts_system_calls()
               ? 0
               : 2 * settings().effort.trace_slot_ns(one.conditions.message_bytes);
  }
  [[nodiscard]] std::int64_t expected_ns() const {
    std::int64_t ns = 0;
    for (const Block& block : blocks_)
      for (const Case& one : block) ns += settings().effort.rounds * slot_ns(one) + trace_ns(one);
    return ns;
  }

  SlotPlan plan(const Case& one, std::optional<Role> trace) {
    const Result& result = *one.result;
    SlotPlan plan{.row = one.row,
                  .conditions = one.conditions,
                  .processor = {processors_.processor(one.placement, Role::client),
                                processors_.processor(one.placement, Role::server)},
                  .effort = settings().effort,
                  .key = random_(),
                  .measure_depth = !result.depth,
                  .depth = result.depth.value_or(0),
                  .trace = trace,
                  .dead_peer = settings().dead_peer};
    plan.conditions.name = fmt::format("farcall-compare-{}-{}", ::getpid(), ++names_);
    return plan;
  }

  static std::string describe(const Case& one) {
    const RowInfo& info = one.row->info();
    const unsigned readers = one.conditions.readers;
    const Crowd& crowd = one.conditions.crowd;
    return fmt::format("{}, {}, {}{}{}{}", to_string(one.placement),
                       format_size(one.conditions.message_bytes), info.mechanism,
                       info.waits ? " (" + info.wait + ")" : "",
                       readers != 0 ? fmt::format(", {} readers", readers) : "",
                       crowd.clients != 0 ? ", " + describe_crowd(crowd) : "");
  }

  void measure(const Case& one, unsigned round, Progress& progress) {
    Result& result = *one.result;
    progress.step(slot_ns(one), fmt::format("round {} of {}: {}", round + 1,
                                            settings().effort.rounds, describe(one)));
    const std::size_t slots =
        settings().effort.rounds * (one.row->info().fixed_bytes != 0 ? settings().sizes.size() : 1);
    const std::int64_t most = kMostPerRow + 2 * static_cast<std::int64_t>(slots) * slot_ns(one);
    if (!result.error.empty() || result.spent_ns > most) return;
    const std::int64_t begin = monotonic_ns();
    result.error = supervisor_.run(plan(one, std::nullopt));
    result.spent_ns += monotonic_ns() - begin;
    if (!result.error.empty()) {
      progress.note(fmt::format("{}: failed: {}", describe(one), result.error));
      return;
    }
    take(result, supervisor_.board());
  }

  // What the board of a finished slot says becomes part of the row's result.
  void take(Result& result, const Board& board) {
    if (settings().dead_peer) return take_loss(result.loss, board.loss);
    const RowInfo& info = result.row->info();
    result.rtt.add_round(supervisor_.samples());
    result.rtt_ns += board.rtt_ns;
    result.rtt_calls += board.rtt_calls;
    for (const Usage& usage : board.rtt) result.rtt_usage += usage;
    result.setup_ns.push_back(
        static_cast<double>(board.make_ns + board.open_ns[0] + board.open_ns[1]));
    result.wakeup_ns.insert(result.wakeup_ns.end(), board.wakeup_ns,
                            board.wakeup_ns + board.wakeups);
    result.fragmented = board.fragmented;
    if (result.readers != 0) return take_broadcast(result, board);
    if (result.crowd.clients != 0) return take_scaling(result, board);
    if (info.streams && !info.one_process) {
      if (!result.depth) result.depth = board.depth;
      const double ns = static_cast<double>(board.stream_end - board.stream_begin);
      result.messages_per_s.push_back(static_cast<double>(board.streamed) * 1e9 / ns);
      result.streamed += board.streamed;
      for (const Usage& usage : board.stream) result.stream_usage += usage;
    } else {
      result.depth = info.one_process ? 0 : 1;
      result.messages_per_s.push_back(static_cast<double>(board.rtt_calls) * 1e9 /
                                      static_cast<double>(board.rtt_ns));
    }
  }

  static void take_loss(Result::Loss& result, const Board::Loss& loss) {
    const Board::Loss::Fate fate = loss.fate;
    for (std::size_t i = 0; i < 2; ++i)
      result.cpu[i].push_back(static_cast<double>(loss.cpu_ns[i]) /
                              static_cast<double>(loss.idle_ns));
    if (fate != Board::Loss::told)
      result.fate = result.fate == Board::Loss::waits ? result.fate : fate;
    if (fate == Board::Loss::waits) return;
    result.ns.push_back(static_cast<double>(loss.ns));
    result.text = loss.error;
  }

  static void take_broadcast(Result& result, const Board& board) {
    double slowest = 0;
    double missed = 0;
    for (const Board::Reader& reader : std::span(board.readers).first(result.readers)) {
      const double ns =
          static_cast<double>(std::max<std::int64_t>(reader.end - board.stream_begin, 1));
      const auto received = static_cast<double>(reader.received);
      const double rate = received * 1e9 / ns;
      slowest = slowest == 0 ? rate : std::min(slowest, rate);
      const auto lost = static_cast<double>(reader.missed);
      missed = std::max(missed, lost / (lost + received));
    }
    result.messages_per_s.push_back(slowest);
    result.missed.push_back(missed);
    result.streamed += board.streamed;
    for (const Usage& usage : board.stream) result.stream_usage += usage;
  }

  static void take_scaling(Result& result, const Board& board) {
    const Crowd& crowd = result.crowd;
    result.calls_of_clients.resize(crowd.clients);
    double rate = 0;
    std::uint64_t least = UINT64_MAX;
    std::uint64_t most = 0;
    for (unsigned i = 0; i < crowd.clients; ++i) {
      const Board::Client& client = board.clients[i];
      rate += static_cast<double>(client.calls) * 1e9 / static_cast<double>(client.ns);
      result.calls_of_clients[i] += client.calls;
      least = std::min(least, client.calls);
      most = std::max(most, client.calls);
    }
    result.messages_per_s.push_back(rate);
    result.fairness.push_back(static_cast<double>(least) / static_cast<double>(most));
    if (crowd.idle == 0) return;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto per = [&](std::int64_t sum) { return static_cast<double>(sum) / crowd.idle; };
      result.idle.bytes[i].push_back(per(board.idle.bytes[i]));
      result.idle.descriptors[i].push_back(per(board.idle.descriptors[i]));
      result.idle.cpu[i].push_back(static_cast<double>(board.idle.cpu_ns[i]) /
                                   static_cast<double>(board.idle.ns));
    }
  }

  void count_system_calls(const Case& one, Progress& progress) {
    Result& result = *one.result;
    progress.step(trace_ns(one), fmt::format("counting system calls: {}", describe(one)));
    if (!result.error.empty()) return;
    if (one.row->info().one_process) {
      result.system_calls_per_message = 0;
      return;
    }
    if (one.row->info().helped) {
      result.system_calls_note = "further processes carry the messages; theirs are not counted";
      return;
    }
    double per_call = 0;
    for (const Role role : {Role::client, Role::server}) {
      const auto count = supervisor_.trace(plan(one, role), result.system_calls_note);
      if (!count) return;
      per_call += *count;
    }
    result.system_calls_note.clear();
    result.system_calls_per_message = per_call / 2;
  }

  const Processors& processors_;
  Supervisor supervisor_;
  std::mt19937_64 random_;
  Comparison comparison_;
  std::deque<Result> results_;  // stable addresses: cases point into it
  std::vector<Block> blocks_;
  std::uint64_t names_ = 0;
};

}  // namespace

Comparison run_comparison(Settings settings, const Processors& processors,
                          std::vector<AbsentRow> absent) {
  return Runner(std::move(settings), processors, std::move(absent)).run();
}

}  // namespace farcall::compare
