// SPDX-License-Identifier: Apache-2.0
//
// What a broadcast's slot finds out about its row: who misses what, who lies, who dies. No process
// is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "compare/supervisor.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

constexpr std::int64_t kMilli = 1'000'000;
constexpr unsigned kReaders = 3;
constexpr std::size_t kBytes = 64;

// What goes wrong. `times`: how often the writer sends its message `count` to a reader. `told`:
// what a reader claims to have missed. `before_read` need not come back.
struct Mischief {
  std::function<unsigned(unsigned reader, std::uint64_t count)> times = [](auto, auto) {
    return 1;
  };
  std::function<std::optional<std::uint64_t>()> told = [] { return std::nullopt; };
  std::function<void(unsigned reader, std::uint64_t count)> before_read = [](auto, auto) {};
};

using Pipe = std::array<UniqueFd, 2>;

class WriterEnd final : public Endpoint {
 public:
  WriterEnd(std::vector<Pipe>& pipes, const Mischief& mischief)
      : pipes_(pipes), mischief_(mischief) {}
  void send(std::span<const std::byte> message) override {
    ++count_;
    for (unsigned i = 0; i < kReaders; ++i)
      for (unsigned k = mischief_.times(i, count_); k > 0; --k)
        if (::write(pipes_[i][1].get(), message.data(), message.size()) < 0) throw_errno("write");
  }
  void receive(std::span<std::byte>) override {}

 private:
  std::vector<Pipe>& pipes_;
  const Mischief& mischief_;
  std::uint64_t count_ = 0;
};

class ReaderEnd final : public Endpoint {
 public:
  ReaderEnd(int pipe, unsigned index, const Mischief& mischief)
      : pipe_(pipe), index_(index), mischief_(mischief) {}
  void send(std::span<const std::byte>) override {}
  void receive(std::span<std::byte> message) override {
    mischief_.before_read(index_, ++count_);
    if (::read(pipe_, message.data(), message.size()) != static_cast<ssize_t>(message.size()))
      throw_errno("read");
  }
  [[nodiscard]] std::optional<std::uint64_t> told_missed() const override {
    return mischief_.told();
  }

 private:
  int pipe_;
  unsigned index_;
  const Mischief& mischief_;
  std::uint64_t count_ = 0;
};

class PipesConnection final : public Connection {
 public:
  explicit PipesConnection(const Mischief& mischief) : mischief_(mischief) {
    for (Pipe& pipe : pipes_) {
      int ends[2];
      if (::pipe(ends) != 0) throw_errno("pipe");
      pipe = {UniqueFd(ends[0]), UniqueFd(ends[1])};
    }
  }
  std::unique_ptr<Endpoint> open(Role) override {
    return std::make_unique<WriterEnd>(pipes_, mischief_);
  }
  std::unique_ptr<Endpoint> open_reader(unsigned index) override {
    return std::make_unique<ReaderEnd>(pipes_[index][0].get(), index, mischief_);
  }

 private:
  const Mischief& mischief_;
  std::vector<Pipe> pipes_{kReaders};
};

Row mischievous_row(const char* policy, Mischief mischief) {
  return {{.mechanism = "mischief",
           .engine = "control",
           .wait = "block",
           .description = "",
           .policy = policy},
          [mischief = std::move(mischief)](const Conditions&) {
            return std::make_unique<PipesConnection>(mischief);
          }};
}

class BroadcastSlot : public testing::Test {
 protected:
  std::string run(const char* policy, Mischief mischief) {
    const Row row = mischievous_row(policy, std::move(mischief));
    return supervisor().run({.row = &row,
                             .conditions = {.message_bytes = kBytes,
                                            .depth_bytes = 4096,
                                            .name = "farcall-test",
                                            .readers = kReaders},
                             .processor = {},
                             .effort = Effort::tiny(8 * kMilli),
                             .key = 99,
                             .measure_depth = false,
                             .depth = 0,
                             .trace = std::nullopt});
  }
  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD) << "a process was left";
  }

  // Short only where it is to be over: there is one at a time.
  std::optional<Supervisor> made_{std::in_place, 1000, 20'000 * kMilli};
  Supervisor& supervisor() { return *made_; }
  unsigned lost_ = 0;
};

