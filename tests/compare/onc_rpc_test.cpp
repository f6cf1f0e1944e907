// SPDX-License-Identifier: Apache-2.0
//
// The row of ONC RPC where something goes wrong: libtirpc's own words, and no waiting for nobody.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "compare/row.hpp"

namespace farcall::compare {
namespace {

class Echo final : public Service {
 public:
  explicit Echo(unsigned calls) : calls_(calls) {}
  bool answer(std::span<std::byte> message) override {
    for (std::byte& byte : message) byte ^= std::byte{0xff};
    return --calls_ != 0;
  }

 private:
  unsigned calls_;
};

class Refusing final : public Service {
 public:
  bool answer(std::span<std::byte>) override { throw SystemError(EIO, "not this one"); }
};

// What an exception says; empty if there is none.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// libtirpc keeps what it serves in the process, so each server has a process of its own.
class OncRpcRow : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);  // as the command does
    for (const auto& row : list_.rows)
      if (row->info().mechanism == "onc_rpc") row_ = row.get();
    if (row_ == nullptr) GTEST_SKIP() << "farcall was built without libtirpc";
    connection_ = row_->make({.message_bytes = 64, .depth_bytes = 0, .name = "farcall-test"});
  }
  void TearDown() override {
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
  }

  // `body` returns whether the child is content.
  void in_child(Role role, const std::function<bool(Endpoint&)>& body) {
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ != 0) return;
    bool content = false;
    const std::string error = error_of([&] {
      const auto end = connection_->open(role);
      content = body(*end);
    });
    ::_exit(content && error.empty() ? 0 : 1);
  }
  bool child_was_content() {
    int status = 0;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  RowList list_ = all_rows();
  const Row* row_ = nullptr;
  std::unique_ptr<Connection> connection_;
  pid_t child_ = -1;
};

TEST_F(OncRpcRow, ServesAgainAfterTheLastRequestOfAPhase) {
  in_child(Role::server, [](Endpoint& end) {
    std::array<std::byte, 64> message{};
    Echo two(2);
    end.serve(two, message);
    Echo one(1);
    end.serve(one, message);
    return true;
  });
  const auto client = connection_->open(Role::client);
  std::array<std::byte, 64> request{};
  for (int call = 0; call < 3; ++call) {
    request[63] = static_cast<std::byte>(call);
    std::array<std::byte, 64> reply{};
    client->round_trip(request, reply);
    EXPECT_EQ(reply[0], std::byte{0xff});
    EXPECT_EQ(reply[63], ~request[63]);
  }
  EXPECT_TRUE(child_was_content());
}

TEST_F(OncRpcRow, TellsTheServerThatItsClientHasGone) {
  in_child(Role::server, [](Endpoint& end) {
    std::array<std::byte, 64> message{};
    Echo many(1000);
    return error_of([&] { end.serve(many, message); }).find("closed") != std::string::npos;
  });
  connection_->open(Role::client).reset();
  EXPECT_TRUE(child_was_content());
}

TEST_F(OncRpcRow, TellsTheClientThatItsServerHasGone) {
  in_child(Role::server, [](Endpoint&) { return true; });
  const auto client = connection_->open(Role::client);
  EXPECT_TRUE(child_was_content());
  std::array<std::byte, 64> message{};
  const std::string error = error_of([&] { client->round_trip(message, message); });
  EXPECT_NE(error.find("RPC: "), std::string::npos) << error;
}

TEST_F(OncRpcRow, HandsOnTheErrorOfTheService) {
  in_child(Role::server, [](Endpoint& end) {
    std::array<std::byte, 64> message{};
    Refusing refusing;
    return error_of([&] { end.serve(refusing, message); }).find("not this one") !=
           std::string::npos;
  });
  const auto client = connection_->open(Role::client);
  std::array<std::byte, 64> message{};
  EXPECT_NE(error_of([&] { client->round_trip(message, message); }), "");
  EXPECT_TRUE(child_was_content());
}

TEST_F(OncRpcRow, RefusesARequestOfAnotherSize) {
  in_child(Role::server, [](Endpoint& end) {
    std::array<std::byte, 64> message{};
    Echo one(1);
    return error_of([&] { end.serve(one, message); }).find("EPROTO") != std::string::npos;
  });
  const auto client = connection_->open(Role::client);
  std::array<std::byte, 32> message{};
  EXPECT_NE(error_of([&] { client->round_trip(message, message); }), "");
  EXPECT_TRUE(child_was_content());
}

}  // namespace
}  // namespace farcall::compare
