// SPDX-License-Identifier: Apache-2.0
//
// farcall capture, with tshark as who reads it.
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tool/capture/said.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

const std::string kTalk = std::string(FARCALL_COMMAND) + " run -- " CAPTURE_TALK " ";

bool has_tshark() { return ::system("command -v tshark > /dev/null") == 0; }

std::string tshark(const std::string& file, const std::string& arguments) {
  return output_of("tshark -r " + file + " " + arguments + " 2>/dev/null");
}

// Both directions of the stream that `filter` finds, as tshark puts them together.
struct Followed {
  std::string from_client;
  std::string from_server;
  bool complete = true;
};
Followed follow(const std::string& file, const std::string& filter) {
  std::istringstream number(tshark(file, "-Y '" + filter + "' -T fields -e tcp.stream"));
  std::string stream;
  number >> stream;
  std::istringstream text(tshark(file, "-q -z follow,tcp,raw," + stream));
  Followed found;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("Node 1")) {
      inside = true;
      continue;
    }
    if (!inside || line.starts_with("==")) continue;
    const bool server = line.starts_with('\t');
    std::string& into = server ? found.from_server : found.from_client;
    const std::size_t begin = into.size();
    for (std::size_t i = server ? 1 : 0; i + 1 < line.size(); i += 2)
      into += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    if (into.find("missing in capture", begin) != std::string::npos) found.complete = false;
  }
  return found;
}

bool is_said(const std::string& text, unsigned connection, unsigned direction) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != said(connection, direction, i)) return false;
  return true;
}

struct Talked {
  std::string port;
  std::size_t sent = 0;
  std::size_t received = 0;
};
std::vector<Talked> read_talked(const std::string& text) {
  std::istringstream lines(text);
  std::vector<Talked> all;
  for (Talked one; lines >> one.port >> one.sent >> one.received;) all.push_back(one);
  return all;
}

// "lost: N messages"
std::uint64_t lost(const Finished& finished) {
  const std::size_t at = finished.err.find("lost: ");
  return at == std::string::npos ? UINT64_MAX : std::stoull(finished.err.substr(at + 6));
}

// As the statistics of the interfaces in the file say.
std::uint64_t dropped(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 12 <= bytes.size() && word(at + 4) >= 12; at += word(at + 4)) {
    if (word(at) != 5) continue;
    for (std::size_t option = at + 20; word(option) != 0;) {
      const std::uint32_t head = word(option);
      if ((head & 0xffff) == 5) sum += word(option + 4);
      option += 4 + ((head >> 16) + 3) / 4 * 4;
    }
  }
  return sum;
}

std::size_t size_of(const std::string& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

class Capture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_tshark()) GTEST_SKIP() << "tshark is not installed";
  }
  [[nodiscard]] std::string file() const { return directory_.file("capture.pcapng"); }
  Finished capture(const std::string& talk, const std::string& filter = "tcp or udp") const {
    return run_farcall({"capture", "-w", file(), "-x", kTalk + talk, filter});
  }
  // Where the command itself had no processor for seconds it has lost something, and says so.
  [[nodiscard]] Finished capture_all(const std::string& talk) const {
    Finished finished = capture(talk);
    for (int i = 0; i < 5 && finished.code == 0 && lost(finished) != 0; ++i)
      finished = capture(talk);
    return finished;
  }

  ScratchDirectory directory_;
};

