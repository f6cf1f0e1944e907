// SPDX-License-Identifier: Apache-2.0
#include "process/background.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/lingering.hpp"
#include "harness/sandbox.hpp"
#include "harness/silent_file.hpp"
#include "process/exit_close.hpp"

namespace farcall::test {
namespace {

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
      --at_work;
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
  std::atomic<bool> resumed{false};
  process::catch_up(1, [&] { resumed = true; });
  release.count_down();
  EXPECT_TRUE(eventually([&] { return resumed && at_work == 0; }));
  EXPECT_TRUE(eventually([&] { return !process::behind(1); }));
}

// Who works for them for ever leaves some for the others.
TEST(Background, OneUserHasFewThreads) {
  std::latch release(1);
  std::atomic<std::size_t> at_work{0};
  std::atomic<std::size_t> ended{0};
  constexpr std::size_t kWork = 3 * process::kThreadsPerUser;
  for (std::size_t i = 0; i < kWork; ++i)
    process::run_later(1, [&] {
      ++at_work;
      release.wait();
      --at_work;
      ++ended;
    });
  EXPECT_TRUE(eventually([&] { return at_work == process::kThreadsPerUser; }));
  // Whoever has done these has looked for more to do.
  for (uid_t user = 2; user < 12; ++user) {
    std::atomic<bool> done{false};
    process::run_later(user, [&] { done = true; });
    EXPECT_TRUE(eventually([&] { return done.load(); }));
  }
  EXPECT_EQ(at_work, process::kThreadsPerUser);
  release.count_down();
  EXPECT_TRUE(eventually([&] { return ended == kWork; }));
}

// Half of the threads are for those who have none yet.
TEST(Background, ManyUsersHaveOneThreadEachAndNotMoreThanThereAre) {
  constexpr int kAll = static_cast<int>(process::kThreadsForOthers);
  constexpr int kHalf = static_cast<int>(process::kBackgroundThreads / 2);
  constexpr int kUsers = kAll + 6;
  std::latch release(1);
  std::atomic<int> at_work{0};
  std::atomic<int> ended{0};
  std::array<std::atomic<int>, kUsers + 1> of{};
  const auto add = [&](int user) {
    process::catch_up(static_cast<uid_t>(user), [&, user] {
      ++of.at(static_cast<std::size_t>(user));
      ++at_work;
      release.wait();
      ++ended;
    });
  };
  for (int user = 1; user <= kHalf; ++user) add(user);
  EXPECT_TRUE(eventually([&] { return at_work == kHalf; }));
  constexpr int kNext = kHalf + 1;
  for (int i = 0; i < 2; ++i) add(kNext);
  EXPECT_TRUE(eventually([&] { return at_work > kHalf; }));
  for (int user = kNext + 1; user <= kUsers; ++user) add(user);
  EXPECT_TRUE(eventually([&] { return at_work >= kAll; }));
  EXPECT_FALSE(eventually([&] { return at_work > kAll; }, std::chrono::milliseconds(100)));
  EXPECT_EQ(of.at(kNext), 1);
  release.count_down();
  EXPECT_TRUE(eventually([&] { return ended == kUsers + 1; }));
}

// However many others there are whose work never ends.
TEST(Background, SomeThreadsAreLeftForWhatNobodysWorkMayHoldUp) {
  std::latch release(1);
  std::atomic<std::size_t> ended{0};
  constexpr std::size_t kUsers = process::kBackgroundThreads + 1;
  for (std::size_t i = 0; i < kUsers; ++i)
    process::catch_up(static_cast<uid_t>(1001 + i), [&] {
      release.wait();
      ++ended;
    });
  const auto is_done = [](auto add, std::chrono::milliseconds time = std::chrono::seconds(10)) {
    const auto done = std::make_shared<std::atomic<bool>>(false);
    add([done] { *done = true; });
    return eventually([&] { return done->load(); }, time);
  };
  EXPECT_FALSE(
      is_done([](auto work) { process::catch_up(2001, work); }, std::chrono::milliseconds(100)));
  EXPECT_TRUE(is_done([](auto work) { process::run_in_a_moment(work); }));
  EXPECT_TRUE(is_done([](auto work) { process::run_later(::geteuid(), work); }));
  EXPECT_TRUE(is_done([](auto work) { process::run_later(0, work); }));
  auto [here, there] = socket_pair();
  EXPECT_TRUE(process::close_turned_away(1, process::PrivateFd(std::move(there))));
  pollfd hung_up{.fd = here.get(), .events = 0, .revents = 0};
  EXPECT_EQ(::poll(&hung_up, 1, 10'000), 1);
  release.count_down();
  EXPECT_TRUE(eventually([&] { return ended == kUsers; }));
}

// Where a thread is at it, or nothing waits, it has been in vain after 5 ms. Where none has come to
// it, as on a busy machine, that says nothing.
TEST(Background, WhoWaitsForAClosingIsPatientWhileNoThreadHasComeToIt) {
  const auto waits = [](uid_t user) {
    process::CatchingUp catching_up(user);
    int count = 0;
    while (catching_up.wait()) ++count;
    return count;
  };
  EXPECT_EQ(waits(1), 5);
  std::latch release(1);
  std::atomic<std::size_t> at_work{0};
  const auto work = [&] {
    ++at_work;
    release.wait();
    --at_work;
  };
  for (std::size_t i = 0; i < process::kThreadsForOthers; ++i)
    process::catch_up(static_cast<uid_t>(1 + i), work);
  EXPECT_TRUE(eventually([&] { return at_work == process::kThreadsForOthers; }));
  constexpr uid_t kLast = 1000;
  std::atomic<bool> done{false};
  process::catch_up(kLast, [&] { done = true; });
  EXPECT_EQ(waits(1), 5);
  EXPECT_EQ(waits(kLast), 100);
  EXPECT_FALSE(done);
  release.count_down();
  EXPECT_TRUE(eventually([&] { return done && at_work == 0; }));
}

// The last thread sleeps for seconds before it ends.
TEST(Background, AThreadThatSleepsIsWokenByWork) {
  const std::int64_t start = monotonic_ns();
  for (int i = 0; i < 10; ++i) {
    std::atomic<bool> done{false};
    process::run_later(1, [&] { done = true; });
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  EXPECT_LT(monotonic_ns() - start, std::chrono::nanoseconds(std::chrono::seconds(12)).count());
}

// It has said that it sleeps, and that it does no more.
TEST(Background, WorkIsDoneAlsoWhenTheLastThreadHasEnded) {
  for (int i = 0; i < 2; ++i) {
    std::atomic<bool> done{false};
    process::run_later(1, [&] { done = true; });
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    EXPECT_TRUE(eventually([] { return background_threads() == 0; }));
  }
}

TEST(Background, WhatWorkThrowsIsDropped) {
  std::atomic<bool> done{false};
  process::run_later(1, [] { throw SystemError(EIO, "work"); });
  process::run_later(1, [&] { done = true; });
  EXPECT_TRUE(eventually([&] { return done.load(); }));
}

// Keeps a user's threads at work, so that what comes later waits.
class HeldUp {
 public:
  explicit HeldUp(uid_t user) {
    for (std::size_t i = 0; i < process::kThreadsPerUser; ++i)
      process::catch_up(user, [this] {
        ++at_work_;
        release_.wait();
        --at_work_;
      });
    EXPECT_TRUE(eventually([&] { return at_work_ == process::kThreadsPerUser; }));
  }
  HeldUp(const HeldUp&) = delete;
  HeldUp& operator=(const HeldUp&) = delete;
  ~HeldUp() {
    release_.count_down();
    EXPECT_TRUE(eventually([&] { return at_work_ == 0; }));
  }

 private:
  std::latch release_{1};
  std::atomic<std::size_t> at_work_{0};
};

void wait_until_done(uid_t user) {
  EXPECT_TRUE(eventually([&] { return !process::behind(user); }));
}

TEST(Background, WhereTheTableIsSmallLessMayWait) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  {
    const HeldUp threads(1);
    const rlimit small{.rlim_cur = 400, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
    for (int i = 0; i < 99; ++i) process::catch_up(1, [] {});
    EXPECT_FALSE(process::behind(1));
    process::catch_up(1, [] {});
    EXPECT_TRUE(process::behind(1)) << "a quarter of the table";
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  wait_until_done(1);
}

// All others together may have as much waiting as eight.
TEST(Background, WhereManyHaveSomethingEachMayHaveLess) {
  std::latch release(1);
  std::atomic<int> at_work{0};
  {
    const HeldUp threads(1);
    for (uid_t user = 2; user <= 16; ++user)
      process::catch_up(user, [&] {
        ++at_work;
        release.wait();
        --at_work;
      });
    EXPECT_TRUE(eventually([&] { return at_work == 15; }));
    for (int i = 0; i < 127; ++i) process::catch_up(1, [] {});
    EXPECT_FALSE(process::behind(1));
    process::catch_up(1, [] {});
    EXPECT_TRUE(process::behind(1)) << "a sixteenth of what eight may have";
    release.count_down();
    EXPECT_TRUE(eventually([&] { return at_work == 0; }));
  }
  wait_until_done(1);
}

TEST(Background, WhoIsHungUpOnIsToldBeforeTheSocketIsClosed) {
  auto [here, there] = socket_pair();
  {
    const HeldUp threads(1);
    process::hang_up_later(1, process::PrivateFd(std::move(here)));
    pollfd end{.fd = there.get(), .events = POLLRDHUP, .revents = 0};
    EXPECT_EQ(::poll(&end, 1, 0), 1);
  }
  wait_until_done(1);
}

// What they send faster than it is closed is closed where it comes, so nobody waits for that.
TEST(Background, ThisProcesssOwnUserIsBehindAndNotFlooding) {
  const uid_t own = ::geteuid();
  {
    const HeldUp threads(own);
    for (int i = 0; i < 256; ++i) process::catch_up(own, [] {});
    EXPECT_TRUE(process::behind(own));
    EXPECT_FALSE(process::is_flooding(own));
    EXPECT_FALSE(process::goes_on_flooding(own));
    const int number = ::dup(0);
    process::close_later(own, UniqueFd(number));
    EXPECT_EQ(::fcntl(number, F_GETFD), -1);
  }
  wait_until_done(own);
}

// Whoever sends one mostly has no hand on it any more, but its peer still keeps it.
TEST(Background, WhatLingersIsClosedWithoutWaiting) {
  for (std::size_t i = 0; i < process::kThreadsPerUser; ++i) process::close_later(1, lingering(60));
  std::atomic<bool> done{false};
  process::run_later(1, [&] { done = true; });
  EXPECT_TRUE(eventually([&] { return done.load(); }));
}

// A socket, and in its queue one that waits for its peer when it is closed, for a minute.
UniqueFd with_what_lingers() {
  auto [here, there] = socket_pair();
  FdMessage message{.bytes = std::vector<std::byte>(1), .descriptors = {}};
  message.descriptors.push_back(lingering(60));
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

// The kernel sends no more than 253 in one.
TEST(Background, SocketsThatNeedSeveralMessagesAreClosedElsewhere) {
  std::list<process::PrivateFd> sockets;
  while (sockets.size() < 300)
    sockets.emplace_back(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  ASSERT_TRUE(sockets.back()) << "this process may open fewer";
  const int last = sockets.back().get();
  EXPECT_TRUE(process::close_by_exit(sockets));
  EXPECT_TRUE(sockets.empty());
  EXPECT_EQ(::fcntl(last, F_GETFD), -1);
}

// A table for others to take them on begins as a copy of the lowest numbers, and is emptied first.
TEST(Background, AFileThatIsLongInClosingEndsNoClosingOfSockets) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (!is_root()) GTEST_SKIP() << "needs root, to mount";
  const Sandbox sandbox;
  const std::string path = sandbox.file("file");
  in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        farcall::test::serve_file(path, FUSE_FLUSH) != 0)
      return;  // no file systems of users here
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(file, 0) << std::strerror(errno);
    ASSERT_LT(file, 64);
    for (int i = 0; i < 6; ++i) {
      std::list<process::PrivateFd> sockets;
      sockets.emplace_back(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
      EXPECT_FALSE(process::close_by_exit(sockets));
      EXPECT_EQ(sockets.size(), 1U);
    }
    ::umount2(path.c_str(), MNT_FORCE);  // ends what its server has not answered
    EXPECT_TRUE(eventually([] {
      std::list<process::PrivateFd> sockets;
      sockets.emplace_back(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
      return process::close_by_exit(sockets);
    })) << "those who were held up have ended";
  });
}

// It waits to be closed in the parent; a child is not held up by it.
TEST(Background, AForkedChildDoesNotWaitForWhatIsLongInClosing) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (!is_root()) GTEST_SKIP() << "needs root, to mount";
  const Sandbox sandbox;
  const std::string path = sandbox.file("file");
  in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        farcall::test::serve_file(path, FUSE_FLUSH) != 0)
      return;  // no file systems of users here
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(file) << std::strerror(errno);
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int number = socket.get();
    const HeldUp held(1);
    process::close_later(1, std::move(file));
    process::close_later(1, std::move(socket));
    const auto [here, there] = socket_pair();
    Child child([&, &there = there] {
      EXPECT_EQ(::fcntl(number, F_GETFD), -1) << "what is quick is closed";
      EXPECT_EQ(::write(there.get(), "", 1), 1);
    });
    pollfd goes_on{.fd = here.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&goes_on, 1, static_cast<int>(kPatience.count())), 1);
    ::umount2(path.c_str(), MNT_FORCE);  // ends what its server has not answered
    EXPECT_EQ(child.join(), 0);
  });
}

// Who takes them on may have as many descriptors as this process, and tells where that is too few.
TEST(Background, SocketsThatHaveNoRoomElsewhereStayHere) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<UniqueFd> low;
  for (int i = 0; i < 8; ++i) low.emplace_back(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  int limit = 0;
  for (const UniqueFd& fd : low) limit = std::max(limit, fd.get() + 1);
  std::list<process::PrivateFd> sockets;
  std::vector<UniqueFd> others;
  while (sockets.size() < static_cast<std::size_t>(limit) + 8) {
    auto [here, there] = socket_pair();
    sockets.emplace_back(std::move(here));
    others.push_back(std::move(there));
  }
  const std::size_t all = sockets.size();
  low.clear();
  const rlimit small{.rlim_cur = static_cast<rlim_t>(limit), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  const bool closed = process::close_by_exit(sockets);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(closed);
  EXPECT_EQ(sockets.size(), all);
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
