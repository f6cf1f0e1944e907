// SPDX-License-Identifier: Apache-2.0
//
// Programs that are captured from their beginning.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "observe/lease.hpp"
#include "observe/tap.hpp"
#include "watch/process.hpp"
#include "watch/status.hpp"

namespace farcall::capture {
namespace {

// What such a program says of itself: whether it is captured, and for whom.
void say() {
  observe::prepare();
  watch::Process self;
  (void)watch::look(::getpid(), self);
  const bool tapped = observe::lasts(observe::first_process()->tap_until, observe::monotonic_ns());
  std::printf("said: %d %u\n", tapped ? 1 : 0, self.mark);
}

std::string start(std::uint64_t by) {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string command = std::string(observe::kTapVariable) + "=" + std::to_string(by) +
                              " /proc/" + std::to_string(::getpid()) +
                              "/exe --gtest_filter=TapFromTheBeginning." + name;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "not started";
  std::string text;
  char some[256];
  while (std::fgets(some, sizeof some, pipe) != nullptr) text += some;
  ::pclose(pipe);
  const std::size_t at = text.find("said: ");
  return at == std::string::npos ? text : text.substr(at + 6, text.find('\n', at) - at - 6);
}

// Starts itself.
TEST(TapFromTheBeginning, IsOfEachProgramThatIsStartedWhileWhoAsksLives) {
  if (std::getenv(observe::kTapVariable) != nullptr) return say();
  watch::Status own;
  ASSERT_TRUE(watch::read_status(::getpid(), own));
  const std::uint64_t here = observe::capturer(::getpid(), own.started);
  EXPECT_EQ(start(here), "1 " + std::to_string(observe::mark_of(here)));
  // Another process had the number.
  EXPECT_EQ(start(observe::capturer(::getpid(), own.started - 1)), "0 0");
  EXPECT_EQ(start(observe::capturer(0, own.started)), "0 0");
  EXPECT_EQ(start(0), "0 0");
}

constinit std::atomic<bool> ending{false};
// The program has nothing more to do than to end.
struct Ending {
  ~Ending() { ending = true; }
} at_end;

// A thread that reads what has passed, long after its process has begun to end.
void be_read_late() {
  auto* const rings = reinterpret_cast<observe::TapRings*>(
      static_cast<std::uintptr_t>(observe::first_process()->tap_ring));
  rings->seen = 1;  // somebody reads
  std::thread([rings] {
    while (!ending) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    constexpr char kSaid[] = "said: read\n";
    (void)!::write(STDOUT_FILENO, kSaid, sizeof kSaid - 1);
    rings->seen = INT64_MAX;
  }).detach();
}

// Whatever it is that has a copy of the library in it: here a program.
TEST(TapFromTheBeginning, IsReadBeforeAProgramEnds) {
  if (std::getenv(observe::kTapVariable) != nullptr) {
    static const observe::Entry ring({.kind = observe::Kind::ring, .role = observe::Role::writer});
    observe::note_sent(ring.sent(), "last", 4);
    return be_read_late();
  }
  watch::Status own;
  ASSERT_TRUE(watch::read_status(::getpid(), own));
  EXPECT_EQ(start(observe::capturer(::getpid(), own.started)), "read");
}

}  // namespace
}  // namespace farcall::capture
