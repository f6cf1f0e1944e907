// SPDX-License-Identifier: Apache-2.0
//
// farcall run, as it is used from a shell.
#include <elf.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "preload/stats.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using nlohmann::json;

void make_program(const std::string& path, const std::string& contents) {
  std::ofstream(path) << contents;
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
}

TEST(RunCommand, RunsTheProgramWithItsArgumentsAndPassesOnHowItEnded) {
  const Finished finished =
      run_farcall({"run", "--", "sh", "-c", "echo \"$1\"; exit 7", "-", "-x y"});
  EXPECT_EQ(finished.code, 7);
  EXPECT_EQ(finished.out, "-x y\n");
  EXPECT_EQ(finished.err, "");
}

TEST(RunCommand, TakesTheProgramsOptionsForTheProgramsWithoutDashesBeforeIt) {
  // Some of them are its own, too, and one is a subcommand's name.
  for (const char* option : {"--help", "-n", "--stats", "--", "compare"}) {
    const Finished finished =
        run_farcall({"run", "--ring-bytes", "64K", "--tcp=yes", "echo", "run", option, "-x"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_EQ(finished.out, std::string("run ") + option + " -x\n");
  }
  EXPECT_EQ(run_farcall({"run", "--no-such-option", "true"}).code, 2);
  EXPECT_EQ(run_farcall({"run", "--tcp", "no"}).code, 2) << "the program is missing";
}

TEST(RunCommand, ChangesNoWordOfTheProgram) {
  const std::vector<std::string> words{"[a,b]", "[]",        "[",        "{}", "\"\"",
                                       "",      "[:lower:]", "\x01[a]",  "%%", "'",
                                       "x[1]",  "-[a]",      "--x=[a,b]"};
  std::string printed;
  for (const std::string& word : words) printed += "<" + word + ">";
  for (const bool dashes : {false, true}) {
    std::vector<std::string> all{"run"};
    if (dashes) all.emplace_back("--");
    all.insert(all.end(), {"printf", "<%s>"});
    all.insert(all.end(), words.begin(), words.end());
    const Finished finished = run_farcall(all);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_EQ(finished.out, printed) << dashes;
  }
  EXPECT_EQ(run_farcall({"run", "--", "[", "-e", "/", "]"}).code, 0);
}

TEST(RunCommand, LoadsTheLibraryIntoTheProgramAndItsChildren) {
  const Finished finished = run_farcall({"run", "--", "sh", "-c", "cat /proc/self/maps"});
  EXPECT_NE(finished.out.find("libfarcall-preload.so"), std::string::npos);
}

TEST(RunCommand, KeepsOtherPreloadedLibrariesAndLoadsItsOwnOnce) {
  const Finished finished =
      run_farcall({"run", "--", FARCALL_COMMAND, "run", "--", "sh", "-c", "echo $LD_PRELOAD"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.find("libfarcall-preload.so"), finished.out.rfind("libfarcall-preload.so"))
      << finished.out;
}

TEST(RunCommand, SetsWhatItsOptionsSay) {
  const Finished finished =
      run_farcall({"run", "--ring-bytes", "64K", "--accelerate", "*:80", "--", "sh", "-c",
                   "echo $FARCALL_RING_BYTES $FARCALL_ACCELERATE"});
  EXPECT_EQ(finished.out, "64K *:80\n");
}

TEST(RunCommand, RefusesAnOptionThatCannotBeUsed) {
  const Finished finished = run_farcall({"run", "--ring-bytes", "lots", "--", "true"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.err.find("--ring-bytes=\"lots\" is not a number"), std::string::npos)
      << finished.err;
}

TEST(RunCommand, RefusesAProgramThatIsNotThere) {
  const Finished finished = run_farcall({"run", "--", "no-such-program"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("ENOENT"), std::string::npos) << finished.err;
}

TEST(RunCommand, RefusesAFileThatIsNoProgram) {
  const ScratchDirectory directory;
  make_program(directory.file("text"), "just text");
  const Finished finished = run_farcall({"run", "--", directory.file("text")});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("neither an ELF program nor a script"), std::string::npos)
      << finished.err;
}

TEST(RunCommand, RefusesAProgramThatMayNotBeExecuted) {
  const ScratchDirectory directory;
  std::ofstream(directory.file("text")) << "#!/bin/sh\n";
  const Finished finished = run_farcall({"run", "--", directory.file("text")});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("EACCES"), std::string::npos) << finished.err;
}

// A copy of a program with some of its header changed.
std::string changed_program(const ScratchDirectory& directory, std::size_t offset, char value) {
  std::ifstream source(FARCALL_COMMAND, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(source), {});
  bytes.at(offset) = value;
  make_program(directory.file("changed"), bytes);
  return directory.file("changed");
}

TEST(RunCommand, RefusesAProgramOfAnotherArchitecture) {
  const ScratchDirectory directory;
  constexpr std::size_t kMachine = 18;  // e_machine
  const Finished finished = run_farcall({"run", "--", changed_program(directory, kMachine, 8)});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("another architecture (ELF machine 8"), std::string::npos)
      << finished.err;
}

TEST(RunCommand, RefusesAStaticProgram) {
  const ScratchDirectory directory;
  constexpr std::size_t kSegments = 56;  // e_phnum: none, so none that names a dynamic linker
  const Finished finished = run_farcall({"run", "--", changed_program(directory, kSegments, 0)});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("is linked statically"), std::string::npos) << finished.err;
}

// Its notes are as long as a file with nothing in it may be.
TEST(RunCommand, LooksAtNoMoreOfAProgramThanItNeeds) {
  const ScratchDirectory directory;
  const std::string program = directory.file("program");
  constexpr std::uint64_t kLong = std::uint64_t{1} << 40;
  Elf64_Ehdr header{};
  std::ifstream("/proc/self/exe", std::ios::binary)
      .read(reinterpret_cast<char*>(&header), sizeof header);
  header.e_phoff = sizeof header;
  header.e_phnum = 73;
  Elf64_Phdr note{};
  note.p_type = PT_NOTE;
  note.p_filesz = kLong;
  {
    std::ofstream file(program, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    for (int i = 0; i < 73; ++i) file.write(reinterpret_cast<const char*>(&note), sizeof note);
  }
  ASSERT_EQ(::truncate(program.c_str(), kLong), 0);
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  Command command({"run", "--", program});
  siginfo_t ended{};
  for (int i = 0; i < 300 && ended.si_pid == 0; ++i) {
    ASSERT_EQ(
        ::waitid(P_PID, static_cast<id_t>(command.pid()), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    ::usleep(100'000);
  }
  if (ended.si_pid == 0) command.kill(SIGKILL);
  const Finished finished = command.wait();
  EXPECT_NE(finished.code, 128 + SIGKILL);
  EXPECT_NE(finished.err.find("linked statically"), std::string::npos) << finished.err;
}

TEST(RunCommand, RefusesASetuidProgram) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can make a program that belongs to another user";
  const ScratchDirectory directory;
  const std::string path = directory.file("copy");
  std::filesystem::copy_file("/bin/true", path);
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(path.c_str(), 04755), 0);
  const Finished finished = run_farcall({"run", "--", path});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("setuid"), std::string::npos) << finished.err;
}

TEST(RunCommand, LooksAtTheInterpreterOfAScript) {
  const ScratchDirectory directory;
  make_program(directory.file("script"), "#!/usr/bin/env -S sh\necho ran\n");
  EXPECT_EQ(run_farcall({"run", "--", directory.file("script")}).out, "ran\n");
  const Finished told = run_farcall({"run", "--explain", "--", directory.file("script")});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_NE(told.out.find("/sh (the program is a script)"), std::string::npos) << told.out;
}

TEST(RunCommand, ExplainsWithoutRunning) {
  const ScratchDirectory directory;
  const Finished told = run_farcall({"run", "--explain", "--udp", "no", "--exclude", "*:22",
                                     "--users", "any", "--", "touch", directory.file("touched")});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_TRUE(directory.files().empty());
  EXPECT_NE(told.out.find("accelerates TCP, unix sockets with processes of any user"),
            std::string::npos)
      << told.out;
  EXPECT_NE(told.out.find("except      *:22"), std::string::npos) << told.out;
  const auto explained = [](const char* unix_sockets) {
    return run_farcall({"run", "--explain", "--tcp", "no", "--udp", "no", "--unix", unix_sockets,
                        "--", "true"})
        .out;
  };
  EXPECT_NE(explained("yes").find("accelerates unix sockets with"), std::string::npos);
  EXPECT_NE(explained("no").find("accelerates nothing"), std::string::npos);
}

TEST(RunCommand, ReportsAfterTheProgramHasEndedAndPassesOnItsCode) {
  const ScratchDirectory directory;
  const Finished finished = run_farcall(
      {"run", "--stats", "--stats-json", directory.file("stats"), "--", "sh", "-c", "exit 5"});
  EXPECT_EQ(finished.code, 5);
  EXPECT_EQ(finished.err, "farcall: sh used no local connection\n");
  std::ifstream file(directory.file("stats"));
  const json stats = json::parse(file);
  EXPECT_TRUE(stats.at("endpoints").empty());
}

// Plain sockets are what the library is compared with.
TEST(RunCommand, AComparisonBeginsAnewWithoutTheLibrary) {
  const ScratchDirectory directory;
  const Finished finished =
      run_farcall({"run", "--stats-json", directory.file("stats"), "--", FARCALL_COMMAND, "compare",
                   "--rows", "tcp", "--sizes", "64", "--placement", "free", "--budget", "20",
                   "--rounds", "1", "--json", directory.file("[a,b] c")});
  EXPECT_EQ(finished.code, 0) << finished.err;
  std::ifstream figures(directory.file("[a,b] c"));
  EXPECT_EQ(json::parse(figures).at("rows").at(0).at("mechanism"), "tcp");
  std::ifstream file(directory.file("stats"));
  EXPECT_TRUE(json::parse(file).at("endpoints").empty());
}

TEST(RunCommand, RunsNothingWhereItCouldNotReport) {
  const ScratchDirectory directory;
  const Finished finished = run_farcall({"run", "--stats-json", "/no/such/directory/x", "--", "sh",
                                         "-c", ": > " + directory.file("ran") + "; exit 7"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("write /no/such/directory/x"), std::string::npos) << finished.err;
  EXPECT_TRUE(directory.files().empty());
}

TEST(RunCommand, PassesOnTheCodeOfAProgramWhoseReportIsLost) {
  const Finished finished =
      run_farcall({"run", "--stats-json", "/dev/full", "--", "sh", "-c", "exit 7"});
  EXPECT_EQ(finished.code, 7);
  EXPECT_NE(finished.err.find("write /dev/full"), std::string::npos) << finished.err;
}

TEST(RunCommand, LeavesNothingOfALongerReport) {
  const ScratchDirectory directory;
  std::ofstream(directory.file("stats")) << std::string(100'000, 'x');
  EXPECT_EQ(run_farcall({"run", "--stats-json", directory.file("stats"), "--", "true"}).code, 0);
  std::ifstream file(directory.file("stats"));
  EXPECT_TRUE(json::parse(file).contains("endpoints"));
}

TEST(RunCommand, ReportsAlsoWhenTheProgramIsKilled) {
  const Finished finished = run_farcall({"run", "--stats", "--", "sh", "-c", "kill -9 $$"});
  EXPECT_EQ(finished.code, 128 + SIGKILL);
  EXPECT_NE(finished.err.find("used no local connection"), std::string::npos);
}

TEST(RunCommand, ReportsAlsoWhereItsCallerIgnoresTheEndsOfChildren) {
  const Finished finished = run_ignoring_children({"run", "--stats", "--", "sh", "-c", "exit 5"});
  EXPECT_EQ(finished.code, 5);
  EXPECT_EQ(finished.err, "farcall: sh used no local connection\n");
}

// What the program does with them is between it and its caller.
TEST(RunCommand, LeavesItToTheProgramWhetherTheEndsOfChildrenAreIgnored) {
  const auto is_ignored = [](const Finished& finished) {
    const std::size_t at = finished.out.find("SigIgn:");
    EXPECT_NE(at, std::string::npos) << finished.out << finished.err;
    if (at == std::string::npos) return false;
    const auto ignored = std::stoull(finished.out.substr(at + std::strlen("SigIgn:")), nullptr, 16);
    return (ignored >> (SIGCHLD - 1) & 1) != 0;
  };
  for (const bool counted : {false, true}) {
    std::vector<std::string> words{"run"};
    if (counted) words.emplace_back("--stats");
    for (const char* word : {"--", "cat", "/proc/self/status"}) words.emplace_back(word);
    EXPECT_TRUE(is_ignored(run_ignoring_children(words))) << counted;
    EXPECT_FALSE(is_ignored(run_farcall(words))) << counted;
  }
}

// The program may write there whatever it likes.
TEST(RunCommand, BelievesNoLengthInWhatTheProgramCounts) {
  using preload::StatsPage;
  using preload::UnixName;
  constexpr std::size_t kSlot = offsetof(StatsPage, slots);
  constexpr std::size_t kName = kSlot + offsetof(StatsPage::Slot, name);
  std::string script;
  const auto write = [&](std::size_t at, unsigned byte) {
    script += fmt::format("printf '\\{:03o}' | dd of=$FARCALL_STATS bs=1 seek={} conv=notrunc; ",
                          byte, at);
  };
  for (std::size_t i = 0; i < UnixName::kMost; ++i)
    if (i % 50 == 0) write(kName + i, 'x');
  // Behind the name: what must not be read.
  write(kSlot + offsetof(StatsPage::Slot, counters) + sizeof(preload::Counters) - 1, 'Z');
  write(kName + offsetof(UnixName, size), 255);
  write(kSlot + offsetof(StatsPage::Slot, protocol),
        static_cast<unsigned>(preload::Protocol::unix_stream));
  write(kSlot + offsetof(StatsPage::Slot, state), StatsPage::Slot::kUsed);
  const Finished finished = run_farcall({"run", "--stats", "--", "sh", "-c", script + "exit 0"});
  EXPECT_EQ(finished.code, 0);
  const std::size_t at = finished.err.find("\nunix ");
  ASSERT_NE(at, std::string::npos) << finished.err;
  const std::string name = finished.err.substr(at + 6, finished.err.find(": ", at) - at - 6);
  EXPECT_LE(name.size(), 4 * UnixName::kMost) << name;
}

TEST(RunCommand, RefusesAPipeAtOnce) {
  const ScratchDirectory directory;
  const std::string pipe = directory.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0755), 0);
  for (const char* option : {"--explain", "--stats"}) {
    const Finished finished = run_farcall({"run", option, "--", pipe});
    EXPECT_EQ(finished.code, 1);
    EXPECT_NE(finished.err.find("no regular file"), std::string::npos) << finished.err;
  }
}

TEST(RunCommand, HandsSignalsOnToTheProgramThatItReportsOf) {
  const ScratchDirectory directory;
  Command command({"run", "--stats", "--", "sh", "-c",
                   "trap 'echo told; exit 3' TERM; : >\"$1\"; while :; do sleep 0.02; done", "-",
                   directory.file("ready")});
  for (int i = 0; i < 1000 && directory.files().empty(); ++i) ::usleep(10'000);
  command.kill(SIGTERM);
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 3) << finished.err;
  EXPECT_EQ(finished.out, "told\n");
}

}  // namespace
}  // namespace farcall::test
