// SPDX-License-Identifier: Apache-2.0
//
// farcall door, as it is used from a shell.
#include "farcall/door.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

// A command behind a door for the time of a test.
class Served {
 public:
  explicit Served(std::vector<std::string> command, void (*prepare)() = nullptr)
      : path_(directory_.file("door")) {
    std::vector<std::string> words{"door", "serve", path_, "--"};
    words.insert(words.end(), command.begin(), command.end());
    server_.emplace(words, prepare);
  }
  Finished call(const std::string& data) const {
    return run_farcall({"door", "call", "--wait", "20", path_, data});
  }
  // Until the door is there.
  void await() const {
    ASSERT_TRUE(eventually([&] { return attached(); }, 20s));
  }
  [[nodiscard]] bool attached() const {
    struct stat status {};
    return ::stat(path_.c_str(), &status) == 0 && S_ISDOOR(status.st_mode);
  }
  Finished end(int signal = SIGTERM) {
    server_->kill(signal);
    return server_->wait();
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  Command& server() { return *server_; }
  [[nodiscard]] std::string file(const std::string& name) const { return directory_.file(name); }

 private:
  ScratchDirectory directory_;
  std::string path_;
  std::optional<Command> server_;
};

TEST(DoorCommand, ACallGetsWhatTheCommandMakesOfTheRequest) {
  const Served served({"tr", "a-z", "A-Z"});
  const Finished finished = served.call("hello");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, "HELLO");
  EXPECT_EQ(finished.err, "");
}

TEST(DoorCommand, TheCommandsWordsAndTheRequestStayAsTheyAre) {
  const Served served({"printf", "<%s>", "[a,b]", "[]", "{}", "", "-[x]"});
  const Finished finished = served.call("");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, "<[a,b]><[]><{}><><-[x]>");
  for (const char* data : {"[1,2]", "[]", "{}"}) {
    const Served echo({"cat"});
    EXPECT_EQ(echo.call(data).out, data);
  }
}

TEST(DoorCommand, InfoTakesAPathThatLooksLikeAList) {
  const Finished finished = run_farcall({"door", "info", "[/no,/where]"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("[/no,/where]"), std::string::npos) << finished.err;
}

TEST(DoorCommand, ARequestMayComeFromStandardInputAndBeLarge) {
  const Served served({"wc", "-c"});
  served.await();
  EXPECT_EQ(output_of("head -c 3000000 /dev/zero | " FARCALL_COMMAND " door call " + served.path()),
            "3000000\n");
}

TEST(DoorCommand, AReplyMayBeLarge) {
  const Served served({"head", "-c", "3000000", "/dev/zero"});
  const Finished finished = served.call("");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, std::string(3'000'000, '\0'));
}

TEST(DoorCommand, ACommandThatFailsIsReportedWithWhatItPrinted) {
  const Served served({"sh", "-c", "cat; exit 3"});
  const Finished finished = served.call("half");
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "half");
  EXPECT_EQ(finished.err, "farcall: " + served.path() + ": the command exited with 3\n");
}

TEST(DoorCommand, ACommandThatIsKilledIsReported) {
  const Served served({"sh", "-c", "kill -9 $$"});
  const Finished finished = served.call("");
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("signal 9"), std::string::npos) << finished.err;
}

TEST(DoorCommand, CommandsAreWaitedForWhereTheCallerIgnoresTheEndsOfChildren) {
  const Served served({"sh", "-c", "cat; exit 3"}, [] { ::signal(SIGCHLD, SIG_IGN); });
  const Finished finished = served.call("half");
  EXPECT_EQ(finished.out, "half");
  EXPECT_EQ(finished.err, "farcall: " + served.path() + ": the command exited with 3\n");
}

TEST(DoorCommand, TheCommandKnowsWhoCalls) {
  const Served served({"sh", "-c", "echo $FARCALL_CALLER_UID"});
  EXPECT_EQ(served.call("").out, std::to_string(::geteuid()) + "\n");
}

// Each of two commands waits until both run.
TEST(DoorCommand, CallsAreServedAtTheSameTime) {
  const Served served({"sh", "-c",
                       "d=$(cat); : > $d.$$; i=0\n"
                       "while [ $(ls $d.* | wc -l) -lt 2 ] && [ $i -lt 500 ]; do\n"
                       "  sleep 0.02; i=$((i + 1))\ndone\n"
                       "ls $d.* | wc -l"});
  served.await();
  Finished other{};
  std::thread first([&] { other = served.call(served.file("together")); });
  const Finished finished = served.call(served.file("together"));
  first.join();
  EXPECT_EQ(finished.out, "2\n");
  EXPECT_EQ(other.out, "2\n");
}

