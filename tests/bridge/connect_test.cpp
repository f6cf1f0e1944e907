// SPDX-License-Identifier: Apache-2.0
//
// Servers of the cluster that take a connection and say no more.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bridge/harness.hpp"

namespace farcall::test {
namespace {

// Greets as a server of NATS does, and hangs.
class Hung {
 public:
  explicit Hung(bool tls = false)
      : greeting_(
            std::string("INFO {\"server_id\":\"x\",\"version\":\"2.9\",\"max_payload\":1048576,"
                        "\"proto\":1,\"headers\":true") +
            (tls ? ",\"tls_required\":true}\r\n" : "}\r\n")) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port");
    port_ = ::ntohs(address.sin_port);
  }
  ~Hung() {
    ::shutdown(fd_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    for (const int each : taken_) ::close(each);
    ::close(fd_);
  }
  Hung(const Hung&) = delete;
  Hung& operator=(const Hung&) = delete;

  // Before, nobody listens there.
  void begin() {
    ::listen(fd_, 16);
    thread_ = std::thread([this] {
      for (int fd; (fd = ::accept(fd_, nullptr, nullptr)) >= 0;) {
        (void)::send(fd, greeting_.data(), greeting_.size(), MSG_NOSIGNAL);
        taken_.push_back(fd);
        ++connections_;
      }
    });
  }
  [[nodiscard]] std::string url() const { return "nats://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] int connections() const { return connections_; }

 private:
  const std::string greeting_;
  const int fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
  std::vector<int> taken_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

using Options = std::vector<std::string>;

std::string of_this_test(const std::string& name) {
  return "bridge-connect-" + name + "-" + std::to_string(::getpid());
}

class BridgeConnect : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
  }
  [[nodiscard]] std::unique_ptr<Program> bridge(Options options, const std::string& name) const {
    Options words{FARCALL_COMMAND,    "bridge",   "--status-name",
                  of_this_test(name), "--export", "door:" + scratch_.file("door") + "=d.v1"};
    words.insert(words.end(), options.begin(), options.end());
    return std::make_unique<Program>(words, scratch_.file(name + ".log"));
  }
  ScratchDirectory scratch_;
};

TEST_F(BridgeConnect, AServerThatHangsInItsHandshakeIsSaid) {
  for (const bool tls : {false, true}) {
    Hung hung(tls);
    hung.begin();
    const auto program = bridge({"--nats", hung.url(), "--connect-bound", "1", "--check"}, "check");
    EXPECT_EQ(program->wait(60s), 1) << "tls " << tls << program->said();
    if (!tls) {
      EXPECT_NE(program->said().find("does not answer"), std::string::npos) << program->said();
    }
  }
  Hung hung(true);
  hung.begin();
  const auto program =
      bridge({"--nats", "tls" + hung.url().substr(4), "--connect-bound", "1", "--check"}, "check");
  EXPECT_EQ(program->wait(60s), 1) << program->said();
  EXPECT_NE(program->said().find("does not answer"), std::string::npos) << program->said();
}

// They are tried in any order.
TEST_F(BridgeConnect, ABridgeStartsWhereOneOfItsServersHangs) {
  const Nats nats(scratch_);
  Hung hung;
  hung.begin();
  for (int i = 0; i < 20 && hung.connections() < 2; ++i) {
    const auto program =
        bridge({"--nats", hung.url(), "--nats", nats.url(), "--connect-bound", "1"},
               "start" + std::to_string(i));
    ASSERT_TRUE(
        comes_true([&] { return program->said().find(" served") != std::string::npos; }, 60s))
        << program->said();
  }
  EXPECT_GE(hung.connections(), 2);
}

TEST_F(BridgeConnect, ABridgeComesBackToAServerWhereAnotherHangs) {
  Nats nats(scratch_);
  Hung hung;
  const auto program = bridge({"--nats", nats.url(), "--nats", hung.url()}, "back");
  ASSERT_TRUE(comes_true([&] { return program->said().find(" served") != std::string::npos; }))
      << program->said();
  nats.stop();
  hung.begin();
  ASSERT_TRUE(comes_true([&] { return hung.connections() >= 1; }));
  nats.start();
  EXPECT_TRUE(comes_true(
      [&] {
        return bridge_status(of_this_test("back")).find("\"connected\":true") != std::string::npos;
      },
      60s));
  program->kill(SIGTERM);
  EXPECT_EQ(program->wait(60s), 0) << program->said();
}

TEST_F(BridgeConnect, ASignalEndsABridgeThatWaitsForAServer) {
  for (const int signal : {SIGTERM, SIGINT})
    for (const bool check : {false, true}) {
      Hung hung;
      hung.begin();
      Options options{"--nats", hung.url(), "--connect-bound", "3600"};
      if (check) options.emplace_back("--check");
      const auto program = bridge(options, "signal" + std::to_string(signal) + (check ? "c" : "s"));
      ASSERT_TRUE(comes_true([&] { return hung.connections() == 1; })) << program->said();
      program->kill(signal);
      EXPECT_EQ(program->wait(60s), check ? 128 + signal : 0) << program->said();
    }
}

TEST_F(BridgeConnect, ASignalEndsABridgeThatHasLostItsServer) {
  Nats nats(scratch_);
  Hung hung;
  const auto program = bridge({"--nats", nats.url(), "--nats", hung.url()}, "lost");
  ASSERT_TRUE(comes_true([&] { return program->said().find(" served") != std::string::npos; }))
      << program->said();
  nats.stop();
  hung.begin();
  ASSERT_TRUE(comes_true([&] { return hung.connections() >= 1; }));
  program->kill(SIGTERM);
  EXPECT_EQ(program->wait(60s), 0) << program->said();
  EXPECT_EQ(program->said().find("without waiting"), std::string::npos) << program->said();
}

}  // namespace
}  // namespace farcall::test
