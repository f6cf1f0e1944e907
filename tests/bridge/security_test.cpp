// SPDX-License-Identifier: Apache-2.0
//
// What stands between a bridge and its cluster is said with its cause; who is let in serves.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bridge/harness.hpp"

namespace farcall::test {
namespace {

using Options = std::vector<std::string>;

std::string certificate(const std::string& name) {
  return std::string(FARCALL_CERTIFICATES) + "/" + name + ".pem";
}

// Made for these tests: an operator's NATS server, and credentials of its users and of others.
std::string credentials(const std::string& name) {
  return std::string(FARCALL_CREDENTIALS) + "/" + name;
}

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string own(const std::string& name) {
  return "bridge-security-" + name + "-" + std::to_string(::getpid());
}

std::string tls(const std::string& more = {}) {
  return "tls { cert_file: \"" + certificate("server") + "\"\n key_file: \"" +
         certificate("server-key") + "\"\n ca_file: \"" + certificate("ca") + "\"\n" + more + "}\n";
}

class BridgeSecurity : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_nats(); !reason.empty()) GTEST_SKIP() << reason;
  }
  // What the bridge says that does not come up.
  std::string refusal(Options options, int code = 1) {
    ::unlink(scratch_.file("rdoor").c_str());
    options.insert(options.end(),
                   {"--export", "door:" + scratch_.file("door") + "=d.v1", "--connect-bound", "10",
                    "--import", "e.v1=door:" + scratch_.file("rdoor")});
    const auto bridge = start_bridge(scratch_, own("refused"), options);
    EXPECT_EQ(bridge->wait(30s), code) << bridge->said();
    EXPECT_NE(::access(scratch_.file("rdoor").c_str(), F_OK), 0) << "nothing is half started";
    return bridge->said();
  }
  void expect_service(const Options& security) {
    const Service service(scratch_.file("door"), "");
    Options options = security;
    options.insert(options.end(), {"--death-bound", kSlow > 1 ? "40" : "8", "--export",
                                   "door:" + scratch_.file("door") + "=d.v1", "--import",
                                   "d.v1=door:" + scratch_.file("rdoor")});
    const auto bridge = start_bridge(scratch_, own("serves"), options);
    EXPECT_TRUE(comes_true([&] { return call_door(scratch_.file("rdoor"), "x") == "x"; }))
        << bridge->said();
    expect_long_calls();
    EXPECT_NE(bridge_status(own("serves")).find("\"reconnects\":0"), std::string::npos)
        << bridge_status(own("serves"));
  }
  // Of several at a time, in pieces, so that the socket is full at times; with pauses of pings
  // only.
  void expect_long_calls() {
    for (int round = 0; round < 2; ++round) {
      std::vector<std::thread> clients;
      for (int i = 0; i < 6; ++i)
        clients.emplace_back([this, i] {
          std::string request(static_cast<std::size_t>(3'000'000 + i), '\0');
          std::minstd_rand random(static_cast<unsigned>(i));
          for (char& each : request) each = static_cast<char>(random());
          const std::string answer = call_door(scratch_.file("rdoor"), request);
          EXPECT_TRUE(answer == request) << i << ' ' << answer.substr(0, 20);
        });
      for (std::thread& client : clients) client.join();
      if (round == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    }
  }
  ScratchDirectory scratch_;
};

void expect_says(const std::string& text, const std::string& what) {
  EXPECT_NE(text.find(what), std::string::npos) << text;
}

TEST_F(BridgeSecurity, TlsWithTheRightAuthorityServes) {
  const Nats nats(scratch_, tls());
  expect_service({"--nats", nats.url("tls"), "--tls-ca", certificate("ca")});
}

TEST_F(BridgeSecurity, TlsWithClientCertificatesServes) {
  const Nats nats(scratch_, tls("verify: true\n"));
  expect_service({"--nats", nats.url("tls"), "--tls-ca", certificate("ca"), "--tls-cert",
                  certificate("client"), "--tls-key", certificate("client-key")});
  expect_says(refusal({"--nats", nats.url("tls"), "--tls-ca", certificate("ca")}), "--tls-cert");
}

