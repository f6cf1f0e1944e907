// SPDX-License-Identifier: Apache-2.0
//
// The sentences, from figures that are made up.
#include <gtest/gtest.h>

#include "compare/report.hpp"
#include "compare/selection.hpp"

namespace farcall::compare {
namespace {

class Sentences : public testing::Test {
 protected:
  Sentences() {
    comparison_.settings.sizes = {64};
    comparison_.settings.placements = {Placement::two_cpus, Placement::one_cpu};
  }

  void add(const char* mechanism, const char* wait, Placement placement, float p50,
           double messages_per_s) {
    const Selection selection = select_rows(list_, {mechanism}, {wait});
    Result& result = comparison_.results.emplace_back();
    result.row = selection.rows.front();
    result.placement = placement;
    const std::size_t own = result.row->info().fixed_bytes;
    result.message_bytes = own != 0 ? own : 64;
    result.rtt.add_round(std::vector<float>{p50});
    result.messages_per_s = {messages_per_s};
    result.rtt_calls = 1;
    result.system_calls_per_message = 2;
  }

  RowList list_ = all_rows();
  Comparison comparison_;
};

TEST_F(Sentences, RelateTheFastestToTheControlAndTheUsualToTheFastest) {
  add("cacheline_pingpong", "spin", Placement::two_cpus, 300, 3e6);
  add("ring", "spin", Placement::two_cpus, 390, 5e7);
  add("pipe", "block", Placement::two_cpus, 39'000, 1e6);
  add("pipe", "block", Placement::one_cpu, 2'000, 1e6);
  const auto sentences = explain(comparison_);
  ASSERT_EQ(sentences.size(), 3U);
  EXPECT_NE(sentences[0].find("ring (spin): 390 ns, 1.30 times"), std::string::npos)
      << sentences[0];
  EXPECT_NE(sentences[1].find("A pipe costs 39.0 us there, 100 times as much"), std::string::npos)
      << sentences[1];
  EXPECT_NE(sentences[1].find("it costs 2.00 us"), std::string::npos) << sentences[1];
  EXPECT_NE(sentences[2].find("3.20 GB/s, 50.0 times a pipe"), std::string::npos) << sentences[2];
}

TEST_F(Sentences, NameTheRingWhereItsMemoryMakesNoDifference) {
  add("memfd", "spin", Placement::two_cpus, 400, 1e6);
  add("ring", "spin", Placement::two_cpus, 410, 1e6);
  const std::string sentence = explain(comparison_)[0];
  EXPECT_NE(sentence.find("is ring (spin): 410 ns"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("(memfd (spin), the same in other memory, took 400 ns)"),
            std::string::npos)
      << sentence;
}

TEST_F(Sentences, NameWhatIsFasterThanTheRing) {
  add("ring", "spin", Placement::two_cpus, 410, 1e6);
  add("pipe", "block", Placement::two_cpus, 400, 1.01e6);
  const auto sentences = explain(comparison_);
  EXPECT_NE(sentences[0].find("is pipe: 400 ns"), std::string::npos) << sentences[0];
  EXPECT_NE(sentences.back().find("pipe moves most"), std::string::npos) << sentences.back();
}

TEST_F(Sentences, NameACallThatIsFasterThanTheRing) {
  add("ring", "adaptive", Placement::two_cpus, 410, 1e6);
  add("call", "spin", Placement::two_cpus, 400, 1e6);
  const auto sentences = explain(comparison_);
  EXPECT_NE(sentences[0].find("is call (spin): 400 ns"), std::string::npos) << sentences[0];
}

TEST_F(Sentences, AreLeftOutWhereNothingWasMeasured) {
  EXPECT_TRUE(explain(comparison_).empty());
  add("cacheline_pingpong", "spin", Placement::two_cpus, 300, 3e6);
  EXPECT_TRUE(explain(comparison_).empty());
}

TEST_F(Sentences, SayNothingOfStreamsOfEmptyMessages) {
  comparison_.settings.sizes = {0};
  add("ring", "spin", Placement::two_cpus, 390, 5e7);
  comparison_.results.back().message_bytes = 0;
  const auto sentences = explain(comparison_);
  ASSERT_EQ(sentences.size(), 1U);
  EXPECT_NE(sentences[0].find("to send 0 B and get an answer"), std::string::npos) << sentences[0];
}

TEST_F(Sentences, DoNotUseRowsThatFailed) {
  add("ring", "spin", Placement::two_cpus, 390, 5e7);
  comparison_.results.back().error = "broke";
  EXPECT_TRUE(explain(comparison_).empty());
}

}  // namespace
}  // namespace farcall::compare
