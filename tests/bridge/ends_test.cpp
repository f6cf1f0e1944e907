// SPDX-License-Identifier: Apache-2.0
//
// Bridges that end while calls are in progress, and connections that end in the middle of a
// message.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bridge/harness.hpp"
#include "bridge/raw.hpp"
#include "farcall/message.h"

namespace farcall::test {
namespace {

class BridgeEnds : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
    nats_ = std::make_unique<Nats>(scratch_);
    service_ = std::make_unique<Service>(path(), "");
  }
  [[nodiscard]] std::string path(const std::string& name = "door") const {
    return scratch_.file(name);
  }
  [[nodiscard]] static std::string channel(const std::string& name) {
    return "ends-" + name + "-" + std::to_string(::getpid());
  }
  void start(const std::string& importers_url, const std::vector<std::string>& more = {}) {
    start_exporter();
    const std::string own = std::to_string(::getpid());
    std::vector<std::string> options{"--nats", importers_url, "--import",
                                     "d.v1=door:" + path("rdoor")};
    options.insert(options.end(), more.begin(), more.end());
    importer_ = start_bridge(scratch_, "ends-importer-" + own, options);
    ASSERT_TRUE(comes_true([this] { return call("x") == "x"; }))
        << importer_->said() << exporter_->said();
  }
  void start_exporter() {
    exporter_ = start_bridge(scratch_, "ends-exporter-" + std::to_string(::getpid()),
                             {"--nats", nats_->url(), "--export", "door:" + path() + "=d.v1"});
  }
  [[nodiscard]] std::string call(const std::string& request) const {
    return call_door(path("rdoor"), request);
  }
  // The answer to a call that no server answers, when one of the bridges is told to end.
  std::string end_in_a_call(Program& which) {
    std::string answer;
    std::thread client([&] { answer = call("sleep"); });
    EXPECT_TRUE(comes_true([this] { return service_->seen().sleeping == 1; }));
    which.kill(SIGTERM);
    EXPECT_EQ(which.wait(60s), 0) << which.said();
    client.join();
    return answer;
  }

  ScratchDirectory scratch_;
  std::unique_ptr<Nats> nats_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Program> exporter_;
  std::unique_ptr<Program> importer_;
};

TEST_F(BridgeEnds, AnImporterEndsWithACallThatNobodyAnswers) {
  start(nats_->url());
  EXPECT_EQ(end_in_a_call(*importer_), "!ECONNRESET");
  EXPECT_TRUE(comes_true([this] { return service_->seen().cancelled == 1; })) << "the server hears";
}

TEST_F(BridgeEnds, AnExporterEndsWithACallThatNobodyAnswers) {
  start(nats_->url());
  EXPECT_EQ(end_in_a_call(*exporter_), "!ECONNRESET") << "the client has not given up";
}

// What the client of an imported channel gets whose call is in progress when the importer is told
// to end.
TEST_F(BridgeEnds, AnImporterThatEndsTakesNoAnswerFromTheClientsOfItsChannels) {
  for (const bool answered : {true, false}) {
    const std::string name = channel("c");
    start(nats_->url(), {"--import", "d.v1=channel:" + name});
    const int before = service_->seen().calls;
    std::string answer;
    std::thread client([&] { answer = send_to(name, answered ? "nap 1000" : "sleep"); });
    EXPECT_TRUE(comes_true([&] { return service_->seen().calls > before; }));
    importer_->kill(SIGTERM);
    EXPECT_EQ(importer_->wait(60s), 0) << importer_->said();
    client.join();
    EXPECT_EQ(answer, answered ? "0 nap 1000" : "!ECONNRESET");
    exporter_ = nullptr;
  }
}

