// SPDX-License-Identifier: Apache-2.0
//
// farcall doctor -- PROGRAM, and of programs that run with the library.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using nlohmann::json;

json finding(const json& report, const std::string& id) {
  for (const json& each : report.at("findings"))
    if (each.at("id") == id) return each;
  return nullptr;
}

json examine(const std::vector<std::string>& program) {
  std::vector<std::string> arguments{"doctor", "--json", "--"};
  arguments.insert(arguments.end(), program.begin(), program.end());
  const Finished finished = run_farcall(arguments);
  const json report = json::parse(finished.out);
  EXPECT_EQ(finished.code, report.at("wrong").get<bool>() ? 1 : 0) << finished.err;
  return report;
}

// A server and its client, which ask and answer so often; where `keep` exists both then wait until
// it is removed. With a third argument the client has no library.
constexpr const char* kPair = R"(
import os, socket, sys, time
times, keep, plain = int(sys.argv[1]), sys.argv[2], len(sys.argv) > 3
client = '''
import socket, sys, os, time
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for i in range(int(sys.argv[2])):
    s.sendall(b'ask'); s.recv(8)
if sys.argv[3]:
    open(sys.argv[3] + '.ready', 'w').close()
    for i in range(2000):
        if not os.path.exists(sys.argv[3]): break
        time.sleep(0.01)
'''
listener = socket.create_server(('127.0.0.1', 0))
if os.fork() == 0:
    environment = dict(os.environ)
    if plain: environment.pop('LD_PRELOAD')
    port = str(listener.getsockname()[1])
    os.execve(sys.executable, [sys.executable, '-c', client, port, str(times), keep], environment)
s, _ = listener.accept()
while True:
    got = s.recv(8)
    if not got: break
    s.sendall(got)
os.wait()
)";

std::vector<std::string> pair(int times, const std::string& keep = {}, bool plain = false) {
  std::vector<std::string> words{"/usr/bin/python3", "-c", kPair, std::to_string(times), keep};
  if (plain) words.emplace_back("plain");
  return words;
}

// What the command, at that path, says to a user who is not root; null where they cannot run it.
json as_somebody(const std::string& command) {
  const std::string user = "setpriv --reuid 65534 --regid 65534 --clear-groups ";
  return json::parse(output_of(user + command + " 2>/dev/null"), nullptr, false);
}

TEST(DoctorProgram, ThatMayNotBeReadIsSaid) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const ScratchDirectory scratch;
  ::chmod(scratch.file("").c_str(), 0755);
  const std::string program = scratch.file("program");
  std::filesystem::copy_file("/bin/true", program);
  ::chmod(program.c_str(), 0711);
  const json report = as_somebody(FARCALL_COMMAND " doctor --json -- " + program);
  if (report.is_discarded()) GTEST_SKIP() << "needs root, and a build that others may read";
  const json found = finding(report, "program-not-readable");
  ASSERT_FALSE(found.is_null()) << report;
  EXPECT_NE(found.at("cure").get<std::string>().find("chmod a+r"), std::string::npos) << found;
}

TEST(DoctorProgram, ALibraryThatMayNotBeReadIsSaid) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const ScratchDirectory scratch;
  ::chmod(scratch.file("").c_str(), 0755);
  const std::string command = scratch.file("farcall");
  std::filesystem::copy_file(FARCALL_COMMAND, command);
  const std::string library = scratch.file("src/preload/libfarcall-preload.so");
  std::filesystem::create_directories(scratch.file("src/preload"));
  for (const char* folder : {"src", "src/preload"}) ::chmod(scratch.file(folder).c_str(), 0755);
  std::ofstream(library) << "none";
  ::chmod(library.c_str(), 0600);
  const json report = as_somebody(command + " doctor --json");
  if (report.is_discarded()) GTEST_SKIP() << "needs root, and a build that others may read";
  EXPECT_FALSE(finding(report, "library-not-readable").is_null()) << report;
  ::chmod(library.c_str(), 0644);
  EXPECT_TRUE(finding(as_somebody(command + " doctor --json"), "library-not-readable").is_null());
}

TEST(DoctorProgram, IsToldThatItsConnectionsAreAccelerated) {
  const json report = examine(pair(200));
  const json& connections = report.at("connections");
  ASSERT_EQ(connections.size(), 1U) << report;
  EXPECT_EQ(connections[0].at("protocol"), "tcp");
  EXPECT_EQ(connections[0].at("accelerated"), connections[0].at("count")) << report;
}

TEST(DoctorProgram, IsToldOfAPeerWithoutTheLibrary) {
  const json found = finding(examine(pair(2000, {}, true)), "peer-silent");
  ASSERT_FALSE(found.is_null());
  EXPECT_EQ(found.at("severity"), "warning");
  EXPECT_NE(found.at("about").get<std::string>().find("tcp 127.0.0.1:"), std::string::npos);
}

TEST(DoctorProgram, IsToldOfWhatItsSettingsExclude) {
  ::setenv("FARCALL_EXCLUDE", "127.0.0.1:*", 1);
  const json report = examine(pair(200));
  ::unsetenv("FARCALL_EXCLUDE");
  EXPECT_FALSE(finding(report, "excluded").is_null()) << report;
}

