// SPDX-License-Identifier: Apache-2.0
//
// The configuration: what is wrong is said with its file and line, and the header of bridges holds
// what it is given and refuses what cannot be.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <random>

#include "bridge/bridge.hpp"
#include "bridge/wire.hpp"

namespace farcall::bridge {
namespace {

class BridgeConfig : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "farcall-bridge-" + std::to_string(::getpid()) + ".toml";
  ~BridgeConfig() override { ::unlink(path_.c_str()); }
  Config read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_config(path_);
  }
  // What is said of it.
  std::string wrong(const std::string& text) {
    try {
      read(text);
    } catch (const BridgeError& error) {
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with(path_ + ":")) << what;
      return what.substr(path_.size() + 1);
    }
    return "nothing";
  }
};

TEST_F(BridgeConfig, HoldsAllThatTheCommandLineCanSay) {
  const Config config = read(
      "[nats]\nservers = [\"nats://a:4222\", \"tls://b:4222\"]\nuser = \"u\"\ntls_ca = "
      "\"/dev/null\"\n"
      "domain = \"prod\"\n[bridge]\ndeath_bound = 1.5\nconnect_bound = 3\nworkers = 7\n"
      "[[export]]\ndoor = \"/run/quote\"\nsubject = \"quote.v1\"\n"
      "[[import]]\nchannel = \"upper\"\nsubject = \"text.upper\"\nmode = 0o660\n"
      "idempotent = true\nretries = 2\ndeadline = 9\nallow = [0, \"root\", 1234]\n");
  EXPECT_EQ(config.servers.size(), 2U);
  EXPECT_EQ(config.user, "u");
  EXPECT_EQ(config.domain, "prod");
  EXPECT_EQ(config.death_bound_s, 1.5);
  EXPECT_EQ(config.connect_bound_s, 3);
  EXPECT_EQ(config.workers, 7U);
  ASSERT_EQ(config.names.size(), 2U);
  EXPECT_EQ(config.names[0].path, "/run/quote");
  EXPECT_EQ(config.names[0].direction, Direction::exported);
  EXPECT_EQ(config.names[1].mode, 0660U);
  EXPECT_TRUE(config.names[1].idempotent);
  EXPECT_EQ(config.names[1].allowed, (std::vector<uid_t>{0, 0, 1234}));
  validate(config);
}

TEST_F(BridgeConfig, SaysTheLineAndTheCure) {
  EXPECT_EQ(wrong("[nats]\nserver = \"x\"\n"),
            "2: 'server' is not known here; there are: servers, creds, user, password, "
            "password_file, tls_ca, tls_cert, tls_key, domain, inbox");
  EXPECT_TRUE(wrong("[nats]\nservers = \"x\"\n").starts_with("2: 'servers' is to be a list"));
  EXPECT_TRUE(wrong("[nats\n").starts_with("1: "));
  EXPECT_TRUE(wrong("[bridge]\n\ndeath_bound = -1\n").starts_with("3: 'death_bound'"));
  EXPECT_TRUE(wrong("[[export]]\ndoor = \"/x\"\n").starts_with("1: a name needs a 'subject'"));
  EXPECT_TRUE(wrong("[[export]]\nsubject = \"a\"\n").starts_with("1: a name needs either"));
  EXPECT_TRUE(wrong("\n[[import]]\nsubject = \"a b\"\ndoor = \"/x\"\n").starts_with("2: 'a b'"));
  EXPECT_TRUE(wrong("[[import]]\nsubject = \"a\"\ndoor = \"/x\"\nallow = [\"no such user\"]\n")
                  .starts_with("4: there is no user"));
}

TEST_F(BridgeConfig, WhatServesNobodyIsRefused) {
  for (const char* const key : {"workers", "waiting", "memory_mib"})
    EXPECT_TRUE(wrong("[bridge]\n" + std::string(key) + " = 0\n")
                    .starts_with("2: '" + std::string(key) + "' is to be between 1 and "));
  EXPECT_EQ(read("[[import]]\nsubject = \"a\"\ndoor = \"/x\"\nretries = 0\n").names[0].retries, 0U);
  Config config;
  config.servers = {"nats://a"};
  config.names = {exported_name("door:/x=a")};
  validate(config);
  for (double Config::*const bound : {&Config::death_bound_s, &Config::connect_bound_s})
    for (const double seconds : {0.0, -1.0, 1e10, std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()}) {
      Config other = config;
      other.*bound = seconds;
      EXPECT_THROW(validate(other), BridgeError) << seconds;
    }
}

TEST_F(BridgeConfig, AnInboxIsWordsOfASubject) {
  Config config = read("[nats]\ninbox = \"_INBOX.alpha\"\nservers = [\"nats://a\"]\n");
  EXPECT_EQ(config.inbox, "_INBOX.alpha");
  config.names = {exported_name("door:/x=a")};
  validate(config);
  for (const char* const inbox : {"", "_INBOX.*", "a b", "$SYS.a", "a..b"}) {
    config.inbox = inbox;
    EXPECT_THROW(validate(config), BridgeError) << inbox;
  }
}

TEST_F(BridgeConfig, SubjectsWithWildcardsAreRefused) {
  for (const char* const subject : {"a.*", ">", "a..b", ".a", "a.", "a b", "$SYS.a", "_INBOX.a"})
    EXPECT_THROW(
        {
          Config config;
          config.servers = {"nats://a"};
          config.names = {exported_name("door:/x=" + std::string(subject))};
          validate(config);
        },
        BridgeError)
        << subject;
}

// What is said of a file of that name.
std::string refused(const std::string& path) {
  try {
    read_config(path);
  } catch (const BridgeError& error) {
    return error.what();
  }
  return "nothing";
}

