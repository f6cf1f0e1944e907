// SPDX-License-Identifier: Apache-2.0
//
// The measuring loops of the two sides. Between two looks at the clock there is nothing but the
// mechanism, and on the server the check of the request and its change into the reply.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <new>

#include "farcall/error.hpp"
#include "tool/compare/payload.hpp"
#include "tool/compare/slot.hpp"

namespace farcall::compare {
namespace {

std::int64_t now() noexcept {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

void pause(std::int64_t ns) noexcept {
  const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::nanosleep(&time, nullptr);
}

void mark(TraceMark mark) noexcept { ::prctl(static_cast<int>(mark), 0, 0, 0, 0); }

// Before counting begins: what waits in steps is back at its quickest one by then.
constexpr unsigned kTraceWarmUpCalls = 300;
constexpr std::int64_t kTraceWarmUpNs = 20'000'000;

// Memory for one message, touched so that no page fault is measured.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new(bytes, kAlignment))), bytes_(bytes) {
    std::memset(memory_.get(), 0, bytes);
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {memory_.get(), bytes_}; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Delete {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<std::byte, Delete> memory_;
  std::size_t bytes_;
};

// Runs through the phases of one slot; the server has the same list.
class Client {
 public:
  Client(const SlotPlan& plan, Board& board, std::span<float> samples, Endpoint& end)
      : plan_(plan),
        effort_(plan.effort),
        board_(board),
        samples_(samples),
        end_(end),
        request_(plan.conditions.message_bytes),
        reply_(plan.conditions.message_bytes) {}

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

  // One call, timed; request and reply are written and checked outside of the time.
  std::int64_t call(std::int64_t& after, bool last = false) {
    payload_.stamp(request_.bytes(), ++sequence_, Payload::kRequest, last);
    const std::int64_t before = now();
    end_.round_trip(request_.bytes(), reply_.bytes());
    after = now();
    payload_.check(reply_.bytes(), sequence_, Payload::kReply);
    return after - before;
  }
  // A phase that is out of time has one more call, which says so; where one call is slow, that
  // matters.
  void warm_up() {
    std::int64_t after = now();
    const std::int64_t until = after + effort_.warmup_ns;
    for (bool last = false; !last;) {
      last = after >= until;
      call(after, last);
    }
  }

  void round_trips() {
    const Usage used = Usage::now();
    const std::int64_t begin = now();
    const std::int64_t until = begin + effort_.rtt_ns;
    const std::size_t most = std::min(samples_.size(), effort_.rtt_samples);
    std::size_t count = 0;
    std::int64_t after = begin;
    for (bool last = false; !last;) {
      last = count + 1 >= most || (after >= until && count + 1 >= kLeastSamples);
      samples_[count++] = static_cast<float>(call(after, last));
    }
    board_.rtt_ns = after - begin;
    board_.rtt[kMe] = Usage::now() - used;
    board_.samples = board_.rtt_calls = count;
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

  void send(bool last = false) {
    payload_.stamp(request_.bytes(), ++sequence_, Payload::kRequest, last);
    end_.send(request_.bytes());
  }
  // The server answers the last message of a stream, as a call's.
  void send_last() {
    send(true);
    end_.receive(reply_.bytes());
    payload_.check(reply_.bytes(), sequence_, Payload::kReply);
  }

  void fill() {
    // Where nothing ever seems to be full, this is enough to know.
    constexpr std::uint64_t kMostMessages = 200'000;
    constexpr std::uint64_t kMostBytes = 256ULL << 20;
    const std::uint64_t most =
        std::clamp<std::uint64_t>(kMostBytes / plan_.conditions.message_bytes, 2, kMostMessages);
    std::uint64_t sent = 0;
    while (sent < most && !board_.full.load(std::memory_order_relaxed)) {
      send();
      board_.filled.store(++sent, std::memory_order_relaxed);
    }
    send_last();
  }

  void stream() {
    constexpr std::int64_t kLookEvery = 20'000;
    const std::uint64_t depth = plan_.measure_depth ? board_.depth : plan_.depth;
    const std::uint64_t least = 8 * depth + 1;  // so that it wraps many times
    const Usage used = Usage::now();
    const std::int64_t begin = board_.stream_begin = now();
    std::uint64_t sent = 0;
    std::uint64_t until_look = 1;  // looking at the clock after each message would slow them down
    for (std::int64_t looked = begin;;) {
      for (std::uint64_t i = 0; i < until_look; ++i) send();
      sent += until_look;
      const std::int64_t time = now();
      if (time - looked < kLookEvery && until_look < 4096) until_look *= 2;
      looked = time;
      const std::int64_t spent = time - begin;
      if (spent >= effort_.stream_ns && (sent >= least || spent >= 4 * effort_.stream_ns)) break;
    }
    send_last();
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
  Buffer request_;
  Buffer reply_;
  Payload payload_{plan_.key};
  std::uint64_t sequence_ = 0;
};

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

  // Reads nothing until the client has been stuck for a while, then all.
  void fill() {
    constexpr int kStuck = 12;  // times 1 ms without a further message
    std::uint64_t seen = 0;
    for (int still = 0; still < kStuck; ++still) {
      pause(1'000'000);
      const std::uint64_t sent = board_.filled.load(std::memory_order_relaxed);
      if (sent != seen) still = 0;
      seen = sent;
    }
    board_.depth = seen;
    board_.full.store(true, std::memory_order_relaxed);
    stream();
  }

  const SlotPlan& plan_;
  Board& board_;
  Endpoint& end_;
  Buffer message_;
  Payload payload_{plan_.key};
  std::uint64_t sequence_ = 0;
  bool marks_ = false;
  std::uint64_t answers_ = 0;  // since the mark
};

// Both sides of a row without a second process. One call is shorter than a look at the clock, so
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
        payload_(plan.key) {}

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

template <class Function>
auto timed(std::int64_t& ns, Function function) {
  const std::int64_t before = now();
  auto result = function();
  ns = now() - before;
  return result;
}

void place(const SlotPlan& plan, Role role) {
  if (const auto processor = plan.processor[static_cast<std::size_t>(role)]) pin_to(*processor);
}

// Runs `body` and turns what goes wrong into an error on the board.
template <class Body>
int guarded(Board& board, Role role, Body body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    board.fail(role, error.what());
  } catch (...) {
    board.fail(role, "unknown exception");
  }
  return 1;
}

int server_main(const SlotPlan& plan, Board& board, Connection& connection) noexcept {
  return guarded(board, Role::server, [&] {
    place(plan, Role::server);
    const auto end = timed(board.open_ns[static_cast<std::size_t>(Role::server)],
                           [&] { return connection.open(Role::server); });
    Server(plan, board, *end).run();
    // Some libraries send in the background and would lose the last reply by closing now.
    while (!board.client_done.load(std::memory_order_acquire)) pause(100'000);
    board.server_done.store(true, std::memory_order_release);
  });
}

pid_t fork_server(const SlotPlan& plan, Board& board, Connection& connection) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before that
    ::_exit(server_main(plan, board, connection));
  }
  board.server_pid.store(pid, std::memory_order_release);
  return pid;
}

}  // namespace

int client_main(const SlotPlan& plan, Board& board, std::span<float> samples) noexcept {
  pid_t server = 0;
  const int code = guarded(board, Role::client, [&] {
    place(plan, Role::client);
    const auto connection = timed(board.make_ns, [&] { return plan.row->make(plan.conditions); });
    const bool alone = plan.row->info().one_process;
    if (!alone) server = fork_server(plan, board, *connection);
    const auto end = timed(board.open_ns[static_cast<std::size_t>(Role::client)],
                           [&] { return connection->open(Role::client); });
    board.fragmented = end->fragmented();
    if (alone)
      Alone(plan, board, samples, *end).run();
    else
      Client(plan, board, samples, *end).run();
    board.client_done.store(true, std::memory_order_release);
    if (!alone) ::waitpid(server, nullptr, 0);
  });
  return code;
}

}  // namespace farcall::compare
