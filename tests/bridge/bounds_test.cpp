// SPDX-License-Identifier: Apache-2.0
//
// What peers, near and far, would have a bridge do without end: wait, hold memory, say nothing.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <regex>
#include <thread>

#include "bridge/harness.hpp"
#include "bridge/raw.hpp"
#include "farcall/message.h"
#include "harness/descriptors.hpp"
#include "harness/lingering.hpp"

namespace farcall::test {
namespace {

// One bridge with little memory, a service behind it, and a far side that says what it likes: it
// hears all that is said in the cluster.
class BridgeBounds : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
    nats_ = std::make_unique<Nats>(scratch_);
    service_ = std::make_unique<Service>(scratch_.file("door"), name("c"));
    const std::string file = scratch_.write("bridge.toml",
                                            "[bridge]\nworkers = 1\nmemory_mib = 1\n"
                                            "death_bound = 1.0\n");
    bridge_ = start_bridge(
        scratch_, name("s"),
        {"--config", file, "--nats", nats_->url(), "--export",
         "door:" + scratch_.file("door") + "=d.v1", "--export", "channel:" + name("c") + "=c.v1",
         "--import", "far.v1=door:" + scratch_.file("far"), "--import",
         "far.v1=channel:" + name("far"), "--import", "c.v1=channel:" + name("r")});
    ASSERT_TRUE(comes_true([] { return send_to(name("r"), "x") == "7 x"; })) << bridge_->said();
    raw_ = std::make_unique<Raw>(nats_->port());
    raw_->send("PING\r\n");
    ASSERT_NE(raw_->read_until("PONG"), "") << "it hears all from now on";
  }
  static std::string name(const std::string& what) {
    return "bridge-bounds-" + what + "-" + std::to_string(::getpid());
  }
  // Answers the next call of `far.v1`.
  void answer_far(const std::string& header, const std::string& reply = {}) const {
    const std::regex call("MSG far\\.v1 1 (\\S+) ");
    std::string all;
    std::smatch found;
    ASSERT_TRUE(comes_true([&] {
      all += raw_->read(5);
      return std::regex_search(all, found, call);
    }));
    raw_->publish(found[1].str(), reply, header, "");
  }
  // The session's own subject, which a call with that reply subject is told.
  [[nodiscard]] std::string session_of(const std::string& reply) const {
    const std::regex word("MSG " + reply + " 1 (_INBOX\\.\\S+) ");
    std::string all;
    std::smatch found;
    EXPECT_TRUE(comes_true([&] {
      all += raw_->read(5);
      return std::regex_search(all, found, word);
    }));
    return found.empty() ? std::string() : found[1].str();
  }
  // The door's server answers nobody any more: not the one who reads, and not the one worker.
  void hang() const {
    raw_->publish("d.v1", "hang.1", "1;k=c;s=5", "sleep");
    raw_->publish("d.v1", "hang.2", "1;k=c;s=5", "sleep");
    EXPECT_NE(session_of("hang\\.2"), "");
  }
  void expect_service() {
    EXPECT_EQ(bridge_->wait(0s), -1) << bridge_->said();
    EXPECT_TRUE(comes_true([] { return send_to(name("r"), "x", 10) == "7 x"; }));
  }
  // Another client of the channel is served after one has handed over what is long in closing. The
  // bridge stands still until its own descriptor is the last.
  void hand_over_what_lingers(const std::string& channel, const std::string& expected);

  ScratchDirectory scratch_;
  std::unique_ptr<Nats> nats_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Program> bridge_;
  std::unique_ptr<Raw> raw_;
};

