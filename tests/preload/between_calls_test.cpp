// SPDX-License-Identifier: Apache-2.0
//
// Who waits by looking is known by its calls.
#include "preload/between_calls.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace farcall::preload {
namespace {

class BetweenCalls : public ::testing::Test {
 protected:
  // A call that finds nothing. Returns whether it was served as one of who waits by looking.
  bool look() {
    const bool served = waits_by_looking(side_);
    note_look_in_vain(side_);
    return served;
  }
  // Looks until it is known for it, which may take a while where others have the processor.
  bool become_known() {
    for (int i = 0; i < 1'000'000; ++i)
      if (look()) return true;
    return false;
  }
  Side& side() { return side_; }

 private:
  const std::unique_ptr<Side> made_ = std::make_unique<Side>();
  Side& side_ = *made_;
};

TEST_F(BetweenCalls, WhoLooksAgainAndAgainIsServedDuringManyCalls) {
  EXPECT_FALSE(look());
  ASSERT_TRUE(become_known());
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(look()) << i;
}

TEST_F(BetweenCalls, WhoWaitsOtherwiseAfterEachLookInVainIsNotServed) {
  for (int i = 0; i < 1000; ++i) {
    ASSERT_FALSE(look()) << i;
    note_success(side());
    ASSERT_FALSE(waits_by_looking(side())) << i;
    note_success(side());
  }
}

}  // namespace
}  // namespace farcall::preload
