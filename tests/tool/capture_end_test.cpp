// SPDX-License-Identifier: Apache-2.0
//
// How `farcall capture` ends, and with what: with its command or its processes, by signals.
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "tool/capture.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

bool has_ended(const Command& command) {
  siginfo_t ended{};
  return ::waitid(P_PID, static_cast<id_t>(command.pid()), &ended, WEXITED | WNOHANG | WNOWAIT) ==
             0 &&
         ended.si_pid != 0;
}

TEST_F(Capture, EndsWhenItsProcessHasEndedThoughNobodyWaitsForIt) {
  const pid_t sleeper = ::fork();
  ASSERT_GE(sleeper, 0);
  if (sleeper == 0) {
    ::execl(FARCALL_COMMAND, "farcall", "run", "--", "sleep", "60", nullptr);
    ::_exit(127);
  }
  // A filter may stand behind the processes.
  Command command({"capture", "-w", file(), "-p", std::to_string(sleeper), "port", "6379"});
  EXPECT_TRUE(eventually([&] { return size_of(file()) != 0; }, 20s));
  ::kill(sleeper, SIGKILL);
  EXPECT_TRUE(eventually([&] { return has_ended(command); }, 20s));
  command.kill(SIGINT);
  EXPECT_EQ(command.wait().code, 0);
  ::waitpid(sleeper, nullptr, 0);
}

// A child with that number.
pid_t fork_as(pid_t pid) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<std::uintptr_t>(&pid);
  arguments.set_tid_size = 1;
  return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
}