TEST_F(BridgeSecurity, ACertificateOfAnotherAuthorityIsRefused) {
  const Nats nats(scratch_, tls());
  const std::string said = refusal({"--nats", nats.url("tls"), "--tls-ca", certificate("other")});
  expect_says(said, "not signed by the authority in --tls-ca");
  expect_says(refusal({"--nats", nats.url("tls")}), "give the one that has in --tls-ca");
}

TEST_F(BridgeSecurity, ACertificateOfAnotherHostIsRefused) {
  const Nats nats(scratch_, tls(), {}, "127.0.0.2");
  expect_says(refusal({"--nats", nats.url("tls"), "--tls-ca", certificate("ca")}),
              "certificate is for another host: name in --nats the one that it is for");
}

TEST_F(BridgeSecurity, AServerThatWantsTlsIsNotSpokenToInClear) {
  const Nats nats(scratch_, tls());
  expect_says(refusal({"--nats", nats.url()}), "TLS");
}

TEST_F(BridgeSecurity, WrongCredentialsAreSaid) {
  const Nats nats(scratch_, "authorization { user: bridge, password: right }\n");
  expect_says(refusal({"--nats", nats.url(), "--user", "bridge", "--password", "wrong"}),
              "does not accept these credentials");
  expect_says(refusal({"--nats", nats.url()}), "does not accept these credentials");
  expect_service({"--nats", nats.url(), "--user", "bridge", "--password-file",
                  scratch_.write("password", "right\n")});
}

// What no other attempt would mend is a fault of the configuration.
TEST_F(BridgeSecurity, AFileThatCannotBeUsedIsSaidByName) {
  const std::string gone = scratch_.file("nothing");
  const std::string letter = scratch_.write("letter", "Dear server, let me in.\n");
  const Options server{"--nats", "nats://127.0.0.1:1"};
  const auto with = [&](const Options& more) {
    Options all = server;
    all.insert(all.end(), more.begin(), more.end());
    return refusal(all, 2);
  };
  for (const std::string option : {"--creds", "--tls-ca", "--password-file"}) {
    expect_says(with({option, gone}), "ENOENT");
    expect_says(with({option, scratch_.file("")}), "EISDIR");
  }
  const std::string key = certificate("client-key");
  expect_says(with({"--tls-cert", gone, "--tls-key", key}), "ENOENT");
  expect_says(with({"--tls-cert", certificate("client"), "--tls-key", gone}), "ENOENT");
  expect_says(with({"--tls-ca", letter}), "not a file of certificates");
  expect_says(with({"--tls-cert", letter, "--tls-key", key}), "not a certificate and its key");
  expect_says(with({"--password-file", "/dev/zero"}), "EFBIG");
}

TEST_F(BridgeSecurity, AUrlThatIsNoServersIsSaid) {
  for (const std::string url : {"http://127.0.0.1:1", "nats://", "nats://:1", "nats://a:b",
                                "nats://127.0.0.1:99999", "tls://127.0.0.1:0", ""})
    expect_says(refusal({"--nats", url}, 2), "'" + url + "' is no server of NATS");
  for (const std::string url : {"127.0.0.1:1", "nats://u:p@127.0.0.1:1", "nats://[::1]:1"})
    expect_says(refusal({"--nats", url}), "no NATS server answers there");
}

TEST_F(BridgeSecurity, SignedCredentialsServeAndThoseOfOthersAreRefused) {
  const Nats nats(scratch_, text_of(credentials("server.conf")));
  for (const std::string name : {"stranger.creds", "mixed.creds"})
    expect_says(refusal({"--nats", nats.url(), "--creds", credentials(name)}),
                "does not accept these credentials");
  expect_says(refusal({"--nats", nats.url()}), "does not accept these credentials");
  expect_service({"--nats", nats.url(), "--creds", credentials("bridge.creds")});
}

