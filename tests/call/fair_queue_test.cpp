// SPDX-License-Identifier: Apache-2.0
#include "call/fair_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "call/port.hpp"

namespace farcall::call {
namespace {

constexpr std::uint64_t kLong = 1'000 * kTicksPerEvent;

struct CallFairQueue : ::testing::Test {
  FairQueue queue;
  AccountPointer one = queue.account(1);
  AccountPointer other = queue.account(2);

  void wait(const AccountPointer& account, std::uint8_t priority = 0) {
    Item item;
    item.account = account;
    item.priority = priority;
    queue.push(std::move(item));
  }
  // Whose turn it is, and how long it takes.
  uid_t serve(std::uint64_t ticks = 0) {
    const Item item = queue.pop();
    if (!item) return 0;
    queue.charge(*item.account, ticks);
    return item.account->user;
  }
  // How many turns of others come before that user's.
  int turns_before(uid_t user, std::uint64_t ticks = 0) {
    for (int turns = 0;; ++turns) {
      const uid_t next = serve(ticks);
      if (next == user || next == 0) return next == 0 ? -1 : turns;
    }
  }
};

TEST_F(CallFairQueue, AThousandOfOneUserWaitForEachOther) {
  for (int i = 0; i < 1000; ++i) wait(one);
  wait(other);
  EXPECT_LE(turns_before(2), 1);
  EXPECT_EQ(queue.size(), 1000U - 1);
  for (int i = 0; i < 999; ++i) EXPECT_EQ(serve(), 1U);
  EXPECT_EQ(serve(), 0U);
}

TEST_F(CallFairQueue, WhoTakesLongIsServedTheMoreSeldom) {
  for (int i = 0; i < 10'000; ++i) wait(other);
  for (int i = 0; i < 10; ++i) wait(one);
  int of_other = 0;
  for (int of_one = 0; of_one < 10;) {
    if (serve() == 2) {
      ++of_other;
    } else {
      queue.charge(*one, kLong);
      ++of_one;
    }
  }
  EXPECT_GE(of_other, 9 * 900);
}

TEST_F(CallFairQueue, WorkThatNobodyWaitsForCountsSeveralTimes) {
  Work work(queue);
  for (const std::uint64_t weight : {std::uint64_t{1}, kWeightOfUnawaited}) {
    const std::uint64_t had = one->used();
    const std::uint64_t begun = ticks();
    const std::uint64_t from = work.begin(one, weight);
    while (ticks() - from < kLong) {
    }
    work.end();
    EXPECT_GE(one->used() - had, weight * kLong);
    EXPECT_LE(one->used() - had, weight * (ticks() - begun));
  }
  // What was charged is not charged again, and what it did for nobody is left out.
  const std::uint64_t had = other->used();
  const std::uint64_t from = work.begin(other, 1);
  while (ticks() - from < kLong) {
  }
  const std::uint64_t then = ticks();
  work.weigh(kWeightOfUnawaited);
  const std::uint64_t first = other->used() - had;
  EXPECT_GE(first, kLong);
  while (ticks() - then < 2 * kLong) {
  }
  work.leave_out(kLong);
  work.end();
  EXPECT_LE(other->used() - had, first + kWeightOfUnawaited * (ticks() - then - kLong));
}

TEST_F(CallFairQueue, TimeThatOneUserHasSavedIsWorthNothing) {
  for (int i = 0; i < 1000; ++i) {
    wait(one);
    EXPECT_EQ(serve(kLong), 1U);
  }
  for (int i = 0; i < 20; ++i) {
    wait(one);
    wait(other);
  }
  // At most once does the other one go first for what is being done at that moment.
  int first = 0;
  while (serve(kLong) == 2) ++first;
  EXPECT_LE(first, 2);
  int of_one = 0;
  for (int i = 0; i < 20; ++i) of_one += serve(kLong) == 1 ? 1 : 0;
  EXPECT_GE(of_one, 9);
  EXPECT_LE(of_one, 11);
}

TEST_F(CallFairQueue, WhatIsUsedWhileNobodyWaitsCountsForNothing) {
  queue.charge(*one, 1'000'000 * kLong);
  queue.settle();
  wait(one);
  wait(other);
  EXPECT_EQ(serve(kLong), 1U);
  EXPECT_EQ(serve(kLong), 2U);
}

TEST_F(CallFairQueue, WhatIsUsedByWhoIsServedAloneCountsForNothing) {
  queue.charge(*one, kLong);
  queue.serve_only(*one);
  EXPECT_EQ(queue.ahead(*one), 0U);
  // Nor is it worth anything to who has used less meanwhile.
  queue.charge_at_once(*other, 5);
  EXPECT_EQ(queue.ahead(*other), 5U);
}

TEST_F(CallFairQueue, WhatIsUsedWhileOthersWaitCounts) {
  wait(other);
  queue.charge(*one, kLong);
  wait(one);
  wait(one);
  EXPECT_GT(queue.ahead(*one), 0U);
  EXPECT_EQ(serve(kLong / 2), 2U);
  wait(other);
  EXPECT_EQ(serve(kLong), 2U);
  wait(other);
  EXPECT_EQ(serve(), 1U);
}

TEST_F(CallFairQueue, ANewSessionOfTheSameUserChangesNothing) {
  wait(other);
  queue.charge(*one, kLong);
  const std::uint64_t ahead = queue.ahead(*one);
  one.reset();
  // Accounts that nobody uses are forgotten now and then; not those of who has had more.
  for (uid_t user = 100; user < 1'000; ++user) (void)queue.account(user);
  EXPECT_EQ(queue.ahead(*queue.account(1)), ahead);
}

TEST_F(CallFairQueue, WithinAUserWhoCameFirstIsFirst) {
  for (std::uint64_t i = 1; i <= 5; ++i) {
    Item item;
    item.account = one;
    item.source = std::make_shared<ListenedSource>();
    item.source->id = i;
    queue.push(std::move(item));
  }
  for (std::uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(queue.pop().source->id, i);
}

TEST_F(CallFairQueue, TheMoreUrgentGoesFirstWhateverItsUserHasHad) {
  wait(other, 10);
  queue.charge(*one, kLong);
  wait(one, 20);
  EXPECT_TRUE(queue.precedes(*other, 10));
  EXPECT_FALSE(queue.precedes(*other, 30));
  EXPECT_EQ(serve(), 1U);
  EXPECT_EQ(serve(), 2U);
}

TEST_F(CallFairQueue, WhoHasHadLessGoesOnUnlessAnotherOfTheSameUserWaits) {
  wait(other);
  queue.charge(*other, kLong);
  EXPECT_FALSE(queue.precedes(*one, 0));
  wait(one);
  EXPECT_TRUE(queue.precedes(*one, 0)) << "it is that one's turn";
}

TEST_F(CallFairQueue, WhoKeepsItsTurnLetsOtherUsersGoFirstButNotItsOwn) {
  wait(one);
  EXPECT_TRUE(queue.precedes(*one, 0));
  EXPECT_FALSE(queue.precedes(*one, 0, true));
  wait(other);
  EXPECT_TRUE(queue.precedes(*one, 0, true)) << "who has had as much";
  queue.charge(*other, kLong);
  EXPECT_FALSE(queue.precedes(*one, 0, true));
  queue.charge(*one, 2 * kLong);
  EXPECT_TRUE(queue.precedes(*one, 0, true));
}

TEST_F(CallFairQueue, WhoKeepsItsTurnIsFirstOfItsUser) {
  for (std::uint64_t i = 1; i <= 3; ++i) {
    Item item;
    item.account = one;
    item.source = std::make_shared<ListenedSource>();
    item.source->id = i;
    queue.push(std::move(item), i == 3);
  }
  for (const std::uint64_t expected : {3U, 1U, 2U}) EXPECT_EQ(queue.pop().source->id, expected);
}

TEST_F(CallFairQueue, WhatIsTakenOutLeavesTheOthers) {
  for (int i = 0; i < 3; ++i) {
    wait(one, static_cast<std::uint8_t>(i));
    wait(other, static_cast<std::uint8_t>(i));
  }
  std::list<Item> out;
  queue.extract([](const Item& item) { return item.account->user == 1; }, out);
  EXPECT_EQ(out.size(), 3U);
  EXPECT_EQ(queue.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(serve(), 2U);
  EXPECT_EQ(serve(), 0U);
}

}  // namespace
}  // namespace farcall::call