class EndedBy : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, EndedBy, testing::Values(SIGINT, SIGTERM, SIGHUP),
                         testing::PrintToStringParamName());

TEST_P(EndedBy, ASignalTheServerLeavesNothing) {
  Served served({"cat"});
  served.await();
  const Finished finished = served.end(GetParam());
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_FALSE(std::filesystem::exists(served.path()));
  EXPECT_FALSE(served.server().left_processes());
}

// As under nohup(1).
TEST(DoorCommand, AServerThatWasStartedToIgnoreASignalGoesOn) {
  Served served({"cat"}, [] { ::signal(SIGHUP, SIG_IGN); });
  served.await();
  served.server().kill(SIGHUP);
  EXPECT_EQ(served.call("still here").out, "still here");
  EXPECT_EQ(served.end(SIGTERM).code, 0);
}

TEST(DoorCommand, AServerThatIsToldToEndFinishesItsCalls) {
  Served served({"sh", "-c", ": > $(cat); sleep 1; echo finished"});
  served.await();
  Finished called{};
  std::thread client([&] { called = served.call(served.file("started")); });
  eventually([&] { return std::filesystem::exists(served.file("started")); });
  const Finished ended = served.end();
  client.join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(called.code, 0) << called.err;
  EXPECT_EQ(called.out, "finished\n");
}

TEST(DoorCommand, ASecondSignalDoesNotWaitForCommandsAndSaysSo) {
  Served served(
      {"sh", "-c", "exec 2>/dev/null; f=$(cat); echo $$ > $f.new; mv $f.new $f; sleep 99"});
  served.await();
  std::thread client([&] { EXPECT_NE(served.call(served.file("started")).code, 0); });
  eventually([&] { return std::filesystem::exists(served.file("started")); });
  served.server().kill(SIGTERM);
  eventually([&] { return !served.attached(); });
  const Finished ended = served.end();
  client.join();
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.err, "farcall: a second signal: 1 command that runs is not waited for\n");
  EXPECT_EQ(::killpg(served.server().pid(), SIGKILL), 0) << "the command goes on";
}

TEST(DoorCommand, AServerWhoseFileIsRemovedEndsWell) {
  Served served({"cat"});
  served.await();
  std::filesystem::remove(served.path());
  const Finished ended = served.end();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
}

TEST(DoorCommand, AFileThatWasThereStaysAsItWas) {
  const ScratchDirectory directory;
  const std::string path = directory.file("door");
  std::ofstream(path) << "contents";
  Command server({"door", "serve", path, "--", "cat"});
  EXPECT_EQ(run_farcall({"door", "call", "--wait", "20", path, "x"}).out, "x");
  server.kill(SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "contents");
}

TEST(DoorCommand, ASecondServerIsRefused) {
  const Served served({"cat"});
  served.await();
  const Finished second = run_farcall({"door", "serve", served.path(), "--", "cat"});
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.err.find("EBUSY"), std::string::npos) << second.err;
  EXPECT_EQ(served.call("still").out, "still");
}

TEST(DoorCommand, AProgramThatIsNotThereIsRefusedAtOnce) {
  const ScratchDirectory directory;
  const Finished finished =
      run_farcall({"door", "serve", directory.file("door"), "--", "no-such-program"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("no-such-program"), std::string::npos) << finished.err;
  EXPECT_TRUE(directory.files().empty());
}

TEST(DoorCommand, AFolderIsNoProgram) {
  const ScratchDirectory directory;
  const Finished finished = run_farcall({"door", "serve", directory.file("door"), "--", "./"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("EISDIR"), std::string::npos) << finished.err;
  EXPECT_TRUE(directory.files().empty());
}

TEST(DoorCommand, NoPathIsNoFile) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"door", "serve", "", "--", "cat"}, {"door", "call", "", "x"}}) {
    const Finished finished = run_farcall(words);
    EXPECT_EQ(finished.code, 1);
    EXPECT_NE(finished.err.find("ENOENT"), std::string::npos) << finished.err;
  }
}