// Whoever sends once in a while finds its receiver asleep.
TEST(DoctorProgram, IsToldThatItsReceiversSleep) {
  constexpr const char* kSeldom = R"(
import os, socket, time
listener = socket.create_server(('127.0.0.1', 0))
if os.fork() == 0:
    s = socket.create_connection(listener.getsockname())
    for i in range(20): s.sendall(b'x'); s.recv(1)
    for i in range(1100): s.sendall(b'x'); time.sleep(0.001)
    os._exit(0)
s, _ = listener.accept()
for i in range(20): s.recv(1); s.sendall(b'x')
while s.recv(1): pass
os.wait()
)";
  // A receiver that had no processor for a second had no need to sleep.
  json report;
  json found;
  for (int tries = 0; tries < 5 && found.is_null(); ++tries) {
    report = examine({"/usr/bin/python3", "-c", kSeldom});
    found = finding(report, "receivers-sleep");
  }
  ASSERT_FALSE(found.is_null()) << report;
  EXPECT_EQ(found.at("severity"), "note");
}

TEST(DoctorProgram, IsToldThatConnectionsEndTooSoon) {
  constexpr const char* kShort = R"(
import socket
listener = socket.create_server(('127.0.0.1', 0))
for i in range(3):
    with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
        one.sendall(b'x'); other.recv(1)
)";
  const json report = examine({"/usr/bin/python3", "-c", kShort});
  EXPECT_FALSE(finding(report, "too-short").is_null()) << report;
  ASSERT_EQ(report.at("connections").size(), 1U);
  EXPECT_EQ(report.at("connections")[0].at("reason"), "too-short");
}

TEST(DoctorProgram, IsToldThatItHasTooManyEndpoints) {
  constexpr const char* kMany = R"(
import socket
for i in range(700):
    with socket.create_server(('127.0.0.1', 0)) as listener:
        with socket.create_connection(listener.getsockname()): pass
)";
  const json report = examine({"/usr/bin/python3", "-c", kMany});
  EXPECT_FALSE(finding(report, "too-many-endpoints").is_null());
  EXPECT_EQ(std::ranges::count(report.at("findings"), "too-short",
                               [](const json& each) { return each.at("id"); }),
            1);
}

TEST(DoctorProgram, IsToldThatItHasNoConnections) {
  EXPECT_FALSE(finding(examine({"true"}), "no-connections").is_null());
}

TEST(DoctorProgram, KeepsItsOutputOutOfTheReport) {
  const Finished finished = run_farcall({"doctor", "--json", "--", "echo", "hello"});
  EXPECT_TRUE(json::accept(finished.out)) << finished.out;
  EXPECT_EQ(finished.err, "hello\n");
}

TEST(DoctorProgram, IsToldHowItEnded) {
  const json status = finding(examine({"sh", "-c", "exit 3"}), "program-ended-badly");
  ASSERT_FALSE(status.is_null());
  EXPECT_EQ(status.at("severity"), "note");
  const json signal = finding(examine({"sh", "-c", "kill -SEGV $$"}), "program-ended-badly");
  ASSERT_FALSE(signal.is_null());
  EXPECT_EQ(signal.at("severity"), "warning");
}

TEST(DoctorProgram, IsToldHowItEndedWhereItsCallerIgnoresTheEndsOfChildren) {
  const Finished finished = run_ignoring_children({"doctor", "--json", "--", "sh", "-c", "exit 3"});
  EXPECT_NE(finished.out.find("It ended with status 3."), std::string::npos)
      << finished.out << finished.err;
}

TEST(DoctorProgram, ThatIsNotThereIsAFailure) {
  const Finished finished = run_farcall({"doctor", "--", "no-such-program"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_NE(finished.err.find("ENOENT"), std::string::npos);
}

// --- programs into which nothing can be loaded: they are not run

// A copy of a program with a byte of its header changed.
std::string changed_program(const ScratchDirectory& directory, std::size_t offset, char value) {
  std::ifstream source("/bin/true", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(source), {});
  bytes.at(offset) = value;
  std::ofstream(directory.file("changed"), std::ios::binary) << bytes;
  EXPECT_EQ(::chmod(directory.file("changed").c_str(), 0755), 0);
  return directory.file("changed");
}

TEST(DoctorProgram, MayBeStatic) {
  const ScratchDirectory directory;
  constexpr std::size_t kSegments = 56;  // e_phnum: none, so none that names a dynamic linker
  const json found = finding(examine({changed_program(directory, kSegments, 0)}), "static-program");
  ASSERT_FALSE(found.is_null());
  EXPECT_EQ(found.at("severity"), "fault");
  EXPECT_NE(found.at("cure").get<std::string>().find("dynamically"), std::string::npos);
}

TEST(DoctorProgram, MayBeOfAnotherArchitecture) {
  const ScratchDirectory directory;
  constexpr std::size_t kMachine = 18;  // e_machine
  EXPECT_FALSE(
      finding(examine({changed_program(directory, kMachine, 8)}), "other-architecture").is_null());
}

TEST(DoctorProgram, MayUseAnotherCLibrary) {
  const ScratchDirectory directory;
  std::ifstream source("/bin/true", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(source), {});
  const std::string linker = "/lib64/ld-linux-x86-64.so.2";
  const std::size_t at = bytes.find(linker);
  if (at == std::string::npos) GTEST_SKIP() << "there is none";
  bytes.replace(at, linker.size(), "/lib/ld-musl-x86_64.so.1\0\0\0", linker.size());
  std::ofstream(directory.file("musl"), std::ios::binary) << bytes;
  ASSERT_EQ(::chmod(directory.file("musl").c_str(), 0755), 0);
  EXPECT_FALSE(finding(examine({directory.file("musl")}), "other-c-library").is_null());
}

TEST(DoctorProgram, MayBeNoProgram) {
  const ScratchDirectory directory;
  std::ofstream(directory.file("text")) << "just text";
  ASSERT_EQ(::chmod(directory.file("text").c_str(), 0755), 0);
  EXPECT_FALSE(finding(examine({directory.file("text")}), "no-program").is_null());
}

TEST(DoctorProgram, MayHaveMoreRights) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can make a program that belongs to another user";
  const ScratchDirectory directory;
  const std::string path = directory.file("copy");
  std::filesystem::copy_file("/bin/true", path);
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(path.c_str(), 04755), 0);
  EXPECT_FALSE(finding(examine({path}), "program-with-more-rights").is_null());
}

