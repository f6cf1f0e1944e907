// SPDX-License-Identifier: Apache-2.0
//
// What other users send a server and nobody has asked for.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <latch>
#include <thread>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "call/transfer.hpp"
#include "harness/lingering.hpp"
#include "process/background.hpp"

namespace farcall::call::test {
namespace {

// Keeps the threads busy that close what some users have sent.
class NothingIsClosedOf {
 public:
  explicit NothingIsClosedOf(std::span<const uid_t> users) {
    const std::size_t all = users.size() * process::kThreadsPerUser;
    for (std::size_t i = 0; i < all; ++i)
      process::catch_up(users[i % users.size()], [this] {
        ++at_work_;
        release_.wait();
        --at_work_;
      });
    EXPECT_TRUE(eventually([&] { return at_work_ == all; }));
  }
  NothingIsClosedOf(const NothingIsClosedOf&) = delete;
  NothingIsClosedOf& operator=(const NothingIsClosedOf&) = delete;
  ~NothingIsClosedOf() {
    release_.count_down();
    EXPECT_TRUE(eventually([&] { return at_work_ == 0; }));
  }

 private:
  std::latch release_{1};
  std::atomic<std::size_t> at_work_{0};
};

struct DescriptorsOfStrangers : ::testing::Test {
  static constexpr std::size_t kTable = 1024;
  // Of no other test.
  const uid_t kAnother = kNobody + 10'000;

  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
    if (kAddressSanitizer)
      GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit usual{.rlim_cur = kTable, .rlim_max = before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  }
  void TearDown() override {
    if (before_.rlim_cur != 0) ::setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
};

// Sends packets that are as large as may be, and mean nothing.
void send_rubbish(uid_t user, std::span<const int> sockets, std::uint8_t purpose) {
  in_child([&] {
    ASSERT_TRUE(become(user));
    const std::vector<int> many(kPacketDescriptors, STDERR_FILENO);
    for (const int socket : sockets) send_descriptors(socket, many, purpose);
  });
}

TEST_F(DescriptorsOfStrangers, TakeNoMoreThanHalfOfTheTableAltogether) {
  Server server;
  const auto endpoint = server.port.open_endpoint({}, {});
  const std::array<uid_t, 3> users{kNobody, kNobody + 1, kAnother};
  const UniqueFd for_all = endpoint->branch();
  const std::size_t before = open_descriptors();
  {
    const NothingIsClosedOf held(users);
    std::vector<UniqueFd> ways_in;
    for (const uid_t user : users) {
      ways_in.push_back(endpoint->branch({}, nullptr, {}, user));
      const int way_in = ways_in.back().get();
      send_rubbish(user, std::array{way_in, way_in}, kPurposeSession);
    }
    EXPECT_TRUE(eventually([&] { return open_descriptors() >= before + kPacketDescriptors; }));
    in_child([port = for_all.get(), user = kAnother + 1] {
      ASSERT_TRUE(become(user));
      Client client(port);
      EXPECT_EQ(ask(client, "still"), "still");
    });
    EXPECT_LE(open_descriptors(), before + kTable / 2);
  }
  EXPECT_TRUE(eventually([&] {
    return endpoint->unsolicited().descriptors > kPacketDescriptors &&
           open_descriptors() < before + 50;
  })) << "all is taken in the end";
}

// Each packet could bring more than a small table has: they are taken one after the other.
TEST_F(DescriptorsOfStrangers, ThatAreFewAreAllTakenByASmallTable) {
  rlimit small{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &small), 0);
  small.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  Server server(echo, 4);
  const int port = server.port.descriptor();
  std::vector<std::unique_ptr<Child>> clients;
  for (uid_t i = 0; i < 4; ++i)
    clients.push_back(std::make_unique<Child>([&] {
      ASSERT_TRUE(become(kNobody + 2 * i));
      Client client(port);
      const std::array two{STDERR_FILENO, STDERR_FILENO};
      for (int j = 0; j < 200; ++j) {
        std::array<std::byte, 4> buffer{};
        CallResults results;
        results.buffer = buffer;
        CallArguments arguments;
        arguments.data = buffer;
        arguments.descriptors = two;
        ASSERT_EQ(error_of([&] {
                    EXPECT_EQ(client.call(arguments, results, Deadline::after(2 * kPatience)),
                              Outcome::ok);
                  }),
                  0);
      }
    }));
  for (const auto& client : clients) EXPECT_EQ(client->join(), 0);
}

}  // namespace
}  // namespace farcall::call::test