TEST_F(Capture, HasTheStreamsOfTcpAsTheyWereSentByMemoryAndByTheKernel) {
  const Finished finished = capture_all("tcp 3 12");
  ASSERT_EQ(finished.code, 0) << finished.err;
  ASSERT_EQ(lost(finished), 0U) << finished.err;
  EXPECT_NE(finished.err.find(" 0 bytes of TCP are missing"), std::string::npos) << finished.err;
  const std::vector<Talked> talked = read_talked(finished.out);
  ASSERT_EQ(talked.size(), 3U) << finished.out;
  for (unsigned i = 0; i < talked.size(); ++i) {
    const Followed stream = follow(file(), "tcp.port==" + talked[i].port);
    EXPECT_TRUE(stream.complete);
    EXPECT_EQ(stream.from_client.size(), talked[i].sent);
    EXPECT_EQ(stream.from_server.size(), talked[i].received);
    EXPECT_TRUE(is_said(stream.from_client, i, 0)) << i;
    EXPECT_TRUE(is_said(stream.from_server, i, 1)) << i;
  }
  EXPECT_EQ(tshark(file(),
                   "-o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -Y "
                   "'tcp.checksum.status==0 || ip.checksum.status==0 || "
                   "tcp.analysis.lost_segment || tcp.analysis.retransmission || _ws.malformed'"),
            "");
  EXPECT_NE(tshark(file(), "-Y 'tcp.flags.syn==1 && tcp.flags.ack==0'"), "");
  EXPECT_NE(tshark(file(), "-Y 'tcp.flags.fin==1'"), "");
}

TEST_F(Capture, HasDatagramsOnceEach) {
  const Finished finished = capture_all("udp 400");
  ASSERT_EQ(finished.code, 0) << finished.err;
  ASSERT_EQ(lost(finished), 0U) << finished.err;
  std::istringstream lines(tshark(file(), "-Y udp -T fields -e udp.payload"));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    std::string text;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2)
      text += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    found.push_back(text);
  }
  // What came before they shared memory the kernel has carried alone.
  ASSERT_GT(found.size(), 400U);
  std::sort(found.begin(), found.end());
  EXPECT_EQ(std::adjacent_find(found.begin(), found.end()), found.end());
  EXPECT_TRUE(std::binary_search(found.begin(), found.end(), "question 399"));
  EXPECT_TRUE(std::binary_search(found.begin(), found.end(), "answer 398"));
}

// By the numbers of packets.
std::vector<unsigned> numbers(const std::string& file, const std::string& filter) {
  std::istringstream text(tshark(file, "-Y '" + filter + "' -T fields -e frame.number"));
  return {std::istream_iterator<unsigned>(text), {}};
}

TEST_F(Capture, SaysOfNoConnectionThatItEndsBecauseTheLibraryGivesItUp) {
  const Finished finished = capture("alone 700", "tcp");
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_GT(numbers(file(), "tcp.len==48").size(), 100U);
  EXPECT_EQ(tshark(file(), "-Y 'tcp.flags.fin==1'"), "");
}

TEST_F(Capture, SaysOfNoConnectionThatItEndsWhileAnotherProcessHoldsIt) {
  const Finished finished = capture_all("forked 200");
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::vector<unsigned> data = numbers(file(), "tcp.len==48");
  const std::vector<unsigned> ends = numbers(file(), "tcp.flags.fin==1");
  ASSERT_GT(data.size(), 700U);
  for (const unsigned end : ends) EXPECT_GT(end, data.back());
}

TEST_F(Capture, HasProgramsThatWriteOverTheirEnvironment) {
  const Finished finished = capture("titled 1 40", "tcp");
  ASSERT_EQ(finished.code, 0) << finished.err;
  std::istringstream names(tshark(file(), "-T fields -e frame.interface_name"));
  const std::set<std::string> processes{std::istream_iterator<std::string>(names), {}};
  EXPECT_EQ(processes.size(), 2U);
}

TEST_F(Capture, HasProgramsThatGetAnotherEnvironment) {
  const std::string place = directory_.file("");
  std::ofstream(place + "go") << "now";
  Command command({"capture", "-w", file(), "-x", "env -i " + kTalk + "flood 0 " + place, "tcp"});
  // Nobody waits for the capture there, so it is waited for here.
  const bool found = eventually([&] { return !numbers(file(), "tcp.len==48").empty(); }, 50s);
  std::ofstream(place + "end") << "now";
  const Finished finished = command.wait();
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(found) << finished.err;
}

