// SPDX-License-Identifier: Apache-2.0
//
// A peer whose process has ended while others hold its end of the lifeline.
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <chrono>
#include <string>

#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;

// What Drain::watch_process is asked, and says.
struct Watched {
  int answer = Drain::kUnknown;
  int begun = 0;
  int ended = 0;
};

int watch(void* context, bool on) noexcept {
  auto& watched = *static_cast<Watched*>(context);
  ++(on ? watched.begun : watched.ended);
  return on ? watched.answer : Drain::kUnknown;
}

class PeerProcess : public testing::TestWithParam<WaitMode> {
 protected:
  template <class Ready>
  Outcome wait(std::chrono::nanoseconds longest, Ready ready) {
    return waiter_.wait(mine_, peers_, Deadline::after(longest), ready);
  }
  Outcome wait(std::chrono::nanoseconds longest) {
    return wait(longest, [] { return false; });
  }

  Watched watched_;

 private:
  const std::pair<UniqueFd, UniqueFd> lifeline_ = socket_pair();
  WaitState mine_{};
  WaitState peers_{};
  Waiter waiter_{lifeline_.first.get(), GetParam(),
                 Drain{.take = [](void*, int) noexcept { return 0U; },
                       .context = &watched_,
                       .watch_process = watch}};
};
INSTANTIATE_TEST_SUITE_P(EveryMode, PeerProcess,
                         testing::Values(WaitMode::spin, WaitMode::adaptive, WaitMode::block),
                         [](const auto& mode) { return std::string(to_string(mode.param)); });

TEST_P(PeerProcess, ThatHasEndedBeforeTheLookIsGone) {
  watched_.answer = Drain::kEnded;
  EXPECT_EQ(wait(20s), Outcome::peer_gone);
}

TEST_P(PeerProcess, WhoseDescriptorTellsOfItsEndIsGone) {
  const UniqueFd ended(::eventfd(1, EFD_CLOEXEC));  // readable, as one of an ended process is
  watched_.answer = ended.get();
  EXPECT_EQ(wait(20s), Outcome::peer_gone);
}

TEST_P(PeerProcess, IsWatchedWhileAWaitLastsAndNoLonger) {
  const UniqueFd runs(::eventfd(0, EFD_CLOEXEC));
  watched_.answer = runs.get();
  EXPECT_EQ(wait(1ms), Outcome::timed_out);
  EXPECT_EQ(watched_.begun, 0) << "a short wait costs no descriptor";
  EXPECT_EQ(wait(20s, [&] { return watched_.begun != 0; }), Outcome::ok);
  EXPECT_EQ(watched_.begun, 1);
  EXPECT_EQ(watched_.ended, 1);
}

}  // namespace
}  // namespace farcall
