// SPDX-License-Identifier: Apache-2.0
//
// What the command says to command lines, good and bad.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compare/row.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

TEST(Farcall, TellsItsVersion) {
  const Finished finished = run_farcall({"--version"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.out.rfind("farcall 0.", 0), 0U) << finished.out;
}

TEST(Farcall, HelpsWithItsCommands) {
  const Finished finished = run_farcall({"--help"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_NE(finished.out.find("compare"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("clean"), std::string::npos) << finished.out;
}

TEST(Farcall, NamesTheCommandsThereAreForOneThatIsNot) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"nonsense"}, {"nonsense", "--help"}}) {
    const Finished finished = run_farcall(words);
    EXPECT_EQ(finished.code, 2);
    EXPECT_EQ(finished.err.rfind("farcall: there is no command 'nonsense'; there are: ", 0), 0U)
        << finished.err;
    EXPECT_NE(finished.err.find("doctor"), std::string::npos) << finished.err;
    EXPECT_EQ(finished.err.find("compare-slot"), std::string::npos) << finished.err;
  }
}

TEST(Farcall, SaysWhatIsWrongWithACommandLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"capture", "--bogus"}, "capture: there is no option '--bogus'\n"},
      {{"capture", "-w", "/dev/null", "-p", "1,,2"}, "-p: '1,,2' has an empty part\n"},
      {{"capture"}, "--write is required\n"},
      {{"run", "--bogus", "true"}, "run: there is no option '--bogus'\n"},
      {{"door", "nosuch"}, "there is no command 'door nosuch'; there are: info, call, serve\n"},
      {{"channel", "nosuch", "--help"},
       "there is no command 'channel nosuch'; there are: list, send\n"},
      {{"channel", "send", "--pulse", "1", "nobody", "data"}, "DATA excludes --pulse\n"},
  };
  const std::string help = run_farcall({"--help"}).out;
  for (const auto& [words, why] : wrong) {
    if (help.find("\n  " + words[0] + " ") == std::string::npos) continue;  // built without it
    const Finished finished = run_farcall(words);
    EXPECT_EQ(finished.code, 2) << why;
    EXPECT_EQ(finished.err.rfind("farcall: " + why, 0), 0U) << why << finished.err;
  }
}

TEST(Farcall, HasAManualOfEachCommand) {
  const std::string pages = DOCS "/man/man1/farcall";
  std::ifstream page(pages + ".1");
  const std::string all(std::istreambuf_iterator<char>(page), {});
  const std::string help = run_farcall({"--help"}).out;
  std::istringstream lines(help.substr(help.find("Subcommands:")));
  unsigned commands = 0;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    if (!line.starts_with("  ") || line.starts_with("   ") || !(words >> name)) continue;
    ++commands;
    EXPECT_NE(all.find(".It Cm " + name + "\n"), std::string::npos) << name;
    EXPECT_NE(all.find(".Xr farcall-" + name + " 1 ,\n"), std::string::npos) << name;
    EXPECT_TRUE(std::ifstream(pages + "-" + name + ".1").good()) << name;
  }
  EXPECT_GE(commands, 8U) << help;
}

TEST(Farcall, NeedsACommand) {
  const Finished finished = run_farcall({});
  EXPECT_EQ(finished.code, 2);
  EXPECT_FALSE(finished.err.empty());
}

TEST(Farcall, RefusesUnknownCommands) { EXPECT_EQ(run_farcall({"compete"}).code, 2); }

TEST(Farcall, FailsWhereWhatItPrintsIsLost) {
  for (const char* command :
       {"--help", "--version", "door --help", "completion bash", "compare --list"}) {
    const std::string said =
        output_of(FARCALL_COMMAND " " + std::string(command) + " 2>&1 >/dev/full; echo $?");
    EXPECT_EQ(said, "farcall: cannot write to standard output: No space left on device\n1\n")
        << command;
  }
}

// By a signal, as other commands.
TEST(Farcall, EndsWhereNobodyReadsAList) {
  Command list({"compare", "--list"}, [] {
    int way[2];
    if (::pipe(way) != 0 || ::close(way[0]) != 0 || ::dup2(way[1], STDOUT_FILENO) < 0) ::_exit(99);
  });
  EXPECT_EQ(list.wait().code, 128 + SIGPIPE);
}

// A status that means something else must not stand for what was lost: of a shell, which has not
// the library, there is something to say.
TEST(Farcall, SaysThatWhatItPrintsIsLostWhateverElseItsStatusSays) {
  const std::string said =
      output_of(FARCALL_COMMAND " doctor --json $$ 2>&1 >/dev/full; echo $?; true");
  EXPECT_NE(said.find("farcall: cannot write to standard output: No space left on device\n"),
            std::string::npos)
      << said;
  EXPECT_TRUE(said.ends_with("\n1\n")) << said;
}