TEST_F(BridgeEnds, AnImporterThatEndsTakesNoNewCallOfItsChannels) {
  const std::string name = channel("c");
  start(nats_->url(), {"--death-bound", "60", "--import", "d.v1=channel:" + name});
  const int connection = ::farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0);
  std::thread client([&] { (void)send_to(name, "sleep"); });
  EXPECT_TRUE(comes_true([this] { return service_->seen().sleeping == 1; }));
  importer_->kill(SIGTERM);
  // As soon as it knows, and before it is gone.
  int refused = 0;
  EXPECT_TRUE(comes_true([&] {
    std::string reply(16, '\0');
    const bool served = ::farcall_send(connection, "x", 1, reply.data(), reply.size()) >= 0;
    refused = served ? 0 : errno;
    return !served;
  }));
  EXPECT_EQ(refused, ECONNREFUSED);
  client.join();
  ::farcall_disconnect(connection);
  EXPECT_EQ(importer_->wait(60s), 0) << importer_->said();
}

TEST_F(BridgeEnds, ServersThatAreStoppedHoldUpNobody) {
  std::vector<std::string> options{"--nats", nats_->url()};
  std::vector<std::unique_ptr<Service>> stopped;
  for (int i = 0; i < 6; ++i) {
    const std::string name = channel("stopped" + std::to_string(i));
    stopped.push_back(std::make_unique<Service>(path("other" + std::to_string(i)), name));
    stopped.back()->kill(SIGSTOP);
    options.insert(options.end(), {"--export", "channel:" + name + "=c" + std::to_string(i)});
  }
  options.insert(options.end(), {"--export", "door:" + path() + "=d.v1"});
  exporter_ = start_bridge(scratch_, channel("exporter"), options);
  ASSERT_NE(exporter_->said().find(" served"), std::string::npos) << exporter_->said();
  importer_ = start_bridge(scratch_, channel("importer"),
                           {"--nats", nats_->url(), "--import", "d.v1=door:" + path("rdoor")});
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; }));
  nats_->stop();
  nats_->start();
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; })) << "it is offered anew";
  exporter_->kill(SIGTERM);
  EXPECT_EQ(exporter_->wait(60s), 0) << exporter_->said();
}

// What has come is answered, and what comes later is refused.
TEST_F(BridgeEnds, AnExporterThatEndsUnderLoadLosesNoCall) {
  for (int round = 0; round < 5; ++round) {
    start(nats_->url());
    std::atomic<bool> stop{false};
    std::atomic<int> answered{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; ++i)
      clients.emplace_back([&] {
        while (!stop) {
          const std::string answer = call("x");
          if (answer == "x")
            ++answered;
          else
            EXPECT_EQ(answer, "!ECONNREFUSED");
        }
      });
    EXPECT_TRUE(comes_true([&] { return answered > 200; }));
    exporter_->kill(SIGTERM);
    EXPECT_EQ(exporter_->wait(60s), 0) << exporter_->said();
    stop = true;
    for (std::thread& client : clients) client.join();
    importer_ = nullptr;
    ::unlink(path("rdoor").c_str());
  }
}

TEST_F(BridgeEnds, CallsThatComeAsANameIsInstalledAreServed) {
  start(nats_->url());
  for (int round = 0; round < 8; ++round) {
    exporter_ = nullptr;
    std::atomic<bool> stop{false};
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i)
      clients.emplace_back([&] {
        while (!stop) (void)call("x");
      });
    start_exporter();
    const bool is_served = comes_true([this] { return call("x") == "x"; });
    stop = true;
    for (std::thread& client : clients) client.join();
    ASSERT_TRUE(is_served) << "round " << round << ", exporter: " << exporter_->said();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(call("x"), "x") << round << ' ' << i;
  }
}

// Paths need not be text; the status is.
TEST_F(BridgeEnds, AStatusIsToldOfAnyPath) {
  const std::string own = "ends-odd-" + std::to_string(::getpid());
  const auto bridge = start_bridge(
      scratch_, own, {"--nats", nats_->url(), "--export", "door:" + path("odd\xff") + "=d.v2"});
  EXPECT_NE(bridge_status(own).find("\"connected\":true"), std::string::npos);
  EXPECT_LT(bridge->wait(0s), 0) << "it still runs: " << bridge->said();
}

