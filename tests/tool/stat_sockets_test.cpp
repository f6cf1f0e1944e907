// SPDX-License-Identifier: Apache-2.0
//
// What farcall stat shows of sockets of programs that know nothing of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using nlohmann::json;

// An echo server, in a child of its own for each client, and a client that asks so many times and
// then keeps the connection open. Files tell how far they are.
constexpr const char* kServer = R"(
import os, socket, sys
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
open(sys.argv[1] + '.new', 'w').write(str(s.getsockname()[1]))
os.rename(sys.argv[1] + '.new', sys.argv[1])
while True:
    c, _ = s.accept()
    if os.fork() == 0:
        while True:
            b = c.recv(65536)
            if not b: os._exit(0)
            c.sendall(b)
    c.close()
)";
constexpr const char* kClient = R"(
import os, socket, sys, time
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for i in range(int(sys.argv[2])):
    c.sendall(b'x' * 100)
    got = 0
    while got < 100: got += len(c.recv(100 - got))
if len(sys.argv) > 4: c.send(b'!', socket.MSG_OOB)
open(sys.argv[3], 'w').close()
time.sleep(60)
)";

// The same server for one client, which it has told of when bytes came once it has echoed so many
// of them.
constexpr const char* kServerWithOption = R"(
import os, socket, sys, time
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
open(sys.argv[1] + '.new', 'w').write(str(s.getsockname()[1]))
os.rename(sys.argv[1] + '.new', sys.argv[1])
c, _ = s.accept()
SO_TIMESTAMP = 29
left = int(sys.argv[2])
while True:
    if left == 0: c.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    b = c.recv(65536)
    if not b: break
    c.sendall(b)
    left = max(left - len(b), 0) if left != 0 else -1
)";

