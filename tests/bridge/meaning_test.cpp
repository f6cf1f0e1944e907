// SPDX-License-Identifier: Apache-2.0
//
// What a call means when it crosses machines: one test for each promise. Both bridges run here, on
// paths and names of their own.
#include "bridge/meaning.hpp"

#include <door.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "bridge/raw.hpp"
#include "farcall/doors.h"
#include "farcall/message.h"

namespace farcall::test {
namespace {

TEST_F(BridgeMeaning, DoorAndChannelAnswerAsIfTheirServerWereHere) {
  start_all();
  EXPECT_EQ(call("hello"), "hello");
  EXPECT_EQ(call(""), "");
  EXPECT_EQ(send("hello"), "7 hello") << "with the server's status";
  EXPECT_EQ(send("error"), "!EDOM");
  EXPECT_EQ(call("refuse"), "!EDOM");
  EXPECT_EQ(seen().caller, exporter_->pid()) << "the server sees the bridge";
}

TEST_F(BridgeMeaning, EveryoneGetsTheirOwnAnswer) {
  start_all();
  const int before = seen().calls;
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i)
    clients.emplace_back([&, i] {
      for (int n = 0; n < 50; ++n) {
        const std::string text = std::to_string(i) + ":" + std::to_string(n);
        const std::string answer = i % 2 == 0 ? call(text) : send(text).substr(2);
        if (answer == text) continue;
        if (++wrong < 5) ADD_FAILURE() << answer << " instead of " << text;
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0) << bridge_status(channel("importer")) << bridge_status(channel("exporter"));
  EXPECT_EQ(seen().calls - before, 800) << "each was served once";
}

TEST_F(BridgeMeaning, WhereNobodyServesACallIsRefusedAtOnce) {
  start_importer();
  EXPECT_EQ(call("x"), "!ECONNREFUSED") << "what ends by the bound is ECONNRESET";
  EXPECT_EQ(send("x"), "!ECONNREFUSED");
}

TEST_F(BridgeMeaning, AnExporterWithoutAServerRefuses) {
  start_exporter();
  start_importer();
  EXPECT_EQ(call("x"), "!ECONNREFUSED");
  start_service();
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; })) << "once there is one it serves";
  EXPECT_TRUE(comes_true([this] { return send("x") == "7 x"; }));
}

TEST_F(BridgeMeaning, AServerThatDiesInACallResetsIt) {
  start_all();
  EXPECT_EQ(call("die"), "!ECONNRESET");
  service_ = nullptr;
  start_service();
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; })) << "the next server is found";
  EXPECT_TRUE(comes_true([this] { return send("x") == "7 x"; }));
  EXPECT_EQ(send("die"), "!ECONNRESET");
}

TEST_F(BridgeMeaning, AnExporterThatDiesInACallResetsItWithinTheBound) {
  death_bound_ = "1";
  start_all();
  std::string door_result;
  std::string channel_result;
  std::thread by_door([&] { door_result = call("sleep"); });
  std::thread by_channel([&] { channel_result = send("sleep"); });
  EXPECT_TRUE(comes_true([this] { return seen().sleeping == 2; }));
  exporter_->kill(SIGKILL);
  by_door.join();
  by_channel.join();
  EXPECT_EQ(door_result, "!ECONNRESET");
  EXPECT_EQ(channel_result, "!ECONNRESET");
}

TEST_F(BridgeMeaning, ALongCallIsKeptAlive) {
  death_bound_ = "1";
  start_all();
  std::string answer;
  // Once more where a bridge has had no processor for that bound.
  for (int tries = 0; tries < 8 && answer != "nap 2500"; ++tries) answer = call("nap 2500");
  EXPECT_EQ(answer, "nap 2500") << "longer than the bound of 1 s";
}

TEST_F(BridgeMeaning, ALongCallIsKeptAliveForWhoIsLessPatient) {
  start_service();
  death_bound_ = "60";
  start_exporter();
  death_bound_ = "2";
  start_importer();
  ASSERT_TRUE(comes_true([this] { return call("x") == "x"; }));
  std::string answer;
  // Once more where a bridge has had no processor for that bound.
  for (int tries = 0; tries < 3 && answer != "nap 5000"; ++tries) answer = call("nap 5000");
  EXPECT_EQ(answer, "nap 5000");
}

