// SPDX-License-Identifier: Apache-2.0
//
// What tests of unreferenced calls share.
#pragma once

#include <gtest/gtest.h>

#include "door/scoped_server.hpp"
#include "farcall/doors.h"

namespace farcall::door::test {

// Counts unreferenced calls; echoes others.
struct Unref {
  Event happened;
  std::atomic<int> count{0};
  std::atomic<bool> right{true};

  void operator()(char* data, size_t size, door_desc_t* descriptors, uint_t number) {
    if (static_cast<void*>(data) != DOOR_UNREF_DATA) ::door_return(data, size, nullptr, 0);
    if (size != 0 || number != 0 || descriptors != nullptr) right = false;
    ++count;
    happened.happens();
    ::door_return(nullptr, 0, nullptr, 0);
  }
  // Expects that so many calls have come by now, and that no more come.
  void expect(int calls) {
    while (count < calls) ASSERT_TRUE(happened.wait()) << count << " instead of " << calls;
    std::this_thread::sleep_for(kGlance);
    EXPECT_EQ(count, calls);
    EXPECT_TRUE(right) << "not without data";
  }
};

// A process that keeps the descriptors passed to it, and drops the last at the word "drop".
struct Keeper {
  std::vector<int> kept;
  void operator()(char* data, size_t size, door_desc_t* descriptors, uint_t count) {
    const std::string_view wish(data, size);
    for (uint_t i = 0; i < count; ++i) kept.push_back(fd_of(descriptors[i]));
    if (wish == "drop") {
      ::close(kept.back());
      kept.pop_back();
    } else if (wish == "duplicate") {
      kept.push_back(::dup(kept.back()));
    } else if (wish == "call") {
      if (error_of(kept.back(), "x") != 0) ::door_return(nullptr, 0, nullptr, 0);
    }
    ::door_return(data, size, nullptr, 0);
  }
};

struct DoorUnref : ::testing::Test {
  // Made first: it must not inherit the doors of a test.
  static Keeper& keeper() {
    static auto* one = new Keeper;
    return *one;
  }
  ScopedServer other{[] { return make_door(keeper()); }};
  Unref& unref = lasting<Unref>();  // its door may be called when the test is over

  void give(int door) { ASSERT_EQ(error_of(other.door(), "", {pass(door)}), 0); }
  void tell(const char* wish) { ASSERT_EQ(call(other.door(), wish).data, wish); }
};

}  // namespace farcall::door::test
