// SPDX-License-Identifier: Apache-2.0
//
// farcall channel, as it is used from a shell.
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "farcall/memory.hpp"
#include "farcall/message.hpp"
#include "farcall/socket.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

constexpr std::size_t kMuch = std::size_t{17} << 20;

// Answers with what it got in front of "!"; "stay" it keeps for itself; of "much" it makes more.
class Server {
 public:
  Server() : name_("tool-" + std::to_string(::getpid())), channel_(name_) {
    thread_ = std::thread([this] {
      std::byte buffer[1000];
      while (!stop_) {
        set_message_timeout(std::chrono::milliseconds(20));
        try {
          ReceivedMessage message = channel_.receive(buffer);
          std::string text(reinterpret_cast<const char*>(buffer), message.info().received);
          if (message.is_pulse()) pulse_ = message.info().value;
          if (message.is_one_way()) ++one_way_;
          if (!message) continue;
          if (text == "stay") {
            kept_ = std::move(message);
            continue;
          }
          if (text == "fail") {
            message.error(EDOM);
            continue;
          }
          if (text == "much") text.assign(kMuch, 'm');
          text += "!";
          message.reply(std::as_bytes(std::span(text.data(), text.size())),
                        text == "status!" ? 7 : 0);
        } catch (const std::system_error& error) {
          EXPECT_TRUE(error.code().value() == ETIMEDOUT || error.code().value() == EINTR)
              << error.what();
        }
      }
    });
  }
  ~Server() {
    stop_ = true;
    thread_.join();
  }
  [[nodiscard]] const std::string& name() const { return name_; }
  std::atomic<std::int64_t> pulse_{0};
  std::atomic<int> one_way_{0};

 private:
  std::string name_;
  MessageChannel channel_;
  std::thread thread_;
  ReceivedMessage kept_;
  std::atomic<bool> stop_{false};
};

TEST(ChannelCommand, SendsAndPrintsTheReply) {
  const Server server;
  const Finished sent = run_farcall({"channel", "send", server.name(), "hello"});
  EXPECT_EQ(sent.code, 0) << sent.err;
  EXPECT_EQ(sent.out, "hello!");
}

TEST(ChannelCommand, PrintsALongReplyToItsEnd) {
  const Server server;
  const Finished sent = run_farcall({"channel", "send", server.name(), "much"});
  EXPECT_EQ(sent.code, 0) << sent.err;
  EXPECT_EQ(sent.out.size(), kMuch + 1);
  EXPECT_TRUE(sent.out.ends_with("m!"));
}

// Where there is no address space for the longest reply.
TEST(ChannelCommand, SaysThatAReplyMayHaveBeenCut) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  const Server server;
  const std::string send = "ulimit -v 200000; exec " FARCALL_COMMAND " channel send ";
  EXPECT_EQ(output_of(send + server.name() + " hello 2>&1"), "hello!");
  const std::string said = output_of("ulimit -v 50000; exec " FARCALL_COMMAND " channel send " +
                                     server.name() + " much 2>&1");
  EXPECT_NE(said.find("EMSGSIZE"), std::string::npos) << said.substr(0, 200);
}

