// SPDX-License-Identifier: Apache-2.0
//
// A slot of a broadcast: the writer, in the client's process, and the readers that it forks.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "compare/rows/rows.hpp"
#include "compare/sides.hpp"
#include "farcall/channel/mechanism.hpp"
#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

using channel::AnyChannel;
constexpr std::byte kAcknowledged{1};

bool misses(const SlotPlan& plan) { return plan.row->info().policy != "block"; }

class Reader {
 public:
  Reader(const SlotPlan& plan, Board& board, unsigned index, Endpoint& end,
         channel::Writer& acknowledgements)
      : lossless_(!misses(plan)),
        board_(board.readers[index]),
        end_(end),
        acknowledgements_(acknowledgements),
        message_(plan.conditions.message_bytes),
        payload_(plan.key, board.last_short) {}

  void run() {
    acknowledge();  // it is there
    rounds();
    Usage used = Usage::now();
    rounds();
    board_.rounds = Usage::now() - used;
    missed_ = 0;
    used = Usage::now();
    std::uint64_t received = 1;
    while (!take()) ++received;
    board_.end = now();
    board_.stream = Usage::now() - used;
    board_.received = received;
    board_.missed = missed_;
    board_.done.store(true, std::memory_order_release);
    acknowledge();
  }

 private:
  void acknowledge() { acknowledgements_.write({&kAcknowledged, 1}); }
  void rounds() {
    for (bool last = false; !last;) {
      last = take();
      acknowledge();
    }
  }
  // Whether it was the last message of its phase. What has been missed shows in the numbers of the
  // messages, whatever the mechanism says; if it says something that has to be the same.
  bool take() {
    end_.receive(message_.bytes());
    const std::uint64_t sequence = payload_.sequence_of(message_.bytes());
    if (sequence <= sequence_) throw PayloadError("a message that came before has come again");
    const std::uint64_t missed = sequence - sequence_ - 1;
    if (missed != 0 && lossless_)
      throw PayloadError(std::to_string(missed) + " messages are missing");
    if (const auto told = end_.told_missed(); told && *told != missed)
      throw PayloadError(std::to_string(missed) + " messages were missed, but it was told " +
                         std::to_string(*told));
    missed_ += missed;
    sequence_ = sequence;
    return payload_.check(message_.bytes(), sequence, Payload::kRequest);
  }

  const bool lossless_;
  Board::Reader& board_;
  Endpoint& end_;
  channel::Writer& acknowledgements_;
  Buffer message_;
  Payload payload_;
  std::uint64_t sequence_ = 0;
  std::uint64_t missed_ = 0;
};

class Writer {
 public:
  Writer(const SlotPlan& plan, Board& board, std::span<float> samples)
      : plan_(plan),
        effort_(plan.effort),
        board_(board),
        samples_(samples),
        message_(plan.conditions.message_bytes) {}

  // Until all readers are there.
  void open() {
    connection_ = timed(board_.make_ns, [&] { return plan_.row->make(plan_.conditions); });
    note_helpers(board_, *connection_);
    std::vector<AnyChannel> acknowledgements;
    for (unsigned i = 0; i < plan_.conditions.readers; ++i)
      acknowledgements.emplace_back(*channel::find_mechanism("ring"), channel::Options{});
    for (unsigned i = 0; i < plan_.conditions.readers; ++i) fork_reader(i, acknowledgements);
    for (AnyChannel& one : acknowledgements) acknowledged_.push_back(one.take_reader());
    end_ = timed(board_.open_ns[0], [&] { return connection_->open(Role::client); });
    board_.fragmented = end_->fragmented();
    await_all();
  }

  void run() {
    warm_up();
    rounds();
    stream();
    for (const pid_t reader : readers_) ::waitpid(reader, nullptr, 0);
    for (unsigned i = 0; i < plan_.conditions.readers; ++i) {
      board_.rtt[1] += board_.readers[i].rounds;
      board_.stream[1] += board_.readers[i].stream;
    }
  }

 private:
  void fork_reader(unsigned index, std::vector<AnyChannel>& channels) {
    readers_.push_back(fork_side(board_, Role::server, [&] {
      const auto mine = channels[index].take_writer();
      channels.clear();  // so that each reader's end is seen
      const auto end = connection_->open_reader(index);
      Reader(plan_, board_, index, *end, *mine).run();
    }));
  }

  void await_all() {
    std::byte byte{};
    for (const auto& one : acknowledged_)
      if (one->read_fully({&byte, 1}) != 1) throw SystemError(ECONNRESET, "a reader has ended");
  }
  void send(bool last = false) {
    payload_.stamp(message_.bytes(), ++sequence_, Payload::kRequest, last);
    end_->send(message_.bytes());
  }
  std::int64_t round(std::int64_t& after, bool last) {
    payload_.stamp(message_.bytes(), ++sequence_, Payload::kRequest, last);
    const std::int64_t before = now();
    end_->send(message_.bytes());
    await_all();
    after = now();
    return after - before;
  }
  void warm_up() {
    warm_up_by(effort_, [this](std::int64_t& after, bool last) { round(after, last); });
  }
  void rounds() {
    time_round_trips(effort_, board_, samples_,
                     [this](std::int64_t& after, bool last) { return round(after, last); });
  }
  void stream() {
    // So that a ring of the usual size wraps; who cannot do that in a few times the time, does not.
    const std::uint64_t least =
        4 * messages_in(default_depth(plan_.conditions), plan_.conditions) + 1;
    const Usage of_helpers = usage_of_helpers(board_);
    const Usage used = Usage::now();
    const std::int64_t begin = board_.stream_begin = now();
    std::uint64_t sent = send_for_a_while(effort_, begin, least, 3, [this] { send(); });
    send(true);
    if (misses(plan_)) sent += repeat_last();
    await_all();
    board_.stream[0] = Usage::now() - used;
    board_.stream[0] += usage_of_helpers(board_) - of_helpers;
    board_.streamed = sent + 1;
  }
  // Who drops what is new may have dropped the last message, too. Returns how many more were sent.
  std::uint64_t repeat_last() {
    constexpr std::int64_t kPause = 1'000'000;
    constexpr std::uint64_t kMost = 10'000;
    std::uint64_t repeated = 0;
    while (!std::all_of(board_.readers.begin(), board_.readers.begin() + plan_.conditions.readers,
                        [](const Board::Reader& one) { return one.done.load(); })) {
      if (repeated == kMost) throw SystemError(ETIMEDOUT, "a reader does not get the last message");
      pause(kPause);
      send(true);
      ++repeated;
    }
    return repeated;
  }

  const SlotPlan& plan_;
  const Effort& effort_;
  Board& board_;
  std::span<float> samples_;
  Buffer message_;
  Payload payload_{plan_.key, board_.last_short};
  std::uint64_t sequence_ = 0;
  std::vector<pid_t> readers_;
  std::vector<std::unique_ptr<channel::Reader>> acknowledged_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<Endpoint> end_;
};

}  // namespace

void run_broadcast(const SlotPlan& plan, Board& board, std::span<float> samples) {
  Writer writer(plan, board, samples);
  writer.open();
  writer.run();
}

}  // namespace farcall::compare