TEST(DoorCommand, APlaceInThePathThatCannotBeLookedAtIsPassedOver) {
  const std::string path = ::getenv("PATH");
  ASSERT_EQ(::setenv("PATH", ("/" + std::string(300, 'x') + ":" + path).c_str(), 1), 0);
  const Served served({"cat"});
  ASSERT_EQ(::setenv("PATH", path.c_str(), 1), 0);
  EXPECT_EQ(served.call("found").out, "found");
}

TEST(DoorCommand, CallingWhatIsNoDoorSaysSo) {
  const ScratchDirectory directory;
  std::ofstream(directory.file("plain")) << "text";
  const Finished plain = run_farcall({"door", "call", directory.file("plain"), "x"});
  EXPECT_EQ(plain.code, 1);
  EXPECT_NE(plain.err.find("no door is attached"), std::string::npos) << plain.err;
  const Finished missing = run_farcall({"door", "call", directory.file("missing"), "x"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("ENOENT"), std::string::npos) << missing.err;
  ASSERT_EQ(::mkfifo(directory.file("fifo").c_str(), 0600), 0);
  for (const char* command : {"call", "info"}) {  // neither waits for a writer
    const Finished fifo = run_farcall({"door", command, directory.file("fifo")});
    EXPECT_EQ(fifo.code, 1);
    EXPECT_NE(fifo.err.find("no door is attached"), std::string::npos) << fifo.err;
  }
}

TEST(DoorCommand, InfoTellsOfTheDoorAtAPath) {
  const Served served({"cat"});
  served.await();
  const Finished finished = run_farcall({"door", "info", served.path()});
  EXPECT_EQ(finished.code, 0) << finished.err;
  const std::regex expected(
      ".*: door to farcall\\[[0-9]+\\]\n"
      "  id [0-9a-f]{16}, attributes REFUSE_DESC\n"
      "  procedure 0x[0-9a-f]+, cookie 0x[0-9a-f]+\n"
      "  request: 0 to unlimited bytes, descriptors: 0\n");
  EXPECT_TRUE(std::regex_match(finished.out, expected)) << finished.out;
}

TEST(DoorCommand, InfoTellsOfTheDoorsThatAProcessHolds) {
  const Served served({"cat"});
  served.await();
  const Door door = Door::open(served.path());
  const door_info_t about = door.info();
  const Finished finished = run_farcall({"door", "info", std::to_string(::getpid())});
  EXPECT_EQ(finished.code, 0) << finished.err;
  char expected[200];
  std::snprintf(expected, sizeof expected,
                "%4d: door %016llx to farcall[%d], attributes REFUSE_DESC\n", door.get(),
                about.di_uniquifier, static_cast<int>(about.di_target));
  EXPECT_NE(finished.out.find(expected), std::string::npos) << finished.out << "not:\n" << expected;
}

TEST(DoorCommand, InfoTellsWhatADeadServerLeaves) {
  Served served({"cat"});
  served.await();
  const Door door = Door::open(served.path());
  served.server().kill(SIGKILL);
  served.server().wait();
  const Finished finished = run_farcall({"door", "info", std::to_string(::getpid())});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("to a server that has ended"), std::string::npos) << finished.out;
}

TEST(DoorCommand, InfoOfNoProcessFailsAndGoesOn) {
  const Served served({"cat"});
  served.await();
  const Finished finished = run_farcall({"door", "info", "999999999", served.path()});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("999999999"), std::string::npos) << finished.err;
  EXPECT_NE(finished.out.find("door to farcall"), std::string::npos) << finished.out;
}

TEST(DoorCommand, WhatIsNotSaidRightIsRefused) {
  EXPECT_EQ(run_farcall({"door"}).code, 2);
  EXPECT_EQ(run_farcall({"door", "open", "x"}).code, 2);
  EXPECT_EQ(run_farcall({"door", "call"}).code, 2);
  EXPECT_EQ(run_farcall({"door", "serve", "/tmp/x"}).code, 2);
  for (const char* seconds : {"-1", "nan", "soon", "1s"}) {
    const Finished finished = run_farcall({"door", "call", "--wait", seconds, "/tmp/x", "y"});
    EXPECT_EQ(finished.code, 2);
    EXPECT_NE(finished.err.find("no number from 0 on"), std::string::npos) << finished.err;
  }
}

}  // namespace
}  // namespace farcall::test
