// SPDX-License-Identifier: Apache-2.0
//
// Peers that never come to an end with giving back, or with taking back what is given: one that
// writes what it likes into shared memory, and one that stopped in the middle. Whoever leaves or
// closes waits for a bounded time in all. The tests run as those of leaving_test.cpp do.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "connected.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "preload/stream.hpp"
#include "raw_word.hpp"
#include "steps.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

struct Directions {
  Direction* in = nullptr;
  Direction* out = nullptr;
};

std::set<unsigned long> connections() {
  std::set<unsigned long> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long at = 0;
    if (line.find(over_unix() ? "memfd:farcall-unix" : "memfd:farcall-tcp") != std::string::npos &&
        std::sscanf(line.c_str(), "%lx", &at) == 1)
      found.insert(at);
  }
  return found;
}

// Of the connection that is not among those, which the other end has begun.
Directions find_directions(const std::set<unsigned long>& others) {
  for (const unsigned long at : connections())
    if (!others.contains(at))
      return {.in = reinterpret_cast<Direction*>(at),
              .out = reinterpret_cast<Direction*>(at + kDirectionBytes)};
  return {};
}

// A peer that has sent "unread", which stands in memory, and then does `attack` again and again. It
// ends that of itself after so long that no bound of the victim's can be meant, and lets it go on.
class Attacked {
 public:
  using Attack = std::function<void(int peer, const Directions&)>;

  explicit Attacked(const Attack& attack) {
    // On a busy machine it may have found its reader asleep, to whom the kernel brings it.
    for (int i = 0; i < 20; ++i) {
      steps_ = std::make_unique<Steps>();
      connected_ = {};
      others_ = connections();
      connected_ = with_child([&](int peer) { be_hostile(peer, attack); });
      steps_->step();
      if (!preloaded() || !readable_for_kernel(fd())) break;
    }
  }
  [[nodiscard]] int fd() const { return connected_.fd.get(); }
  void begin() const { steps_->step(); }
  void close() { connected_.fd.reset(); }
  // That it went on to the end. Nothing of it is left afterwards.
  void expect_unfinished() const {
    EXPECT_FALSE(finished_) << "whoever was attacked has waited for the end of it";
  }

 private:
  void be_hostile(int peer, const Attack& attack) const {
    // Nobody takes its socket to do it in its place, unless root may.
    ::prctl(PR_SET_DUMPABLE, 0);
    steps_->await();
    require(::send(peer, "unread", 6, MSG_NOSIGNAL) == 6, "send");
    steps_->done();
    steps_->await();
    const Directions directions = find_directions(others_);
    const auto end = std::chrono::steady_clock::now() + 20s;
    if (directions.in != nullptr) attack(peer, directions);
    steps_->done();
    while (std::chrono::steady_clock::now() < end) {
      if (directions.in != nullptr) attack(peer, directions);
      kernel(SYS_sched_yield);
    }
    finished_ = true;
    if (directions.in == nullptr) return;
    raw(directions.in->handback) = HandbackWord::kDone;
    raw(directions.out->handback) = HandbackWord::kServed;
    directions.out->kernel_sending = 0;
  }

  const Mapping memory_ = Mapping::anonymous_shared(4096);
  std::atomic<bool>& finished_ = *new (memory_.data()) std::atomic<bool>(false);
  std::unique_ptr<Steps> steps_;
  std::set<unsigned long> others_;
  Connected connected_;
};

// The victim is none the worse for it.
void expect_more_connections() {
  const Pair another;
  another.talk(1);
}

