// SPDX-License-Identifier: Apache-2.0
//
// The measuring loops of the two sides, and what they have in common. Between two looks at the
// clock there is nothing but the mechanism, and on the server the check of the request and its
// change into the reply.
#pragma once

#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>

#include "compare/payload.hpp"
#include "compare/slot.hpp"
#include "farcall/error.hpp"
#include "observe/clock.hpp"

namespace farcall::compare {

// Go through the phases of one slot, see slot.hpp. They throw what the row's endpoint throws, and
// PayloadError.
void run_client(const SlotPlan& plan, Board& board, std::span<float> samples, Endpoint& end);
void run_server(const SlotPlan& plan, Board& board, Endpoint& end);
// Both sides of a row without a second process.
void run_alone(const SlotPlan& plan, Board& board, std::span<float> samples, Endpoint& end);
// The two sides of which one dies.
void run_bereaved_client(const SlotPlan& plan, Board& board, Endpoint& end);
void run_dying_server(const SlotPlan& plan, Board& board, Endpoint& end);
// The writer's process of a broadcast, which forks those of the readers. Throws as these do.
void run_broadcast(const SlotPlan& plan, Board& board, std::span<float> samples);
// The process that starts many clients and their servers. Throws as these do.
void run_scaling(const SlotPlan& plan, Board& board, std::span<float> samples);

// What another process has used, and how much memory it has, where what it shares is divided by
// those who share it. Throw SystemError.
Usage usage_of(pid_t process);
// Whether its first thread waits for something: it neither has a processor, nor waits for one, nor
// was stopped.
bool is_asleep(pid_t process);
std::int64_t memory_of(pid_t process);
std::int64_t descriptors_of(pid_t process);
// Lets this process and its children have as many descriptors as they may, and returns how many.
// Throws SystemError where these are fewer than needed.
std::uint64_t raise_descriptor_limit(std::uint64_t needed);

inline std::int64_t now() noexcept { return observe::monotonic_ns(); }

inline void pause(std::int64_t ns) noexcept {
  const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::nanosleep(&time, nullptr);
}

template <class Function>
auto timed(std::int64_t& ns, Function function) {
  const std::int64_t before = now();
  auto result = function();
  ns = now() - before;
  return result;
}

// Before usage_of_helpers() is asked.
inline void note_helpers(Board& board, const Connection& connection) {
  const std::vector<pid_t> helpers = connection.helpers();
  std::copy_n(helpers.begin(), std::min(helpers.size(), kMostHelpers), board.helpers.begin());
}
// What the helpers of a row have used by now. Throws SystemError where one has ended.
inline Usage usage_of_helpers(const Board& board) {
  Usage sum;
  for (const pid_t helper : board.helpers)
    if (helper != 0) sum += usage_of(helper);
  return sum;
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

// A process of this slot, which dies with this one. `body` runs there and may throw. Throws
// SystemError.
template <class Body>
pid_t fork_side(Board& board, Role role, Body body) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before that
    ::_exit(guarded(board, role, body));
  }
  return pid;
}

// `call` makes one round trip, sets `after` to the moment of its end and returns what it took; the
// last of a phase says so. A phase that is out of time has one more call for that; where one is
// slow, that matters.
template <class Call>
void warm_up_by(const Effort& effort, Call call) {
  std::int64_t after = now();
  const std::int64_t until = after + effort.warmup_ns;
  for (bool last = false; !last;) {
    last = after >= until;
    call(after, last);
  }
}
template <class Call>
void time_round_trips(const Effort& effort, Board& board, std::span<float> samples, Call call) {
  const Usage of_helpers = usage_of_helpers(board);
  const Usage used = Usage::now();
  const std::int64_t begin = now();
  const std::int64_t until = begin + effort.rtt_ns;
  const std::size_t most = std::min(samples.size(), effort.rtt_samples);
  std::size_t count = 0;
  std::int64_t after = begin;
  for (bool last = false; !last;) {
    last = count + 1 >= most || (after >= until && count + 1 >= kLeastSamples);
    samples[count++] = static_cast<float>(call(after, last));
  }
  board.rtt_ns = after - begin;
  Usage& sum = board.rtt[static_cast<std::size_t>(Role::client)];
  sum = Usage::now() - used;
  sum += usage_of_helpers(board) - of_helpers;
  board.samples = board.rtt_calls = count;
}

// Calls `send` until that has taken `effort.stream_ns` and been done `least` times, or has taken
// `longest` times that. Returns how often.
template <class Send>
std::uint64_t send_for_a_while(const Effort& effort, std::int64_t begin, std::uint64_t least,
                               int longest, Send send) {
  constexpr std::int64_t kLookEvery = 20'000;
  std::uint64_t sent = 0;
  std::uint64_t until_look = 1;  // looking at the clock after each message would slow them down
  for (std::int64_t looked = begin;;) {
    for (std::uint64_t i = 0; i < until_look; ++i) send();
    sent += until_look;
    const std::int64_t time = now();
    if (time - looked < kLookEvery)
      until_look = std::min<std::uint64_t>(2 * until_look, 4096);
    else
      until_look = std::max<std::uint64_t>(until_look / 2, 1);
    looked = time;
    const std::int64_t spent = time - begin;
    if (spent >= effort.stream_ns && (sent >= least || spent >= longest * effort.stream_ns))
      return sent;
  }
}

inline void mark(TraceMark mark) noexcept { ::prctl(static_cast<int>(mark), 0, 0, 0, 0); }

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

// The client's part of a conversation: numbers the requests, and checks the replies.
class Caller {
 public:
  Caller(const SlotPlan& plan, Board& board, std::uint64_t numbered_from = 0)
      : request_(plan.conditions.message_bytes),
        reply_(plan.conditions.message_bytes),
        payload_(plan.key, board.last_short),
        sequence_(numbered_from) {}

  // One call, timed; request and reply are written and checked outside of the time.
  std::int64_t call(Endpoint& end, std::int64_t& after, bool last = false) {
    payload_.stamp(request_.bytes(), ++sequence_, Payload::kRequest, last);
    const std::int64_t before = now();
    end.round_trip(request_.bytes(), reply_.bytes());
    after = now();
    payload_.check(reply_.bytes(), sequence_, Payload::kReply);
    return after - before;
  }
  void send(Endpoint& end, bool last = false) {
    payload_.stamp(request_.bytes(), ++sequence_, Payload::kRequest, last);
    end.send(request_.bytes());
  }
  // The server answers the last message of a stream, as a call's.
  void send_last(Endpoint& end) {
    send(end, true);
    end.receive(reply_.bytes());
    payload_.check(reply_.bytes(), sequence_, Payload::kReply);
  }

 private:
  Buffer request_;
  Buffer reply_;
  Payload payload_;
  std::uint64_t sequence_;
};

}  // namespace farcall::compare
