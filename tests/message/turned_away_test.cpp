// SPDX-License-Identifier: Apache-2.0
//
// Those who are not let in, whose files are never closed here.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "harness/nothing_is_closed.hpp"
#include "message/channel.hpp"
#include "message/names.hpp"

namespace farcall::message::test {
namespace {

// Of no other test.
const uid_t kStranger = kNobody + 20'000;

// As many as are too many for a table of the usual size.
void connect_often(const std::string& name) {
  const AbstractAddress address(std::string(kOpenPrefix) + name);
  std::vector<UniqueFd> all;
  for (int i = 0; i < 600; ++i) {
    all.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // EAGAIN: more than may wait.
    for (int j = 0; j < 2'000; ++j) {
      if (::connect(all.back().get(), address.get(), address.size()) == 0 || errno != EAGAIN) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

TEST(StrangersWhoAreTurnedAway, CloseTheNameForNobody) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit usual{.rlim_cur = 1024, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  const std::string name = unique_name("turned-away");
  const int channel = farcall_name_attach(name.c_str(), 0, 0600);
  ASSERT_GE(channel, 0);
  {
    const NothingIsClosedOf stranger(std::array{kStranger});
    in_child([&] {
      ASSERT_TRUE(become(kStranger));
      connect_often("0/" + name);
    });
    in_child([&] { EXPECT_GE(farcall_name_open(name.c_str()), 0); });
  }
  farcall_channel_destroy(channel);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace farcall::message::test
