// SPDX-License-Identifier: Apache-2.0
//
// farcall capture, with tshark as who reads it.
#include "tool/capture.hpp"

#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tool/capture/said.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

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