TEST(DoctorProgram, MayBeWrittenInGo) {
  const ScratchDirectory directory;
  std::ifstream source("/bin/true", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(source), {});
  // The note with the build id, which the linker of C programs writes, becomes that of Go's.
  const std::size_t at = bytes.find(std::string("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 16, std::string("\x04\0\0\0\x14\0\0\0\x04\0\0\0Go\0\0", 16));
  std::ofstream(directory.file("go"), std::ios::binary) << bytes;
  ASSERT_EQ(::chmod(directory.file("go").c_str(), 0755), 0);
  const json found = finding(examine({directory.file("go")}), "go-program");
  ASSERT_FALSE(found.is_null());
  EXPECT_EQ(found.at("severity"), "warning");
}

// The command without the rest of its installation.
TEST(DoctorProgram, IsToldWhereThereIsNoLibrary) {
  const ScratchDirectory directory;
  std::filesystem::copy_file(FARCALL_COMMAND, directory.file("farcall"));
  const Finished finished =
      run_farcall({"run", "--", directory.file("farcall"), "doctor", "--json"});
  const json report = json::parse(finished.out);
  const bool installed = std::filesystem::exists("/usr/local/lib/farcall/libfarcall-preload.so");
  EXPECT_EQ(finding(report, "library-not-installed").is_null(), installed) << report;
}

TEST(DoctorProgram, IsToldWhereThereIsNoProc) {
  const Finished finished = run_farcall(
      {"run", "--", "unshare", "-rm", "sh", "-c",
       "mount -t tmpfs none /proc 2>/dev/null && exec \"$0\" doctor --json", FARCALL_COMMAND});
  if (finished.out.empty()) GTEST_SKIP() << "this system permits no namespaces";
  EXPECT_FALSE(finding(json::parse(finished.out), "no-proc").is_null());
}

// --- programs that run

// The pair, which runs with the library until this ends.
class Running {
 public:
  explicit Running(bool plain)
      : command_([&] {
          std::ofstream(directory_.file("keep")) << "";
          std::vector<std::string> words{"run", "--"};
          const auto program = pair(700, directory_.file("keep"), plain);
          words.insert(words.end(), program.begin(), program.end());
          return words;
        }()) {
    eventually([&] { return std::filesystem::exists(directory_.file("keep.ready")); }, 30s);
  }
  ~Running() {
    std::filesystem::remove(directory_.file("keep"));
    command_.wait();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // The server, which is what `farcall run` has become.
  [[nodiscard]] json examine() const {
    const Finished finished = run_farcall({"doctor", "--json", std::to_string(command_.pid())});
    return json::parse(finished.out);
  }

 private:
  ScratchDirectory directory_;
  Command command_;
};

TEST(DoctorProgram, ThatRunsTellsOfConnectionsThatAreAccelerated) {
  const Running running(false);
  const json report = running.examine();
  ASSERT_EQ(report.at("connections").size(), 1U) << report;
  const json& one = report.at("connections")[0];
  EXPECT_EQ(one.at("accelerated"), 1) << report;
  EXPECT_NE(one.at("peer").get<std::string>().find("python3"), std::string::npos);
  EXPECT_TRUE(finding(report, "library-not-loaded").is_null());
}

TEST(DoctorProgram, ThatRunsTellsOfAPeerWithoutTheLibrary) {
  const Running running(true);
  const json report = running.examine();
  ASSERT_EQ(report.at("connections").size(), 1U) << report;
  EXPECT_EQ(report.at("connections")[0].at("reason"), "peer-without-library");
  EXPECT_FALSE(finding(report, "peer-without-library").is_null());
}

}  // namespace
}  // namespace farcall::test