bool comes(const std::string& file) {
  for (int i = 0; i < 3000; ++i) {
    if (std::filesystem::exists(file)) return true;
    ::usleep(10'000);
  }
  return false;
}

std::uint64_t sum(const json& half, const char* what) {
  return half.at(what).get<std::uint64_t>() +
         half.at(std::string("kernel_") + what).get<std::uint64_t>();
}

// Whether each end has sent so many bytes, or more.
bool have_all_sent(const json& told, std::uint64_t bytes) {
  for (const json& process : told.at("processes"))
    for (const json& end : process.at("ends"))
      if (sum(end.at("sent"), "bytes") < bytes) return false;
  return true;
}

TEST(StatCommand, AcceleratedSocketsAreCountedToTheByte) {
  const ScratchDirectory scratch;
  const std::string port_file = scratch.file("port");
  const std::string done_file = scratch.file("done");
  Command server({"run", "--", "python3", "-c", kServer, port_file});
  ASSERT_TRUE(comes(port_file));
  std::string port;
  std::ifstream(port_file) >> port;
  constexpr std::uint64_t kTimes = 500;
  Command client({"run", "--", "python3", "-c", kClient, port, std::to_string(kTimes), done_file});
  ASSERT_TRUE(comes(done_file));
  // The server counts an answer when it is done with it, and the client may have it before.
  Finished stat;
  for (int i = 0; i < 500; ++i) {
    stat = run_farcall({"stat", "127.0.0.1:" + port, "--json", "--interval", "0"});
    if (stat.code != 0 || have_all_sent(json::parse(stat.out), 100 * kTimes)) break;
    ::usleep(20'000);
  }
  ASSERT_EQ(stat.code, 0) << stat.err;
  std::uint64_t clients = 0;
  std::uint64_t servers = 0;
  json sessions = json::array();
  const json told = json::parse(stat.out);
  for (const json& process : told.at("processes"))
    for (const json& end : process.at("ends")) {
      const bool is_client = end.at("role") == "client";
      ++(is_client ? clients : servers);
      EXPECT_EQ(end.at("kind"), "tcp");
      EXPECT_EQ(end.at("via"), "memory") << stat.out;
      EXPECT_EQ(sum(end.at("sent"), "bytes"), 100 * kTimes) << stat.out;
      EXPECT_EQ(sum(end.at("received"), "bytes"), 100 * kTimes) << stat.out;
      EXPECT_GT(end.at("sent").at("bytes").get<std::uint64_t>() +
                    end.at("received").at("bytes").get<std::uint64_t>(),
                0U);
      if (is_client) {
        EXPECT_EQ(sum(end.at("sent"), "messages"), kTimes) << stat.out;
      }
      // The worker was forked with it.
      EXPECT_EQ(end.at("inherited"), !is_client);
      sessions.push_back(end.at("session"));
    }
  EXPECT_EQ(clients, 1U) << stat.out;
  EXPECT_EQ(servers, 1U) << stat.out;
  ASSERT_EQ(sessions.size(), 2U);
  EXPECT_EQ(sessions[0], sessions[1]);
  const Finished top = run_farcall({"top", "--once", "--json", "--interval", "0.05"});
  json found;
  const json shown = json::parse(top.out);
  for (const json& flow : shown.at("flows"))
    if (flow.at("name") == "127.0.0.1:" + port) found = flow;
  ASSERT_FALSE(found.is_null()) << top.out;
  EXPECT_EQ(sum(found.at("total").at("forward"), "bytes"), 100 * kTimes);
  EXPECT_EQ(sum(found.at("total").at("back"), "bytes"), 100 * kTimes);
}

// Why a connection stays with the kernel is told as long as it is open.
TEST(StatCommand, SaysWhyASocketStaysWithTheKernel) {
  const ScratchDirectory scratch;
  const std::string port_file = scratch.file("port");
  const std::string done_file = scratch.file("done");
  Command server({"run", "--", "env", "-u", "LD_PRELOAD", "python3", "-c", kServer, port_file});
  ASSERT_TRUE(comes(port_file));
  std::string port;
  std::ifstream(port_file) >> port;
  Command client({"run", "--", "python3", "-c", kClient, port, "300", done_file});
  ASSERT_TRUE(comes(done_file));
  const Finished stat = run_farcall({"stat", "127.0.0.1:" + port, "--json", "--interval", "0"});
  ASSERT_EQ(stat.code, 0) << stat.err;
  const json end = json::parse(stat.out).at("processes").at(0).at("ends").at(0);
  EXPECT_EQ(end.at("via"), "kernel") << stat.out;
  EXPECT_EQ(end.at("reason"), "the peer has no library, or goes round it");
  EXPECT_EQ(end.at("sent").at("bytes"), 0);
  client.kill(SIGKILL);
  (void)client.wait();
  const Finished gone = run_farcall({"stat", "127.0.0.1:" + port, "--interval", "0"});
  EXPECT_EQ(gone.code, 1) << gone.out;
}

TEST(DoctorCommand, SaysWhatTheProcessTellsOfASocket) {
  const ScratchDirectory scratch;
  const std::string port_file = scratch.file("port");
  const std::string done_file = scratch.file("done");
  Command server({"run", "--", "python3", "-c", kServer, port_file});
  ASSERT_TRUE(comes(port_file));
  std::string port;
  std::ifstream(port_file) >> port;
  Command client({"run", "--", "python3", "-c", kClient, port, "300", done_file, "urgently"});
  ASSERT_TRUE(comes(done_file));
  const Finished stat =
      run_farcall({"stat", std::to_string(client.pid()), "--json", "--interval", "0"});
  const json end = json::parse(stat.out).at("processes").at(0).at("ends").at(0);
  ASSERT_EQ(end.at("reason"), "out-of-band data") << stat.out;
  const Finished doctor = run_farcall({"doctor", "--json", std::to_string(client.pid())});
  const json connection = json::parse(doctor.out).at("connections").at(0);
  EXPECT_EQ(connection.at("endpoint"), "127.0.0.1:" + port) << doctor.out;
  EXPECT_EQ(connection.at("reason"), "urgent") << doctor.out;
}

// Two that have talked for a while, and keep their connection.
class WithOption {
 public:
  explicit WithOption(unsigned bytes_before) {
    const std::string port_file = scratch_.file("port");
    server_ = std::make_unique<Command>(std::vector<std::string>{
        "run", "--", "python3", "-c", kServerWithOption, port_file, std::to_string(bytes_before)});
    EXPECT_TRUE(comes(port_file));
    std::ifstream(port_file) >> port_;
    const std::string done_file = scratch_.file("done");
    client_ = std::make_unique<Command>(
        std::vector<std::string>{"run", "--", "python3", "-c", kClient, port_, "600", done_file});
    EXPECT_TRUE(comes(done_file));
  }
  [[nodiscard]] static json end_of(const Command& program) {
    const Finished stat =
        run_farcall({"stat", std::to_string(program.pid()), "--json", "--interval", "0"});
    const json ends = json::parse(stat.out).at("processes").at(0).at("ends");
    EXPECT_EQ(ends.size(), 1U) << stat.out;
    return ends.empty() ? json::object() : ends.at(0);
  }
  [[nodiscard]] json connection_of(const Command& program) const {
    const Finished doctor = run_farcall({"doctor", "--json", std::to_string(program.pid())});
    const json told = json::parse(doctor.out);
    for (const json& each : told.at("connections"))
      if (each.at("endpoint") == "127.0.0.1:" + port_) return each;
    ADD_FAILURE() << doctor.out;
    return json::object();
  }
  [[nodiscard]] const Command& server() const { return *server_; }
  [[nodiscard]] const Command& client() const { return *client_; }
  [[nodiscard]] const std::string& port() const { return port_; }

 private:
  ScratchDirectory scratch_;
  std::string port_;
  std::unique_ptr<Command> server_;
  std::unique_ptr<Command> client_;
};

constexpr const char* kOption = "an option that changes the stream itself";

TEST(StatCommand, TellsOfASocketThatWasGivenBackBeforeItWasAccelerated) {
  const WithOption two(0);
  const json server = WithOption::end_of(two.server());
  EXPECT_EQ(server.value("via", ""), "kernel") << server;
  EXPECT_EQ(server.value("reason", ""), kOption) << server;
  for (const Command* const program : {&two.server(), &two.client()})
    EXPECT_EQ(two.connection_of(*program).value("reason", ""), "option");
}

TEST(StatCommand, TellsThatTheOtherEndHasGivenASocketBack) {
  const WithOption two(30'000);
  const json server = WithOption::end_of(two.server());
  const json client = WithOption::end_of(two.client());
  ASSERT_GT(client.at("sent").at("bytes").get<std::uint64_t>() +
                client.at("received").at("bytes").get<std::uint64_t>(),
            0U)
      << "never accelerated";
  EXPECT_EQ(server.value("reason", ""), kOption) << server;
  EXPECT_EQ(client.value("via", ""), "kernel") << client;
  EXPECT_EQ(client.value("reason", ""), "the other end gave it back to the kernel") << client;
  for (const Command* const program : {&two.server(), &two.client()}) {
    const json connection = two.connection_of(*program);
    EXPECT_EQ(connection.value("reason", ""), "option") << connection;
    EXPECT_EQ(connection.value("accelerated", 1), 0) << connection;
  }
}

}  // namespace
}  // namespace farcall::test
