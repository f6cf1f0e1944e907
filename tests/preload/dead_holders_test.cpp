// SPDX-License-Identifier: Apache-2.0
//
// Who holds which sides, in processes that are dead, or elsewhere, or that never come. All of them
// are played by this one, under numbers that no process has.
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "farcall/memory.hpp"
#include "preload/holders.hpp"
#include "preload/permitted.hpp"
#include "preload/privilege.hpp"
#include "preload/side.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kHeld = 4;
constexpr std::int32_t kCounted = 1000;  // as holders, before anybody is counted out
constexpr pid_t kDead = 1 << 30;         // more than a kernel gives
constexpr pid_t kOtherDead = kDead + 1;

constinit pid_t played = kDead;

}  // namespace

pid_t own_pid() noexcept { return played; }
bool is_known_to_be_permitted() noexcept { return true; }
bool is_confined() noexcept { return false; }

Side* side_at(std::uint32_t index) noexcept {
  static const Mapping memory = [] {
    Mapping all = Mapping::anonymous_shared(kHeld * sizeof(Side));
    auto* const first = reinterpret_cast<Side*>(all.data());
    for (std::uint32_t i = 0; i < kHeld; ++i) new (&first[i]) Side{};
    return all;
  }();
  return index < kHeld ? reinterpret_cast<Side*>(memory.data()) + index : nullptr;
}

namespace {

class DeadHolders : public ::testing::Test {
 protected:
  DeadHolders() {
    for (std::uint32_t i = 0; i < kHeld; ++i) side_at(i)->processes = kCounted;
    forget_table();
  }
  ~DeadHolders() override {
    forget_table();
    played = kDead;
  }
  // As a child of a parent that it does not know does.
  static void forget_table() { take_childs_place(::getppid() + 1); }
  static void expect_child_with(std::uint32_t side) {
    expect_child();
    note_held_by_child(side);
  }
  static void go_on_as_child(pid_t number) {
    played = number;
    take_childs_place(::getppid());
  }
  static int counted_out(std::uint32_t side) { return kCounted - side_at(side)->processes; }
};

TEST_F(DeadHolders, AreCountedOutOfWhatTheyHold) {
  expect_child_with(0);
  note_held(1);
  note_held(2);
  note_dropped(2);
  go_on_as_child(kOtherDead);
  note_held(3);
  count_out_the_dead();
  for (const std::uint32_t side : {0U, 1U, 3U}) EXPECT_EQ(counted_out(side), 1) << side;
  EXPECT_EQ(counted_out(2), 0);
  count_out_the_dead();
  EXPECT_EQ(counted_out(0), 1);
}

// Where a process has no number, it is not dead.
TEST_F(DeadHolders, OfAnotherNamespaceAreNotKnown) {
  expect_child_with(0);
  note_held(1);
  take_childs_place(::getppid() + 1);
  played = kOtherDead;
  expect_child_with(2);
  note_held(3);
  count_out_the_dead();
  EXPECT_EQ(counted_out(0), 0);
  EXPECT_EQ(counted_out(1), 0);
  EXPECT_EQ(counted_out(3), 1);
}

TEST_F(DeadHolders, OfWhomEachHasLeftGiveTheirPlacesBack) {
  for (int i = 0; i < 1000; ++i) {
    played = kDead;
    expect_child_with(0);
    note_held(1);
    go_on_as_child(::getpid());
    note_all_dropped();
  }
  expect_child_with(2);
  go_on_as_child(kOtherDead);
  count_out_the_dead();
  EXPECT_EQ(counted_out(2), 1);
  EXPECT_EQ(counted_out(0), 0);
}

TEST_F(DeadHolders, MakeRoomForChildren) {
  for (int i = 0; i < 1000; ++i) {
    played = ::getpid();
    expect_child_with(0);
    go_on_as_child(kOtherDead);
  }
  EXPECT_GT(counted_out(0), 0);
  count_out_the_dead();
  EXPECT_EQ(counted_out(0), 1000);
}

// They may have been made, and live.
TEST_F(DeadHolders, WhoseChildrenNeverComeLeaveTheirPlacesOnly) {
  constexpr int kPlaces = 256;
  for (int i = 0; i < kPlaces; ++i) expect_child_with(0);
  played = ::getpid();
  expect_child_with(1);
  go_on_as_child(kOtherDead);
  count_out_the_dead();
  EXPECT_EQ(counted_out(1), 1);
  EXPECT_EQ(counted_out(0), 0);
}

// Its place may be another one's by then.
TEST_F(DeadHolders, AChildThatComesTooLateHoldsNothingThere) {
  expect_child_with(0);
  played = ::getpid();
  count_out_the_dead();
  go_on_as_child(kOtherDead);
  count_out_the_dead();
  EXPECT_EQ(counted_out(0), 0);
}

}  // namespace
}  // namespace farcall::preload