TEST_F(BridgeConfig, AFileThatCannotBeReadIsNoEmptyOne) {
  EXPECT_EQ(refused(testing::TempDir()), "cannot read " + testing::TempDir() + ": EISDIR");
  EXPECT_EQ(refused(path_), "cannot read " + path_ + ": ENOENT");
  EXPECT_EQ(refused("/dev/zero"), "cannot read /dev/zero: EFBIG");
  EXPECT_EQ(read_config("/dev/null").names.size(), 0U);
}

Config with(const std::vector<Name>& names) {
  Config config;
  config.servers = {"nats://a"};
  config.names = names;
  return config;
}

TEST_F(BridgeConfig, TheStatusIsToldByAChannelOfThisUsers) {
  Config config = with({exported_name("door:/x=a"), imported_name("b=channel:taken")});
  config.status = "";  // by none
  validate(config);
  for (const std::string& status : {std::string("a/b"), std::string("a b"), std::string("taken"),
                                    std::string("\x7f"), std::string(49, 'x')}) {
    config.status = status;
    EXPECT_THROW(validate(config), BridgeError) << status;
  }
}

TEST_F(BridgeConfig, ADoorIsImportedOnceHoweverItIsSpelled) {
  validate(with({imported_name("a=door:/x/p"), imported_name("a=door:/x/q")}));
  ASSERT_EQ(::symlink("/", path_.c_str()), 0);
  for (const std::string& other :
       {std::string("/x/./q"), std::string("/x//q"), std::string("/x/../x/q"), path_ + "/x/q"})
    EXPECT_THROW(validate(with({imported_name("a=door:/x/q"), imported_name("b=door:" + other)})),
                 BridgeError)
        << other;
}

// Its calls would go round, each in another thread, until there are no more.
TEST_F(BridgeConfig, ANameIsNotExportedAndImportedAsTheSameSubject) {
  const std::string own = std::to_string(::geteuid()) + "/c";
  EXPECT_THROW(validate(with({exported_name("door:/x/q=a"), imported_name("a=door:/x/./q")})),
               BridgeError);
  EXPECT_THROW(validate(with({imported_name("a=channel:c"), exported_name("channel:c=a")})),
               BridgeError);
  EXPECT_THROW(
      validate(with({imported_name("a=channel:c"), exported_name("channel:" + own + "=a")})),
      BridgeError);
  // Round through another name.
  EXPECT_THROW(validate(with({exported_name("door:/x/q=a"), imported_name("a=door:/x/p"),
                              exported_name("door:/x/p=b"), imported_name("b=door:/x/q")})),
               BridgeError);
  // One service of two machines, and one that is passed on.
  validate(with({exported_name("door:/x/q=a"), imported_name("a=door:/x/p")}));
  validate(with({exported_name("door:/x/q=a"), imported_name("b=door:/x/q")}));
  validate(with({exported_name("channel:other/c=a"), imported_name("a=channel:c")}));
}

TEST(BridgeNames, AreReadFromTheCommandLine) {
  const Name there = exported_name("door:/run/a=b=subject");
  EXPECT_EQ(there.path, "/run/a=b");
  EXPECT_EQ(there.subject, "subject");
  const Name here = imported_name("quote.v1=channel:upper");
  EXPECT_EQ(here.local, Local::channel);
  EXPECT_EQ(here.direction, Direction::imported);
  EXPECT_EQ(here.path, "upper");
  EXPECT_THROW(exported_name("quote.v1=door:/x"), BridgeError);
  EXPECT_THROW(imported_name("door:/x=quote.v1"), BridgeError);
  EXPECT_THROW(imported_name("nothing"), BridgeError);
}

TEST(BridgeHeader, HoldsWhatItIsGiven) {
  Header header{.kind = Kind::pulse};
  header.total = 1 << 20;
  header.priority = 30;
  header.code = 3;
  header.value = -77;
  header.caller.uid = 0;
  header.caller.pid = 4711;
  const auto back = parse(encode(header));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->kind, Kind::pulse);
  EXPECT_EQ(back->total, header.total);
  EXPECT_EQ(back->priority, 30);
  EXPECT_EQ(back->code, 3);
  EXPECT_EQ(back->value, -77);
  EXPECT_EQ(back->caller.uid, 0);
  EXPECT_EQ(back->caller.gid, -1) << "not told";
  EXPECT_EQ(back->caller.pid, 4711);
}

TEST(BridgeHeader, RefusesWhatCannotBe) {
  for (const char* const text :
       {"", "1", "1;k=", "2;k=c", "1;k=?", "1;k=c;s", "1;k=c;s=", "1;k=c;s=-1", "1;k=c;s=1x",
        "1;k=c;s=99999999999999999999", "1;k=c;e=-5", "1;k=c;e=100000", "1;k=c;;", "1;k=cc"})
    EXPECT_FALSE(parse(text)) << text;
  EXPECT_TRUE(parse("1;k=c;A=5")) << "a field of a later version is skipped";
}

TEST(BridgeHeader, SurvivesAnyBytes) {
  std::mt19937 random(1);
  const std::string seed = encode({.kind = Kind::call, .total = 5, .priority = 20});
  for (int i = 0; i < 200000; ++i) {
    std::string text = seed;
    for (unsigned n = random() % 4 + 1; n > 0; --n)
      text[random() % text.size()] = static_cast<char>(random());
    if (const auto header = parse(text)) {
      EXPECT_TRUE(header->error >= 0 && header->priority < 256);
    }
  }
}

}  // namespace
}  // namespace farcall::bridge