// Another user's may be asked, and that one chooses the paths.
TEST_F(BridgeEnds, AStatusCommandsNoTerminal) {
  const std::string own = "ends-loud-" + std::to_string(::getpid());
  const auto bridge = start_bridge(
      scratch_, own,
      {"--nats", nats_->url(), "--export", "door:" + path("\u009b31m\x1b[31m") + "=d.v3"});
  Program status({FARCALL_COMMAND, "bridge", "status", "--status-name", own},
                 scratch_.file("status"), {});
  EXPECT_EQ(status.wait(), 0) << status.said();
  EXPECT_NE(status.said().find("d.v3"), std::string::npos) << status.said();
  for (const char* const command : {"\u009b", "\x1b"})
    EXPECT_EQ(status.said().find(command), std::string::npos) << status.said();
}

// Another user's may serve that channel as well.
TEST_F(BridgeEnds, AStatusThatNestsWithoutEndIsRefused) {
  const std::string own = "ends-deep-" + std::to_string(::getpid());
  const int channel = ::farcall_name_attach(own.c_str(), 0, 0600);
  ASSERT_GT(channel, 0);
  for (const std::string& text :
       {std::string(200'000, '[') + std::string(200'000, ']'), std::string("[]")})
    for (const char* const how : {"--json", "--status-name"}) {
      std::vector<std::string> words{FARCALL_COMMAND, "bridge", "status", how};
      if (how == std::string("--json")) words.emplace_back("--status-name");
      words.push_back(own);
      Program status(words, scratch_.file("status"), {});
      farcall_info info{};
      const std::int64_t id = ::farcall_receive(channel, nullptr, 0, &info);
      ASSERT_GT(id, 0);
      EXPECT_EQ(::farcall_reply(id, 0, text.data(), text.size()), 0);
      EXPECT_EQ(status.wait(), 1) << status.said();
      EXPECT_NE(status.said().find("no status of a bridge"), std::string::npos) << status.said();
    }
  ::farcall_channel_destroy(channel);
}

// A bad line between a bridge and its server. Each connection is cut when so many bytes have come
// from there, and no more than so many pass in a second.
class Line {
 public:
  Line(int port, std::size_t cut_after, std::size_t rate)
      : port_(port), bytes_(cut_after), rate_(rate), listener_(socket()) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port to listen at");
    url_ = "nats://127.0.0.1:" + std::to_string(::ntohs(address.sin_port));
    thread_ = std::thread([this] { run(); });
  }
  ~Line() {
    stop_ = true;
    thread_.join();
    ::close(listener_);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] int cuts() const { return cuts_; }
  // From now on nothing is cut.
  void relent() { cutting_ = false; }
  // Nothing goes to the server any more.
  void stall(bool yes) { stalled_ = yes; }

 private:
  static int socket() { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = ::htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    return address;
  }
  bool comes(int fd) const {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&one, 1, 50) > 0;
  }
  void run() {
    while (!stop_) {
      if (!comes(listener_)) continue;
      const int bridge = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const int server = socket();
      const sockaddr_in address = loopback(port_);
      if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
        carry(bridge, server);
      ::close(bridge);
      ::close(server);
    }
  }
  void carry(int bridge, int server) {
    std::size_t come = 0;
    std::vector<char> part(4096);
    while (!stop_) {
      const short up_events = stalled_ ? 0 : POLLIN;
      std::array<pollfd, 2> both{pollfd{.fd = bridge, .events = up_events, .revents = 0},
                                 pollfd{.fd = server, .events = POLLIN, .revents = 0}};
      if (::poll(both.data(), both.size(), 50) <= 0) continue;
      for (const bool up : {true, false}) {
        if (both[up ? 0 : 1].revents == 0) continue;
        const ssize_t size = ::recv(up ? bridge : server, part.data(), part.size(), 0);
        if (size <= 0) return;
        if (!up) come += static_cast<std::size_t>(size);
        if (::send(up ? server : bridge, part.data(), static_cast<std::size_t>(size),
                   MSG_NOSIGNAL) != size)
          return;
        ::usleep(static_cast<useconds_t>(static_cast<std::size_t>(size) * 1'000'000 / rate_));
      }
      if (!cutting_ || come < bytes_) continue;
      ++cuts_;
      return;
    }
  }

  const int port_;
  const std::size_t bytes_;
  const std::size_t rate_;
  const int listener_;
  std::string url_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> cutting_{true};
  std::atomic<bool> stalled_{false};
  std::atomic<int> cuts_{0};
  std::thread thread_;
};