TEST_F(BridgeMeaning, AFrozenExporterResetsCallsAndServesAgain) {
  death_bound_ = "1";
  start_all();
  exporter_->kill(SIGSTOP);
  EXPECT_EQ(call("x"), "!ECONNRESET");
  exporter_->kill(SIGCONT);
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; }));
}

TEST_F(BridgeMeaning, ADoorClientThatDiesIsToldToTheFarServer) {
  start_all();
  const std::string there = path("rdoor");
  const pid_t client = ::fork();
  if (client == 0) {
    call_door(there, "sleep");
    ::_exit(0);
  }
  EXPECT_TRUE(comes_true([this] { return seen().sleeping == 1; }));
  ::kill(client, SIGKILL);
  ::waitpid(client, nullptr, 0);
  EXPECT_TRUE(comes_true([this] { return seen().cancelled == 1; }));
  EXPECT_EQ(call("x"), "x");
}

TEST_F(BridgeMeaning, AChannelsClientThatGivesUpIsToldToTheFarServer) {
  start_all();
  ::signal(SIGUSR1, [](int) {});
  std::string answer;
  std::thread interrupted([&] { answer = send("sleep"); });
  EXPECT_TRUE(comes_true([this] { return seen().sleeping == 1; }));
  // Again where the far server had the request before this thread went to wait.
  EXPECT_TRUE(comes_true([&] {
    if (seen().cancelled == 0) ::pthread_kill(interrupted.native_handle(), SIGUSR1);
    return seen().cancelled == 1;
  }));
  interrupted.join();
  EXPECT_EQ(answer, "!EINTR") << "the answer of the server's to the unblock pulse";
  EXPECT_EQ(seen().cancelled, 1);
  const std::string there = channel("r");
  const pid_t client = ::fork();
  if (client == 0) {
    send_to(there, "sleep");
    ::_exit(0);
  }
  EXPECT_TRUE(comes_true([this] { return seen().sleeping == 2; }));
  ::kill(client, SIGKILL);
  ::waitpid(client, nullptr, 0);
  EXPECT_TRUE(comes_true([this] { return seen().cancelled == 2; }));
  EXPECT_EQ(send("x"), "7 x");
}

TEST_F(BridgeMeaning, AnImporterThatDiesIsToldToTheFarServer) {
  death_bound_ = "1";
  start_all();
  std::thread client([&] { (void)call("sleep"); });
  EXPECT_TRUE(comes_true([this] { return seen().sleeping == 1; }));
  importer_->kill(SIGKILL);
  client.join();
  EXPECT_TRUE(comes_true([this] { return seen().cancelled == 1; }));
}

TEST_F(BridgeMeaning, LongRequestsAndRepliesTravelInPieces) {
  start_all();
  std::string text(std::size_t{5} << 20, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 % 253);
  EXPECT_TRUE(call(text) == text);
  EXPECT_TRUE(send(text) == "7 " + text);
  const std::string most((std::size_t{64} << 20), 'y');
  EXPECT_TRUE(call(most) == most) << "64 MiB";
}

