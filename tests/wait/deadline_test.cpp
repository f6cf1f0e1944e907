// SPDX-License-Identifier: Apache-2.0
//
// Outcomes and deadlines, without waiting.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>

#include "wait/sides.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;

TEST(Outcomes, HaveNamesAndErrnos) {
  EXPECT_EQ(to_string(Outcome::peer_gone), "peer gone");
  EXPECT_EQ(to_errno(Outcome::ok), 0);
  EXPECT_EQ(to_errno(Outcome::would_block), EAGAIN);
  EXPECT_EQ(to_errno(Outcome::timed_out), ETIMEDOUT);
  EXPECT_EQ(to_errno(Outcome::interrupted), EINTR);
  EXPECT_EQ(to_errno(Outcome::finished), EPIPE);
  EXPECT_EQ(to_errno(Outcome::peer_gone), ECONNRESET);
  EXPECT_EQ(to_errno(Outcome::broken), EPROTO);
  EXPECT_EQ(to_errno(Outcome::too_big), EMSGSIZE);
  EXPECT_EQ(to_errno(Outcome::dropped), ECONNABORTED);
}

TEST(Deadline, NeverOverflows) {
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds::max()).is_never());
  const auto most = std::chrono::nanoseconds::max();
  EXPECT_TRUE(Deadline::after(most - 1ns).is_never());
  EXPECT_TRUE(Deadline::after(most - std::chrono::nanoseconds(monotonic_ns() - 1)).is_never());
  const Deadline far = Deadline::after(most - std::chrono::nanoseconds(monotonic_ns()) - 1h);
  EXPECT_FALSE(far.is_never());
  EXPECT_GT(far, Deadline::after(24h));
  EXPECT_TRUE(Deadline::after(-1s).is_now());
}

TEST(Deadline, HasAMomentThatTheKernelTakes) {
  for (const std::int64_t at : {std::int64_t{-1}, INT64_MIN}) {
    EXPECT_GE(Deadline(at).moment().tv_sec, 0);
    EXPECT_GE(Deadline(at).moment().tv_nsec, 0);
    EXPECT_FALSE(Deadline(at).is_now()) << "that would not be a deadline that has passed";
    EXPECT_LT(Deadline(at), Deadline(monotonic_ns()));
    EXPECT_EQ(Deadline(at).left().tv_nsec, 0);
  }
}

}  // namespace
}  // namespace farcall