TEST_F(BridgeBounds, AnErrnoThatThereIsNotEndsTheCall) {
  const auto by_channel = [] { return send_to(name("far"), "x", 60); };
  const auto by_door = [this] { return call_door(scratch_.file("far"), "x"); };
  for (const std::string number : {"33", "41", "134", "4000", "99999"}) {
    const std::string expected = number == "33" ? "!EDOM" : "!EPROTO";
    auto channel = std::async(std::launch::async, by_channel);
    answer_far("1;k=r;e=" + number);
    EXPECT_EQ(channel.get(), expected) << number;
    auto door = std::async(std::launch::async, by_door);
    answer_far("1;k=r;e=" + number);
    EXPECT_EQ(door.get(), expected) << number;
    EXPECT_NE(bridge_status(name("s")).find("\"last_error\":\"" + expected.substr(1)),
              std::string::npos);
  }
  expect_service();
}

// A client takes it for its own signal, and may call again what has been done.
TEST_F(BridgeBounds, NobodyHereHasGivenUpWhereTheFarSideSaysSo) {
  auto channel = std::async(std::launch::async, [] { return send_to(name("far"), "x", 60); });
  answer_far("1;k=r;e=" + std::to_string(EINTR));
  EXPECT_EQ(channel.get(), "!ECONNRESET");
  auto door =
      std::async(std::launch::async, [this] { return call_door(scratch_.file("far"), "x"); });
  answer_far("1;k=r;e=" + std::to_string(EINTR));
  EXPECT_EQ(door.get(), "!ECONNRESET");
  expect_service();
}

TEST_F(BridgeBounds, AnErrnoThatALocalServerMadeUpIsTold) {
  EXPECT_EQ(send_to(name("r"), "errno 41"), "!EPROTO");
  EXPECT_NE(bridge_status(name("s")).find("\"last_error\":\"errno 41\""), std::string::npos);
  expect_service();
}

// Who reads serves the first call of each name, and has one room for the replies of all. Another
// may read since, so it is tried with many.
TEST_F(BridgeBounds, NothingOfAnotherReplyIsInTheGapsOfOne) {
  constexpr int kNames = 10;
  std::vector<std::string> options{"--nats", nats_->url()};
  for (int i = 0; i < kNames; ++i)
    for (const std::string kind : {"door", "text", "gap"})
      options.insert(options.end(), {"--export", (kind == "door" ? "door:" + scratch_.file("door")
                                                                 : "channel:" + name("c")) +
                                                     "=" + kind + ".v" + std::to_string(i)});
  const auto fresh = start_bridge(scratch_, name("gaps"), options);
  const std::string text(1000, 'd');
  for (int i = 0; i < kNames; ++i) {
    const std::string number = std::to_string(i);
    raw_->publish("text.v" + number, "text.a" + number, "1;k=c;s=8", "big 1000");
    EXPECT_NE(raw_->read_until("t=7\r\n\r\n" + std::string(1000, 'b')), "");
    raw_->publish("door.v" + number, "door.a" + number, "1;k=c;s=1000", text);
    EXPECT_NE(raw_->read_until("MSG door.a" + number + " 1 1000\r\n" + text), "");
    raw_->publish("gap.v" + number, "gap.a" + number, "1;k=c;s=8", "gap 1000");
    ASSERT_NE(raw_->read_until("t=7\r\n\r\n" + std::string(999, '\0') + "x"), "") << i;
  }
}

// EBADF is what a door says that is no more, and has seen nothing; and its server's own word.
TEST_F(BridgeBounds, ACallThatIsRefusedAsItsDoorGoesIsMadeOnce) {
  const int before = service_->seen().calls;
  raw_->publish("d.v1", "anew.1", "1;k=c;s=4", "anew");
  std::string answer = raw_->read_until("MSG anew.1 ");
  answer += raw_->read(100);
  EXPECT_EQ(service_->seen().calls, before + 1);
  EXPECT_NE(answer.find(";e=" + std::to_string(ECONNRESET)), std::string::npos) << answer;
  EXPECT_EQ(answer.find(";y=1"), std::string::npos) << "nor by another: " << answer;
  // The next is for the door that is there now.
  raw_->publish("d.v1", "anew.2", "1;k=c;s=1", "x");
  EXPECT_NE(raw_->read_until("MSG anew.2 "), "");
  EXPECT_EQ(service_->seen().calls, before + 2);
}

