// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/subprocess.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

using namespace std::chrono_literals;

// Whether the kernel still knows `pid`, running or as a zombie.
bool exists(pid_t pid) { return ::kill(pid, 0) == 0; }

// Everything that can be read from `fd` until all who could write have closed it.
std::string all_of(int fd) {
  std::string text;
  char buffer[512];
  for (ssize_t count = 0; (count = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  return text;
}

// What a child and this process write to descriptor `target` while `run` runs.
template <class Run>
std::string output_of(int target, Run run) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const UniqueFd saved(::dup(target));
  ::dup2(out.get(), target);
  out.reset();
  run();
  std::fflush(nullptr);
  std::cout.flush();
  ::dup2(saved.get(), target);
  return all_of(in.get());
}

TEST(Subprocess, ReportsTheExitCode) {
  Subprocess child([] { return 42; });
  const ExitStatus status = child.wait();
  EXPECT_EQ(status.code, 42);
  EXPECT_EQ(status.signal, 0);
  EXPECT_FALSE(status.success());
  EXPECT_EQ(status.describe(), "exited with 42");
}

TEST(Subprocess, ReportsTheSignalThatKilledIt) {
  Subprocess child([]() -> int { return ::pause(); });
  child.kill(SIGTERM);
  EXPECT_EQ(child.wait().describe(), "killed by SIGTERM");
  Subprocess other([]() -> int { return ::pause(); });
  other.kill(SIGRTMIN + 3);
  EXPECT_EQ(other.wait().describe(), "killed by signal " + std::to_string(SIGRTMIN + 3));
}

TEST(Subprocess, GivesTheSameAnswerAgain) {
  Subprocess child([] { return 7; });
  EXPECT_EQ(child.wait().code, 7);
  EXPECT_EQ(child.wait().code, 7);
  EXPECT_EQ(child.wait(Deadline::now())->code, 7);
  child.kill(SIGKILL);  // nothing happens
  EXPECT_FALSE(child.running());
}

TEST(Subprocess, WaitsUntilADeadline) {
  Subprocess child([]() -> int { return ::pause(); });
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(child.wait(Deadline::after(30ms)), std::nullopt);
  EXPECT_GE(monotonic_ns() - start, 30'000'000);
  EXPECT_EQ(child.wait(Deadline::now()), std::nullopt);
  EXPECT_TRUE(child.running());
  child.kill(SIGKILL);
  ASSERT_TRUE(child.wait(Deadline::after(20s)));
  EXPECT_FALSE(child.running());
}

TEST(Subprocess, LeavesNoZombie) {
  pid_t pid = -1;
  {
    Subprocess child([] { return 0; });
    pid = child.pid();
  }
  EXPECT_FALSE(exists(pid));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(Subprocess, IsKilledASecondAfterNobodyWantsItAnyMore) {
  const std::int64_t start = monotonic_ns();
  pid_t pid = -1;
  {
    Subprocess child([] {
      for (;;) ::pause();
      return 0;
    });
    pid = child.pid();
  }
  EXPECT_GE(monotonic_ns() - start, 1'000'000'000);
  EXPECT_FALSE(exists(pid));
}

TEST(Subprocess, EndsWhenAnotherIsAssignedToIt) {
  Subprocess child([]() -> int { return ::pause(); });
  const pid_t first = child.pid();
  child.kill(SIGKILL);
  child = Subprocess([] { return 5; });
  EXPECT_FALSE(exists(first));
  EXPECT_EQ(child.wait().code, 5);
}

// A program that forks by itself has a copy of the object in its child, and the process is not its.
TEST(Subprocess, IsNotEndedByAForkedChild) {
  Subprocess one([]() -> int { return ::pause(); });
  Subprocess other([]() -> int { return ::pause(); });
  const pid_t forked = ::fork();
  ASSERT_GE(forked, 0);
  if (forked == 0) {
    {
      Subprocess mine(std::move(one));
      mine = Subprocess(std::move(other));
    }
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(forked, &status, 0), forked);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(one.running());
  EXPECT_TRUE(other.running());
  one.kill(SIGKILL);
  other.kill(SIGKILL);
}

TEST(Subprocess, CannotBeWaitedForAfterItWasMovedAway) {
  Subprocess child([] { return 5; });
  Subprocess moved(std::move(child));
  EXPECT_THROW(child.wait(), MisuseError);  // NOLINT
  EXPECT_FALSE(child.running());
  EXPECT_EQ(moved.wait().code, 5);
}

TEST(Subprocess, PrintsAnExceptionAndExitsWith125) {
  const std::string text = output_of(STDERR_FILENO, [] {
    Subprocess child([]() -> int { throw std::runtime_error("a reason"); });
    EXPECT_EQ(child.wait().code, 125);
    Subprocess other([]() -> int { throw 1; });
    EXPECT_EQ(other.wait().code, 125);
  });
  EXPECT_NE(text.find("a reason"), std::string::npos) << text;
  EXPECT_NE(text.find("unknown type"), std::string::npos) << text;
}

TEST(Subprocess, WritesWhatWasBufferedOnce) {
  const std::string text = output_of(STDOUT_FILENO, [] {
    std::printf("1");
    std::cout << "2";
    Subprocess child([] {
      std::printf("3");
      std::cout << "4";
      return 0;
    });
    child.wait();
    std::cout << "5";
  });
  EXPECT_EQ(text.size(), 5U) << text;
  EXPECT_EQ(text.substr(0, 2).find_first_not_of("12"), std::string::npos) << text;
  EXPECT_EQ(text.substr(2, 2).find_first_not_of("34"), std::string::npos) << text;
  EXPECT_EQ(text.substr(4), "5");
}

TEST(Subprocess, RunsNeitherDestructorsNorExitHandlers) {
  struct Loud {
    ~Loud() { std::cout << "destroyed in " << ::getpid() << std::endl; }
  };
  const std::string text = output_of(STDOUT_FILENO, [] {
    const Loud loud;
    Subprocess child([] {
      std::atexit([] { std::cout << "exit handler" << std::endl; });
      return 0;
    });
    child.wait();
  });
  EXPECT_EQ(text, "destroyed in " + std::to_string(::getpid()) + "\n");
}

TEST(Subprocess, DiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  Subprocess parent([&] {
    in.reset();
    Subprocess child([]() -> int { return ::pause(); });
    const pid_t pid = child.pid();
    if (::write(out.get(), &pid, sizeof pid) != sizeof pid) return 1;
    return ::pause();
  });
  out.reset();
  pid_t grandchild = -1;
  ASSERT_EQ(::read(in.get(), &grandchild, sizeof grandchild),
            static_cast<ssize_t>(sizeof grandchild));
  parent.kill(SIGKILL);
  EXPECT_EQ(parent.wait().signal, SIGKILL);
  // The grandchild held the other end of the pipe too.
  EXPECT_EQ(all_of(in.get()), "");
}

TEST(Subprocess, IsWaitedForAlthoughSignalsInterrupt) {
  struct sigaction old {};
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &nothing, &old), 0);
  const pid_t parent = ::getpid();
  const auto disturb = [parent] {
    for (int i = 0; i < 10; ++i) {
      std::this_thread::sleep_for(2ms);
      ::kill(parent, SIGUSR1);
    }
    return 3;
  };
  EXPECT_EQ(Subprocess(disturb).wait().code, 3);
  EXPECT_EQ(Subprocess(disturb).wait(Deadline::after(20s))->code, 3);
  ::sigaction(SIGUSR1, &old, nullptr);
}

TEST(Subprocess, SaysThatSomebodyElseHasWaitedForIt) {
  struct sigaction old {};
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;  // the kernel reaps
  ASSERT_EQ(::sigaction(SIGCHLD, &ignore, &old), 0);
  Subprocess child([] {
    std::this_thread::sleep_for(20ms);
    return 0;
  });
  try {
    child.wait();
    ADD_FAILURE();
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), ECHILD);
  }
  ::sigaction(SIGCHLD, &old, nullptr);
}

}  // namespace
}  // namespace farcall::channel