TEST_F(BridgeEnds, AConnectionThatIsCutInAMessageIsReplacedByOneThatServes) {
  Line line(nats_->port(), 100'000, 1'000'000'000);
  start(line.url());
  const std::string request(60'000, 'r');
  EXPECT_TRUE(comes_true([&] {
    const std::string answer = call(request);
    EXPECT_TRUE(answer == request || answer.starts_with("!E")) << answer.substr(0, 20);
    return line.cuts() >= 4;
  })) << line.cuts();
  line.relent();
  EXPECT_TRUE(comes_true([&] { return call(request) == request; })) << importer_->said();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(call(request) == request);
}

TEST_F(BridgeEnds, APulseThatMayBeLostWithItsConnectionIsCounted) {
  const std::string own = "ends-importer-" + std::to_string(::getpid());
  const std::string name = "ends-" + std::to_string(::getpid());
  importer_ =
      start_bridge(scratch_, own, {"--nats", nats_->url(), "--import", "c.v1=channel:" + name});
  const int connection = ::farcall_name_open(name.c_str());
  ASSERT_GT(connection, 0) << importer_->said();
  nats_->kill(SIGSTOP);
  ASSERT_EQ(::farcall_pulse(connection, 0, 5, 77), 0);
  EXPECT_TRUE(comes_true([&] {
    return bridge_status(own).find("\"pulses\":1") != std::string::npos;
  })) << bridge_status(own);
  // However long it takes the bridge to know: longer than its bound, here.
  importer_->kill(SIGSTOP);
  nap(3000);
  importer_->kill(SIGCONT);
  EXPECT_TRUE(comes_true([&] {
    return bridge_status(own).find("\"uncertain\":1") != std::string::npos;
  })) << bridge_status(own);
  nats_->kill(SIGCONT);
  ::farcall_disconnect(connection);
}

// The bound is a part of what is asked for, so the bridge's own steps may not add up.
TEST_F(BridgeEnds, ASilentClusterKeepsManyNoLongerThanOne) {
  constexpr double kBound = 4;
  start(nats_->url(), {"--death-bound", "4", "--connect-bound", "4"});
  const auto threads = [this] {
    const std::filesystem::path all = "/proc/" + std::to_string(importer_->pid()) + "/task";
    return std::distance(std::filesystem::directory_iterator(all), {});
  };
  const auto before = threads();
  nats_->kill(SIGSTOP);
  // More than the sockets take.
  const std::string request(200'000, 'r');
  std::vector<std::thread> clients;
  std::atomic<int> late{0};
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 60; ++i)
    clients.emplace_back([&] {
      const std::string answer = call(request);
      EXPECT_TRUE(answer == "!ECONNRESET" || answer == "!ENETDOWN") << answer.substr(0, 20);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      if (took.count() > 1.5 * kBound) ++late;
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(late, 0);
  nats_->kill(SIGCONT);
  EXPECT_TRUE(comes_true([&] { return call("x") == "x"; })) << importer_->said();
  EXPECT_TRUE(comes_true([&] {
    (void)call("x");
    return threads() <= before + 4;
  })) << threads()
      << " threads, before " << before;
}

// The server goes on with a call that its client was told has failed. When there is a cluster
// again, it hears of that.
TEST_F(BridgeEnds, AServerHearsOfACallThatFailedWithItsCluster) {
  start(nats_->url());
  std::string answer;
  std::thread client([&] { answer = call("sleep"); });
  EXPECT_TRUE(comes_true([this] { return service_->seen().sleeping == 1; }));
  nats_->stop();
  client.join();
  EXPECT_EQ(answer, "!ECONNRESET");
  nats_->start();
  EXPECT_TRUE(comes_true([this] { return service_->seen().cancelled == 1; }));
}

// Its request has credit, and the line takes nothing. Who looks after all calls does not wait.
TEST_F(BridgeEnds, AClientThatDiesInTheMiddleOfItsRequestStopsNoDeadline) {
  Line line(nats_->port(), std::size_t{1} << 40, 1'000'000'000);
  const std::string file =
      scratch_.write("late.toml", "[[import]]\nsubject = \"late.v1\"\ndoor = \"" + path("late") +
                                      "\"\ndeadline = 1.0\n");
  importer_ = start_bridge(scratch_, "ends-importer-" + std::to_string(::getpid()),
                           {"--config", file, "--nats", line.url(), "--death-bound", "60",
                            "--import", "long.v1=door:" + path("long")});
  const Raw raw(nats_->port());
  raw.send("PING\r\n");
  ASSERT_NE(raw.read_until("PONG"), "");
  const pid_t client = ::fork();
  if (client == 0) {
    (void)call_door(path("long"), std::string(std::size_t{20} << 20, 'r'));
    ::_exit(0);
  }
  std::string all;
  std::smatch found;
  ASSERT_TRUE(comes_true([&] {
    all += raw.read(5);
    return std::regex_search(all, found, std::regex("MSG long\\.v1 1 (\\S+) "));
  })) << importer_->said();
  line.stall(true);
  for (int i = 0; i < 8; ++i) raw.publish(found[1].str(), "session.1", "1;k=w;w=32", "");
  nap(500);  // until the sockets are full; else it is no test of that
  ::kill(client, SIGKILL);
  ::waitpid(client, nullptr, 0);
  nap(200);
  std::string answer;
  std::atomic<bool> over{false};
  std::thread late([&] {
    answer = call_door(path("late"), "x");
    over = true;
  });
  EXPECT_TRUE(comes_true([&] { return over.load(); }));
  line.stall(false);
  late.join();
  EXPECT_EQ(answer, "!ETIMEDOUT");
}

// The cluster brings calls, and takes none of the answers.
TEST_F(BridgeEnds, AnswersThatTheClusterDoesNotTakeHaveABound) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers keep what is freed";
  Line line(nats_->port(), std::size_t{1} << 40, 1'000'000'000);
  const std::string file = scratch_.write("small.toml", "[bridge]\nmemory_mib = 64\n");
  exporter_ = start_bridge(scratch_, channel("exporter"),
                           {"--config", file, "--nats", line.url(), "--death-bound", "60",
                            "--export", "door:" + path() + "=d.v1"});
  importer_ = start_bridge(scratch_, channel("importer"),
                           {"--nats", nats_->url(), "--import", "d.v1=door:" + path("rdoor")});
  ASSERT_TRUE(comes_true([this] { return call("x") == "x"; })) << exporter_->said();
  line.stall(true);
  constexpr int kCalls = 3000;
  const Raw raw(nats_->port());
  for (int i = 0; i < kCalls; ++i)
    raw.publish("d.v1", "far." + std::to_string(i), "1;k=c;s=10", "big 250000");
  EXPECT_TRUE(comes_true([this] { return service_->seen().calls > kCalls; }, 60s));
  std::ifstream status("/proc/" + std::to_string(exporter_->pid()) + "/status");
  const std::string text(std::istreambuf_iterator<char>(status), {});
  std::smatch most;
  ASSERT_TRUE(std::regex_search(text, most, std::regex("VmHWM:\\s+(\\d+) kB"))) << text;
  EXPECT_LT(std::stol(most[1]), 400'000) << "the answers are 750 MB";
  line.stall(false);
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; }, 60s)) << exporter_->said();
}

TEST_F(BridgeEnds, SmallCallsPassALongOneOnASlowLine) {
  Line line(nats_->port(), std::size_t{1} << 40, 200'000);
  start(line.url());
  std::atomic<bool> over{false};
  std::thread client([&] {
    const std::string request(1'000'000, 'r');
    EXPECT_TRUE(call(request) == request);
    over = true;
  });
  int small = 0;
  for (; !over; ++small) EXPECT_EQ(call("x"), "x") << small;
  client.join();
  EXPECT_GT(small, 3);
}

}  // namespace
}  // namespace farcall::test
