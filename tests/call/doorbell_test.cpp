// SPDX-License-Identifier: Apache-2.0
//
// Doorbells that cost the server much.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include "call/raw.hpp"
#include "call/server.hpp"

namespace farcall::call::test {
namespace {

// Threads of a client that wait at the socket where it is rung, each many times over. The kernel
// looks at all of them for each doorbell.
class Crowd {
 public:
  explicit Crowd(int socket) : socket_(socket) {
    for (std::size_t i = 0; i < kThreads; ++i)
      threads_.emplace_back([this] {
        std::vector<pollfd> all(kEach, pollfd{.fd = socket_, .events = POLLPRI, .revents = 0});
        ++about_to_wait_;
        ::poll(all.data(), all.size(), -1);
      });
    EXPECT_TRUE(eventually([this] { return about_to_wait_ == kThreads; }));
    std::this_thread::sleep_for(50ms);
  }
  ~Crowd() {
    ::shutdown(socket_, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

 private:
  static constexpr std::size_t kThreads = 32;
  static constexpr std::size_t kEach = 1000;

  const int socket_;
  std::atomic<std::size_t> about_to_wait_{0};
  std::vector<std::thread> threads_;
};

// Asks, as one that sleeps at its socket, until it is turned out; at most so many times.
std::uint32_t calls_until_turned_out(const RawSession& session, std::uint32_t most) {
  std::uint32_t number = 0;
  while (number < most && !session.ended()) {
    session.control().client.parked = WaitState::kOnDescriptor;
    session.give(Kind::request, ++number, 5);
    EXPECT_TRUE(eventually([&] { return session.answered(number, 0ms) || session.ended(); }));
    char rings[64];
    while (::recv(session.answers.get(), rings, sizeof rings, MSG_DONTWAIT) > 0) {
    }
  }
  return number;
}

constexpr std::uint32_t kMost = 500;

// Of a client of another user: this one's own processes may cost it what they like.
TEST(Doorbell, ThatCostsTheServerMuchEndsTheSession) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Server server;
  Client other(server.port.descriptor());
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    RawSession session(port);
    ASSERT_TRUE(session.welcome());
    const Crowd crowd(session.answers.get());
    EXPECT_LT(calls_until_turned_out(session, kMost), kMost);
  });
  EXPECT_EQ(ask(other, "there?"), "there?");
}

TEST(Doorbell, ThatCostsLittleEndsNoSession) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Server server;
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    RawSession alone(port);
    ASSERT_TRUE(alone.welcome());
    EXPECT_EQ(calls_until_turned_out(alone, kMost), kMost);
  });
}

}  // namespace
}  // namespace farcall::call::test