// How urgent a call is says its client, or nobody: not who has called before. And no client says
// it of the threads that serve all.
TEST_F(BridgeBounds, NobodysPriorityStaysWithTheThreadThatServed) {
  const int nice = ::getpriority(PRIO_PROCESS, 0);
  if (::setpriority(PRIO_PROCESS, 0, nice - 1) != 0) GTEST_SKIP() << "no permission to raise it";
  ::setpriority(PRIO_PROCESS, 0, nice);
  const auto call = [this](const std::string& priority) {
    raw_->publish("c.v1", "urgent.1", "1;k=c;s=1" + priority, "x");
    EXPECT_NE(raw_->read_until("k=r"), "");  // signs of life may come before
    return service_->seen().priority.load();
  };
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(call(";q=5"), 5);
    EXPECT_EQ(call(""), 20 - nice);
    EXPECT_EQ(call(";q=25"), 25);
    EXPECT_EQ(call(""), 20 - nice);
  }
  const std::filesystem::path threads = "/proc/" + std::to_string(bridge_->pid()) + "/task";
  for (const auto& each : std::filesystem::directory_iterator(threads))
    EXPECT_EQ(
        ::getpriority(PRIO_PROCESS, static_cast<id_t>(std::stoi(each.path().filename().string()))),
        nice);
}

TEST_F(BridgeBounds, CallsThatWaitHaveABound) {
  constexpr int kCalls = 20;
  hang();
  const std::string data(100'000, 'w');
  for (int i = 0; i < kCalls; ++i) {
    raw_->publish("d.v1", "full." + std::to_string(i), "1;k=c;s=100000", data);
    (void)raw_->read(0);  // who takes too little is cut off by the server
  }
  // Half a MiB of the one that all names have.
  raw_->publish("d.v1", "last", "1;k=c;s=100000", data);
  EXPECT_NE(raw_->read_until("k=r;e=" + std::to_string(ENOBUFS)), "");
  EXPECT_NE(bridge_status(name("s")).find("\"last_error\":\"ENOBUFS\""), std::string::npos);
  expect_service();  // of the other name
}

TEST_F(BridgeBounds, WhatNobodyWaitsForLeavesTheQueue) {
  hang();
  const std::string data(400'000, 'w');
  for (int i = 0; i < 5; ++i) {
    raw_->publish("d.v1", "late", "1;k=c;s=400000;d=1", data);
    EXPECT_NE(raw_->read_until("k=r;e=" + std::to_string(ETIMEDOUT)), "") << i;
  }
  expect_service();
}

TEST_F(BridgeBounds, AWrongPieceEndsTheCall) {
  raw_->publish("d.v1", "wrong", "1;k=c;s=500000", "x");
  const std::string session = session_of("wrong");
  raw_->publish(session, "", "1;k=d;o=7", "y");
  EXPECT_NE(raw_->read_until("k=r;e=" + std::to_string(EPROTO)), "");
  EXPECT_NE(bridge_status(name("s")).find("\"malformed\":1"), std::string::npos);
  // What was held for it is there for others.
  raw_->publish("d.v1", "next", "1;k=c;s=800000", "x");
  EXPECT_NE(session_of("next"), "");
  expect_service();
}

// It may publish there, and who says so perhaps may not.
TEST_F(BridgeBounds, AnswersGoToNoNameOfTheBridge) {
  for (const std::string subject : {"far.v1", "c.v1", "$JS.API.INFO"}) {
    raw_->publish("d.v1", subject, "1;k=c;s=5", "steal");
    raw_->publish("d.v1", "after.that", "1;k=c;s=4", "next");
    const std::string said = raw_->read_until("MSG after.that ");
    EXPECT_NE(said, "");
    EXPECT_EQ(said.find("MSG " + subject + " "), std::string::npos) << said;
  }
  EXPECT_NE(bridge_status(name("s")).find("\"malformed\":3"), std::string::npos);
  expect_service();
}

TEST_F(BridgeBounds, NoNameOfTheBridgeIsASession) {
  auto channel = std::async(std::launch::async, [] { return send_to(name("far"), "x", 60); });
  answer_far("1;k=a", "c.v1");
  EXPECT_EQ(channel.get(), "!EPROTO");
  expect_service();
}

TEST_F(BridgeBounds, WhoKnowsTheSubjectOfOneCallKnowsThatOfNoOther) {
  const std::regex call("MSG far\\.v1 1 _INBOX\\.\\S+\\.c([0-9a-f]+);");
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < 3; ++i) {
    auto sent = std::async(std::launch::async, [] { return send_to(name("far"), "x", 1); });
    std::string all;
    std::smatch found;
    ASSERT_TRUE(comes_true([&] {
      all += raw_->read(5);
      return std::regex_search(all, found, call);
    }));
    numbers.push_back(std::stoull(found[1].str(), nullptr, 16));
    (void)sent.get();
  }
  constexpr std::uint64_t kNear = 1'000'000;
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const std::uint64_t apart = numbers[i] - numbers[i - 1];
    EXPECT_TRUE(apart > kNear && ~apart > kNear) << numbers[i - 1] << ' ' << numbers[i];
  }
}

