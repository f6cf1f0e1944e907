// SPDX-License-Identifier: Apache-2.0
//
// farcall top and farcall stat, as they are used: on a terminal, and by programs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "farcall/broadcast.hpp"
#include "farcall/memory.hpp"
#include "farcall/observe.hpp"
#include "tool/run_command.hpp"
#include "tool/terminal.hpp"

namespace farcall::test {
namespace {

using nlohmann::json;

// A publisher and a reader in this process, under a name that no other has.
class News {
 public:
  explicit News(const std::string& what = "news")
      : name(what + "-" + std::to_string(::getpid())),
        publisher_(name, Publisher::Options{}),
        subscriber_(Subscriber::open(name, {}, Deadline::after(std::chrono::seconds(10)))) {}
  void pass(int messages, std::size_t size) {
    const std::vector<std::byte> message(size);
    std::vector<std::byte> into(size);
    for (int i = 0; i < messages; ++i) {
      std::size_t got = 0;
      std::uint64_t missed = 0;
      ASSERT_EQ(publisher_.write(message, Deadline::never()), Outcome::ok);
      ASSERT_EQ(subscriber_.read(into, got, missed, Deadline::never()), Outcome::ok);
    }
  }
  const std::string name;

 private:
  Publisher publisher_;
  Subscriber subscriber_;
};

json flow_named(const std::string& text, const std::string& name) {
  const json all = json::parse(text);
  for (const json& flow : all.at("flows"))
    if (flow.at("name") == name) return flow;
  return nullptr;
}

TEST(TopCommand, TellsProgramsWhatHasPassed) {
  News news;
  news.pass(123, 45);
  const Finished top = run_farcall({"top", "--once", "--json", "--interval", "0.05"});
  ASSERT_EQ(top.code, 0) << top.err;
  const json flow = flow_named(top.out, news.name);
  ASSERT_FALSE(flow.is_null()) << top.out;
  EXPECT_EQ(flow.at("kind"), "broadcast");
  EXPECT_EQ(flow.at("via"), "memory");
  EXPECT_EQ(flow.at("from").at("pid"), ::getpid());
  EXPECT_EQ(flow.at("to").at("pid"), ::getpid());
  EXPECT_EQ(flow.at("total").at("forward").at("messages"), 123);
  EXPECT_EQ(flow.at("total").at("forward").at("bytes"), 123 * 45);
  EXPECT_EQ(flow.at("since").at("forward").at("messages"), 0);
}

TEST(TopCommand, WritesMetricsThatPrometheusReads) {
  News news("a\"quote");
  news.pass(7, 10);
  const ScratchDirectory scratch;
  const std::string file = scratch.file("farcall.prom");
  const Finished top = run_farcall({"top", "--once", "--prometheus", "--output", file});
  ASSERT_EQ(top.code, 0) << top.err;
  EXPECT_EQ(top.out, "");
  EXPECT_EQ(scratch.files(), std::vector<std::string>{"farcall.prom"});
  std::ifstream lines(file);
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    // name{label="...",...} number
    const std::size_t end = line.rfind("} ");
    ASSERT_NE(end, std::string::npos) << line;
    ASSERT_NE(line.find('{'), std::string::npos) << line;
    std::size_t used = 0;
    EXPECT_NO_THROW((void)std::stod(line.substr(end + 2), &used)) << line;
    EXPECT_EQ(used, line.size() - end - 2) << line;
    if (line.starts_with("farcall_bytes_total") &&
        line.find("name=\"a\\\"quote-" + std::to_string(::getpid())) != std::string::npos &&
        line.find("direction=\"forward\",path=\"memory\"") != std::string::npos)
      found = line.substr(end + 2);
  }
  EXPECT_EQ(found, "70");
}

// The sum over all kinds of the broadcasts' ends that this process has closed: messages sent.
std::int64_t sent_and_closed(const json& kinds) {
  for (const json& kind : kinds)
    if (kind.at("kind") == "broadcast") return kind.at("sent").at("messages");
  return 0;
}

TEST(TopCommand, WhatHasBeenClosedIsKnownAsASum) {
  const std::string pid = std::to_string(::getpid());
  const auto in_top = [&] {
    const Finished top =
        run_farcall({"top", "--once", "--json", "--interval", "0.05", "--filter", pid});
    const json all = json::parse(top.out);
    for (const json& process : all.at("closed"))
      if (process.at("pid") == ::getpid()) return sent_and_closed(process.at("kinds"));
    return std::int64_t{0};
  };
  const std::int64_t before = in_top();
  News().pass(31, 8);
  EXPECT_EQ(in_top() - before, 31);
  const Finished stat = run_farcall({"stat", pid, "--json", "--interval", "0"});
  EXPECT_EQ(sent_and_closed(json::parse(stat.out).at("processes").at(0).at("closed")), before + 31);
  const Finished text = run_farcall({"stat", pid, "--interval", "0"});
  EXPECT_NE(text.out.find(" broadcast\n    sent      " + std::to_string(before + 31)),
            std::string::npos)
      << text.out;
  const Finished metrics = run_farcall({"top", "--once", "--prometheus"});
  const std::string line = "farcall_closed_messages_total{kind=\"broadcast\",pid=\"" + pid + "\"";
  const std::size_t at = metrics.out.find(line);
  ASSERT_NE(at, std::string::npos) << metrics.out;
  const std::string sent = metrics.out.substr(at, metrics.out.find('\n', at) - at);
  EXPECT_TRUE(sent.ends_with("direction=\"sent\",path=\"memory\"} " + std::to_string(before + 31)))
      << sent;
}

TEST(TopCommand, TheFileIsThereWholeOrNotAtAll) {
  const Finished top =
      run_farcall({"top", "--once", "--prometheus", "--output", "/proc/nowhere/farcall.prom"});
  EXPECT_EQ(top.code, 1);
  EXPECT_NE(top.err.find("make a file in /proc/nowhere: "), std::string::npos) << top.err;
}

TEST(TopCommand, LeavesWhatLiesBesideItsOutputAlone) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("metrics");
  std::ofstream(file) << "old";
  std::ofstream(file + ".new") << "mine";
  ASSERT_EQ(run_farcall({"top", "--once", "--prometheus", "--output", file}).code, 0);
  std::ifstream beside(file + ".new");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(beside), {}), "mine");
  std::vector<std::string> files = scratch.files();
  std::ranges::sort(files);
  EXPECT_EQ(files, (std::vector<std::string>{"metrics", "metrics.new"}));
}

