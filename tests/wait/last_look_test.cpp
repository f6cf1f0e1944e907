// SPDX-License-Identifier: Apache-2.0
//
// What comes right after a look, whichever look of a wait that is, is not missed because the peer
// ends right behind it.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;

enum class Peer : std::uint8_t { finishes, dies };

// Waits as often as it takes to have every look be the one that was too early. What comes wakes
// nobody. `make_deadline`: of the next wait. Returns how many looks there were.
template <class MakeDeadline>
int come_after_each(WaitMode mode, MakeDeadline make_deadline, SignalCount since, Peer peer) {
  constexpr int kMost = 2000;
  for (int which = 1;; ++which) {
    auto lifeline = socket_pair();
    WaitState mine{};
    WaitState peers{};
    Waiter waiter(lifeline.first.get(), mode);
    int looks = 0;
    bool here = false;
    const auto ready = [&] {
      if (here || ++looks != which) return here;
      here = true;
      if (peer == Peer::finishes) peers.state = WaitState::kFinished;
      if (peer == Peer::dies) lifeline.second.reset();
      return false;
    };
    const Outcome outcome = waiter.wait(mine, peers, make_deadline(), ready, since);
    // Behind the last of all looks: that this side gives up is so, that nothing had come is not.
    EXPECT_NE(outcome, Outcome::peer_gone) << "after look " << which;
    if (outcome != Outcome::ok || which == kMost) return which;
  }
}

constexpr auto kPeers = {Peer::finishes, Peer::dies};

class LastLookIn : public testing::TestWithParam<WaitMode> {};
INSTANTIATE_TEST_SUITE_P(EveryMode, LastLookIn,
                         testing::Values(WaitMode::spin, WaitMode::adaptive, WaitMode::block),
                         [](const auto& mode) { return std::string(to_string(mode.param)); });

TEST_P(LastLookIn, BeforeADeadline) {
  const auto passed = [] { return Deadline(1); };
  for (const Peer peer : kPeers)
    EXPECT_GT(come_after_each(GetParam(), passed, SignalCount::now(), peer), 1);
}

TEST_P(LastLookIn, BeforeASignal) {
  const SignalCount since = SignalCount::now();
  note_signal();
  for (const Peer peer : kPeers)
    EXPECT_GT(come_after_each(GetParam(), Deadline::never, since, peer), 1);
}

// The descriptor is where those sleep who have been on the futex for long.
TEST(LastLook, OfASleeperThatHasMovedToTheDescriptor) {
  const auto later = [] { return Deadline::after(30ms); };
  for (const Peer peer : kPeers)
    EXPECT_GT(come_after_each(WaitMode::block, later, SignalCount::now(), peer), 1);
}

}  // namespace
}  // namespace farcall
