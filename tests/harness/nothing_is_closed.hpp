// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <latch>
#include <span>

#include "harness/eventually.hpp"
#include "process/background.hpp"

namespace farcall::test {

// Keeps the threads busy that close what some users have sent.
class NothingIsClosedOf {
 public:
  explicit NothingIsClosedOf(std::span<const uid_t> users) {
    const std::size_t all = users.size() * process::kThreadsPerUser;
    for (std::size_t i = 0; i < all; ++i)
      process::catch_up(users[i % users.size()], [this] {
        ++at_work_;
        release_.wait();
        --at_work_;
      });
    EXPECT_TRUE(eventually([&] { return at_work_ == all; }));
  }
  NothingIsClosedOf(const NothingIsClosedOf&) = delete;
  NothingIsClosedOf& operator=(const NothingIsClosedOf&) = delete;
  ~NothingIsClosedOf() {
    release_.count_down();
    EXPECT_TRUE(eventually([&] { return at_work_ == 0; }));
  }

 private:
  std::latch release_{1};
  std::atomic<std::size_t> at_work_{0};
};

}  // namespace farcall::test