TEST_F(Capture, EndsWhenAnotherProcessGetsTheNumberOfItsOwn) {
  const auto sleep = [] {
    ::execl(FARCALL_COMMAND, "farcall", "run", "--", "sleep", "60", nullptr);
    ::_exit(127);
  };
  const pid_t sleeper = ::fork();
  ASSERT_GE(sleeper, 0);
  if (sleeper == 0) sleep();
  Command command({"capture", "-w", file(), "-p", std::to_string(sleeper)});
  EXPECT_TRUE(eventually([&] { return size_of(file()) != 0; }, 20s));
  // Those before it were started in another tick.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::kill(sleeper, SIGKILL);
  ::waitpid(sleeper, nullptr, 0);
  const pid_t other = fork_as(sleeper);
  if (other == 0) sleep();
  if (other > 0) {
    EXPECT_TRUE(eventually([&] { return has_ended(command); }, 20s));
  }
  command.kill(SIGINT);
  EXPECT_EQ(command.wait().code, 0);
  if (other < 0) GTEST_SKIP() << "no process may be given its number here";
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

TEST_F(Capture, EndsWithItsCommandWhereItsCallerIgnoresTheEndsOfChildren) {
  const Finished finished =
      run_ignoring_children({"capture", "-w", file(), "-x", "sleep 0.1; exit 7"});
  EXPECT_EQ(finished.code, 7) << finished.err;
}

TEST_F(Capture, GoesOnWhereNobodyHearsWhatItSays) {
  const std::string capture = std::string(FARCALL_COMMAND) + " capture -w " + file();
  EXPECT_EQ(WEXITSTATUS(std::system((capture + " -x 'exit 7' 2>&-").c_str())), 7);
  EXPECT_EQ(WEXITSTATUS(std::system((capture + " -x 'exit 7' 2>/dev/full").c_str())), 7);
  EXPECT_EQ(WEXITSTATUS(std::system((capture + " bad 2>&-").c_str())), 2);
}

// As timeout(1) sends them.
TEST_F(Capture, TwoSignalsAtOnceEndItAsOneDoes) {
  for (int i = 0; i < 5; ++i) {
    ::unlink(file().c_str());
    Command command({"capture", "-w", file()});
    ASSERT_TRUE(eventually([&] { return size_of(file()) != 0; }, 20s));
    command.kill(SIGTERM);
    command.kill(SIGTERM);
    const Finished finished = command.wait();
    EXPECT_EQ(finished.code, 0) << finished.err;
    // It captures what other tests send, too.
    EXPECT_NE(lost(finished), UINT64_MAX) << finished.err;
  }
}

// As under nohup(1).
TEST_F(Capture, GoesOnWhereItWasStartedToIgnoreASignal) {
  Command command({"capture", "-w", file()}, [] { ::signal(SIGHUP, SIG_IGN); });
  ASSERT_TRUE(eventually([&] { return size_of(file()) != 0; }, 20s));
  command.kill(SIGHUP);
  siginfo_t ended{};
  for (int i = 0; i < 30 && ended.si_pid == 0; ++i) {
    ::usleep(10'000);
    ASSERT_EQ(
        ::waitid(P_PID, static_cast<id_t>(command.pid()), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
  }
  EXPECT_EQ(ended.si_pid, 0);
  command.kill(SIGINT);
  EXPECT_EQ(command.wait().code, 0);
}

TEST_F(Capture, EndsWithTheStatusOfTheCommand) {
  EXPECT_EQ(run_farcall({"capture", "-w", file(), "-x", "exit 7"}).code, 7);
  EXPECT_EQ(run_farcall({"capture", "-w", file(), "-x", "kill -9 $$"}).code, 128 + SIGKILL);
}

// The status of a command that still runs is not known.
TEST_F(Capture, HasNoStatusOfACommandThatItLeavesRunning) {
  const std::string number = directory_.file("number");
  Command command({"capture", "-w", file(), "-x",
                   "echo $$ > " + number + ".new; mv " + number + ".new " + number +
                       "; exec sleep 1000 > /dev/null 2>&1"});
  ASSERT_TRUE(eventually([&] { return size_of(number) != 0; }, 20s));
  command.kill(SIGTERM);
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 128 + SIGTERM) << finished.err;
  pid_t left = 0;
  std::ifstream(number) >> left;
  ASSERT_GT(left, 1);
  EXPECT_EQ(::kill(left, SIGKILL), 0) << "it was to go on";
}

TEST_F(Capture, LeavesAWholeFileWhenItIsInterrupted) {
  const Command command({"capture", "-w", file()});
  ASSERT_TRUE(eventually([&] { return size_of(file()) != 0; }, 20s));
  Command& ended = const_cast<Command&>(command);
  ended.kill(SIGINT);
  const Finished finished = ended.wait();
  EXPECT_EQ(finished.code, 0) << finished.err;
  // It captures what other tests send, too.
  EXPECT_NE(lost(finished), UINT64_MAX) << finished.err;
  struct stat status {};
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(::system(("tshark -r " + file() + " > /dev/null 2>&1").c_str()), 0);
}

TEST_F(Capture, LeavesNothingWhenItIsKilled) {
  // The programs are the shell's, in another process group. They talk until they are told to end,
  // and each looks at what it gets.
  const std::string place = directory_.file("");
  std::ofstream(place + "go") << "now";
  const pid_t talk = ::fork();
  ASSERT_GE(talk, 0);
  if (talk == 0) {
    ::execl("/bin/sh", "sh", "-c", (kTalk + "flood 1 " + place).c_str(), nullptr);
    ::_exit(127);
  }
  {
    Command command({"capture", "-w", file(), "tcp"});
    EXPECT_TRUE(eventually([&] { return size_of(file()) > 10'000; }, 50s));
    command.kill(SIGKILL);
    command.wait();
  }
  EXPECT_TRUE(eventually([&] { return size_of(place + "done") != 0; }, 20s));
  std::ofstream(place + "end") << "now";
  int status = 0;
  ASSERT_EQ(::waitpid(talk, &status, 0), talk);
  EXPECT_EQ(status, 0);
  EXPECT_NE(tshark(file(), "-c 1"), "");
  EXPECT_EQ(directory_.files().size(), 4U);  // with those that were told and tell
}

TEST_F(Capture, EndsWhenTheProcessesThatItWatchesWereKilled) {
  const pid_t sleeper = ::fork();
  ASSERT_GE(sleeper, 0);
  if (sleeper == 0) {
    ::execl(FARCALL_COMMAND, "farcall", "run", "--", "sleep", "60", nullptr);
    ::_exit(127);
  }
  Command command({"capture", "-w", file(), "-p", std::to_string(sleeper)});
  EXPECT_TRUE(eventually([&] { return size_of(file()) != 0; }, 20s));
  ::kill(sleeper, SIGKILL);
  ::waitpid(sleeper, nullptr, 0);
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 0) << finished.err;
}

}  // namespace
}  // namespace farcall::test
