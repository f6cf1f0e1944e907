// SPDX-License-Identifier: Apache-2.0
//
// Which processes have ended, and which have only just begun.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "harness/eventually.hpp"
#include "harness/thread_state.hpp"
#include "watch/ends.hpp"

namespace farcall::test {
namespace {

watch::Seen seen(pid_t pid) {
  watch::Process process;
  return watch::look(pid, process);
}

TEST(Ended, IsAProcessThatNobodyHasWaitedFor) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(seen(child), watch::Seen::gone);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(seen(child), watch::Seen::gone);
}

#ifndef __SANITIZE_THREAD__  // it waits for its own thread when the first ends
TEST(Ended, IsNoProcessWhoseOtherThreadsGoOn) {
  const Child child([] {
    std::thread([] { std::this_thread::sleep_for(std::chrono::minutes(1)); }).detach();
    ::syscall(SYS_exit, 0);  // this thread alone
    return 1;
  });
  ASSERT_TRUE(eventually([&] { return state_of(child.pid()) == 'Z'; }, 30s));
  EXPECT_NE(seen(child.pid()), watch::Seen::gone);
}
#endif

TEST(Everybody, FindsAProcessThatBeginsLateAsSoonAsItIsTold) {
  const Gate begin;
  const Gate begun;
  const Child child([&] {
    begin.wait();
    observe::prepare();
    begun.open();
    ::pause();
    return 0;
  });
  watch::Everybody everybody(1);
  const auto is_found = [&] {
    return std::ranges::any_of(everybody.look(watch::Everybody::Whose::own),
                               [&](const watch::Process& one) { return one.pid == child.pid(); });
  };
  for (int i = 0; i < 12; ++i) (void)is_found();
  begin.open();
  begun.wait();
  unsigned looks = 1;
  while (looks < 10 && !is_found()) ++looks;
  EXPECT_LE(looks, 2U);
}

TEST(Everybody, LooksAgainAtWhomTheOtherEndNames) {
  const Gate begin;
  const Gate begun;
  const Child child([&] {
    begin.wait();
    observe::prepare();
    begun.open();
    ::pause();
    return 0;
  });
  observe::prepare();
  watch::Everybody everybody(4);
  const auto is_found = [&] {
    return std::ranges::any_of(everybody.look(watch::Everybody::Whose::own),
                               [&](const watch::Process& one) { return one.pid == child.pid(); });
  };
  // With the last of these it is left out for the next four.
  for (int i = 0; i < 11; ++i) EXPECT_FALSE(is_found());
  begin.open();
  begun.wait();
  observe::Description end;
  end.kind = observe::Kind::call;
  end.peer = child.pid();
  const observe::Entry entry(end);
  (void)is_found();
  EXPECT_TRUE(is_found());
}

}  // namespace
}  // namespace farcall::test
