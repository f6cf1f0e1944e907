// SPDX-License-Identifier: Apache-2.0
//
// Servers that act for a user, as a server of files does while it opens one, and become their own
// selves again: that user is a stranger all the time. Those that have wholly become a user are its.
#include <unistd.h>

#include "farcall/limits.h"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

struct MessageOwner : ::testing::Test {
  const uid_t user = kNobody;
  const std::string name = unique_name("owner");
  Shared<Event> ready;

  void SetUp() override {
    if (over_module()) GTEST_SKIP() << "the module is here";
    if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  }
  // A channel of root's, in a process that goes on as `go_on` has it.
  template <class GoOn>
  std::unique_ptr<Child> serve(mode_t mode, GoOn go_on) {
    auto server = std::make_unique<Child>([this, mode, go_on] {
      farcall_limits limits{};
      limits.size = sizeof limits;
      limits.bytes_per_user = std::size_t{1} << 20;
      ASSERT_EQ(farcall_limits_set(&limits), 0);
      const int channel = farcall_name_attach(name.c_str(), 0, mode);
      ASSERT_GT(channel, 0) << std::strerror(errno);
      ASSERT_EQ(go_on(), 0);
      ready->happens();
      const Echo echo(channel);
    });
    EXPECT_TRUE(ready->wait());
    return server;
  }
  // What the user gets who connects, and sends `size` bytes.
  int error_of_users_send(std::size_t size) {
    const Shared<std::atomic<int>> error;
    in_child([&] {
      ASSERT_TRUE(become(user));
      const int connection = farcall_name_open(("0/" + name).c_str());
      *error = connection < 0 ? errno : send(connection, std::string(size, 'x'), 0).error;
    });
    return *error;
  }
};

constexpr std::size_t kMore = std::size_t{4} << 20;

TEST_F(MessageOwner, OfAChannelIsWhoHasMadeIt) {
  const auto server = serve(0600, [this] { return ::seteuid(user); });
  EXPECT_EQ(error_of_users_send(1), EACCES);
}

TEST_F(MessageOwner, OfAChannelIsWhoHasMadeItForTheGroupToo) {
  const auto server = serve(0620, [this] { return ::setegid(user); });
  EXPECT_EQ(error_of_users_send(1), EACCES);
}

TEST_F(MessageOwner, OfAChannelIsNotWhoItsServerBecomes) {
  const auto server = serve(0600, [this] { return ::setresuid(user, user, user); });
  EXPECT_EQ(error_of_users_send(1), EACCES);
}

TEST_F(MessageOwner, OfAServerIsNotWhomItActsFor) {
  for (const bool real : {false, true}) {
    const auto server =
        serve(0622, [&] { return ::setresuid(real ? user : 0, user, real ? 0 : user); });
    EXPECT_EQ(error_of_users_send(1), 0);
    EXPECT_EQ(error_of_users_send(kMore), E2BIG) << real;
    server->kill();
  }
}

TEST_F(MessageOwner, OfAServerIsWhoItHasWhollyBecome) {
  const auto server = serve(0622, [this] { return ::setresuid(user, user, user); });
  EXPECT_EQ(error_of_users_send(kMore), 0);
}

}  // namespace
}  // namespace farcall::message::test