TEST(ChannelCommand, SaysWhatWentWrong) {
  const Server server;
  const Finished failed = run_farcall({"channel", "send", server.name(), "fail"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_NE(failed.err.find("EDOM"), std::string::npos) << failed.err;
  const Finished status = run_farcall({"channel", "send", server.name(), "status"});
  EXPECT_EQ(status.code, 1);
  EXPECT_EQ(status.out, "status!");
  EXPECT_NE(status.err.find("7"), std::string::npos) << status.err;
  const Finished nobody = run_farcall({"channel", "send", "nobody-has-this-name", "x"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_NE(nobody.err.find("ENOENT"), std::string::npos) << nobody.err;
  const Finished late =
      run_farcall({"channel", "send", "--timeout", "0.05", server.name(), "stay"});
  EXPECT_EQ(late.code, 1);
  EXPECT_NE(late.err.find("ETIMEDOUT"), std::string::npos) << late.err;
}

TEST(ChannelCommand, WaitsForAnyNumberOfSeconds) {
  const Server server;
  for (const char* seconds : {"1e300", "9223372036.9"}) {
    const Finished sent =
        run_farcall({"channel", "send", "--timeout", seconds, server.name(), "hello"});
    EXPECT_EQ(sent.code, 0) << seconds << ": " << sent.err;
    EXPECT_EQ(sent.out, "hello!");
  }
}

TEST(ChannelCommand, SendsOneWayAndPulses) {
  const Server server;
  EXPECT_EQ(run_farcall({"channel", "send", "--one-way", server.name(), "x"}).code, 0);
  // The command has gone when the server has it, which counts it after that.
  EXPECT_TRUE(eventually([&] { return server.one_way_ == 1; }, 20s));
  EXPECT_EQ(run_farcall({"channel", "send", "--pulse", "3", "--value", "77", server.name()}).code,
            0);
  EXPECT_TRUE(eventually([&] { return server.pulse_ == 77; }, 20s));
}

TEST(ChannelCommand, ListsWhoServesAndWhoIsBlockedOnWhom) {
  const Server server;
  const Command blocked({"channel", "send", server.name(), "stay"});
  // Others are blocked as well, on servers of tests beside.
  const std::regex on_us("\n  reply-blocked .* on " + std::to_string(::getpid()) + "[,\n]");
  Finished listed;
  for (int i = 0; i < 500 && !std::regex_search(listed.out, on_us); ++i) {
    ::usleep(5000);
    listed = run_farcall({"channel", "list", "--threads"});
    ASSERT_EQ(listed.code, 0) << listed.err;
  }
  EXPECT_NE(listed.out.find("/" + server.name() + " "), std::string::npos) << listed.out;
  EXPECT_TRUE(std::regex_search(listed.out, on_us)) << listed.out;
}

// A name without a user is one's own, for who looks as for who opens.
TEST(ChannelCommand, StatFindsBothEndsByTheName) {
  const Server server;
  MessageConnection connection(server.name());
  std::byte reply[10];
  (void)connection.send(std::as_bytes(std::span("x", 1)), reply);
  const Finished stat = run_farcall({"stat", server.name(), "--interval", "0"});
  const std::string full = std::to_string(::geteuid()) + "/" + server.name();
  EXPECT_NE(stat.out.find("channel client of " + full), std::string::npos) << stat.out << stat.err;
  EXPECT_NE(stat.out.find("channel server of " + full), std::string::npos) << stat.out;
}

// Anybody may serve a name, and says of itself what it likes.
class Liar {
 public:
  explicit Liar(const std::string& says)
      : name_("\033[31mred-" + std::to_string(::getpid())),
        socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const AbstractAddress address("farcall/message-status/" + std::to_string(::geteuid()) + "/" +
                                  name_);
    EXPECT_EQ(::bind(socket_.get(), address.get(), address.size()), 0);
    EXPECT_EQ(::listen(socket_.get(), 16), 0);
    thread_ = std::thread([this, says] {
      for (;;) {
        const UniqueFd asks(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!asks) return;
        FdMessage answer;
        answer.bytes.resize(sizeof(int));
        UniqueFd file(::memfd_create("status", MFD_CLOEXEC));
        EXPECT_EQ(::write(file.get(), says.data(), says.size()), std::ssize(says));
        answer.descriptors.push_back(std::move(file));
        send_fd_message(asks.get(), answer);
      }
    });
  }
  Liar(const Liar&) = delete;
  Liar& operator=(const Liar&) = delete;
  ~Liar() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }

 private:
  std::string name_;
  UniqueFd socket_;
  std::thread thread_;
};

// Names of a user who answers for none.
class Silent {
 public:
  explicit Silent(unsigned names) : user_("4012345678") {
    for (unsigned i = 0; i < names; ++i) {
      const AbstractAddress address("farcall/message-status/" + user_ + "/silent-" +
                                    std::to_string(::getpid()) + "-" + std::to_string(i));
      sockets_.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::bind(sockets_.back().get(), address.get(), address.size()), 0);
      EXPECT_EQ(::listen(sockets_.back().get(), 16), 0);
    }
  }
  [[nodiscard]] const std::string& user() const { return user_; }

 private:
  const std::string user_;
  std::vector<UniqueFd> sockets_;
};

// Root may serve a name of any user.
TEST(ChannelCommand, AsksNobodyForLongWhoIsLongInAnswering) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be believed with another user's name";
  bool isolated = false;
  // A thread has a network of its own, so that whoever else lists channels does not see these
  // names.
  std::thread apart([&] {
    isolated = ::unshare(CLONE_NEWNET) == 0;
    if (!isolated) return;
    const Silent silent(6);
    const Finished listed = run_farcall({"channel", "list"});
    EXPECT_EQ(listed.code, 1);
    EXPECT_TRUE(std::regex_search(listed.out,
                                  std::regex("\n" + silent.user() + "/ +[456] more, not asked")))
        << listed.out;
  });
  apart.join();
  if (!isolated) GTEST_SKIP() << "this system permits no namespaces";
}

TEST(ChannelCommand, CountsOnlyStatesThatThereAre) {
  const Liar liar(
      "channel x engine shared\nsend-blocked 1 1 priority 9\nsend-blockaded 2 2 priority 9\n");
  const Finished listed = run_farcall({"channel", "list", "--threads"});
  EXPECT_EQ(listed.out.find("blockaded"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("\n  send-blocked    1 1 "), std::string::npos) << listed.out;
}

TEST(ChannelCommand, ListsNothingThatATerminalWouldObey) {
  const Liar liar("channel x engine \033[5mshared\nsend-blocked ../1 1 priority \033[7m9\n");
  const Finished listed = run_farcall({"channel", "list", "--threads"});
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_EQ((listed.out + listed.err).find('\033'), std::string::npos) << listed.out;
  const std::string us = "\\x1b[31mred-" + std::to_string(::getpid());
  EXPECT_NE(listed.out.find(us), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("\\x1b[5mshared"), std::string::npos) << listed.out;
}

}  // namespace
}  // namespace farcall::test
