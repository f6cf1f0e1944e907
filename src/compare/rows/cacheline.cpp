// SPDX-License-Identifier: Apache-2.0
//
// What is least there: one word between two processes that do nothing but look at it.
//
//   cacheline_pingpong   a line per direction; each side writes its own and looks at the other's.
//                        A hop is what a message costs in memory of its own: the reader's request
//                        for the line, and the writer's to have it back for the next message.
//   cacheline_shared     one line for both directions. The side that answers has it already, so
//                        it is cheaper. A call whose reply is where its request was has that, too.
#include <atomic>
#include <cstring>
#include <utility>

#include "compare/rows/rows.hpp"
#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

struct Line {
  alignas(kFalseSharing) std::atomic<std::uint64_t> word;
};

class LineEnd final : public Endpoint {
 public:
  LineEnd(std::atomic<std::uint64_t>& mine, const std::atomic<std::uint64_t>& theirs)
      : mine_(mine), theirs_(theirs) {}

  void send(std::span<const std::byte> message) override {
    std::memcpy(&last_sent_, message.data(), sizeof last_sent_);
    // release, and acquire below: as a channel would need it for what goes with the word.
    mine_.store(last_sent_, std::memory_order_release);
  }
  // Messages all differ, so one is there as soon as the word has changed: from the last one
  // received and, where both directions share the word, from the one sent.
  void receive(std::span<std::byte> message) override {
    std::uint64_t word = 0;
    do word = theirs_.load(std::memory_order_acquire);
    while (word == last_received_ || word == last_sent_);
    last_received_ = word;
    std::memcpy(message.data(), &word, sizeof word);
  }

 private:
  std::atomic<std::uint64_t>& mine_;
  const std::atomic<std::uint64_t>& theirs_;
  std::uint64_t last_sent_ = 0;
  std::uint64_t last_received_ = 0;
};

class LineConnection final : public Connection {
 public:
  explicit LineConnection(bool shared) : shared_(shared) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    auto* lines = reinterpret_cast<Line*>(memory_.data());
    const std::size_t mine = shared_ || role == Role::client ? 0 : 1;
    const std::size_t theirs = shared_ || role == Role::server ? 0 : 1;
    return std::make_unique<LineEnd>(lines[mine].word, lines[theirs].word);
  }

 private:
  Mapping memory_ = Mapping::anonymous_shared(2 * sizeof(Line));
  bool shared_;
};

}  // namespace

void add_cacheline(RowList& list) {
  const auto add = [&](bool shared, const char* mechanism, const char* description) {
    list.add({.mechanism = mechanism,
              .engine = "control",
              .wait = "spin",
              .description = description,
              .fixed_bytes = sizeof(std::uint64_t),
              .streams = false},
             makes<LineConnection>(shared));
  };
  add(false, "cacheline_pingpong",
      "a bare cache line per direction, both sides looking all the time");
  add(true, "cacheline_shared", "one bare cache line for both directions");
}

}  // namespace farcall::compare
