// SPDX-License-Identifier: Apache-2.0
//
// farcall doctor, of this machine and of processes that run: each finding here is really provoked.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using nlohmann::json;

// The finding of that name, or null.
json finding(const json& report, const std::string& id) {
  for (const json& each : report.at("findings"))
    if (each.at("id") == id) return each;
  return nullptr;
}

json examine(const std::vector<std::string>& words = {}) {
  std::vector<std::string> arguments{"doctor", "--json"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  const Finished finished = run_farcall(arguments);
  const json report = json::parse(finished.out);
  EXPECT_EQ(finished.code, report.at("wrong").get<bool>() ? 1 : 0);
  return report;
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(DoctorCommand, TellsOfThisMachine) {
  const json report = examine();
  EXPECT_EQ(report.at("target"), "this machine");
  EXPECT_FALSE(report.contains("connections"));
  for (const json& each : report.at("findings")) {
    EXPECT_TRUE(each.at("cause").get<std::string>().ends_with('.')) << each;
    EXPECT_TRUE(each.at("cure").get<std::string>().ends_with('.')) << each;
  }
}

TEST(DoctorCommand, TellsPeopleTheSame) {
  const Variable one("FARCALL_RING_BYTES", "lots");
  const Finished finished = run_farcall({"doctor"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.out.find("warning  programs started here [setting-not-understood]"),
            std::string::npos)
      << finished.out;
  EXPECT_NE(finished.out.find("Cure: Write a value that it takes"), std::string::npos);
  EXPECT_NE(finished.out.find("\nthis machine: "), std::string::npos);
}

TEST(DoctorCommand, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run_farcall({"doctor", "--no-such-option"}).code, 2);
}

TEST(DoctorCommand, FailsWhereThereIsNoSuchProcess) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const Finished finished = run_farcall({"doctor", std::to_string(child)});
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_NE(finished.err.find("ESRCH"), std::string::npos) << finished.err;
}

TEST(DoctorCommand, SaysOfAProcessThatNobodyHasWaitedForThatItHasEnded) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  const Finished finished = run_farcall({"doctor", std::to_string(child)});
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_NE(finished.err.find("it has ended"), std::string::npos) << finished.err;
}

// --- settings

struct Setting {
  const char* name;
  const char* variable;
  const char* value;
  const char* id;
  const char* severity;
  const char* says;
};
std::ostream& operator<<(std::ostream& stream, const Setting& one) { return stream << one.name; }

class DoctorSetting : public testing::TestWithParam<Setting> {};

TEST_P(DoctorSetting, IsFound) {
  const Setting& one = GetParam();
  const Variable variable(one.variable, one.value);
  const json found = finding(examine(), one.id);
  ASSERT_FALSE(found.is_null());
  EXPECT_EQ(found.at("severity"), one.severity);
  const std::string text =
      found.at("cause").get<std::string>() + found.at("cure").get<std::string>();
  EXPECT_NE(text.find(one.says), std::string::npos) << text;
}

const Setting kSettings[] = {
    {"Misspelt", "FARCALL_RING_BYTE", "64K", "setting-misspelt", "warning", "FARCALL_RING_BYTES"},
    {"Unknown", "FARCALL_TURBO_BUTTON", "on", "setting-unknown", "note", "TURBO_BUTTON"},
    {"NotUnderstood", "FARCALL_MAX_SOCKETS", "many", "setting-not-understood", "warning", "many"},
    {"EngineNotUnderstood", "FARCALL_ENGINE", "warp", "setting-not-understood", "warning", "warp"},
    {"SwitchedOff", "FARCALL_ENABLED", "no", "switched-off", "fault", "FARCALL_ENABLED"},
    {"KindOff", "FARCALL_UDP", "no", "kinds-switched-off", "note", "no UDP"},
    {"List", "FARCALL_ACCELERATE", "*:80", "some-endpoints-only", "note", "FARCALL_ACCELERATE"},
    {"Log", "FARCALL_LOG_LEVEL", "trace", "log-level", "warning", "warn"},
    {"SmallRings", "FARCALL_RING_BYTES", "4K", "small-rings", "warning", "4096 bytes"},
    {"FewSockets", "FARCALL_MAX_SOCKETS", "2", "few-connections", "note", "2 connections"},
    {"LogByItsOldName", "LOOPKB_LOG_LEVEL", "debug", "log-level", "warning", "LOOPKB_LOG_LEVEL"},
    {"SmallRingsByTheirOldName", "LOOPKB_RING_SIZE", "1", "small-rings", "warning",
     "Take LOOPKB_RING_SIZE out"},
    {"FewSocketsByTheirOldName", "LOOPKB_MAX_SOCKETS", "2", "few-connections", "note",
     "LOOPKB_MAX_SOCKETS lets"},
    {"Blocks", "FARCALL_WAIT", "block", "waits-block", "note", "sleep at once"},
    {"Spins", "FARCALL_WAIT", "spin", "waits-spin", "note", "for ever"},
};
INSTANTIATE_TEST_SUITE_P(All, DoctorSetting, testing::ValuesIn(kSettings),
                         [](const auto& test) { return std::string(test.param.name); });

