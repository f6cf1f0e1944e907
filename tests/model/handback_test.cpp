// SPDX-License-Identifier: Apache-2.0
//
// What a receiver gives back, piece by piece, in memory that both ends write: each byte is sent
// once, whether the sender sends it, has it given again, or the receiver takes it back.
#include <array>
#include <memory>
#include <vector>

#include "model/mutation.hpp"
#include "preload/handback_word.hpp"

namespace farcall::model {
namespace {

using preload::HandbackWord;

enum class Does { all, half, again };

struct GivenBack : Scenario {
  GivenBack(Does wanted, bool wants_back) : does(wanted), takes_back(wants_back) {
    share(&words, sizeof words);
    words.word.ask();
    threads.emplace_back([this] { receiver(); });
    threads.emplace_back([this] { sender(); });
  }
  static constexpr unsigned kPieces = 2;
  static constexpr std::size_t kSize = 2;

  void put(unsigned piece) {
    for (std::size_t i = 0; i < kSize; ++i) words.bytes[i] = value(piece, i);
  }
  static int value(unsigned piece, std::size_t at) { return static_cast<int>(10 * piece + at + 1); }

  // As GivingBack::give_next() in handback.cpp.
  void receiver() {
    for (unsigned piece = 0; piece < kPieces; ++piece) {
      put(piece);
      words.word.give(0, kSize);
      for (;;) {
        const HandbackWord::Piece now = words.word.look();
        if (now.state == HandbackWord::kServed) break;
        if (now.state == HandbackWord::kAgain) {
          require(now.from == 0 && now.to == kSize, "another piece");
          put(piece);
          words.word.give(now.from, kSize);
        } else if (takes_back && now.state == HandbackWord::kGiven && words.word.take_back(now)) {
          for (std::size_t i = now.from; i < kSize; ++i) send(value(piece, i));
          break;
        }
        pause();
      }
    }
    words.word.done();
  }

  // As serve_leaving_peer().
  void sender() {
    while (words.word.look().state != HandbackWord::kDone) {
      const HandbackWord::Piece piece = words.word.look();
      if (piece.state != HandbackWord::kGiven || !words.word.take(piece)) {
        pause();
        continue;
      }
      if (does == Does::again) {
        does = Does::all;
        words.bytes = {};
        words.word.again(piece);
        continue;
      }
      const std::size_t to = does == Does::half ? piece.from + 1 : piece.to;
      for (std::size_t i = piece.from; i < to; ++i) send(words.bytes[i]);
      if (to == piece.to)
        words.word.served();
      else
        words.word.give(to, piece.to);
    }
  }

  // The kernel's: whoever has the word has it, too.
  void send(int byte) {
    require(words.count < words.sent.size(), "more is sent than there was");
    words.sent[words.count++] = byte;
  }

  void finish() override {
    require(words.count == words.sent.size(), "bytes are missing");
    for (unsigned i = 0; i < words.count; ++i)
      require(words.sent[i] == value(i / kSize, i % kSize), "another byte");
  }

  struct {
    HandbackWord word;
    std::array<int, kSize> bytes;
    std::array<int, kPieces * kSize> sent;
    unsigned count;
  } words{};
  Does does;
  bool takes_back;
};

std::vector<Check> checks() {
  const auto check = [](const char* name, Does does, bool takes_back) {
    return Check{.name = name,
                 .make = [=] { return std::make_unique<GivenBack>(does, takes_back); },
                 .options = {}};
  };
  return {check("each piece is sent", Does::all, false), check("in halves", Does::half, false),
          check("one is given again", Does::again, false),
          check("the receiver takes back", Does::all, true),
          check("the receiver takes a half back", Does::half, true)};
}

TEST(ModelHandback, EachByteIsSentOnce) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelHandback, EveryOrderIsNeeded) {
  expect_every_order_matters(checks(), {"preload/handback_word.hpp"},
                             {{"HandbackWord::done", "release to relaxed",
                               "what is sent next goes through the kernel, which orders it"}});
}

}  // namespace
}  // namespace farcall::model
