// SPDX-License-Identifier: Apache-2.0
//
// Beside programs that compute nobody stays awake for a peer.
#include "preload/competition.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>

#include "farcall/memory.hpp"
#include "one_way.hpp"
#include "preload/side.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint64_t kMillisecond = Competition::kTicksPerMillisecond;
constexpr std::uint64_t kNow = 1'000'000 * kMillisecond;

TEST(Competition, IsUnknownAtFirst) {
  const Competition others;
  EXPECT_FALSE(others.was_ever());
  EXPECT_FALSE(others.lasts(kNow));
  EXPECT_FALSE(others.lasts(0));
}

TEST(Competition, LastsSeveralTimesAsLongAsWhatWasLost) {
  Competition others;
  others.note_loss(kNow, 3 * kMillisecond);
  EXPECT_TRUE(others.was_ever());
  EXPECT_TRUE(others.lasts(kNow));
  EXPECT_TRUE(others.lasts(kNow + 95 * kMillisecond));
  EXPECT_FALSE(others.lasts(kNow + 96 * kMillisecond));
}

TEST(Competition, IsNotToldOfByAShortLoss) {
  Competition others;
  others.note_loss(kNow, kMillisecond / 3);
  EXPECT_FALSE(others.was_ever());
}

TEST(Competition, DoesNotCountWhereMoreIsSavedThanLost) {
  Competition others;
  for (int i = 0; i < 400; ++i) others.note_success(false);
  others.note_loss(kNow, 3 * kMillisecond);
  EXPECT_FALSE(others.was_ever());
  others.note_loss(kNow, 3 * kMillisecond);
  EXPECT_TRUE(others.lasts(kNow)) << "what was saved is spent";
}

// A process on the same processor is switched to by sleeping, too, and for little more.
TEST(Competition, CountsForLittleThatTurnsWereAnsweredOnOneProcessor) {
  Competition others;
  for (int i = 0; i < 200; ++i) others.note_success(true);
  others.note_loss(kNow, kMillisecond);
  EXPECT_TRUE(others.lasts(kNow));
}

TEST(Competition, IsNotForgottenForWhatWasSavedLongAgo) {
  Competition others;
  for (int i = 0; i < 1'000'000; ++i) others.note_success(false);
  for (int i = 0; i < 20; ++i) others.note_loss(kNow, 2 * kMillisecond);
  EXPECT_TRUE(others.lasts(kNow));
}

TEST(Competition, LastsEverLongerWhileItGoesOn) {
  Competition others;
  std::uint64_t now = kNow;
  std::uint64_t lasted = 0;
  for (int i = 0; i < 10; ++i) {
    others.note_loss(now, 3 * kMillisecond);
    std::uint64_t time = 0;
    while (others.lasts(now + time)) time += kMillisecond;
    EXPECT_GE(time, lasted);
    lasted = time;
    now += time + 4 * kMillisecond;  // somebody tries, and loses that again
  }
  EXPECT_EQ(lasted, 128 * 3 * kMillisecond);
  others.note_loss(now + 10 * lasted, 3 * kMillisecond);
  EXPECT_FALSE(others.lasts(now + 10 * lasted + 97 * kMillisecond)) << "it has begun anew";
}

TEST(Competition, LastsASecondAtMost) {
  Competition others;
  others.note_loss(kNow, kNow / 2);
  EXPECT_TRUE(others.lasts(kNow + 990 * kMillisecond));
  EXPECT_FALSE(others.lasts(kNow + 1000 * kMillisecond));
}

TEST(Competition, IsForgottenWhenTheClockIsSetBack) {
  Competition others;
  others.note_loss(kNow, 3 * kMillisecond);
  EXPECT_FALSE(others.lasts(1));
}

// How often a wait looked that was in vain.
int looks_of_a_wait(Patience& patience, std::uint32_t peer, int pause_at = -1) {
  int looks = 0;
  EXPECT_FALSE(patience.stay_awake(
      [&] {
        if (++looks == pause_at) {
          const timespec moment{.tv_sec = 0, .tv_nsec = 20'000'000};
          ::nanosleep(&moment, nullptr);
        }
        return false;
      },
      [&] { return peer; }));
  return looks;
}

// Whether `look` could be called while what was lost before it counted.
template <class Look>
bool while_it_counts(Look look) {
  for (int i = 0; i < 100; ++i) {
    look();
    // Somebody may have had this thread's processor for longer than it counts.
    if (others_compete(this_processor())) return true;
  }
  return false;
}

class Waiting : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  void TearDown() override { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

TEST_F(Waiting, IsShortAfterTheProcessorWasTakenFromAWaiterThatLooks) {
  const std::uint32_t elsewhere = this_processor() + 1;
  int looks = 0;
  ASSERT_TRUE(while_it_counts([&] {
    Patience patience;
    looks_of_a_wait(patience, elsewhere, 310);  // more than are made without looking at the clock
    looks = looks_of_a_wait(patience, elsewhere);
  }));
  EXPECT_EQ(looks, 1);
}

TEST_F(Waiting, GivesNoTurnsAwayWhereTheyAreLost) {
  const std::uint32_t here = this_processor();
  int looks = 0;
  ASSERT_TRUE(while_it_counts([&] {
    Patience patience;
    note_loss(now_ticks() - 100 * kMillisecond);
    looks = looks_of_a_wait(patience, here);
  }));
  EXPECT_EQ(looks, 1);
}

// What was lost on one processor is not to be lost on the next, unless waits are known to pay
// there.
TEST_F(Waiting, IsShortOnAProcessorOfWhichNothingIsKnownWhereOneWasLost) {
  const std::uint32_t unknown = this_processor() + 1;
  const std::uint32_t good = this_processor() + 2;
  for (int i = 0; i < 400; ++i) competition_for(good).note_success(false);
  ASSERT_TRUE(while_it_counts([&] { note_loss(now_ticks() - 100 * kMillisecond); }));
  EXPECT_TRUE(others_compete(unknown));
  EXPECT_FALSE(others_compete(good));
}

// Each end tells the other what it knows of its own processor.
TEST_F(Waiting, IsShortWhereThePeerSaysThatOthersCompete) {
  const Mapping memory = Mapping::anonymous_shared(2 * sizeof(Side) * kMostSides);
  const Side& side = *new (memory.data()) Side{};
  new (&side.own()) Side::Own{};
  const OneWay in(SOCK_STREAM, 4096);
  const OneWay out(SOCK_STREAM, 4096);
  std::atomic<std::uint64_t>& told = in.ring.control->sender_competes_until;
  std::atomic<std::uint64_t>& telling = out.ring.control->sender_competes_until;
  EXPECT_FALSE(others_compete(side)) << "whose peer is not known";
  side.own().in = in.ring;
  side.own().out = out.ring;
  // What this process has lost does not count for longer than a second.
  for (int i = 0; i < 2000 && others_compete(this_processor()); ++i) ::usleep(1000);
  ASSERT_FALSE(others_compete(side));
  telling = now_ticks() + 500 * kMillisecond;
  EXPECT_FALSE(others_compete(side)) << "as was told the peer";
  told = now_ticks() + 500 * kMillisecond;
  EXPECT_TRUE(others_compete(side));
  told = 0;
  EXPECT_FALSE(others_compete(side));
  telling = 0;
  ASSERT_TRUE(while_it_counts([&] {
    note_loss(now_ticks() - 100 * kMillisecond);
    (void)others_compete(side);
  }));
  EXPECT_GT(telling.load(), now_ticks() - 1000 * kMillisecond);
  EXPECT_EQ(told.load(), 0U);
}

}  // namespace
}  // namespace farcall::preload