// Also those that no manual page asks anybody to set.
TEST(DoctorCommand, KnowsEachVariableThatFarcallReadsOrSets) {
  for (const char* const name : {"FARCALL_DOORFS", "FARCALL_TAP_UNTIL", "FARCALL_CALLER_PID",
                                 "FARCALL_CALLER_UID", "FARCALL_CALLER_GID"}) {
    const Variable variable(name, "1");
    const json found = finding(examine(), "setting-unknown");
    EXPECT_TRUE(found.is_null()) << name << found;
  }
}

TEST(DoctorCommand, TellsWhereTheModuleIsAskedForInVain) {
  if (::access("/dev/stplr", F_OK) == 0) GTEST_SKIP() << "the module is here";
  const Variable engine("FARCALL_ENGINE", "kernel");
  const json found = finding(examine(), "module-missing");
  ASSERT_FALSE(found.is_null());
  EXPECT_EQ(found.at("severity"), "fault");
}

// --- limits and placement of whoever asks

TEST(DoctorCommand, TellsWhereOneProcessorIsAllowed) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  unsigned first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const json report = examine();
  ::sched_setaffinity(0, sizeof before, &before);
  EXPECT_FALSE(finding(report, "one-processor-allowed").is_null() &&
               finding(report, "one-processor").is_null())
      << report;
}

TEST(DoctorCommand, TellsWhereDescriptorsAreFew) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const json report = examine();
  ::setrlimit(RLIMIT_NOFILE, &before);
  const json found = finding(report, "few-descriptors");
  ASSERT_FALSE(found.is_null()) << report;
  EXPECT_EQ(found.at("about"), "programs started here");
}

// --- processes that run

// This process has a connection with itself, and no library.
class Connected {
 public:
  Connected() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    client_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(client_, reinterpret_cast<sockaddr*>(&address), size), 0);
    server_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    endpoint_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~Connected() {
    for (const int fd : {listener_, client_, server_}) ::close(fd);
  }
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  int listener_;
  int client_;
  int server_;
  std::string endpoint_;
};

TEST(DoctorCommand, TellsOfAProcessWithoutTheLibrary) {
  const Connected connected;
  const json report = examine({std::to_string(::getpid())});
  const json found = finding(report, "library-not-loaded");
  ASSERT_FALSE(found.is_null()) << report;
  EXPECT_EQ(found.at("severity"), "fault");
  const json& connections = report.at("connections");
  const auto one = std::ranges::find_if(
      connections, [&](const json& each) { return each.at("endpoint") == connected.endpoint(); });
  ASSERT_NE(one, connections.end()) << report;
  EXPECT_EQ(one->at("accelerated"), 0);
  EXPECT_EQ(one->at("peer_pid"), ::getpid());
}

TEST(DoctorCommand, TellsOfAProcessThatIsStopped) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0)
    for (;;) ::pause();
  ::kill(child, SIGSTOP);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
  const json report = examine({std::to_string(child)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const json found = finding(report, "stopped");
  ASSERT_FALSE(found.is_null()) << report;
  EXPECT_EQ(found.at("cure"), "Let it go on: `kill -CONT " + std::to_string(child) + "`.");
}

TEST(DoctorCommand, NamesThatAreNoTextStayOnes) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_NAME, "a\xff\x1b[31m\\");
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
  const json report = examine({std::to_string(child)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const std::string name = R"(a\xff\x1b[31m\x5c)";
  EXPECT_NE(report.at("target").get<std::string>().find(name), std::string::npos) << report;
  const json found = finding(report, "stopped");
  ASSERT_FALSE(found.is_null()) << report;
  EXPECT_NE(found.dump().find("a\\\\xff"), std::string::npos) << found;
}

TEST(DoctorCommand, TellsOfAProcessInAnotherNetworkNamespace) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const char done =
        ::unshare(::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) == 0 ? 'y' : 'n';
    std::ignore = ::write(ends[1], &done, 1);
    for (;;) ::pause();
  }
  char done = 0;
  EXPECT_EQ(::read(ends[0], &done, 1), 1);
  const json report = examine({std::to_string(child)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  if (done != 'y') GTEST_SKIP() << "this system permits no namespaces";
  const json found = finding(report, "other-namespace");
  ASSERT_FALSE(found.is_null()) << report;
  EXPECT_NE(found.at("cure").get<std::string>().find("nsenter"), std::string::npos);
}

TEST(DoctorCommand, PrintsNothingThatATerminalWouldObey) {
  const std::string path = std::string("evil\x1b[2J\n", 9);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::ignore = ::write(::open("/proc/self/comm", O_WRONLY), path.data(), path.size());
    for (;;) ::pause();
  }
  for (int i = 0; i < 500; ++i) {
    if (run_farcall({"doctor", std::to_string(child)}).out.find("evil") != std::string::npos) break;
    ::usleep(1000);
  }
  const Finished finished = run_farcall({"doctor", std::to_string(child)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NE(finished.out.find("evil"), std::string::npos) << finished.out;
  EXPECT_EQ(finished.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace farcall::test
