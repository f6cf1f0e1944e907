// SPDX-License-Identifier: Apache-2.0
//
// Programs that are captured from their beginning.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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

std::string start(std::uint64_t by, const std::string& environment = "") {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test.test_suite_name()) + "." + test.name();
  const std::string command = std::string(observe::kTapVariable) + "=" + std::to_string(by) + " " +
                              environment + " /proc/" + std::to_string(::getpid()) +
                              "/exe --gtest_filter=" + name;
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
void be_read_late(const observe::Process& process) {
  auto* const rings =
      reinterpret_cast<observe::TapRings*>(static_cast<std::uintptr_t>(process.tap_ring));
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
    return be_read_late(*observe::first_process());
  }
  watch::Status own;
  ASSERT_TRUE(watch::read_status(::getpid(), own));
  EXPECT_EQ(start(observe::capturer(::getpid(), own.started)), "read");
}

#ifdef FARCALL_PRELOAD

// What another copy of the library than this program's says, which has recorded something.
const observe::Process* preloaded() {
  watch::Process self;
  (void)watch::look(::getpid(), self);
  for (const watch::TableAt& table : self.tables) {
    const auto* const process =
        reinterpret_cast<const observe::Process*>(static_cast<std::uintptr_t>(table.process));
    if (process != observe::first_process() && process->tap_ring != 0) return process;
  }
  return nullptr;
}

void talk_to_itself() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  char byte = 'x';
  for (int i = 0; i < 200; ++i)
    if (::send(ends[0], &byte, 1, 0) != 1 || ::recv(ends[1], &byte, 1, 0) != 1) return;
}

// Of a program that ends in a way in which no destructor runs.
void is_read_before(void (*end)()) {
  if (std::getenv(observe::kTapVariable) != nullptr) {
    talk_to_itself();
    const observe::Process* const process = preloaded();
    if (process == nullptr) {
      std::printf("said: nothing was recorded\n");
      return;
    }
    be_read_late(*process);
    ending = true;
    return end();
  }
  watch::Status own;
  ASSERT_TRUE(watch::read_status(::getpid(), own));
  EXPECT_EQ(start(observe::capturer(::getpid(), own.started), "LD_PRELOAD=" FARCALL_PRELOAD),
            "read");
}

TEST(TapOfPreloaded, IsReadBeforeAProgramEndsWithoutExit) {
  is_read_before([] { ::_exit(0); });
}

TEST(TapOfPreloaded, IsReadBeforeAnotherProgramIsExecuted) {
  is_read_before([] { ::execl("/bin/true", "true", nullptr); });
}

// Behind it the library makes no call that the filter might refuse.
TEST(TapOfPreloaded, IsReadBeforeAProgramConfinesItself) {
  is_read_before([] {
    sock_filter permit[]{{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = SECCOMP_RET_ALLOW}};
    const sock_fprog all{.len = 1, .filter = permit};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
    ::_exit(0);
  });
}

#endif

}  // namespace
}  // namespace farcall::capture