void expect_part(const std::string& text, const char* part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(BroadcastSlot, HasRoundsAndAStreamThatEachReaderHasReceivedWhole) {
  ASSERT_EQ(run("block", {}), "");
  EXPECT_GE(supervisor().samples().size(), kLeastSamples);
  const Board& board = supervisor().board();
  EXPECT_GT(board.streamed, 1U);
  for (unsigned i = 0; i < kReaders; ++i) {
    EXPECT_EQ(board.readers[i].received, board.streamed);
    EXPECT_EQ(board.readers[i].missed, 0U);
    EXPECT_GT(board.readers[i].end, board.stream_begin);
  }
}

// Of a reader that may miss messages it is counted how many, by their numbers.
TEST_F(BroadcastSlot, CountsWhatAReaderHasMissed) {
  bool streams = false;
  std::uint64_t sent_in_stream = 0;
  Mischief mischief;
  mischief.times = [&](unsigned reader, std::uint64_t) -> unsigned {
    // The stream begins when its time does. The second reader then gets every other message.
    streams = streams || supervisor().board().stream_begin != 0;
    if (reader == 0 && streams) ++sent_in_stream;
    return streams && reader == 1 ? sent_in_stream % 2 : 1;
  };
  // A stream whose writer has had no processor has a few messages only.
  for (int tries = 0; tries < 50; ++tries) {
    ASSERT_EQ(run("drop", mischief), "");
    if (supervisor().board().streamed >= 20) break;
  }
  const Board& board = supervisor().board();
  EXPECT_EQ(board.readers[0].missed, 0U);
  EXPECT_EQ(board.readers[2].missed, 0U);
  EXPECT_GT(board.readers[1].missed, 0U);
  const auto whole = board.readers[1].received + board.readers[1].missed;
  EXPECT_NEAR(static_cast<double>(board.readers[1].missed) / static_cast<double>(whole), 0.5, 0.1);
}

TEST_F(BroadcastSlot, FailsWhereAMessageIsMissingThatShouldNotBe) {
  Mischief mischief;
  mischief.times = [this](unsigned reader, std::uint64_t) -> unsigned {
    return reader == 1 && supervisor().board().stream_begin != 0 && lost_++ == 5 ? 0 : 1;
  };
  // Of a stream that had no processor there may be fewer than it takes.
  std::string said;
  for (int tries = 0; tries < 50 && said.empty(); ++tries) said = run("block", mischief);
  expect_part(said, "server: 1 messages are missing");
}

TEST_F(BroadcastSlot, FailsWhereAMessageComesTwice) {
  Mischief mischief;
  mischief.times = [](unsigned reader, std::uint64_t count) -> unsigned {
    return reader == 1 && count == 2 ? 2 : 1;
  };
  expect_part(run("block", mischief), "server: a message that came before has come again");
}

TEST_F(BroadcastSlot, FailsWhereAReaderIsToldAWrongNumber) {
  Mischief mischief;
  mischief.told = [] { return 7; };
  expect_part(run("overwrite", mischief), "server: 0 messages were missed, but it was told 7");
}

TEST_F(BroadcastSlot, FailsWhereAReaderDies) {
  Mischief mischief;
  mischief.before_read = [](unsigned reader, std::uint64_t count) {
    if (reader == 2 && count == 3) ::kill(::getpid(), SIGKILL);
  };
  expect_part(run("block", mischief), "client: read: the writer died without finishing");
}

TEST_F(BroadcastSlot, ThatHangsIsKilledAndFails) {
  Mischief mischief;
  mischief.before_read = [](unsigned reader, std::uint64_t count) {
    if (reader == 0 && count == 3) ::sleep(3600);
  };
  made_.reset();
  made_.emplace(1000, 300 * kMilli);
  expect_part(run("block", mischief), "no answer within");
}

}  // namespace
}  // namespace farcall::compare
