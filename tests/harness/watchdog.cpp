// SPDX-License-Identifier: Apache-2.0
//
// What every test of doors runs under: a test that hangs fails, and says which one it was.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "harness/child.hpp"
#include "harness/thread_state.hpp"

// A server may be forked from a process that has threads.
extern "C" const char* __tsan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace farcall::test {
namespace {

char running[200] = "a test";
std::chrono::seconds given = 40s;

void give_up(int) {
  char text[300];
  std::size_t size = 0;
  for (const char* part : {"Hung: ", static_cast<const char*>(running), "\n"}) {
    std::memcpy(text + size, part, std::strlen(part));
    size += std::strlen(part);
  }
  (void)!::write(STDERR_FILENO, text, size);
  ::_exit(70);
}

class Watchdog : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(const ::testing::TestInfo& test) override {
    const std::string name = std::string(test.test_suite_name()) + "." + test.name();
    std::strncpy(running, name.c_str(), sizeof running - 1);
    give_up_after(40s);  // unless the test says otherwise
  }
  void OnTestEnd(const ::testing::TestInfo&) override { ::alarm(0); }
};

const bool kInstalled = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return true;
}();

}  // namespace

void give_up_after(std::chrono::seconds time) {
  given = time;
  struct sigaction action {};
  action.sa_handler = give_up;
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(static_cast<unsigned>(time.count() * (kSlow > 1 ? 3 : 1)));
}

bool others_sleep() {
  const pid_t own = ::gettid();
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    if (task.path().filename() == std::to_string(own)) continue;
    // It may have ended meanwhile.
    const char state = state_at(task.path());
    if (state != 'S' && state != '?') return false;
  }
  return true;
}

pid_t fork_while_others_rest() {
  if constexpr (kSlow > 1) {
    const std::int64_t end = now_ns() + 500'000'000;
    for (int asleep = 0; asleep < 5 && now_ns() < end; std::this_thread::sleep_for(2ms))
      asleep = others_sleep() ? asleep + 1 : 0;
  }
  return ::fork();
}

void give_up_before_parent() { give_up_after(given - 10s); }

}  // namespace farcall::test
