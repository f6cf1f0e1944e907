// SPDX-License-Identifier: Apache-2.0
//
// A message and nothing else: as many cache lines as it fills, each with a word that says
// whose turn its bytes are of. The reader looks at all of them in each look, so that they travel at
// once and in any order; there is neither room for a second message nor a way to sleep.
#include <array>
#include <atomic>
#include <cstring>

#include "compare/rows/rows.hpp"
#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kBytesOfLine = kLine - sizeof(std::uint64_t);
constexpr std::size_t kMostLines = 8;

struct alignas(kLine) Line {
  std::atomic<std::uint64_t> number;  // of the message
  std::byte bytes[kBytesOfLine];
};
// Pairs of lines, as processors fetch them.
struct alignas(kFalseSharing) Direction {
  std::array<Line, kMostLines> lines;
};

class LinesEnd final : public Endpoint {
 public:
  LinesEnd(Direction& mine, Direction& theirs, std::size_t message_bytes)
      : mine_(mine),
        theirs_(theirs),
        whole_(message_bytes / kBytesOfLine),
        rest_(message_bytes % kBytesOfLine) {}

  void send(std::span<const std::byte> message) override {
    ++sent_;
    const std::byte* from = message.data();
    // A constant size, which needs no call.
    for (std::size_t i = 0; i < whole_; ++i, from += kBytesOfLine) {
      std::memcpy(mine_.lines[i].bytes, from, kBytesOfLine);
      mine_.lines[i].number.store(sent_, std::memory_order_release);
    }
    if (rest_ == 0) return;
    copy_rest(mine_.lines[whole_].bytes, from);
    mine_.lines[whole_].number.store(sent_, std::memory_order_release);
  }
  void receive(std::span<std::byte> message) override {
    ++received_;
    const std::size_t count = whole_ + (rest_ != 0 ? 1 : 0);
    for (std::uint64_t missing = 1; missing != 0;) {
      missing = 0;
      for (std::size_t i = 0; i < count; ++i)
        missing |= theirs_.lines[i].number.load(std::memory_order_acquire) ^ received_;
    }
    std::byte* into = message.data();
    for (std::size_t i = 0; i < whole_; ++i, into += kBytesOfLine)
      std::memcpy(into, theirs_.lines[i].bytes, kBytesOfLine);
    copy_rest(into, theirs_.lines[whole_ % kMostLines].bytes);
  }

 private:
  void copy_rest(std::byte* into, const std::byte* from) const noexcept {
    if (rest_ % 8 != 0) {
      std::memcpy(into, from, rest_);
      return;
    }
    for (std::size_t at = 0; at < rest_; at += 8) std::memcpy(into + at, from + at, 8);
  }

  Direction& mine_;
  Direction& theirs_;
  const std::size_t whole_;  // lines
  const std::size_t rest_;   // bytes of a last one
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

class LinesConnection final : public Connection {
 public:
  explicit LinesConnection(const Conditions& conditions)
      : message_bytes_(conditions.message_bytes) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    auto* const directions = reinterpret_cast<Direction*>(memory_.data());
    const std::size_t mine = role == Role::client ? 0 : 1;
    return std::make_unique<LinesEnd>(directions[mine], directions[1 - mine], message_bytes_);
  }

 private:
  Mapping memory_ = Mapping::anonymous_shared(2 * sizeof(Direction));
  const std::size_t message_bytes_;
};

}  // namespace

void add_lines(RowList& list) {
  list.add({.mechanism = "lines_pingpong",
            .engine = "control",
            .wait = "spin",
            .description = "a bare message: the cache lines that it fills, each way, and no more",
            .streams = false},
           makes<LinesConnection>(), [](const Conditions& conditions) {
             if (conditions.message_bytes == 0) return "there is nothing to carry";
             return conditions.message_bytes > kMostLines * kBytesOfLine
                        ? "for messages of a few lines"
                        : "";
           });
}

}  // namespace farcall::compare