TEST_F(BridgeSecurity, AFileWithoutCredentialsIsSaidByName) {
  const Nats nats(scratch_, text_of(credentials("server.conf")));
  const std::string file = scratch_.write("letter", "Dear server, let me in.\n");
  const std::string said = refusal({"--nats", nats.url(), "--creds", file});
  expect_says(said, "the file of --creds cannot be used");
  expect_says(said, file);
}

TEST_F(BridgeSecurity, WhereNobodyListensIsSaid) {
  expect_says(refusal({"--nats", "nats://127.0.0.1:1"}), "no NATS server answers there");
}

TEST_F(BridgeSecurity, ForbiddenSubjectsAreSaidByName) {
  const std::string rules =
      "authorization { users: ["
      "{user: a, password: a, permissions: {subscribe: [\"_INBOX.>\"], publish: [\">\"]}},"
      "{user: b, password: b, permissions: {subscribe: [\">\"], publish: [\"_INBOX.>\"]}},"
      "{user: c, password: c, permissions: {subscribe: [\"d.v1\"], publish: [\">\"]}}]}\n";
  const Nats nats(scratch_, rules);
  const auto with = [&](const std::string& user) {
    return Options{"--nats", nats.url(), "--user", user, "--password", user};
  };
  std::string said = refusal(with("a"));
  expect_says(said, "Subscription to \"d.v1\"");
  expect_says(said, "permissions");
  expect_says(refusal(with("b")), "Publish to \"e.v1\"");
  expect_says(refusal(with("c")), "_INBOX.");
}

TEST_F(BridgeSecurity, CheckSaysWhatStartingWould) {
  const Nats nats(scratch_, "authorization { user: bridge, password: right }\n");
  const auto check = [&](const std::string& password) {
    Program program({FARCALL_COMMAND, "bridge", "--check", "--nats", nats.url(), "--user", "bridge",
                     "--password", password, "--export", "door:/nowhere=d.v1"},
                    scratch_.file("check"));
    const int code = program.wait();
    return std::to_string(code) + program.said();
  };
  // Again and again: a thread of the client library may still have something to tell at the end.
  for (int i = 0; i < 15; ++i) expect_says(check("right"), "0the configuration is right");
  expect_says(check("wrong"), "credentials");
}

TEST_F(BridgeSecurity, TheModeOfAnImportedDoorIsThatOfItsName) {
  const auto mode_of = [](const std::string& file) {
    struct stat status {};
    EXPECT_EQ(::stat(file.c_str(), &status), 0) << file;
    return status.st_mode & mode_t{0777};
  };
  const Nats nats(scratch_);
  const std::string path = scratch_.write("there", "");
  ::chmod(path.c_str(), 0666);
  const Service service(scratch_.file("taken"), "");
  ::chmod(scratch_.file("taken").c_str(), 0640);
  {
    const auto bridge = start_bridge(scratch_, own("mode"),
                                     {"--nats", nats.url(), "--import", "d.v1=door:" + path});
    EXPECT_EQ(bridge->wait(0s), -1) << bridge->said();
    EXPECT_EQ(mode_of(path), 0600U);
  }
  const int changes = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(::inotify_add_watch(changes, scratch_.file("taken").c_str(), IN_ATTRIB), 0);
  const auto second =
      start_bridge(scratch_, own("taken"),
                   {"--nats", nats.url(), "--import", "d.v1=door:" + scratch_.file("taken")});
  EXPECT_EQ(second->wait(30s), 1) << second->said();
  EXPECT_EQ(mode_of(scratch_.file("taken")), 0640U) << "somebody else's door stays as it was";
  inotify_event change{};
  EXPECT_EQ(::read(changes, &change, sizeof change), -1) << "at any moment";
  ::close(changes);
}

