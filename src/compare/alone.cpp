// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compare/payload.hpp"
#include "compare/sides.hpp"

namespace farcall::compare {
namespace {

// One call is shorter than a look at the clock, so
// a sample is the mean of as many as take a few microseconds.
class Alone {
 public:
  Alone(const SlotPlan& plan, Board& board, std::span<float> samples, Endpoint& end)
      : effort_(plan.effort),
        board_(board),
        samples_(samples),
        end_(end),
        from_(plan.conditions.message_bytes),
        to_(plan.conditions.message_bytes),
        payload_(plan.key, board.last_short) {}

  void run() {
    constexpr std::int64_t kSampleNs = 4'000;
    std::int64_t until = now() + effort_.warmup_ns;
    std::int64_t after = 0;
    do
      while (batch(after) < kSampleNs && calls_ < (1U << 16)) calls_ *= 2;
    while (after < until);

    const Usage used = Usage::now();
    const std::int64_t begin = now();
    until = begin + effort_.rtt_ns;
    const std::size_t most = std::min(samples_.size(), effort_.rtt_samples);
    std::size_t count = 0;
    std::int64_t timed = 0;
    while (count < most && (after < until || count < kLeastSamples)) {
      const std::int64_t ns = batch(after);
      timed += ns;
      samples_[count++] = static_cast<float>(ns) / static_cast<float>(calls_);
    }
    board_.rtt[0] = Usage::now() - used;
    // Writing and checking the message takes as long as copying it and is not what this measures.
    board_.rtt_ns = timed;
    board_.rtt[0].cpu_ns = std::min(board_.rtt[0].cpu_ns, timed);
    board_.samples = count;
    board_.rtt_calls = count * calls_;
  }

 private:
  std::int64_t batch(std::int64_t& after) {
    payload_.stamp(from_.bytes(), ++sequence_, Payload::kRequest);
    const std::int64_t before = now();
    for (std::size_t i = 0; i < calls_; ++i) end_.round_trip(from_.bytes(), to_.bytes());
    after = now();
    payload_.check(to_.bytes(), sequence_, Payload::kRequest);
    return after - before;
  }

  const Effort& effort_;
  Board& board_;
  std::span<float> samples_;
  Endpoint& end_;
  Buffer from_;
  Buffer to_;
  Payload payload_;
  std::size_t calls_ = 1;
  std::uint64_t sequence_ = 0;
};

}  // namespace

void run_alone(const SlotPlan& plan, Board& board, std::span<float> samples, Endpoint& end) {
  Alone(plan, board, samples, end).run();
}

}  // namespace farcall::compare
