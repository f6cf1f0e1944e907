// SPDX-License-Identifier: Apache-2.0
//
// Programs that are captured from their beginning.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

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
  const std::string command = std::string(observe::kTapVariable) + "=" + std::to_string(by) +
                              " /proc/" + std::to_string(::getpid()) +
                              "/exe --gtest_filter=TapFromTheBeginning.*";
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

}  // namespace
}  // namespace farcall::capture