// It may be somebody else who has put the link there.
TEST_F(BridgeSecurity, TheModeOfAFileBehindALinkIsNotChanged) {
  const auto mode_of = [](const std::string& file) {
    struct stat status {};
    EXPECT_EQ(::stat(file.c_str(), &status), 0) << file;
    return status.st_mode & mode_t{0777};
  };
  const Nats nats(scratch_);
  const std::string file = scratch_.write("file", "");
  const std::string link = scratch_.file("link");
  ASSERT_EQ(::symlink(file.c_str(), link.c_str()), 0);
  const Options options{"--nats", nats.url(), "--import", "d.v1=door:" + link};
  ::chmod(file.c_str(), 0666);
  const auto refused = start_bridge(scratch_, own("link"), options);
  EXPECT_EQ(refused->wait(30s), 1) << refused->said();
  EXPECT_EQ(mode_of(file), 0666U);
  ::chmod(file.c_str(), 0600);
  const auto right = start_bridge(scratch_, own("right"), options);
  EXPECT_EQ(right->wait(0s), -1) << right->said();
}

TEST_F(BridgeSecurity, BoundsThatCannotBeAreRefusedInTheCommandLineToo) {
  for (const char* const option : {"--death-bound", "--connect-bound"})
    for (const char* const bound : {"0", "1e10", "inf", "nan"}) {
      Program program({FARCALL_COMMAND, "bridge", "--nats", "nats://127.0.0.1:1", "--export",
                       "door:/nowhere=d.v1", option, bound},
                      scratch_.file("bounds"));
      EXPECT_EQ(program.wait(60s), 2) << option << ' ' << bound << program.said();
    }
}

// Each bridge hears what is for it alone.
TEST_F(BridgeSecurity, BridgesWithInboxesOfTheirOwnServeEachOther) {
  const auto user = [](const std::string& name, const std::string& subscribe,
                       const std::string& publish) {
    return "{user: " + name + ", password: p, permissions: {subscribe: [\"_INBOX." + name + ".>\"" +
           subscribe + "], publish: [\"_INBOX.>\"" + publish + "]}}";
  };
  const Nats nats(scratch_, "authorization { users: [" + user("alpha", ", \"d.v1\"", "") + "," +
                                user("beta", "", ", \"d.v1\"") + "]}\n");
  const Service service(scratch_.file("door"), "");
  const auto start = [&](const std::string& name, const std::string& more) {
    const std::string text = "[nats]\nservers = [\"" + nats.url() + "\"]\nuser = \"" + name +
                             "\"\npassword = \"p\"\ninbox = \"_INBOX." + name + "\"\n" + more;
    return start_bridge(scratch_, own(name), {"--config", scratch_.write(name + ".toml", text)});
  };
  const auto exporter =
      start("alpha", "[[export]]\nsubject = \"d.v1\"\ndoor = \"" + scratch_.file("door") + "\"\n");
  const auto importer =
      start("beta", "[[import]]\nsubject = \"d.v1\"\ndoor = \"" + scratch_.file("rdoor") + "\"\n");
  const auto call = [&](const std::string& text) {
    return call_door(scratch_.file("rdoor"), text);
  };
  EXPECT_TRUE(comes_true([&] { return call("x") == "x"; })) << exporter->said() << importer->said();
  const std::string longer(1'000'000, 'l');
  EXPECT_TRUE(call(longer) == longer);
}

TEST_F(BridgeSecurity, TwoDomainsDoNotMeet) {
  const Nats nats(scratch_);
  const Service service(scratch_.file("door"), "");
  const auto exporter = start_bridge(scratch_, own("exporter"),
                                     {"--nats", nats.url(), "--domain", "prod", "--export",
                                      "door:" + scratch_.file("door") + "=d.v1"});
  const auto same = start_bridge(
      scratch_, own("same"),
      {"--nats", nats.url(), "--domain", "prod", "--import", "d.v1=door:" + scratch_.file("same")});
  const auto other = start_bridge(scratch_, own("other"),
                                  {"--nats", nats.url(), "--domain", "test", "--import",
                                   "d.v1=door:" + scratch_.file("other")});
  EXPECT_TRUE(comes_true([&] { return call_door(scratch_.file("same"), "x") == "x"; }));
  EXPECT_EQ(call_door(scratch_.file("other"), "x"), "!ECONNREFUSED");
}

}  // namespace
}  // namespace farcall::test