TEST(TopCommand, ReplacesFilesAlone) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("real.prom");
  std::ofstream(file) << "old";
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  const std::string link = scratch.file("link.prom");
  ASSERT_EQ(::symlink(file.c_str(), link.c_str()), 0);
  ASSERT_EQ(run_farcall({"top", "--once", "--prometheus", "--output", link}).code, 0);
  struct stat status {};
  ASSERT_EQ(::lstat(link.c_str(), &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
  EXPECT_GT(status.st_size, 3);
  // A device that is full, where there are devices; and one that takes all.
  const std::string full = scratch.file("full");
  if (::mknod(full.c_str(), S_IFCHR | 0666, ::makedev(1, 7)) != 0) return;
  const Finished top = run_farcall({"top", "--once", "--prometheus", "--output", full});
  EXPECT_EQ(top.code, 1);
  EXPECT_NE(top.err.find("ENOSPC"), std::string::npos) << top.err;
  ASSERT_EQ(::stat(full.c_str(), &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST(TopCommand, WritesToNobodyElsesPipe) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  constexpr uid_t kOther = 65533;
  const ScratchDirectory scratch;
  const std::string pipe = scratch.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(::chown(pipe.c_str(), kOther, kOther), 0);
  const UniqueFd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const Finished top = run_farcall({"top", "--once", "--prometheus", "--output", pipe});
  EXPECT_EQ(top.code, 1);
  EXPECT_NE(top.err.find("another user's"), std::string::npos) << top.err;
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0);  // there is no writer, and nothing was written
}

TEST(TopCommand, SaysWhyItCannotWrite) {
  const ScratchDirectory scratch;
  const std::string said = scratch.file("said");
  const std::string top = std::string(FARCALL_COMMAND) + " top --once --interval 0.05 >/dev/full";
  EXPECT_EQ(WEXITSTATUS(std::system((top + " 2>" + said).c_str())), 1);
  std::ifstream file(said);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, "farcall: cannot write to standard output: No space left on device\n");
  const std::string stat = std::string(FARCALL_COMMAND) + " stat 4000000 ";
  EXPECT_EQ(WEXITSTATUS(std::system((stat + "2>&-").c_str())), 1);
  EXPECT_EQ(WEXITSTATUS(std::system((stat + "2>/dev/full").c_str())), 1);
}

TEST(TopCommand, SaysWhatItNeedsATerminalFor) {
  const Finished top = run_farcall({"top"});
  EXPECT_EQ(top.code, 1);
  EXPECT_NE(top.err.find("--once"), std::string::npos) << top.err;
  EXPECT_EQ(run_farcall({"top", "--sort", "colour"}).code, 2);
  EXPECT_EQ(run_farcall({"top", "--interval", "0"}).code, 2);
  EXPECT_EQ(run_farcall({"top", "--output", "x"}).code, 2);
}

TEST(TopCommand, SaysSoOnATerminalThatCannotMoveItsCursor) {
  for (const char* const kind : {"dumb", ""}) {
    TestTerminal terminal({"top"}, 160, 30, TestTerminal::Leader::command, kind);
    EXPECT_TRUE(terminal.shows("--once")) << kind;
    EXPECT_EQ(terminal.wait(), 1 << 8) << kind;
  }
}

TEST(TopCommand, ShowsALineForEachFlow) {
  News news;
  TestTerminal terminal({"top", "--interval", "0.1", "--filter", news.name});
  ASSERT_TRUE(terminal.shows(news.name));
  EXPECT_TRUE(terminal.on_alternate_screen());
  EXPECT_FALSE(terminal.shows_cursor());
  EXPECT_FALSE(terminal.has_modes_of_old());
  const std::string line = terminal.line_with(" memory ");
  EXPECT_EQ(line.rfind("broadcast ", 0), 0U) << line;
  EXPECT_NE(line.find(std::to_string(::getpid()) + " "), std::string::npos) << line;
  EXPECT_FALSE(terminal.line_with("KIND").empty());
  // Figures move while something passes.
  EXPECT_TRUE(terminal.shows([&] {
    news.pass(1000, 10);
    std::istringstream fields(terminal.line_with(" memory "));
    std::vector<std::string> words;
    for (std::string word; fields >> word;) words.push_back(word);
    // KIND pid command pid command VIA N MSG/s>
    return words.size() > 7 && words[7] != "0";
  }));
  terminal.type("q");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_FALSE(terminal.on_alternate_screen());
  EXPECT_TRUE(terminal.shows_cursor());
  EXPECT_TRUE(terminal.has_modes_of_old());
}

TEST(TopCommand, TakesKeys) {
  News one("alpha");
  News other("beta");
  TestTerminal terminal({"top", "--interval", "0.1"});
  ASSERT_TRUE(terminal.shows(one.name));
  ASSERT_TRUE(terminal.shows(other.name));
  terminal.type("/" + one.name);
  ASSERT_TRUE(terminal.shows([&] { return terminal.line_with(" " + other.name).empty(); }));
  EXPECT_FALSE(terminal.line_with("filter: " + one.name + "_").empty());
  terminal.type("\x7f\x7f\r");
  ASSERT_TRUE(terminal.shows("filter: " + one.name.substr(0, one.name.size() - 2) + " "));
  terminal.type("\x1b");
  ASSERT_TRUE(terminal.shows(other.name));
  for (const char* by :
       {"bytes", "kernel", "latency", "spin", "wait", "kind", "name", "messages"}) {
    terminal.type("s");
    ASSERT_TRUE(terminal.shows(std::string("sorted by ") + by));
  }
  terminal.type("<I");
  ASSERT_TRUE(terminal.shows("sorted by name, least first"));
  terminal.type("h");
  ASSERT_TRUE(terminal.shows("farcall top: keys"));
  terminal.type("xp");
  ASSERT_TRUE(terminal.shows("paused"));
  // A key that it does not know, in the middle of others.
  terminal.type("\x1b[33;5~p\x1b[6~\x1b[5~");
  ASSERT_TRUE(terminal.shows([&] { return terminal.line_with("paused").empty(); }));
  terminal.type("\x1b[21~");  // F10
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(TopCommand, FitsTheTerminal) {
  News news;
  TestTerminal terminal({"top", "--interval", "0.1", "--filter", news.name}, 160, 30);
  ASSERT_TRUE(terminal.shows(" SPIN "));
  terminal.resize(60, 10);
  ASSERT_TRUE(terminal.shows(
      [&] { return terminal.line_with("SPIN").empty() && !terminal.line_with("KIND").empty(); }));
  for (const std::string& line : terminal.lines()) EXPECT_LE(line.size(), 60U) << line;
  terminal.resize(5, 2);
  ASSERT_TRUE(terminal.shows([&] { return terminal.lines()[0].size() <= 5; }));
  terminal.resize(160, 30);
  ASSERT_TRUE(terminal.shows(" SPIN "));
  terminal.type("q");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(TopCommand, LeavesTheTerminalAsItWasWhateverEndsIt) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGABRT}) {
    TestTerminal terminal({"top", "--interval", "0.1"});
    ASSERT_TRUE(terminal.shows("farcall top"));
    if (signal == SIGINT)
      terminal.type("\x03");
    else
      terminal.kill(signal);
    const int status = terminal.wait();
    EXPECT_EQ(signal == SIGINT ? SIGINT : WTERMSIG(status), signal);
    EXPECT_EQ(signal == SIGINT ? status : 0, 0);
    EXPECT_FALSE(terminal.on_alternate_screen()) << signal;
    EXPECT_TRUE(terminal.shows_cursor()) << signal;
    EXPECT_TRUE(terminal.has_modes_of_old()) << signal;
  }
}