TEST(HostileLeaving, WhoAsksForTheBytesAgainAndAgainGetsThemForABoundedTime) {
  Attacked attacked([](int, const Directions& directions) {
    std::uint64_t word = raw(directions.out->handback);
    for (int i = 0; i < 10'000; ++i, word = raw(directions.out->handback))
      if (state_of(word) == HandbackWord::kGiven)
        raw(directions.out->handback)
            .compare_exchange_strong(word, (word & ~std::uint64_t{7}) | HandbackWord::kAgain);
  });
  attacked.begin();
  EXPECT_EQ(::system("true"), 0);
  attacked.expect_unfinished();
  // Root may send them in its place, if it comes to that between two questions.
  const std::string got = receive(attacked.fd());
  EXPECT_TRUE(got == "(ECONNRESET)" || got == "unread") << got;
  expect_more_connections();
}

TEST(HostileLeaving, WhoDripsBytesIsNotWaitedForByTheByte) {
  auto last = std::chrono::steady_clock::now();
  Attacked attacked([&](int peer, const Directions& directions) {
    directions.out->kernel_sending = 1;  // there is more to come
    const auto now = std::chrono::steady_clock::now();
    if (raw(directions.out->handback) == HandbackWord::kNone || now - last < 500ms) return;
    last = now;
    kernel(SYS_sendto, peer, "d", 1, MSG_NOSIGNAL | MSG_DONTWAIT, nullptr, 0);
  });
  attacked.begin();
  EXPECT_EQ(::system("true"), 0);
  attacked.expect_unfinished();
  // Root may send them in its place, where it does not come to run in time.
  const std::string got = receive(attacked.fd());
  EXPECT_TRUE(got == "unread" || (preloaded() && got == "(ECONNRESET)")) << got;
  expect_more_connections();
}

const Attacked::Attack kLeavesForEver = [](int, const Directions& directions) {
  directions.in->tail.fetch_or(kWatched);
  for (int i = 0; i < 10'000; ++i) raw(directions.in->handback) = HandbackWord::kAsked;
};

TEST(HostileLeaving, WhoSaysThatItLeavesForEverDoesNotHoldUpAClose) {
  Attacked attacked(kLeavesForEver);
  attacked.begin();
  attacked.close();
  attacked.expect_unfinished();
  expect_more_connections();
}

// A program sends again where a call was interrupted, or there was no room.
TEST(HostileLeaving, WhoSaysThatItLeavesForEverIsTakenForLostByWhoSends) {
  Attacked attacked(kLeavesForEver);
  attacked.begin();
  std::string sent;
  for (int i = 0; i < 5 && (sent.empty() || sent == "4"); ++i) sent = send(attacked.fd(), "text");
  attacked.expect_unfinished();
  if (preloaded()) {
    EXPECT_EQ(sent[0], '(') << sent;
  }
  attacked.close();
  attacked.expect_unfinished();
  expect_more_connections();
}

// A timer that is shorter than the wait does not begin it anew.
TEST(StoppedWhileItLeaves, APeerHoldsUpNoCloseOfWhoIsInterrupted) {
  Attacked attacked([begun = false](int, const Directions& directions) mutable {
    if (!begun) raw(directions.in->handback) = HandbackWord::kAsked;
    begun = true;
  });
  attacked.begin();
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
  const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 100'000},
                        .it_value = {.tv_sec = 0, .tv_usec = 100'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  attacked.close();
  const itimerval never{};
  EXPECT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
  attacked.expect_unfinished();
  expect_more_connections();
}

// One after the other.
TEST(StoppedWhileItLeaves, ManyPeersDoNotHoldUpOneCloseEach) {
  std::vector<std::unique_ptr<Attacked>> all;
  const Attacked::Attack begins = [&, begun = false](int, const Directions& directions) mutable {
    if (!begun) raw(directions.in->handback) = HandbackWord::kAsked;
    // It has inherited what it is not to keep open.
    if (!begun)
      for (const auto& one : all) one->close();
    begun = true;
    ::usleep(1000);
  };
  for (int i = 0; i < 5; ++i) all.push_back(std::make_unique<Attacked>(begins));
  for (const auto& one : all) one->begin();
  const auto start = std::chrono::steady_clock::now();
  for (const auto& one : all) one->close();
  // Each alone is worth a second.
  EXPECT_LT(std::chrono::steady_clock::now() - start, 4s);
  expect_more_connections();
}

}  // namespace
}  // namespace farcall::preload