// They end as soon as they have what they want.
TEST_F(Capture, HasShortProgramsThatUseTheLibraryThemselves) {
  const std::string door = directory_.file("door");
  const Command server({"door", "serve", door, "--", "cat"});
  const std::string call = FARCALL_COMMAND " door call --wait 20 " + door + " question";
  const Finished finished = run_farcall({"capture", "-w", file(), "-x", call, "door"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, "question");
  EXPECT_EQ(numbers(file(), "frame contains \"question\"").size(), 2U) << finished.err;
}

TEST_F(Capture, HasWhatItsCommandStartsLate) {
  const Finished finished =
      run_farcall({"capture", "-w", file(), "-x", "sleep 11; " + kTalk + "udp 200", "udp"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_GT(numbers(file(), "udp").size(), 200U) << finished.err;
}

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

TEST_F(Capture, HasOnlyWhatTheFilterWants) {
  const Finished finished = capture("tcp 1 20", "udp or port 9");
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.err.find(": 0 packets"), std::string::npos) << finished.err;
  EXPECT_EQ(tshark(file(), ""), "");
}

TEST_F(Capture, RefusesAFilterThatIsNone) {
  const Finished finished = run_farcall({"capture", "-w", file(), "prot", "80"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.err.find("\"prot\" is none of"), std::string::npos) << finished.err;
  EXPECT_EQ(size_of(file()), 0U);
}

TEST_F(Capture, EndsAfterSoManyPackets) {
  const Finished finished =
      run_farcall({"capture", "-w", file(), "-c", "10", "-x", kTalk + "tcp 1 20", "tcp"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::string packets = tshark(file(), "");
  EXPECT_EQ(std::count(packets.begin(), packets.end(), '\n'), 10);
}

TEST_F(Capture, EndsAfterOnePacketToo) {
  const Finished finished =
      run_farcall({"capture", "-w", file(), "-c", "1", "-x", kTalk + "tcp 1 20", "tcp"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::string packets = tshark(file(), "");
  EXPECT_EQ(std::count(packets.begin(), packets.end(), '\n'), 1) << packets;
  EXPECT_EQ(run_farcall({"capture", "-w", file(), "-c", "-1", "-x", "true"}).code, 2);
}

TEST_F(Capture, EmptiesAFileOnlyForACaptureAndKeepsItFromOthers) {
  std::ofstream(file()) << "what was there";
  ASSERT_EQ(::chmod(file().c_str(), 0644), 0);
  EXPECT_EQ(run_farcall({"capture", "-w", file(), "-p", "4000000"}).code, 1);
  EXPECT_EQ(size_of(file()), 14U);
  EXPECT_EQ(run_farcall({"capture", "-w", file(), "-x", "true"}).code, 0);
  struct stat status {};
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(Capture, LeavesTheFilesOfOtherUsersAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  std::ofstream(file()) << "what was there";
  ASSERT_EQ(::chown(file().c_str(), 65533, 65533), 0);
  const Finished finished = run_farcall({"capture", "-w", file(), "-x", "true"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("another user"), std::string::npos) << finished.err;
  EXPECT_EQ(size_of(file()), 14U);
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

TEST_F(Capture, TellsProgramsWhatItHasAndLost) {
  nlohmann::json told;
  // Where the command itself had no processor for seconds it has lost something, and says so.
  for (int i = 0; i < 5; ++i) {
    const Finished finished = run_farcall(
        {"capture", "-w", file(), "-c", "10", "--json", "-x", kTalk + "tcp 1 20", "tcp"});
    ASSERT_EQ(finished.code, 0) << finished.err;
    const std::size_t begin = finished.err.rfind('{');  // behind what the command itself says
    ASSERT_NE(begin, std::string::npos) << finished.err;
    told = nlohmann::json::parse(finished.err.substr(begin));
    if (told.at("lost_messages") == 0 && told.at("was_stopped") == false) break;
  }
  EXPECT_EQ(told.at("file"), file());
  EXPECT_EQ(told.at("packets"), 10);
  EXPECT_GE(told.at("processes"), 1);
  EXPECT_EQ(told.at("lost_messages"), 0);
  EXPECT_EQ(told.at("was_stopped"), false);
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

TEST_F(Capture, SaysThatTheDiskIsFull) {
  const Finished finished =
      run_farcall({"capture", "-w", "/dev/full", "-x", kTalk + "tcp 1 4", "tcp"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("write /dev/full: "), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("ENOSPC"), std::string::npos) << finished.err;
}

TEST_F(Capture, LetsTheProgramGoOnWhenNobodyReadsTheCapture) {
  const std::string done = directory_.file("done");
  const std::string error = directory_.file("error");
  const std::string talk = kTalk + "tcp 1 40 > /dev/null && touch " + done;
  output_of(FARCALL_COMMAND " capture -w - -x '" + talk + "' tcp 2> " + error + " | head -c 100");
  EXPECT_TRUE(eventually([&] { return ::access(done.c_str(), F_OK) == 0; }, 30s));
  std::ifstream text(error);
  const std::string said{std::istreambuf_iterator<char>(text), {}};
  EXPECT_NE(said.find("write standard output: EPIPE"), std::string::npos) << said;
}

TEST_F(Capture, SaysHowMuchItLostWhenItIsNotFastEnough) {
  const std::string place = directory_.file("");
  Command command({"capture", "-w", file(), "-x", kTalk + "flood 32 " + place, "tcp"});
  ASSERT_TRUE(eventually([&] { return size_of(file()) > 5'000; }, 20s));
  // While it does not read the program goes on.
  command.kill(SIGSTOP);
  std::ofstream(place + "go") << "now";
  const bool done = eventually([&] { return size_of(place + "done") != 0; }, 30s);
  const std::size_t before = size_of(file());
  command.kill(SIGCONT);
  // It may have been stopped for so long that it has to ask again.
  EXPECT_TRUE(eventually([&] { return size_of(file()) > before; }, 20s));
  std::ofstream(place + "end") << "now";
  EXPECT_TRUE(done);
  const Finished finished = command.wait();
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_GT(lost(finished), 0U) << finished.err;
  EXPECT_EQ(dropped(file()), lost(finished));
  // What is there is right.
  std::istringstream lines(
      tshark(file(), "-Y 'tcp.len>1000' -T fields -e tcp.seq -e tcp.len -e tcp.payload"));
  unsigned looked = 0;
  for (std::string line; looked < 200 && std::getline(lines, line); ++looked) {
    std::istringstream fields(line);
    std::uint64_t sequence = 0;
    std::size_t length = 0;
    std::string payload;
    fields >> sequence >> length >> payload;
    ASSERT_EQ(payload.size(), 2 * length);
    for (std::size_t i = 0; i < length; i += 97)
      ASSERT_EQ(static_cast<char>(std::stoi(payload.substr(2 * i, 2), nullptr, 16)),
                said(0, 0, sequence - 1 + i));
  }
  EXPECT_GT(looked, 0U);
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

TEST_F(Capture, HasThoseOfOtherUsersWhereRootAsksForThem) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const std::string talk = "setpriv --reuid 65534 --regid 65534 --clear-groups " + kTalk;
  const auto packets = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"capture", "--json", "-w", file()});
    options.insert(options.end(), {"-x", talk + "tcp 1 20", "tcp"});
    const Finished finished = run_farcall(options);
    if (finished.code != 0) return -1;
    return nlohmann::json::parse(finished.err.substr(finished.err.rfind('{')))
        .at("packets")
        .get<int>();
  };
  const int own = packets({});
  if (own < 0) GTEST_SKIP() << "needs root, and a build that others may read";
  EXPECT_EQ(own, 0);
  EXPECT_GE(packets({"--all-users"}), 40);
}

TEST_F(Capture, DoesNotSeeProcessesOfOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const std::string pid = std::to_string(::getpid());
  const std::string place = directory_.file("other.pcapng");
  // Where that user may write, and find the command.
  const std::string command =
      "exec setpriv --reuid 65534 --regid 65534 --clear-groups " FARCALL_COMMAND " capture -w " +
      std::string("/dev/null -p ") + pid + " 2>&1; true";
  const std::string said = output_of(command);
  if (said.find("Permission denied") != std::string::npos &&
      said.find("process") == std::string::npos)
    GTEST_SKIP() << "needs root, and a build that others may read";
  EXPECT_NE(said.find("look at process " + pid), std::string::npos) << said;
  EXPECT_NE(said.find("EPERM"), std::string::npos) << said;
}

}  // namespace
}  // namespace farcall::test