TEST_F(BridgeBounds, TooManyCallsOfDoorsAreRefusedAndNeverAnsweredByNobody) {
  const std::string file = scratch_.write("few.toml", "[bridge]\nwaiting = 1\ndeath_bound = 60\n");
  const auto few = start_bridge(
      scratch_, name("few"),
      {"--config", file, "--nats", nats_->url(), "--import", "d.v1=door:" + scratch_.file("few")});
  std::atomic<int> refused{0};
  std::atomic<int> served{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&] {
      DoorClient door(scratch_.file("few"));
      for (int n = 0; n < 1500; ++n) {
        const std::string answer = door.call("x");
        if (answer == "!EAGAIN") {
          ++refused;
        } else if (answer == "x") {
          ++served;
        } else {
          ADD_FAILURE() << "'" << answer << "'";
          return;
        }
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_GT(refused, 0);
  EXPECT_GT(served, 0);
  EXPECT_NE(bridge_status(name("few")).find("\"errors\":" + std::to_string(refused) + ","),
            std::string::npos)
      << bridge_status(name("few"));
}

#if !defined(__SANITIZE_ADDRESS__)
TEST_F(BridgeBounds, ABridgeThatHasNoMemoryForMoreCallsServesOn) {
  constexpr int kCalls = 60;
  const Program little({"/bin/sh", "-c", "ulimit -v 2000000; exec \"$0\" \"$@\"", FARCALL_COMMAND,
                        "bridge", "--status-name", name("little"), "--nats", nats_->url(),
                        "--export", "channel:" + name("c") + "=little.v1"},
                       scratch_.file("little.log"));
  const auto serves = [&] {
    raw_->send("PUB little.v1 is.there 1\r\nx\r\n");
    return raw_->read(200).find("t=7\r\n\r\nx") != std::string::npos;
  };
  EXPECT_TRUE(comes_true(serves)) << little.said();
  for (int i = 0; i < kCalls; ++i)
    raw_->send("PUB little.v1 asleep." + std::to_string(i) + " 5\r\nsleep\r\n");
  EXPECT_NE(raw_->read_until("k=r;e=" + std::to_string(ENOBUFS)), "") << little.said();
  service_.reset();
  service_ = std::make_unique<Service>(scratch_.file("door"), name("c"));
  EXPECT_TRUE(comes_true(serves)) << little.said();
  expect_service();
}
#endif

TEST_F(BridgeBounds, ADeadlineHoldsBeforeARequestIsWhole) {
  raw_->publish("d.v1", "slow", "1;k=c;s=500000;d=1", "x");
  EXPECT_NE(raw_->read_until("k=r;e=" + std::to_string(ETIMEDOUT)), "");
  expect_service();
}

TEST_F(BridgeBounds, WhatIsBehindACallThatIsGivenUpIsServed) {
  raw_->publish("c.v1", "strand.1", "1;k=c;s=500000;z=1", "x");
  raw_->publish("c.v1", "strand.2", "1;k=c;s=1;z=1;m=100", "y");
  EXPECT_NE(raw_->read_until("MSG strand.2 "), "");
  EXPECT_NE(raw_->read_until("t=7\r\n\r\ny"), "");
  expect_service();
}

TEST_F(BridgeBounds, AnAnswerThatThereIsNoMemoryForIsRefused) {
  auto channel = std::async(std::launch::async, [] { return send_to(name("far"), "x", 60); });
  answer_far("1;k=r;s=2000000", "session.here");
  EXPECT_EQ(channel.get(), "!ENOBUFS");
  EXPECT_NE(raw_->read_until("k=x"), "") << "the far side is told";
  expect_service();
}

void BridgeBounds::hand_over_what_lingers(const std::string& channel, const std::string& expected) {
  UniqueFd socket = lingering(600);
  const int connection = ::farcall_name_open(channel.c_str());
  ASSERT_GT(connection, 0);
  std::atomic<bool> known{false};
  std::atomic<bool> stands{false};
  auto sent = std::async(std::launch::async, [&] {
    std::string room(std::size_t{1} << 20, '\0');
    // Descriptors that make the client known are not to be taken for that one.
    ::farcall_send(connection, "x", 1, room.data(), room.size());
    known = true;
    comes_true([&] { return stands.load(); }, 60s);
    const iovec word{.iov_base = room.data(), .iov_len = 1};
    const int number = socket.get();
    farcall_message message{};
    message.send = &word;
    message.send_count = 1;
    message.descriptors = &number;
    message.descriptor_count = 1;
    const int status = ::farcall_send_message(connection, &message);
    return status < 0 ? std::string(::strerrorname_np(errno)) : std::to_string(status);
  });
  EXPECT_TRUE(comes_true([&] { return known.load(); }));
  bridge_->kill(SIGSTOP);
  const int before = on_their_way_to(bridge_->pid());
  stands = true;
  EXPECT_TRUE(comes_true([&] { return on_their_way_to(bridge_->pid()) > before; }));
  socket.reset();
  bridge_->kill(SIGCONT);
  EXPECT_EQ(sent.get(), expected);
  ::farcall_disconnect(connection);
}

TEST_F(BridgeBounds, NoClientWaitsForWhatAnotherHasHandedOver) {
  for (int i = 0; i < 3; ++i) hand_over_what_lingers(name("r"), "EOPNOTSUPP");
  expect_service();
}

TEST_F(BridgeBounds, NoCallWaitsForWhatALocalServerHasHandedOver) {
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 3; ++i) sockets.push_back(lingering(600));
  service_.reset();
  service_ = std::make_unique<Service>(scratch_.file("door"), name("c"));  // which has them as well
  expect_service();
  for (UniqueFd& socket : sockets) {
    const std::string request = "fd " + std::to_string(socket.get());
    socket.reset();
    raw_->publish("d.v1", "handed.over", "1;k=c;s=" + std::to_string(request.size()), request);
    EXPECT_NE(raw_->read_until("k=r;e=" + std::to_string(EOPNOTSUPP)), "");
  }
  expect_service();
}

TEST_F(BridgeBounds, TheStatusWaitsForNothingThatSomebodyHasHandedOver) {
  for (int i = 0; i < 3; ++i) hand_over_what_lingers(name("s"), "0");
  EXPECT_NE(bridge_status(name("s")).find("\"connected\":true"), std::string::npos);
  expect_service();
}

}  // namespace
}  // namespace farcall::test
