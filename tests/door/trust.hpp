// SPDX-License-Identifier: Apache-2.0
//
// A server of root's with the usual limits, and strangers who speak the protocol by hand.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "door/impostor.hpp"

namespace farcall::door::test {

// Descriptors of this process, as few as a limit of `most` leaves.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{.rlim_cur = most, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

struct DoorTrust : DoorImpostor {
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  }

  // Does `body` as a stranger with a door of its own to this server.
  template <class Body>
  void as_stranger(Body body) {
    in_child([&] {
      const UniqueFd mine(receive_door(giving));
      ASSERT_TRUE(become(kNobody));
      ::prctl(PR_SET_DUMPABLE, 1);
      body(mine.get());
    });
  }
  // Calls go on, and none of them takes long; but for one, perhaps, that meets a machine that stops
  // for a moment.
  void expect_nobody_waits(std::chrono::milliseconds time = 1500ms) {
    constexpr std::int64_t kLong = 1'000'000'000 * std::int64_t{kSlow};
    std::int64_t longest = kLong;
    for (int tries = 0; tries < 3 && longest >= kLong; ++tries) {
      longest = 0;
      for (const std::int64_t end = now_ns() + time.count() * 1'000'000; now_ns() < end;) {
        const std::int64_t begun = now_ns();
        const UniqueFd fresh(receive_door(giving));
        ASSERT_EQ(call(fresh.get(), "x").data, "x");
        longest = std::max(longest, now_ns() - begun);
      }
      EXPECT_LT(longest, std::max(kLong, std::int64_t{5'000'000'000}));
    }
    EXPECT_LT(longest, kLong);
  }
};

}  // namespace farcall::door::test
