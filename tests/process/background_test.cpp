// SPDX-License-Identifier: Apache-2.0
#include "process/background.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "door/child.hpp"
#include "door/lingering.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "process/exit_close.hpp"

namespace farcall::test {
namespace {

using door::test::eventually;

std::size_t background_threads() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;  // empty if it has just ended
    std::ifstream(entry.path() / "comm") >> name;
    if (name == "farcall-close") ++count;
  }
  return count;
}

// However many a burst of work has needed.
TEST(Background, FewThreadsStayForLittleWork) {
  constexpr int kUsers = 24;
  std::atomic<int> at_work{0};
  std::latch release(1);
  for (int user = 1; user <= kUsers; ++user)
    process::run_later(static_cast<uid_t>(user), [&] {
      ++at_work;
      release.wait();
      --at_work;
    });
  EXPECT_TRUE(eventually([&] { return at_work == kUsers; }));
  EXPECT_GE(background_threads(), kUsers);
  release.count_down();
  EXPECT_TRUE(eventually([&] {
    std::atomic<bool> done{false};
    process::run_later(1, [&] { done = true; });
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return at_work == 0 && background_threads() <= 3;
  })) << background_threads();
}

// Whoever comes while the one thread rests a moment before it looks again.
TEST(Background, NobodyWaitsForAnothersWork) {
  std::atomic<int> at_work{0};
  std::latch release(1);
  const auto work = [&] {
    ++at_work;
    release.wait();
    --at_work;
  };
  process::run_later(1, [] {});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (int user = 1; user <= 3; ++user) process::run_later(static_cast<uid_t>(user), work);
  EXPECT_TRUE(eventually([&] { return at_work == 3; })) << at_work;
  release.count_down();
  EXPECT_TRUE(eventually([&] { return at_work == 0; }));
}

// By what waits, however it came, and of nobody else.
TEST(Background, WhoSendsMoreThanIsClosedIsBehind) {
  std::latch release(1);
  std::atomic<int> at_work{0};
  for (std::size_t i = 0; i < process::kThreadsPerUser; ++i)
    process::run_later(1, [&] {
      ++at_work;
      release.wait();
    });
  EXPECT_TRUE(eventually([&] { return at_work == process::kThreadsPerUser; }));
  std::vector<UniqueFd> many;
  while (many.size() < 253) many.emplace_back(::dup(0));
  process::close_later(1, std::move(many));
  EXPECT_FALSE(process::behind(1));
  for (int i = 0; i < 3; ++i) process::close_later(1, UniqueFd(::dup(0)));
  EXPECT_TRUE(process::behind(1));
  EXPECT_TRUE(process::goes_on_flooding(1));
  EXPECT_THROW(process::run_later(1, [] {}), SystemError);
  EXPECT_FALSE(process::behind(2));
  bool resumed = false;
  process::catch_up(1, [&] {
    resumed = true;
    at_work = 0;
  });
  release.count_down();
  EXPECT_TRUE(eventually([&] { return at_work == 0; }));
  EXPECT_TRUE(resumed);
  EXPECT_TRUE(eventually([&] { return !process::behind(1); }));
}

// A socket, and in its queue one that waits for its peer when it is closed, for a minute.
UniqueFd with_what_lingers() {
  auto [here, there] = socket_pair();
  FdMessage message{.bytes = std::vector<std::byte>(1), .descriptors = {}};
  message.descriptors.push_back(door::test::lingering(60));
  send_fd_message(here.get(), message);
  return std::move(there);
}

TEST(Background, SocketsAreClosedWithoutWaitingForWhatLingersInThem) {
  std::list<process::PrivateFd> sockets;
  for (int i = 0; i < 2; ++i) sockets.emplace_back(with_what_lingers());
  const int number = sockets.front().get();
  EXPECT_TRUE(process::close_by_exit(sockets)) << "not on this system";
  EXPECT_TRUE(sockets.empty());
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(Background, NobodysWorkWaitsForWhatLingers) {
  for (std::size_t i = 0; i < 3 * process::kThreadsPerUser; ++i)
    process::close_later(1, with_what_lingers());
  std::atomic<bool> done{false};
  process::run_later(1, [&] { done = true; });
  EXPECT_TRUE(eventually([&] { return done.load(); }));
}

}  // namespace
}  // namespace farcall::test
