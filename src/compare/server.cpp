// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>

#include "compare/payload.hpp"
#include "compare/sides.hpp"

namespace farcall::compare {
namespace {

class Server final : public Service {
 public:
  Server(const SlotPlan& plan, Board& board, Endpoint& end)
      : plan_(plan), board_(board), end_(end), message_(plan.conditions.message_bytes) {}

  void run() {
    serve();
    if (plan_.trace) {
      marks_ = plan_.trace == Role::server;
      return serve();
    }
    const Usage used = Usage::now();
    serve();
    board_.rtt[kMe] = Usage::now() - used;
    serve();
    if (!plan_.row->info().streams) return;
    if (plan_.measure_depth) fill();
    stream();
  }

  bool answer(std::span<std::byte> message) override {
    const bool last = payload_.answer(message, ++sequence_);
    if (marks_) [[unlikely]]
      mark_answer(last);
    return !last;
  }

 private:
  static constexpr auto kMe = static_cast<std::size_t>(Role::server);

  void serve() { end_.serve(*this, message_.bytes()); }

  void stream() {
    const Usage used = Usage::now();
    bool last = false;
    while (!last) {
      end_.receive(message_.bytes());
      last = payload_.check(message_.bytes(), ++sequence_, Payload::kRequest);
    }
    board_.stream_end = now();
    board_.stream[kMe] = Usage::now() - used;
    payload_.stamp(message_.bytes(), sequence_, Payload::kReply);
    end_.send(message_.bytes());
  }

  // Counting begins in one answer and ends in the last.
  void mark_answer(bool last) {
    if (last) {
      board_.traced_calls = answers_;
      mark(TraceMark::end);
    } else if (answers_ != 0) {
      ++answers_;
    } else if (board_.count_calls.load(std::memory_order_relaxed)) {
      answers_ = 1;
      mark(TraceMark::begin);
    }
  }

  // Reads nothing until the client has been stuck for a while, then all. It is stuck for as long as
  // it sleeps, or has the processor, without a further message; one that waits for a processor or
  // was stopped may not have come to send it.
  void fill() {
    constexpr std::int64_t kLook = 1'000'000;
    constexpr std::int64_t kStuck = 12 * kLook;
    const pid_t client = ::getppid();
    std::uint64_t seen = 0;
    std::int64_t used = usage_of(client).cpu_ns;
    for (std::int64_t stuck = 0; stuck < kStuck;) {
      pause(kLook);
      const bool asleep = is_asleep(client);
      const std::int64_t used_now = usage_of(client).cpu_ns;
      const std::uint64_t sent = board_.filled.load(std::memory_order_relaxed);
      stuck = sent != seen ? 0 : stuck + (asleep ? kLook : std::min(used_now - used, kLook));
      seen = sent;
      used = used_now;
    }
    board_.depth = seen;
    board_.full.store(true, std::memory_order_relaxed);
    stream();
  }

  const SlotPlan& plan_;
  Board& board_;
  Endpoint& end_;
  Buffer message_;
  Payload payload_{plan_.key, board_.last_short};
  std::uint64_t sequence_ = 0;
  bool marks_ = false;
  std::uint64_t answers_ = 0;  // since the mark
};

}  // namespace

void run_server(const SlotPlan& plan, Board& board, Endpoint& end) {
  Server(plan, board, end).run();
}

}  // namespace farcall::compare