TEST(TopCommand, CanBeStoppedAndGoesOn) {
  // As root, with somebody else to be looked at, by a process for that.
  const pid_t other = ::fork();
  if (other == 0) {
    if (::geteuid() == 0 && ::setresuid(65533, 65533, 65533) != 0) ::_exit(1);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // which a change of the user clears
    for (;;) ::pause();
  }
  TestTerminal terminal({"top", "--interval", "0.1"}, 160, 30, TestTerminal::Leader::shell);
  ASSERT_TRUE(terminal.shows("farcall top"));
  terminal.type("\x1a");  // Ctrl-Z
  int status = 0;
  ASSERT_EQ(::waitpid(terminal.pid(), &status, WUNTRACED), terminal.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(terminal.has_modes_of_old());
  // Which is read first, as what it writes may come later.
  ASSERT_TRUE(terminal.shows([&] { return !terminal.on_alternate_screen(); }));
  terminal.kill(SIGCONT);
  ASSERT_TRUE(terminal.shows([&] { return terminal.on_alternate_screen(); }));
  EXPECT_FALSE(terminal.has_modes_of_old());
  terminal.type("q");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_TRUE(terminal.has_modes_of_old());
  ::kill(other, SIGKILL);
  EXPECT_EQ(::waitpid(other, nullptr, 0), other);
}

TEST(TopCommand, GoesOnWhereNobodyWouldContinueIt) {
  TestTerminal terminal({"top", "--interval", "0.1"});
  ASSERT_TRUE(terminal.shows("farcall top"));
  terminal.type("\x1a");  // Ctrl-Z
  terminal.type("q");
  EXPECT_EQ(terminal.wait(), 0);
}

// Whoever looks and is killed leaves the watched as they were, but for a lease that ends.
TEST(TopCommand, MayBeKilledAtAnyMoment) {
  News news;
  for (int i = 0; i < 10; ++i) {
    Command top({"top", "--json", "--interval", "0.05"});
    ::usleep(static_cast<useconds_t>(i * 7000));
    top.kill(SIGKILL);
    EXPECT_EQ(top.wait().code, 128 + SIGKILL);
    EXPECT_FALSE(top.left_processes());
    ASSERT_NO_FATAL_FAILURE(news.pass(100, 10));
  }
  const Finished top = run_farcall({"top", "--once", "--json", "--interval", "0.05"});
  const json flow = flow_named(top.out, news.name);
  ASSERT_FALSE(flow.is_null());
  EXPECT_EQ(flow.at("total").at("forward").at("messages"), 1000);
}

// A name is what its owner likes; what it shows is no command to the terminal.
TEST(TopCommand, NamesDoNotCommandTheTerminal) {
  observe::Description end{.kind = observe::Kind::channel, .role = observe::Role::client};
  const std::string name =
      "evil\x1b[2J\x1b]0;title\x07\x1b[?1049l\r\n\xe2\x80\xae-" + std::to_string(::getpid());
  end.name = name.data();
  end.name_bytes = name.size();
  const observe::Entry entry(end);
  TestTerminal terminal({"top", "--interval", "0.1", "--filter", "evil"}, 250, 20);
  ASSERT_TRUE(terminal.shows("evil\\x1b[2J"));
  EXPECT_TRUE(terminal.on_alternate_screen());
  EXPECT_FALSE(terminal.line_with("KIND").empty());
  terminal.type("q");
  EXPECT_EQ(terminal.wait(), 0);
  const Finished stat = run_farcall({"stat", std::to_string(::getpid()), "--interval", "0"});
  EXPECT_EQ(stat.code, 0);
  for (const char byte : stat.out)
    ASSERT_TRUE(byte == '\n' || static_cast<unsigned char>(byte) >= ' ') << stat.out;
}

TEST(StatCommand, TellsAllOfAProcess) {
  News news;
  news.pass(11, 3);
  const std::string pid = std::to_string(::getpid());
  const Finished stat = run_farcall({"stat", pid, "--json", "--interval", "0"});
  ASSERT_EQ(stat.code, 0) << stat.err;
  const json process = json::parse(stat.out).at("processes").at(0);
  EXPECT_EQ(process.at("pid"), ::getpid());
  ASSERT_EQ(process.at("ends").size(), 2U);
  for (const json& end : process.at("ends")) {
    EXPECT_EQ(end.at("name"), news.name);
    const bool writes = end.at("role") == "writer";
    EXPECT_EQ(end.at(writes ? "sent" : "received").at("messages"), 11);
    EXPECT_EQ(end.at(writes ? "sent" : "received").at("bytes"), 33);
  }
  const Finished text = run_farcall({"stat", news.name, "--interval", "0.1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("broadcast writer of " + news.name), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("11 messages, 33 bytes through memory"), std::string::npos) << text.out;
}

TEST(StatCommand, TellsOfAnswersThatCameWhileItLooked) {
  const std::string name = "asks-" + std::to_string(::getpid());
  observe::Description description{.kind = observe::Kind::ring, .role = observe::Role::client};
  description.name = name.c_str();
  description.name_bytes = name.size();
  const observe::Entry entry(description);
  // Somebody has had answers timed.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  entry.sent()->watch = static_cast<std::uint64_t>(until.time_since_epoch().count()) & ~15ULL;
  observe::note_sent(entry.sent(), nullptr, 1);
  observe::note_received(entry.received(), nullptr, 1);
  const auto end = [&](const char* seconds) {
    const Finished stat = run_farcall({"stat", name, "--json", "--interval", seconds});
    return json::parse(stat.out).at("processes").at(0).at("ends").at(0);
  };
  EXPECT_EQ(end("0").at("answer_ns").at("samples"), 1);
  EXPECT_FALSE(end("0.01").contains("answer_ns"));
}

TEST(StatCommand, SaysWhyItHasNothingToTell) {
  const Finished gone = run_farcall({"stat", "2147483647"});
  EXPECT_EQ(gone.code, 1);
  EXPECT_NE(gone.err.find("no process"), std::string::npos) << gone.err;
  const Finished plain = run_farcall({"stat", "1"});
  EXPECT_EQ(plain.code, 1);
  EXPECT_NE(plain.err.find("farcall stat: process 1 "), std::string::npos) << plain.err;
  const Finished nobody = run_farcall({"stat", "no-such-name"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_NE(nobody.err.find("no-such-name"), std::string::npos) << nobody.err;
  EXPECT_EQ(run_farcall({"stat"}).code, 2);
}

}  // namespace
}  // namespace farcall::test
