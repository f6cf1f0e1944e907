// SPDX-License-Identifier: Apache-2.0
//
// What becomes of a client whose server is killed while it waits for the answer, and before that
// what the two cost while nobody calls.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "compare/sides.hpp"

namespace farcall::compare {
namespace {

constexpr std::uint64_t kCalls = 50;  // before anything is looked at
// Who spins for a while before it sleeps does so by then; as long as that the server takes over the
// answer that it does not give.
constexpr std::int64_t kSettle = 100'000'000;
constexpr std::int64_t kIdle = 300'000'000;

class MortalService final : public Service {
 public:
  MortalService(const SlotPlan& plan, Board& board)
      : board_(board), payload_(plan.key, board.last_short) {}
  bool answer(std::span<std::byte> message) override {
    if (++sequence_ > kCalls) die();
    return !payload_.answer(message, sequence_);
  }

 private:
  [[noreturn]] void die() {
    pause(kSettle);
    board_.loss.died = now();
    ::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }

  Board& board_;
  Payload payload_;
  std::uint64_t sequence_ = 0;
};

void take_text(std::span<char> to, std::string_view text) {
  const std::size_t count = std::min(text.size(), to.size() - 1);
  std::copy_n(text.begin(), count, to.begin());
  to[count] = '\0';
}

void look_at_idle(Board& board) {
  pause(kSettle);
  const pid_t server = board.server_pid.load(std::memory_order_acquire);
  const Usage of_server = usage_of(server);
  const Usage own = Usage::now();
  const std::int64_t begin = now();
  pause(kIdle);
  Board::Loss& loss = board.loss;
  loss.idle_ns = now() - begin;
  loss.cpu_ns[static_cast<std::size_t>(Role::client)] = Usage::now().cpu_ns - own.cpu_ns;
  loss.cpu_ns[static_cast<std::size_t>(Role::server)] = usage_of(server).cpu_ns - of_server.cpu_ns;
}

}  // namespace

void run_dying_server(const SlotPlan& plan, Board& board, Endpoint& end) {
  const Buffer message(plan.conditions.message_bytes);
  MortalService service(plan, board);
  end.serve(service, message.bytes());
  end.serve(service, message.bytes());
}

void run_bereaved_client(const SlotPlan& plan, Board& board, Endpoint& end) {
  Caller caller(plan, board);
  std::int64_t after = 0;
  for (std::uint64_t i = 1; i <= kCalls; ++i) caller.call(end, after, i == kCalls);
  look_at_idle(board);
  auto fate = Board::Loss::returned;
  try {
    caller.call(end, after);
  } catch (const PayloadError&) {
    // It returned, with what is no reply.
  } catch (const std::exception& error) {
    fate = Board::Loss::told;
    take_text(board.loss.error, error.what());
  }
  board.loss.ns = now() - board.loss.died.load();
  if (board.loss.died == 0) throw MisuseError("the server lives: " + std::string(board.loss.error));
  board.loss.fate = fate;
}

}  // namespace farcall::compare
