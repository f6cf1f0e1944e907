// SPDX-License-Identifier: Apache-2.0
//
// Messages that no bridge would send: to exported subjects, and to the subjects that belong to
// calls. Bridges count them, and go on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "bridge/harness.hpp"
#include "bridge/raw.hpp"

namespace farcall::test {
namespace {

class BridgeHostile : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
    nats_ = std::make_unique<Nats>(scratch_);
    service_ = std::make_unique<Service>(scratch_.file("door"), name("c"));
    exporter_ = start_bridge(
        scratch_, name("x"),
        {"--nats", nats_->url(), "--death-bound", "1", "--export",
         "door:" + scratch_.file("door") + "=d.v1", "--export", "channel:" + name("c") + "=c.v1"});
    importer_ = start_bridge(
        scratch_, name("i"),
        {"--nats", nats_->url(), "--death-bound", "1", "--import",
         "d.v1=door:" + scratch_.file("rdoor"), "--import", "c.v1=channel:" + name("r")});
    ASSERT_TRUE(comes_true([this] { return call("x") == "x"; }));
    raw_ = std::make_unique<Raw>(nats_->port());
  }
  static std::string name(const std::string& what) {
    return "bridge-hostile-" + what + "-" + std::to_string(::getpid());
  }
  [[nodiscard]] std::string call(const std::string& request) const {
    return call_door(scratch_.file("rdoor"), request);
  }
  void expect_service() {
    EXPECT_EQ(exporter_->wait(0s), -1) << exporter_->said();
    EXPECT_EQ(importer_->wait(0s), -1) << importer_->said();
    EXPECT_TRUE(comes_true([this] { return call("x") == "x"; }));
    EXPECT_TRUE(comes_true([] { return send_to(name("r"), "x") == "7 x"; }));
  }
  ScratchDirectory scratch_;
  std::unique_ptr<Nats> nats_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Program> exporter_;
  std::unique_ptr<Program> importer_;
  std::unique_ptr<Raw> raw_;
};

TEST_F(BridgeHostile, AMalformedRequestIsAnsweredWithAnErrorAndCounted) {
  raw_->publish("d.v1", "answer.here", "1;k=c;s=-5", "x");
  EXPECT_NE(raw_->read_until("e=" + std::to_string(EPROTO)), "");
  EXPECT_NE(bridge_status(name("x")).find("\"malformed\":1"), std::string::npos);
  raw_->publish("d.v1", "answer.here", "2;k=c", "x");
  EXPECT_NE(raw_->read_until("e=" + std::to_string(EPROTO)), "");
  raw_->publish("d.v1", "answer.here", "1;k=c;s=99999999999", "x");
  EXPECT_NE(raw_->read_until("e=" + std::to_string(E2BIG)), "");
  for (const char* about : {"1;k=c;s=-5", "2;k=c", "x;k=c", ";k=c"}) {
    raw_->send(std::string("PUB d.v1 answer.here;") + about + " 1\r\nx\r\n");
    EXPECT_NE(raw_->read_until("e=" + std::to_string(EPROTO)), "") << about;
  }
  expect_service();
}

TEST_F(BridgeHostile, APlainClientOfNatsIsServed) {
  for (const std::string reply : {"answer.here", "answer;here", ";", "k=c", ";k=", "1;k=c"}) {
    raw_->send("PUB d.v1 " + reply + " 5\r\nhello\r\n");
    EXPECT_NE(raw_->read_until("MSG " + reply + " 1 5\r\nhello"), "") << reply;
  }
}

TEST_F(BridgeHostile, PromisedPiecesThatNeverComeAreForgotten) {
  for (int i = 0; i < 20; ++i) raw_->publish("d.v1", "answer.here", "1;k=c;s=60000000", "x");
  EXPECT_NE(raw_->read_until("k=w"), "") << "they are waited for";
  expect_service();
  // More of it than the bridge may hold is refused, and what is given up makes room again.
  EXPECT_TRUE(comes_true([this] {
    raw_->publish("d.v1", "answer.here", "1;k=c;s=60000000", "x");
    return raw_->read(50).find("k=w") != std::string::npos;
  }));
  expect_service();
}

TEST_F(BridgeHostile, PromisedPiecesLeaveRoomForWhatComesWhole) {
  for (int i = 0; i < 16; ++i) raw_->publish("d.v1", "answer.here", "1;k=c;s=67108864", "x");
  EXPECT_NE(raw_->read_until("k=w"), "") << "they are waited for";
  EXPECT_EQ(call("x"), "x") << "of the same name";
  EXPECT_EQ(send_to(name("r"), "x"), "7 x") << "of another";
}

// "No responders" is the server's word, but anybody can publish it; and what comes with it is
// served.
TEST_F(BridgeHostile, AFalseWordThatNobodyListensHidesNoCall) {
  for (int i = 0; i < 20; ++i) {
    const std::string answer = "answer." + std::to_string(i);
    raw_->send("HPUB d.v1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPUB d.v1 " + answer + " 1\r\nx\r\n");
    ASSERT_NE(raw_->read_until("MSG " + answer), "") << i;
    expect_service();
  }
}

TEST_F(BridgeHostile, AnythingSentToAnySubjectOfABridgeLeavesItServing) {
  std::mt19937 random(7);
  const std::vector<std::string> seeds{
      "1;k=c;s=1", "1;k=c;s=500000;z=1",  "1;k=o;z=1",      "1;k=p;x=5;v=-1;z=1;q=20",
      "1;k=r;s=3", "1;k=r;s=50000000",    "1;k=r;e=5;y=1",  "1;k=a",
      "1;k=w;w=8", "1;k=d;o=1",           "1;k=d;o=262144", "1;k=x",
      "1;k=n",     "1;k=c;m=99999999999", "1;k=c;d=1",      "1;k=c;l=77;h=5;z=1"};
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back([&, i] {
      while (!stop) {
        const std::string big((std::size_t{1} << 20) + 300000, 'b');
        (void)(i == 0 ? call(big) : i == 1 ? send_to(name("r"), "x") : call("nap 30"));
      }
    });
  std::set<std::string> subjects{"d.v1", "c.v1"};
  const std::regex inbox("_INBOX\\.[A-Za-z0-9]+\\.[cso][0-9a-f]+(;[-;=0-9a-z]+)?");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int i = 0; i < 1500 || (subjects.size() <= 5 && std::chrono::steady_clock::now() < until);
       ++i) {
    (void)raw_->read(0);  // who takes too little is cut off by the server
    if (i % 50 == 0) {    // the subjects of calls in progress
      const std::string seen = raw_->read(5);
      for (std::sregex_iterator at(seen.begin(), seen.end(), inbox); at != std::sregex_iterator();
           ++at)
        if (subjects.size() < 400) subjects.insert(at->str());
    }
    auto subject = subjects.begin();
    std::advance(subject, random() % subjects.size());
    std::string header = seeds[random() % seeds.size()];
    if (random() % 3 == 0)
      header[random() % header.size()] = static_cast<char>('0' + random() % 60);
    auto reply = subjects.begin();
    std::advance(reply, random() % subjects.size());
    const std::string data(random() % 3000, 'h');
    if (random() % 4 == 0)  // a request says so there as well
      raw_->send("PUB " + *subject + " " + reply->substr(0, reply->find(';')) + ";" + header + " " +
                 std::to_string(data.size()) + "\r\n" + data + "\r\n");
    else
      raw_->publish(*subject, random() % 4 == 0 ? "" : *reply, header, data);
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_GT(subjects.size(), 5U) << "some calls were met";
  expect_service();
}

}  // namespace
}  // namespace farcall::test
