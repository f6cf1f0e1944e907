// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compare/sides.hpp"

namespace farcall::compare {
namespace {

// Before counting begins: what waits in steps is back at its quickest one by then.
constexpr unsigned kTraceWarmUpCalls = 300;
constexpr std::int64_t kTraceWarmUpNs = 20'000'000;

class Client {
 public:
  Client(const SlotPlan& plan, Board& board, std::span<float> samples, Endpoint& end)
      : plan_(plan),
        effort_(plan.effort),
        board_(board),
        samples_(samples),
        end_(end),
        caller_(plan, board) {}

  void run() {
    warm_up();
    if (plan_.trace) return trace();
    round_trips();
    wake_ups();
    if (!plan_.row->info().streams) return;
    if (plan_.measure_depth) fill();
    stream();
  }

 private:
  static constexpr auto kMe = static_cast<std::size_t>(Role::client);

  std::int64_t call(std::int64_t& after, bool last = false) {
    return caller_.call(end_, after, last);
  }
  void warm_up() {
    warm_up_by(effort_, [this](std::int64_t& after, bool last) { call(after, last); });
  }
  void round_trips() {
    time_round_trips(effort_, board_, samples_,
                     [this](std::int64_t& after, bool last) { return call(after, last); });
  }

  void wake_ups() {
    const bool slow = board_.rtt_ns / static_cast<std::int64_t>(board_.rtt_calls) > 2 * kIdlePause;
    board_.wakeups = slow ? 1 : std::min<std::size_t>(effort_.wakeups, Board::kMostWakeups);
    for (std::size_t i = 0; i < board_.wakeups; ++i) {
      pause(kIdlePause);
      std::int64_t after = 0;
      board_.wakeup_ns[i] = static_cast<float>(call(after, i + 1 == board_.wakeups));
    }
  }

  void fill() {
    // Where nothing ever seems to be full, this is enough to know.
    constexpr std::uint64_t kMostMessages = 200'000;
    constexpr std::uint64_t kMostBytes = 256ULL << 20;
    const std::uint64_t bytes = std::max<std::uint64_t>(plan_.conditions.message_bytes, 1);
    const std::uint64_t most = std::clamp<std::uint64_t>(kMostBytes / bytes, 2, kMostMessages);
    std::uint64_t sent = 0;
    while (sent < most && !board_.full.load(std::memory_order_relaxed)) {
      caller_.send(end_);
      board_.filled.store(++sent, std::memory_order_relaxed);
    }
    caller_.send_last(end_);
  }

  void stream() {
    const std::uint64_t depth = plan_.measure_depth ? board_.depth : plan_.depth;
    const std::uint64_t least = 8 * depth + 1;  // so that it wraps many times
    const Usage used = Usage::now();
    const std::int64_t begin = board_.stream_begin = now();
    const std::uint64_t sent =
        send_for_a_while(effort_, begin, least, 4, [this] { caller_.send(end_); });
    caller_.send_last(end_);
    board_.stream[kMe] = Usage::now() - used;
    board_.streamed = sent + 1;
  }

  void trace() {
    board_.ready_to_trace.store(true, std::memory_order_release);
    while (!board_.traced.load(std::memory_order_acquire)) pause(1'000'000);
    const bool me = plan_.trace == Role::client;
    std::int64_t after = 0;
    const std::int64_t warm = now() + kTraceWarmUpNs;
    for (unsigned i = 0; i < kTraceWarmUpCalls && after < warm; ++i) call(after);
    board_.count_calls.store(true, std::memory_order_relaxed);
    if (me) mark(TraceMark::begin);
    const std::int64_t until = now() + effort_.trace_ns;
    std::uint64_t calls = 0;
    do {
      call(after);
      ++calls;
    } while (calls < effort_.trace_calls && after < until);
    if (me) {
      board_.traced_calls = calls;
      mark(TraceMark::end);
    }
    call(after, true);
  }

  const SlotPlan& plan_;
  const Effort& effort_;
  Board& board_;
  std::span<float> samples_;
  Endpoint& end_;
  Caller caller_;
};

}  // namespace

void run_client(const SlotPlan& plan, Board& board, std::span<float> samples, Endpoint& end) {
  Client(plan, board, samples, end).run();
}

}  // namespace farcall::compare