TEST(Farcall, RefusesEmptyWords) {
  EXPECT_EQ(run_farcall({"stat", ""}).code, 2);
  EXPECT_EQ(run_farcall({"capture", "-w", "/dev/null", "-x", ""}).code, 2);
}

TEST(Farcall, CompletesForShellsThatItKnows) {
  EXPECT_EQ(run_farcall({"completion", "bash"}).code, 0);
  const Finished other = run_farcall({"completion", "fish"});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("'fish' is neither bash nor zsh"), std::string::npos) << other.err;
}

TEST(Farcall, SaysShortlyWhatIsNoNumber) {
  for (const char* text : {"-1", "x", "nan", ""}) {
    const Finished finished = run_farcall({"channel", "send", "--timeout", text, "nobody", "data"});
    EXPECT_EQ(finished.code, 2) << text;
    EXPECT_EQ(finished.err.substr(0, finished.err.find('\n')),
              "farcall: --timeout: '" + std::string(text) + "' is no number from 0 on");
  }
}

TEST(Farcall, NamesWhatItDoesNotKnowAsItWasWritten) {
  const Finished finished = run_farcall({"stat", "1", "[a,b]"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.err.find(" [a,b]"), std::string::npos) << finished.err;
}

TEST(CompareOptions, ListNamesEveryRowAndStops) {
  const Finished finished = run_farcall({"compare", "--list"});
  EXPECT_EQ(finished.code, 0);
  const compare::RowList list = compare::all_rows();
  for (const auto& row : list.rows)
    EXPECT_NE(finished.out.find(row->info().mechanism), std::string::npos) << row->info().mechanism;
  for (const compare::AbsentRow& row : list.absent)
    EXPECT_NE(finished.out.find(row.reason), std::string::npos) << row.mechanism;
}

TEST(CompareOptions, HelpExplainsThem) {
  const Finished finished = run_farcall({"compare", "--help"});
  EXPECT_EQ(finished.code, 0);
  for (const char* option : {"--rows", "--sizes", "--placement", "--wait", "--quick", "--json",
                             "--plot", "--list", "--depth", "--seed"})
    EXPECT_NE(finished.out.find(option), std::string::npos) << option;
}

struct BadLine {
  const char* name;
  std::vector<std::string> arguments;
  int code;
  const char* says;
};
class BadCompareOptions : public testing::TestWithParam<BadLine> {};
INSTANTIATE_TEST_SUITE_P(
    All, BadCompareOptions,
    testing::Values(BadLine{"Row", {"--rows", "rong"}, 2, "unix_stream"},
                    BadLine{"Size", {"--sizes", "64,big"}, 2, "\"big\""},
                    BadLine{"LargeSize", {"--sizes", "2G"}, 2, "more than 1 GiB"},
                    BadLine{"Placement", {"--placement", "here"}, 2, "two-cpus"},
                    BadLine{"Wait", {"--wait", "doze"}, 2, "adaptive"},
                    BadLine{"Depth", {"--depth", "deep"}, 2, "\"deep\""},
                    BadLine{"NoDepth", {"--depth", "0"}, 2, "\"0\" is no depth"},
                    BadLine{"Option", {"--fast"}, 2, "--fast"},
                    BadLine{"Rounds", {"--rounds", "0"}, 2, "--rounds"},
                    BadLine{"Seed", {"--seed", "-1"}, 2, "--seed"},
                    BadLine{"LargeSeed", {"--seed", "18446744073709551616"}, 2, "no whole number"},
                    BadLine{"HexRounds", {"--rounds", "0x10"}, 2, "'0x10' is no whole number"},
                    BadLine{"LargeRounds", {"--rounds", "4294967297"}, 2, "no whole number"},
                    BadLine{"MoreRounds", {"--rounds", "01001"}, 2, "Value 1001 not in range"},
                    BadLine{"JsonFolder", {"--json", "/tmp"}, 1, "EISDIR"},
                    BadLine{"PlotFolder", {"--plot", "/tmp"}, 1, ""},
                    BadLine{"JsonFile", {"--json", "/no/such/directory/x"}, 1, "ENOENT"},
                    BadLine{"PlotFile", {"--plot", "/no/such/directory/x.png"}, 1, ""}),
    [](const auto& instance) { return instance.param.name; });

TEST_P(BadCompareOptions, AreRefusedWithAReasonBeforeAnythingIsMeasured) {
  std::vector<std::string> arguments{"compare"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const Finished finished = run_farcall(arguments);
  EXPECT_EQ(finished.code, GetParam().code) << finished.err;
  EXPECT_NE(finished.err.find(GetParam().says), std::string::npos) << finished.err;
  EXPECT_EQ(finished.err.find("measuring"), std::string::npos) << finished.err;
  EXPECT_EQ(finished.out, "");
}

}  // namespace
}  // namespace farcall::test