TEST_F(BridgeMeaning, ALongReplyOfAChannelIsWholeForThoseWhoAreNone) {
  start_all();
  const auto crossed = start_bridge(scratch_, channel("crossed"),
                                    with({"--import", "c.v1=door:" + path("crossed")}));
  for (const std::size_t bytes : {std::size_t{100'000}, std::size_t{3'000'000}})
    EXPECT_EQ(call_door(path("crossed"), "big " + std::to_string(bytes)).size(), bytes);
  const Raw raw(nats_->port());
  raw.send("PUB c.v1 answer.here 10\r\nbig 100000\r\n");
  EXPECT_NE(raw.read_until("k=r;s=100000;t=7"), "");
}

TEST_F(BridgeMeaning, WhoKnowsNothingOfBridgesHearsTheAnswerOnly) {
  start_all();
  const Raw raw(nats_->port());
  raw.send("PUB d.v1 answer.slow 7\r\nnap 300\r\n");
  const std::string said = raw.read_until("MSG answer.slow 1 7\r\nnap 300");
  EXPECT_NE(said, "");
  EXPECT_EQ(said.find("HMSG answer.slow"), std::string::npos) << said;
}

TEST_F(BridgeMeaning, WhatIsLongerThanAllowedIsRefused) {
  start_all();
  const int before = seen().calls;
  const std::string more((std::size_t{64} << 20) + 1, 'y');
  EXPECT_EQ(call(more), "!E2BIG");
  EXPECT_EQ(send(more), "!EMSGSIZE");
  EXPECT_EQ(seen().calls, before) << "nothing of it was served";
  EXPECT_EQ(call("big " + std::to_string(more.size())), "!E2BIG") << "a reply";
}

TEST_F(BridgeMeaning, DescriptorsAreRefusedInBothDirections) {
  start_all();
  EXPECT_EQ(call("fd"), "!EOPNOTSUPP");
  const int door = ::door_open(path("rdoor").c_str(), O_RDONLY | O_CLOEXEC);
  door_desc_t passed{};
  passed.d_attributes = DOOR_DESCRIPTOR;
  passed.d_data.d_desc.d_descriptor = 0;
  door_arg_t arguments{};
  arguments.desc_ptr = &passed;
  arguments.desc_num = 1;
  EXPECT_EQ(::door_call(door, &arguments), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ::close(door);
  const int connection = ::farcall_name_open(channel("r").c_str());
  const int stdin_descriptor = 0;
  farcall_message message{};
  message.descriptors = &stdin_descriptor;
  message.descriptor_count = 1;
  EXPECT_EQ(::farcall_send_message(connection, &message), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ::farcall_disconnect(connection);
  EXPECT_EQ(call("x"), "x");
}

TEST_F(BridgeMeaning, PriorityIsCarriedAlong) {
  start_all();
  if (::setpriority(PRIO_PROCESS, 0, -1) != 0) GTEST_SKIP() << "no permission to raise it";
  ::setpriority(PRIO_PROCESS, 0, 5);
  ::farcall_priority_changed();
  EXPECT_EQ(send("x"), "7 x");
  const int lower = seen().priority;
  ::setpriority(PRIO_PROCESS, 0, 0);
  ::farcall_priority_changed();
  EXPECT_EQ(send("x"), "7 x");
  EXPECT_EQ(lower, 15);
  EXPECT_EQ(seen().priority, 20);
}

TEST_F(BridgeMeaning, WithoutTheClusterCallsFailAndThenAreServedAgain) {
  connect_bound_ = "1";
  start_all();
  nats_->stop();
  // As soon as the importer knows.
  EXPECT_TRUE(comes_true([this] { return call("x") == "!ENETDOWN"; }));
  EXPECT_EQ(send("x"), "!ENETDOWN");
  nats_->start();
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; }, 30s)) << importer_->said();
  EXPECT_TRUE(comes_true([this] { return send("x") == "7 x"; }, 30s));
}

TEST_F(BridgeMeaning, OnlyCallsOfIdempotentNamesAreSentAgain) {
  start_service();
  start_exporter();
  const std::string text = "[nats]\nservers = [\"" + nats_->url() +
                           "\"]\n[bridge]\ndeath_bound = 0.5\n[[import]]\nsubject = \"d.v1\"\n"
                           "door = \"" +
                           path("again") +
                           "\"\nidempotent = true\nretries = 20\n"
                           "[[import]]\nsubject = \"d.v1\"\ndoor = \"" +
                           path("once") + "\"\n";
  importer_ = start_bridge(scratch_, channel("importer"),
                           {"--config", scratch_.write("bridge.toml", text)});
  ASSERT_TRUE(comes_true([this] { return call_door(path("once"), "x") == "x"; }))
      << importer_->said();
  exporter_->kill(SIGSTOP);
  std::string once;
  std::string again;
  std::thread first([&] { once = call_door(path("once"), "once"); });
  std::thread second([&] { again = call_door(path("again"), "again"); });
  first.join();
  EXPECT_EQ(once, "!ECONNRESET");
  exporter_->kill(SIGCONT);
  second.join();
  EXPECT_EQ(again, "again");
}

TEST_F(BridgeMeaning, ADeadlineOfTheNameEndsACallOnBothSides) {
  start_service();
  start_exporter();
  const std::string text = "[nats]\nservers = [\"" + nats_->url() +
                           "\"]\n[[import]]\nsubject = \"d.v1\"\ndeadline = 0.5\ndoor = \"" +
                           path("rdoor") + "\"\n";
  importer_ = start_bridge(scratch_, channel("importer"),
                           {"--config", scratch_.write("bridge.toml", text)});
  // A call that is over before it has come to the far server is not begun there.
  for (int tries = 0; tries < 20 && seen().sleeping == 0; ++tries)
    EXPECT_EQ(call("sleep"), "!ETIMEDOUT");
  EXPECT_GT(seen().sleeping, 0);
  EXPECT_TRUE(comes_true([this] { return seen().cancelled == seen().sleeping; }));
}

TEST_F(BridgeMeaning, ADeadlineOfTheNameHoldsWhileTheClusterIsAway) {
  start_service();
  start_exporter();
  const std::string text = "[nats]\nservers = [\"" + nats_->url() +
                           "\"]\n[bridge]\nconnect_bound = 20\n[[import]]\nsubject = \"d.v1\"\n"
                           "deadline = 0.3\ndoor = \"" +
                           path("rdoor") + "\"\n";
  importer_ = start_bridge(scratch_, channel("importer"),
                           {"--config", scratch_.write("bridge.toml", text)});
  nats_->stop();
  // As soon as the importer knows no call is published, and nothing but the deadline ends one.
  for (int i = 0; i < 5; ++i) {
    const std::string error = call("x");
    EXPECT_TRUE(error == "!ETIMEDOUT" || (i == 0 && error == "!ECONNRESET")) << error;
  }
}

TEST_F(BridgeMeaning, OnlyThoseOnTheListMayCall) {
  start_service();
  start_exporter();
  const std::string text = "[nats]\nservers = [\"" + nats_->url() +
                           "\"]\n[[import]]\nsubject = \"d.v1\"\nallow = [54321]\ndoor = \"" +
                           path("rdoor") +
                           "\"\n[[import]]\nsubject = \"c.v1\"\nallow = [54321]\n"
                           "channel = \"" +
                           channel("r") + "\"\n";
  importer_ = start_bridge(scratch_, channel("importer"),
                           {"--config", scratch_.write("bridge.toml", text)});
  EXPECT_EQ(call("x"), "!EACCES");
  EXPECT_EQ(send("x"), "!EACCES");
  EXPECT_EQ(seen().calls, 0);
}

TEST_F(BridgeMeaning, SeveralExportersAreOneService) {
  start_service();
  start_exporter();
  const auto second = std::make_unique<Service>(path("door2"), "");
  const auto exporter = start_bridge(scratch_, channel("exporter2"),
                                     with({"--export", "door:" + path("door2") + "=d.v1"}));
  start_importer();
  ASSERT_TRUE(comes_true([this] { return call("x") == "x"; }));
  for (int i = 0; i < 60; ++i) EXPECT_EQ(call("x"), "x");
  EXPECT_GT(seen().calls, 0);
  EXPECT_GT(second->seen().calls, 0);
  service_->kill(SIGKILL);  // what it has not seen is served by the other
  EXPECT_TRUE(comes_true([this] { return call("x") == "x"; }));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(call("x"), "x");
}

TEST_F(BridgeMeaning, ASlowCallDelaysNoOther) {
  death_bound_ = "1";
  start_all();
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 8; ++i) sleepers.emplace_back([&] { (void)call("sleep"); });
  EXPECT_TRUE(comes_true([this] { return seen().sleeping == 8; })) << seen().sleeping;
  EXPECT_EQ(call("x"), "x");
  exporter_->kill(SIGKILL);
  for (std::thread& sleeper : sleepers) sleeper.join();
}

TEST_F(BridgeMeaning, SignalsEndABridgeAndItsNames) {
  start_all();
  importer_->kill(SIGTERM);
  EXPECT_EQ(importer_->wait(), 0) << importer_->said();
  EXPECT_NE(::access(path("rdoor").c_str(), F_OK), 0) << "its file is gone";
  exporter_->kill(SIGINT);
  EXPECT_EQ(exporter_->wait(), 0) << exporter_->said();
  EXPECT_EQ(call_door(path(), "x"), "x") << "the local service goes on";
}

}  // namespace
}  // namespace farcall::test
